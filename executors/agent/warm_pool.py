"""Spare supervisors: processes that have run a job and can run another.

A fork of the agent is cheap until both sides write to the memory that they share. Each page is then copied, thousands
for each job, which costs more than most of a short task's work. Therefore successive jobs can share a supervisor, as in
Airflow's LocalExecutor, provided that each has succeeded and left nothing behind.

Each supervisor has a line to the agent that forked it. When that agent is gone, the line is closed, and a supervisor
exits after its job: the next agent never has to find out which of several jobs a process runs.
"""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field

# How long an idle supervisor waits for a job, seconds.
PATIENCE = 5.0
# The most jobs that a supervisor runs, because of what libraries leak.
MOST_JOBS = 100

READY = b"."
LONGEST_ORDER = 65536


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

    def wait(self) -> HandedOverJob | None:
        """Wait for the next job; None: no job will come."""
        try:
            self._end.settimeout(PATIENCE)
            try:
                message = self._end.recv(LONGEST_ORDER)
            except TimeoutError:
                self._end.shutdown(socket.SHUT_RD)  # the agent's later sends fail; a job sent before still counts
                message = self._end.recv(LONGEST_ORDER)
        except OSError:
            return None
        return HandedOverJob(**json.loads(message)) if message else None


class SupervisorLines:
    """The agent's ends of the lines to all supervisors that it has forked."""

    def __init__(self) -> None:
        self._lines: dict[int, socket.socket] = {}
        self._ready: set[int] = set()

    def add(self, pid: int, end: socket.socket) -> None:
        self._lines[pid] = end

    def forget(self, pid: int) -> None:
        self._ready.discard(pid)
        if (end := self._lines.pop(pid, None)) is not None:
            end.close()

    @property
    def pids(self) -> Collection[int]:
        return self._lines.keys()

    def hang_up(self) -> None:
        """Close all lines in a newly forked process; otherwise, supervisors would not notice the agent's end."""
        for end in self._lines.values():
            end.close()

    def give(self, assignment: HandedOverJob, busy: Collection[int]) -> int | None:
        """Give a job to a spare supervisor; returns its pid, or None if there is no spare one.

        :param busy: pids of supervisors whose last job has not been collected yet
        """
        self._listen()
        for pid in list(self._ready - set(busy)):
            self._ready.discard(pid)
            try:
                self._lines[pid].send(json.dumps(asdict(assignment)).encode())
            except OSError:  # it has stopped waiting
                continue
            return pid
        return None

    def _listen(self) -> None:
        for pid, end in self._lines.items():
            with contextlib.suppress(OSError):  # nothing to read yet, or the supervisor is gone
                if end.recv(1, socket.MSG_DONTWAIT) == READY:
                    self._ready.add(pid)


def make_line() -> tuple[socket.socket, SupervisorLine]:
    """Return the two ends of a new line: the agent's and the supervisor's."""
    agents, supervisors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return agents, SupervisorLine(supervisors)
