"""The process tree of a job, read from /proc (Linux): its processes, their memory, and how to kill them.

The root of a job's tree is its supervisor. It is a session leader and adopts orphans (PR_SET_CHILD_SUBREAPER), so
whatever a job starts stays below it while it is alive. After its death, the remaining processes are found by session,
by descent and by the environment variable ``LADING_JOB``, which a child process inherits unless it clears its
environment.

A process is identified by its pid and its start in clock ticks after boot, which guards against reused pids.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lading.hooks.spool.tokens import JOB_VARIABLE
from lading.scheduling.model.light_dataclasses import dataclass

PAGE = resource.getpagesize()
MIB = 2**20
FORKED_WITHOUT_EXEC = 0x40  # PF_FORKNOEXEC, linux/sched.h
PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """A process as /proc/pid/stat shows it, proc_pid_stat(5).

    :param started: clock ticks after boot
    :param faults: page faults that needed no disk
    :param childrens_faults: those of its descendants that have ended
    """

    pid: int
    parent: int
    session: int
    state: str
    flags: int
    started: int
    faults: int
    childrens_faults: int = 0

    @classmethod
    def read(cls, pid: int) -> Process | None:
        """Return the process with this pid; None: it does not exist."""
        try:
            with open(f"/proc/{pid}/stat", "rb") as stream:
                stat = stream.read()
        except OSError:
            return None
        # The name is in parentheses, and can contain blanks and parentheses itself.
        fields = stat[stat.rindex(b")") + 2 :].split()
        return cls(
            pid,
            int(fields[1]),
            int(fields[3]),
            fields[0].decode(),
            int(fields[6]),
            int(fields[19]),
            int(fields[7]),
            int(fields[8]),
        )

    @property
    def alive(self) -> bool:
        """Whether it still has memory and can run, unlike a zombie, which only waits for its parent."""
        return self.state not in "ZX"

    @property
    def identity(self) -> tuple[int, int]:
        return self.pid, self.started

    @property
    def forked_without_exec(self) -> bool:
        return bool(self.flags & FORKED_WITHOUT_EXEC)

    def send(self, number: int) -> None:
        """Send a signal, unless the pid has been reused for another process."""
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
    """Return a live process and all its descendants, parents first; empty if it is gone."""
    processes = []
    pids = [root]
    while pids:
        process = Process.read(pids.pop())
        if process is not None and process.alive:
            processes.append(process)
            pids.extend(_children(process.pid))
    return processes


def descendants(root: int) -> list[Process]:
    return [process for process in tree(root) if process.pid != root]


def _children(pid: int) -> list[int]:
    """Return the children of all threads of a process, including zombies."""
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
    for name in os.listdir("/proc"):
        if name.isdecimal() and (process := Process.read(int(name))) is not None:
            yield process


def leftovers(leader: int, started: int, token: str) -> list[Process]:
    """Return the remaining processes of a job after the death of its supervisor.

    :param leader: the pid of the supervisor
    :param started: when the supervisor started; older processes cannot belong to the job
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
            return f"{JOB_VARIABLE}={token}".encode() in stream.read().split(b"\0")
    except OSError:
        return False


def send(processes: Iterable[Process], number: int) -> None:
    """Send a signal to each process, skipping those that belong to other users."""
    for process in processes:
        with contextlib.suppress(PermissionError):
            process.send(number)


def kill_descendants(root: int) -> None:
    _kill_all(lambda: descendants(root))


def kill_leftovers(leader: int, started: int, token: str) -> None:
    _kill_all(lambda: leftovers(leader, started, token))


