"""The process tree of a job, read from /proc (Linux): its processes, its use of memory, its end.

The root of a job's tree is its supervisor. It is a session leader, and it adopts orphans (PR_SET_CHILD_SUBREAPER), so
whatever a job starts stays below it while it lives. After its death what is left is found by session, by descent and
by the environment variable :data:`MARK`, which a child process inherits unless it clears its environment.

A process is a pid together with its start in clock ticks after boot, which guards against pids that are used again.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

MARK = "LADING_JOB"  # the token of the job, in the environment of all its processes

PAGE = resource.getpagesize()
MIB = 2**20
FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC, linux/sched.h
PR_SET_CHILD_SUBREAPER = 36

# A tree that forks while it is being killed needs several rounds; should one outrun these, the caller tries again.
KILL_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc/pid/stat shows it, proc_pid_stat(5).

    :param started: clock ticks after boot
    :param resident: all memory in RAM, also what is shared, in bytes
    """

    pid: int
    parent: int
    session: int
    state: str
    flags: int
    started: int
    resident: int

    @classmethod
    def read(cls, pid: int) -> Process | None:
        """The process, None when there is none of this pid."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as stream:
                stat = stream.read()
        except OSError:
            return None
        # The name, in parentheses, may hold blanks and parentheses itself.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return cls(
            pid,
            int(fields[1]),
            int(fields[3]),
            fields[0].decode(),
            int(fields[6]),
            int(fields[19]),
            int(fields[21]) * PAGE,
        )

    @property
    def alive(self) -> bool:
        """Whether it still has memory and can run: a zombie only waits for its parent."""
        return self.state not in "ZX"

    @property
    def forked_without_exec(self) -> bool:
        return bool(self.flags & FORKED_WITHOUT_EXEC)

    def send(self, number: int) -> None:
        """Send a signal, unless the pid belongs to another process by now."""
        now = Process.read(self.pid)
        if now is not None and now.started == self.started:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def adopt_orphans() -> None:
    """Make orphaned descendants children of this process instead of process 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")


def tree(root: int) -> list[Process]:
    """A living process and all its descendants, parents first; empty when it is gone."""
    processes = []
    pids = [root]
    while pids:
        process = Process.read(pids.pop())
        if process is not None and process.alive:
            processes.append(process)
            pids.extend(_children(process.pid))
    return processes


def descendants(root: int) -> list[Process]:
    """The tree without its root."""
    return [process for process in tree(root) if process.pid != root]


def _children(pid: int) -> list[int]:
    """The children of all threads of a process (zombies too)."""
    children: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as stream:
                children.extend(map(int, stream.read().split()))
    except OSError:
        # The process has ended, or the kernel was built without CONFIG_PROC_CHILDREN.
        if not os.path.exists("/proc/thread-self/children"):
            return [process.pid for process in everything() if process.parent == pid]
    return children


def everything() -> Iterator[Process]:
    """All processes of the machine."""
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := Process.read(int(name))) is not None:
            yield process


def leftovers(leader: int, started: int, token: str) -> list[Process]:
    """What a job has left after the death of its supervisor.

    :param leader: the pid of the supervisor
    :param started: when it started; what is older can't belong to the job
    :param token: the token of the job
    """
    candidates = [process for process in everything() if process.alive and process.started >= started]
    reused = any(process.pid == leader and process.started != started for process in candidates)
    by_pid = {
        process.pid: process
        for process in candidates
        if (process.session == leader and not reused) or _is_marked(process.pid, token)
    }
    for process in list(by_pid.values()):
        by_pid.update({child.pid: child for child in tree(process.pid)})
    return list(by_pid.values())


