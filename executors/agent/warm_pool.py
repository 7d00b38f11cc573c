"""Spare supervisors: processes that have run a job and can run another.

A fork of the agent is cheap until both sides write to the memory that they share. Each page is then copied, thousands
for each job, which costs more than most of a short task's work. Therefore successive jobs can share a supervisor, as in
Airflow's LocalExecutor, provided that each has succeeded and left nothing behind.

Each supervisor has a line to the agent that forked it. When that agent is gone, the line is closed, and a supervisor
exits after its job: the next agent never has to find out which of several jobs a process runs.

The task's process uses the line once, to let the agent measure its memory. It has made itself undumpable, so that of
the processes without root's rights, only itself can open its ``/proc/self/smaps``. The kernel checks this only when the
file is opened, so the agent can read through the descriptor that it is sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from lading.scheduling.model.light_dataclasses import as_dict, dataclass, field

if TYPE_CHECKING:
    import socket

# How long an idle supervisor waits for a job, seconds.
PATIENCE = 5.0

READY = b"."


@dataclass(frozen=True, slots=True)
class HandedOverJob:
    """A job whose envelope is in its folder, handed over to the process that will run it.

    :param devices: the job's share of each GPU
    :param gpu_site: whether the machine has GPUs for jobs
    :param scratch: the parent of its scratch folder; empty: the machine's folder for temporary files
    :param keep_failed: for how many seconds its folder is kept if it fails
    """

    token: str
    devices: Mapping[str, float] = field(default_factory=dict)
    gpu_site: bool = False
    scratch: str = ""
    keep_failed: float = 0.0


class SupervisorLine:
    """A supervisor's end of its line."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    def announce(self) -> bool:
        """Tell the agent that this process can run another job; returns whether the agent is still alive."""
        try:
            return self._end.send(READY) > 0
        except OSError:
            return False

    def show_memory(self) -> None:
        """Let the agent read this process's ``/proc/self/smaps``; call it in a process that the supervisor has forked.

        It also closes the line in this process. Processes that this one forks therefore show nothing.
        """
        import array
        import socket  # imported late: a batch job whose task is a command has no line

        with contextlib.suppress(OSError), open("/proc/self/smaps", "rb") as smaps:
            descriptors = array.array("i", [smaps.fileno()])
            rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)
            self._end.sendmsg([str(os.getpid()).encode()], [rights], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        self._end.close()

    def wait(self) -> HandedOverJob | None:
        """Wait for the next job; None: no job will come."""
        import socket

        try:
            self._end.settimeout(PATIENCE)
            try:
                message = self._end.recv(65536)
            except TimeoutError:
                self._end.shutdown(socket.SHUT_RD)  # the agent's later sends fail; a job sent before still counts
                message = self._end.recv(65536)
        except OSError:
            return None
        return HandedOverJob(**json.loads(message)) if message else None


class SupervisorLines:
    """The agent's ends of the lines to all supervisors that it has forked."""

    def __init__(self) -> None:
        self._lines: dict[int, socket.socket] = {}
        self._ready: set[int] = set()
        # By the pid of the supervisor: the pid of its last task's process, and a descriptor of that process's smaps.
        self._smaps: dict[int, tuple[int, int]] = {}

    def add(self, pid: int, end: socket.socket) -> None:
        self._lines[pid] = end

    def forget(self, pid: int) -> None:
        self._ready.discard(pid)
        self._close_smaps(pid)
        if (end := self._lines.pop(pid, None)) is not None:
            end.close()

    @property
    def pids(self) -> Collection[int]:
        return self._lines.keys()

    def hang_up(self) -> None:
        """Close all lines in a newly forked process; otherwise, supervisors would not notice the agent's end."""
        for pid in list(self._lines):
            self.forget(pid)

    def smaps(self, supervisor: int, pid: int) -> int | None:
        """Return a descriptor of the smaps of a process that the supervisor has forked; None: it has shown none."""
        self._listen(supervisor)
        task, descriptor = self._smaps.get(supervisor, (None, None))
        return descriptor if task == pid else None

    def give(self, assignment: HandedOverJob, busy: Collection[int]) -> int | None:
        """Give a job to a spare supervisor; returns its pid, or None if there is no spare one.

        :param busy: pids of supervisors whose last job has not been collected yet
        """
        for pid in self._lines:
            self._listen(pid)
        for pid in list(self._ready - set(busy)):
            self._ready.discard(pid)
            try:
                self._lines[pid].send(json.dumps(as_dict(assignment)).encode())
            except OSError:  # it has stopped waiting
                continue
            return pid
        return None

    def _listen(self, pid: int) -> None:
        if (end := self._lines.get(pid)) is None:
            return
        import array
        import socket

        of_one = socket.CMSG_LEN(array.array("i").itemsize)
        with contextlib.suppress(OSError):  # nothing to read yet, or the supervisor is gone
            while True:
                flags = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
                message, rights, _, _ = end.recvmsg(32, of_one, flags)  # READY, or a pid
                if not message:
                    break
                if message == READY:
                    self._ready.add(pid)
                elif rights:
                    self._close_smaps(pid)
                    self._smaps[pid] = int(message), int.from_bytes(rights[0][2], sys.byteorder)

    def _close_smaps(self, pid: int) -> None:
        if (shown := self._smaps.pop(pid, None)) is not None:
            os.close(shown[1])


def make_line() -> tuple[socket.socket, SupervisorLine]:
    """Return the two ends of a new line: the agent's and the supervisor's."""
    import socket

    agents, supervisors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return agents, SupervisorLine(supervisors)