def _kill_all(find: Callable[[], list[Process]]) -> None:
    was_empty = False
    # A tree that forks while it is being killed needs several rounds; if these are not enough, the caller tries again.
    for _ in range(20):
        found = find()
        # A search can miss a process whose parent changes meanwhile, such as an orphan, so two must find nothing.
        if not found and was_empty:
            return
        was_empty = not found
        send(found, signal.SIGKILL)
        time.sleep(0.001)  # the kernel needs a moment until they are zombies


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """The memory of one process that is only freed when it ends, in bytes. File pages never count, not even dirty ones.

    Pages that a process has written in a private mapping of a file are anonymous memory. Shared memory means tmpfs,
    POSIX and System V shared memory and ``MAP_SHARED | MAP_ANONYMOUS``, as far as the process has mapped it.

    :param anonymous: anonymous pages, in RAM or swapped out, including those shared with the parent since the fork
    :param shared: proportional share of shared memory if the kernel reports it, otherwise all that it has touched
    :param own_huge: hugetlbfs pages that no other process has mapped
    :param shared_huge: hugetlbfs pages that other processes have or may have mapped; the kernel reports no shares
    :param proportional: proportional share of the anonymous pages; None: the kernel does not report it
    :param resident: pages of all kinds in RAM; 0: only totals are known
    """

    anonymous: int
    shared: int
    own_huge: int = 0
    shared_huge: int = 0
    proportional: int | None = None
    resident: int = 0

    @classmethod
    def read(cls, pid: int) -> ProcessMemory:
        """Read the memory of a process; all zeros if it is gone.

        Only root can read the details of a process that has made itself undumpable, as Airflow's supervisor and task
        do. The totals of such a process are readable by any user.
        """
        close = _amounts(
            f"/proc/{pid}/smaps_rollup",
            (b"Anonymous:", b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:", b"Private_Huge", b"Shared_Huge", b"Rss:"),
        )
        if b"Pss_Anon:" not in close:  # Linux before 5.4 does not report it
            return cls.read_totals(pid)
        swapped = close[b"SwapPss:"]  # excludes shared memory, unlike "Swap"
        return cls(
            close[b"Anonymous:"] + swapped,
            close[b"Pss_Shmem:"],
            close[b"Private_Hugetlb:"],
            close[b"Shared_Hugetlb:"],
            close[b"Pss_Anon:"] + swapped,
            close[b"Rss:"],
        )

    @classmethod
    def read_totals(cls, pid: int) -> ProcessMemory:
        """Read what any user can know about a process, in a time that does not depend on the size of its memory."""
        names = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"HugetlbPages:")
        found = _amounts(f"/proc/{pid}/status", names)
        anonymous, shared, swapped, huge = (found.get(name, 0) for name in names)
        return cls(anonymous + swapped, shared, shared_huge=huge)


@dataclass(slots=True)
class WatchedProcess:
    """What a meter knows about a process.

    :param totals: at the last sample
    :param faults: page faults until the last sample
    :param inherited: bytes of anonymous pages that it got through fork, which count for another process
    :param source: pid and start of the process that it got them from, while that process still has them
    :param measured: bytes of anonymous pages at the last measurement; before the first, the inherited ones
    :param measured_huge: bytes of huge pages at the last measurement
    :param measured_faults: page faults until the last measurement
    """

    totals: ProcessMemory
    faults: int
    inherited: int = 0
    source: tuple[int, int] | None = None
    measured: int = 0
    measured_huge: int = 0
    measured_faults: int = 0

    @property
    def unseen(self) -> int:
        """Bytes of pages that it may have made its own since the last measurement without a growth of its totals.

        Each such page costs a page fault, except for huge pages.
        """
        grown = self.totals.anonymous - self.measured
        faulted = (self.faults - self.measured_faults) * PAGE
        return max(faulted - max(grown, 0), 0) + max(self.totals.shared_huge - self.measured_huge, 0)

    def note_measurement(self) -> None:
        self.measured, self.measured_huge = self.totals.anonymous, self.totals.shared_huge
        self.measured_faults = self.faults


@dataclass(frozen=True, slots=True)
class MemorySamples:
    """What samples have shown of the memory of a job's tree, MiB.

    :param peak: the largest of them
    :param last: the last one that was exact and had a process below the root
    :param touched: the pages that those processes had touched by then, see ``ExitFile.touched_memory``
    """

    peak: int
    last: int
    touched: int

    def peak_at_end(self, touched: int) -> int:
        """Return the peak, including what may have been used since the last exact sample.

        :param touched: the pages that all processes had touched when they ended
        """
        return max(self.peak, self.last + max(0, touched - self.touched))


