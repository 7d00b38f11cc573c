"""Give each job CPU time by its cpus where the agent may make cgroups: `cpu.weight`, or `cpu.shares` of version 1.

Each supervisor has a cgroup of its own, and whatever its job starts is in it. A supervisor that goes on to another job
keeps it with that job's weight: to change the cgroup would cost more than to change the weight. With version 1, where
the agent's cgroup is often the whole machine's, they are in one cgroup that weighs as much as all processors: jobs are
weighed against each other, and a small one is not starved by what else runs there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lading.executors.agent import process_tree
from lading.hooks.files import host

log = logging.getLogger(__name__)

# The agent looks for cgroups whose supervisor has not removed them itself, because it was killed, so often, seconds.
INTERVAL = 5.0
# The kernel's default of one process or cgroup is what one cpu gets; what it allows, cgroups(7).
SHARES, LEAST_SHARES, MOST_SHARES = 1024, 2, 2**18
WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 100, 1, 10_000
# The name of a cgroup: the agent's spool, hashed, and the pid for which it was made.
_NAME = re.compile(r"lading-[0-9a-f]{12}-([0-9]{1,9})")
_PREFIX = f"lading-{'[0-9a-f]' * 12}"


class NoCpuGroups(Exception):
    """The agent may not make cgroups here, and why."""


def shares(cpus: float) -> int:
    """The `cpu.shares` of a job, also Docker's."""
    return min(max(round(SHARES * cpus), LEAST_SHARES), MOST_SHARES)


def weight(cpus: float) -> int:
    """The `cpu.weight` of a job."""
    return min(max(round(WEIGHT * cpus), LEAST_WEIGHT), MOST_WEIGHT)


@dataclass(slots=True)
class CpuGroups:
    """The cgroups of an agent's supervisors.

    :param base: the cgroup in which they are; with version 1 it is made for them
    :param home: the cgroup of the agent, to which a supervisor returns at its end
    :param prefix: of their names: two agents may have the same base
    :param is_unified: whether the hierarchy is of version 2
    """

    base: Path
    home: Path
    prefix: str
    is_unified: bool
    due: float = 0.0

    @classmethod
    def of_agent(cls, spool: Path, root: Path = host.ROOT) -> CpuGroups:
        """Those of this process, which is moved to a leaf of its cgroup where no cgroup may have both.

        :param root: of the file system
        :raises NoCpuGroups: it may have none
        """
        prefix = f"lading-{hashlib.sha256(os.fsencode(spool)).hexdigest()[:12]}-"
        own = next((each for each in host.groups("cpu", root) if os.getpid() in _processes(each)), None)
        if own is None:
            raise NoCpuGroups("no cgroup with the cpu controller is known")
        is_unified = not (own / "cpu.shares").exists()
        made = cls(own if is_unified else own / prefix.rstrip("-"), own, prefix, is_unified)
        try:
            if made.is_unified:
                made._move_to_leaf()
            tried = made._make(os.getpid(), 1.0)
        except OSError as error:
            raise NoCpuGroups(str(error)) from error
        if tried != made.home:
            with contextlib.suppress(OSError):
                os.rmdir(tried)
        made.remove_ended()
        made._remove_abandoned()
        return made

    def _move_to_leaf(self) -> None:
        """Let the cgroup have inner ones: in version 2 it must have no processes then.

        :raises NoCpuGroups: there are others than the agent's, or it has no cpu controller
        :raises OSError: that is not allowed
        """
        if "cpu" not in (self.base / "cgroup.controllers").read_text().split():
            raise NoCpuGroups(f"{self.base} has no cpu controller")
        processes = _processes(self.base)
        if others := processes - {each.pid for each in process_tree.tree(os.getpid())}:
            raise NoCpuGroups(f"{self.base} has {len(others)} processes that are not the agent's")
        self.home = self._group(os.getpid())
        self.home.mkdir(exist_ok=True)
        try:
            for pid in processes:
                _write(self.home / "cgroup.procs", str(pid))
            _write(self.base / "cgroup.subtree_control", "+cpu")
        except OSError:
            for pid in _processes(self.home):
                _write(self.base / "cgroup.procs", str(pid))
            os.rmdir(self.home)
            raise

    def enter(self, cpus: float) -> None:
        """Weigh this supervisor process and its children by a number of cpus."""
        try:
            group = self._make(os.getpid(), cpus)
            if os.getpid() not in _processes(group):
                self._join(group)
        except OSError as error:  # there may be too many
            log.warning("the job gets CPU time whatever its cpus: %s", error)

    def leave(self) -> None:
        """Return to the agent's cgroup, and remove that of this process."""
        with contextlib.suppress(OSError):  # the agent removes it when what is left there has ended
            self._join(self.home)
            os.rmdir(self._group(os.getpid()))
            self._remove_base()

    def remove_ended(self, *, at_once: bool = False) -> None:
        """Remove the cgroups of supervisors that were killed, also under another agent: now and then, or at once."""
        if time.monotonic() < self.due and not at_once:
            return
        self.due = time.monotonic() + INTERVAL
        with contextlib.suppress(OSError):  # it is gone with all that was in it
            for name in os.listdir(self.base):
                if (match := _NAME.fullmatch(name)) and not os.path.exists(f"/proc/{match[1]}"):
                    with contextlib.suppress(OSError):  # what the job has left is still there
                        os.rmdir(self.base / name)

    def close(self) -> None:
        """Remove what is left at the agent's end."""
        self.remove_ended(at_once=True)
        self._remove_base()

    def _remove_base(self) -> None:
        """Remove the cgroup that was made for those of the supervisors, after the last of them."""
        if self.base.parent == self.home:
            with contextlib.suppress(OSError):  # there are others
                os.rmdir(self.base)

    def _remove_abandoned(self) -> None:
        """Remove the cgroups of agents that were killed and do not come back."""
        for base in () if self.is_unified else self.home.glob(_PREFIX):
            if base != self.base:
                other = replace(self, base=base)
                other.remove_ended(at_once=True)
                other._remove_base()

    def _make(self, pid: int, cpus: float) -> Path:
        """The cgroup that a supervisor has, with the weight of its job.

        :raises OSError: that is not possible
        """
        group = self._group(pid)
        try:
            group.mkdir(exist_ok=True)
        except FileNotFoundError:  # it is the first one, or the last one has just removed the cgroup of all
            self.base.mkdir(exist_ok=True)
            _write(self.base / "cpu.shares", str(shares(len(os.sched_getaffinity(0)))))
            group.mkdir(exist_ok=True)
        if self.is_unified:
            _write(group / "cpu.weight", str(weight(cpus)))
        else:
            _write(group / "cpu.shares", str(shares(cpus)))
        return group

    def _join(self, group: Path) -> None:
        # A supervisor has one thread when it begins. For a thread that moves itself the kernel need not hold up all
        # forks of the machine, for which it waits up to some hundred ms. Version 2 moves processes alone.
        _write(group / ("cgroup.procs" if self.is_unified else "tasks"), "0")

    def _group(self, pid: int) -> Path:
        return self.base / f"{self.prefix}{pid}"


def _processes(group: Path) -> set[int]:
    """The pids in a cgroup itself; none where it does not exist."""
    try:
        return {int(line) for line in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def _write(file: Path, text: str) -> None:
    with open(file, "r+") as stream:  # never made: a file that the kernel does not have is none of a cgroup
        stream.write(text)