def _is_marked(pid: int, token: str) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return f"{MARK}={token}".encode() in stream.read().split(b"\0")
    except OSError:
        return False


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to each of the processes that we may send one to."""
    for process in processes:
        with contextlib.suppress(PermissionError):
            process.send(number)


def kill_descendants(root: int) -> None:
    """Kill all that is below a process, as often as more appears."""
    _kill_all(lambda: descendants(root))


def kill_leftovers(leader: int, started: int, token: str) -> None:
    """Kill all that a job has left after the death of its supervisor."""
    _kill_all(lambda: leftovers(leader, started, token))


def _kill_all(find: Callable[[], list[Process]]) -> None:
    was_empty = False
    for _ in range(KILL_ROUNDS):
        found = find()
        # One look can miss a process that changes parents meanwhile, as an orphan does: two of them may not.
        if not found and was_empty:
            return
        was_empty = not found
        send(found, signal.SIGKILL)
        time.sleep(0.001)  # the kernel needs a moment to make zombies of them


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process that only its end gives back (so no cached files), in bytes.

    :param anonymous: its own pages and those that it shares with its parent since it was forked
    :param shared: of shared memory, its proportional share where we may know it, else all that it has touched
    :param private: of the anonymous pages, those that are not shared; None where we may not know it
    """

    anonymous: int
    shared: int
    private: int | None = None

    @classmethod
    def read(cls, pid: int) -> ProcessMemory:
        """The memory of a process, none when it is gone.

        Only root may look closely into a process that has made itself undumpable, as Airflow's supervisor and its task
        do; of such a process any user may know the totals.
        """
        close = _amounts(f"/proc/{pid}/smaps_rollup", (b"Anonymous:", b"Private_Dirty:", b"Pss_Shmem:"))
        if b"Pss_Shmem:" in close:  # Linux before 5.4 does not report it
            shared = close[b"Pss_Shmem:"]
            return cls(close[b"Anonymous:"], shared, max(close[b"Private_Dirty:"] - shared, 0))
        totals = _amounts(f"/proc/{pid}/status", (b"RssAnon:", b"RssShmem:"))
        return cls(totals.get(b"RssAnon:", 0), totals.get(b"RssShmem:", 0))


class MemoryMeter:
    """Measures the memory of one job's tree, in MiB, so that memory shared by several of its processes counts once.

    A fork shares all memory with its parent until one side writes to it. What a process has got that way is counted
    with its parent, and with the process itself only what it has written to since; so neither a pool of forked
    processes counts its data several times, nor a job the heap of the agent that it was forked from.
    """

    def __init__(self) -> None:
        # What each process had inherited when it was first seen, bytes.
        self._inherited: dict[tuple[int, int], int] = {}

    def watch(self, processes: Iterable[Process]) -> None:
        """Note what new processes have inherited, as soon as possible after they were forked."""
        known = self._inherited
        self._inherited = {}
        for process in processes:
            identity = (process.pid, process.started)
            inherited = known.get(identity)
            if inherited is None:
                shared = process.forked_without_exec
                inherited = min(_anonymous(process.pid), _anonymous(process.parent)) if shared else 0
            self._inherited[identity] = inherited

    def measure(self, processes: Iterable[Process]) -> int:
        """What the processes use together; takes the kernel some time when it is much."""
        total = estimated = 0
        for process in processes:
            memory = ProcessMemory.read(process.pid)
            total += self._own(process, memory)
            if memory.private is not None:
                total += memory.shared
            else:
                # Processes that share memory share most of it; adding up would end innocent jobs.
                estimated = max(estimated, memory.shared)
        return (total + estimated) // MIB

    def _own(self, process: Process, memory: ProcessMemory) -> int:
        if not process.forked_without_exec:
            return memory.anonymous
        inherited = self._inherited.get((process.pid, process.started), 0)
        return max(memory.anonymous - inherited, memory.private or 0)


def resident(processes: Iterable[Process]) -> int:
    """An upper bound of what the processes use, MiB; it costs nothing, for it was read with them."""
    return sum(process.resident for process in processes) // MIB


def _anonymous(pid: int) -> int:
    return _amounts(f"/proc/{pid}/status", (b"RssAnon:",)).get(b"RssAnon:", 0)


def _amounts(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """The lines of ``path`` with these names, converted from kB to bytes; none where we may not or cannot read it."""
    try:
        with open(path, "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(names)}