class MemoryMeter:
    """Measures the memory of one job's tree, in MiB, so that memory shared by several of its processes counts once.

    A job's memory consists of the anonymous pages that its processes have not inherited from the agent, and the shared
    memory that they have mapped. File pages do not count, because the kernel reclaims them when it needs room. Files in
    tmpfs count for the processes that map them; an unmapped file counts for nobody, as the kernel does not tell whose
    it is.

    A forked process shares all memory with its parent until either side writes to it. Inherited pages count for the
    parent, and only pages that the process has made its own since count for itself. Thus the data of a pool of forked
    processes counts once, and the heap of the agent does not count for the job. When the parent is gone, its oldest
    child takes its place.

    If the kernel reports details, proportional shares correct these estimates: the shares of all processes of the job
    add up to its own pages plus a part of the agent's. Otherwise, a page that a process has copied from its parent
    still counts as inherited unless the process has shown its mappings, and of the shared memory of several processes
    only the largest amount counts: processes that share memory usually share most of it, and adding it up would kill
    innocent jobs.

    :param smaps: returns a descriptor of the ``/proc/pid/smaps`` of a process, by its pid; None: it has shown none
    """

    def __init__(self, smaps: Callable[[int], int | None] = lambda pid: None) -> None:
        self.processes: Sequence[Process] = ()
        """The processes at the last sample."""
        self._smaps = smaps
        self._watched: dict[tuple[int, int], WatchedProcess] = {}
        self._touched_before = 0  # page faults of the supervisor's earlier jobs
        self._measured = 0
        self._estimated = 0  # result of _estimate at the last measurement

    def begin(self, supervisor: Process) -> None:
        """Note the supervisor's memory when the job starts, or is adopted from another agent.

        This memory is not the job's, and neither are the supervisor's later copies of it.
        """
        found = ProcessMemory.read_totals(supervisor.pid)
        self._touched_before = supervisor.childrens_faults
        self._watched[supervisor.identity] = WatchedProcess(
            found,
            supervisor.faults,
            inherited=found.anonymous,
            measured=found.anonymous,
            measured_faults=supervisor.faults,
        )

    def watch(self, processes: Sequence[Process]) -> None:
        """Sample the processes, and note what new ones have inherited.

        Call it as soon as possible after a fork, before the new process has memory of its own.
        """
        self.processes = processes
        before, self._watched = self._watched, {}
        for process in processes:
            totals = ProcessMemory.read_totals(process.pid)
            known = before.get(process.identity)
            if known is None or (known.source is not None and not process.forked_without_exec):
                known = self._first_sample(process, totals, processes[0], before)
            else:
                before.pop(process.identity)
                known.totals, known.faults = totals, process.faults
            self._watched[process.identity] = known
        for identity, gone in before.items():
            self._pass_to_heir(identity, gone)

    def _first_sample(
        self, process: Process, totals: ProcessMemory, root: Process, before: Mapping[tuple[int, int], WatchedProcess]
    ) -> WatchedProcess:
        found = WatchedProcess(totals, process.faults)
        if process.forked_without_exec:
            parent = Process.read(process.parent)
            sources = {} if parent is None else {parent.identity: ProcessMemory.read_totals(parent.pid).anonymous}
            if process.parent == root.pid:  # the root adopts orphans, so another process may have forked this one
                sources |= {identity: seen.totals.anonymous for identity, seen in before.items()}
            if sources:
                found.source = max(sources, key=lambda identity: sources[identity])
                found.inherited = found.measured = min(totals.anonymous, sources[found.source])
        return found

    def _pass_to_heir(self, identity: tuple[int, int], gone: WatchedProcess) -> None:
        """Count for its oldest child the shared pages of a process that has ended or executed another program."""
        heirs = [each for each in self._watched.items() if each[1].source == identity]
        heirs.sort(key=lambda each: each[0][1])
        for place, (_, heir) in enumerate(heirs):
            heir.source = heirs[0][0] if place else gone.source
            if not place:
                heir.inherited = min(heir.inherited, gone.inherited)

    @property
    def at_least(self) -> int:
        """What the processes use together, MiB: the last measurement plus the growth of their totals since then."""
        return (self._measured + self._estimate() - self._estimated) // MIB

    @property
    def touched(self) -> int:
        """The pages that the processes below the supervisor had touched at the last sample, MiB."""
        supervisor, *others = self.processes
        faults = supervisor.childrens_faults - self._touched_before
        return (faults + sum(each.faults + each.childrens_faults for each in others)) * PAGE // MIB

    @property
    def is_whole(self) -> bool:
        """Whether each process still had its memory at the last sample, as a process that ends keeps only the count of
        the pages that it has touched."""
        return all(each.totals.anonymous for each in self._watched.values())

    @property
    def unseen(self) -> int:
        """How much more than :attr:`at_least` the processes may use, MiB."""
        return sum(each.unseen for each in self._watched.values()) // MIB

    def _estimate(self) -> int:
        found = self._watched.values()
        own = sum(max(each.totals.anonymous - each.inherited, 0) for each in found)
        shared = max((each.totals.shared for each in found), default=0)
        return own + shared + max((each.totals.shared_huge for each in found), default=0)

    def measure(self, processes: Iterable[Process]) -> int:
        """Measure what the processes use together, MiB. The more memory they have, the longer the kernel takes.

        :param processes: those of the last sample
        """
        own = proportional = shares = shared = own_huge = shared_huge = 0
        inherited, are_all_shown = 0, True
        memories: dict[int, ProcessMemory] = {}
        for process in processes:
            watched = self._watched[process.identity]
            watched.note_measurement()
            memory = ProcessMemory.read(process.pid)
            if memory.resident and memory == memories.get(process.parent):
                continue  # started by vfork: it runs in the memory of its parent until it executes a program
            if not memories:
                inherited = watched.inherited  # of the tree's root, which inherited it from outside the tree
            memories[process.pid] = memory
            own += self._own(process, memory, watched)
            if memory.proportional is None:
                are_all_shown = False
                shared = max(shared, memory.shared)
            else:
                proportional += memory.proportional
                shares += memory.shared
            own_huge += memory.own_huge
            shared_huge = max(shared_huge, memory.shared_huge)
        if own < proportional - inherited or (are_all_shown and own > proportional):
            own = proportional - inherited  # inherited memory was unknown, or is no longer shared
        self._measured = own + max(shares, shared) + own_huge + shared_huge
        self._estimated = self._estimate()
        return self._measured // MIB

    def _own(self, process: Process, memory: ProcessMemory, watched: WatchedProcess) -> int:
        """Return the bytes of a process's anonymous pages that it has not inherited."""
        own = max(memory.anonymous - watched.inherited, 0)
        if watched.source is None:
            return own
        if memory.proportional is None:
            smaps = self._smaps(process.pid)
            return own if smaps is None else max(own, _private(smaps))
        return own if own >= memory.proportional else max(own, _private(f"/proc/{process.pid}/smaps"))


