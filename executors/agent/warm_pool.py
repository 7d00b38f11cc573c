"""Spare supervisors: processes that have run a job and can run another.

A fork of the agent is cheap until both sides write to the memory that they share: each page is copied then, thousands
for each job, which costs more than most of what a short task does. Jobs that follow one another can therefore share a
supervisor, as they do in Airflow's LocalExecutor. Only a job that has succeeded and left nothing behind hands its
supervisor on.

Each supervisor has a line to the agent that forked it. When that agent is gone the line is closed, and a supervisor
ends when its job has: the next agent never has to find out which of several jobs a process runs.
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
    """A job whose envelope is in its folder, on its way to the process that shall run it.

    :param devices: the share of each GPU that it has
    :param gpu_site: whether the machine has GPUs to be handed out
    :param scratch: the folder in which it has one of its own; empty: the machine's folder for temporary files
    :param keep_failed: seconds for which that is kept when it fails
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
        """Signal to the agent that this process can run another job; returns whether there is an agent."""
        try:
            return self._end.send(READY) > 0
        except OSError:
            return False

    def wait(self) -> HandedOverJob | None:
        """The next job; None: there is none, and none will come."""
        try:
            self._end.settimeout(PATIENCE)
            try:
                message = self._end.recv(LONGEST_ORDER)
            except TimeoutError:
                self._end.shutdown(socket.SHUT_RD)  # what the agent sends from now on fails; what it has sent counts
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
        """Keep the line to a process that was just forked."""
        self._lines[pid] = end

    def forget(self, pid: int) -> None:
        """A process has ended."""
        self._ready.discard(pid)
        if (end := self._lines.pop(pid, None)) is not None:
            end.close()

    @property
    def pids(self) -> Collection[int]:
        """All supervisors, with a job or without."""
        return self._lines.keys()

    def hang_up(self) -> None:
        """Let go of all lines in a process that was just forked, else no supervisor would see the end of the agent."""
        for end in self._lines.values():
            end.close()

    def give(self, assignment: HandedOverJob, busy: Collection[int]) -> int | None:
        """Give a job to a supervisor that has none; its pid, None when there is none.

        :param busy: the pids of those of which it has not been noticed that their job has ended
        """
        self._listen()
        for pid in list(self._ready - set(busy)):
            self._ready.discard(pid)
            try:
                self._lines[pid].send(json.dumps(asdict(assignment)).encode())
            except OSError:  # it has lost its patience
                continue
            return pid
        return None

    def _listen(self) -> None:
        for pid, end in self._lines.items():
            with contextlib.suppress(OSError):  # no signal yet, or it is gone, which its end of the line shows
                if end.recv(1, socket.MSG_DONTWAIT) == READY:
                    self._ready.add(pid)


def make_line() -> tuple[socket.socket, SupervisorLine]:
    """A new line: the agent's end and the supervisor's."""
    agents, supervisors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return agents, SupervisorLine(supervisors)