# The lines of each mapping that are needed, in the order of the file.
_OF_MAPPING = rb"^(?:Shared_Clean|Shared_Dirty|Anonymous): +([0-9]+)"


def _private(smaps: str | int) -> int:
    """Return the bytes of anonymous pages that a process shares with no other.

    The kernel's sums over all mappings do not separate them from file pages, which are also private if no other process
    has mapped them. Therefore this reads the mappings one by one.

    :param smaps: the path of the process's ``/proc/pid/smaps``, or a descriptor of it
    """
    try:
        with open(smaps, "rb", closefd=isinstance(smaps, str)) as stream:
            stream.seek(0)
            found = list(map(int, re.findall(_OF_MAPPING, stream.read(), re.MULTILINE)))
    except OSError:
        return 0
    mappings = zip(found[::3], found[1::3], found[2::3], strict=False)
    return 1024 * sum(max(anonymous - clean - dirty, 0) for clean, dirty, anonymous in mappings)


def _amounts(path: str, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return the lines of ``path`` with these names, converted from kB to bytes; empty if it cannot be read."""
    try:
        with open(path, "rb") as stream:
            lines = stream.read().split(b"\n")
    except OSError:
        return {}
    return {line.split()[0]: int(line.split()[1]) * 1024 for line in lines if line.startswith(names)}
