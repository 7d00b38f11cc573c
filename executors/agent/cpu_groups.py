"""Share CPU time in proportion to the jobs' cpus if the agent can create cgroups: `cpu.weight`, or `cpu.shares` in v1.

Each supervisor has its own cgroup, which also contains whatever its job starts. A supervisor that takes another job
keeps its cgroup and changes only the weight, which is cheaper. In version 1, where the agent's cgroup is often the
whole machine's, all these cgroups are children of one cgroup that weighs as much as all processors: jobs are weighed
against each other, and other processes on the machine do not starve a small one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from dataclasses import dataclass, replace
from pathlib import Path

from lading.executors.agent import process_tree
from lading.hooks.files import host

log = logging.getLogger(__name__)

# One cpu weighs as much as the kernel's default for a process or cgroup. Limits: cgroups(7).
SHARES, LEAST_SHARES, MOST_SHARES = 1024, 2, 2**18
WEIGHT, LEAST_WEIGHT, MOST_WEIGHT = 100, 1, 10_000
# The name of a cgroup: a hash of the agent's spool, and the pid of the supervisor.
_NAME = re.compile(r"lading-[0-9a-f]{12}-([0-9]{1,9})")
_PREFIX = f"lading-{'[0-9a-f]' * 12}"


class NoCpuGroups(Exception):
    """The agent cannot create cgroups here; the message says why."""


def shares(cpus: float) -> int:
    """Return the `cpu.shares` of a job, in cgroups and for Docker."""
    return min(max(round(SHARES * cpus), LEAST_SHARES), MOST_SHARES)


def weight(cpus: float) -> int:
    return min(max(round(WEIGHT * cpus), LEAST_WEIGHT), MOST_WEIGHT)


@dataclass(slots=True)
class CpuGroups:
    """The cgroups of an agent's supervisors.

    :param base: the parent of these cgroups; in version 1 it is created for them
    :param home: the agent's cgroup, to which a supervisor returns before it exits
    :param prefix: of their names, as several agents can share a base
    :param is_unified: whether the hierarchy is version 2
    """

    base: Path
    home: Path
    prefix: str
    is_unified: bool
    due: float = 0.0

    @classmethod
    def of_agent(cls, spool: Path, root: Path = host.ROOT) -> CpuGroups:
        """Set up the cgroups of this process.

        In version 2, the process moves to a child of its cgroup, as a cgroup with controlled children must not contain
        processes itself.

        :param root: of the file system
        :raises NoCpuGroups: no cgroups can be created
        """
        import hashlib  # imported late, because batch jobs import this module and create no cgroups

        prefix = f"lading-{hashlib.sha256(os.fsencode(spool)).hexdigest()[:12]}-"
        own = next((each for each in host.groups("cpu", root) if os.getpid() in _processes(each)), None)
        if own is None:
            raise NoCpuGroups("this process is in no cgroup with the cpu controller")
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
        """Move the agent's processes to a child, so that the cgroup can have controlled children.

        :raises NoCpuGroups: the cgroup has processes of others, or no cpu controller
        :raises OSError: the kernel does not allow it
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
        """Weigh this supervisor and its children by a number of cpus."""
        try:
            group = self._make(os.getpid(), cpus)
            if os.getpid() not in _processes(group):
                self._join(group)
        except OSError as error:  # for example, too many cgroups
            log.warning("the job gets CPU time regardless of its cpus: %s", error)

    def leave(self) -> None:
        """Return to the agent's cgroup, and remove that of this process."""
        with contextlib.suppress(OSError):  # the agent removes it once leftover processes have ended
            self._join(self.home)
            os.rmdir(self._group(os.getpid()))
            self._remove_base()

    def remove_ended(self, *, at_once: bool = False) -> None:
        """Remove the cgroups of dead supervisors, including those of earlier agents, periodically or at once."""
        if time.monotonic() < self.due and not at_once:
            return
        self.due = time.monotonic() + 5.0  # supervisors that were killed could not remove their own
        with contextlib.suppress(OSError):  # the base is gone, with all cgroups in it
            for name in os.listdir(self.base):
                if (match := _NAME.fullmatch(name)) and not os.path.exists(f"/proc/{match[1]}"):
                    with contextlib.suppress(OSError):  # processes that the job left behind are still in it
                        os.rmdir(self.base / name)

    def close(self) -> None:
        self.remove_ended(at_once=True)
        self._remove_base()

    def _remove_base(self) -> None:
        if self.base.parent == self.home:
            with contextlib.suppress(OSError):  # it still has children
                os.rmdir(self.base)

    def _remove_abandoned(self) -> None:
        for base in () if self.is_unified else self.home.glob(_PREFIX):
            if base != self.base:
                other = replace(self, base=base)
                other.remove_ended(at_once=True)
                other._remove_base()

    def _make(self, pid: int, cpus: float) -> Path:
        """Create a supervisor's cgroup if necessary, and set the weight of its job.

        :raises OSError: the kernel does not allow it
        """
        group = self._group(pid)
        try:
            group.mkdir(exist_ok=True)
        except FileNotFoundError:  # the parent does not exist yet, or the last supervisor has just removed it
            self.base.mkdir(exist_ok=True)
            _write(self.base / "cpu.shares", str(shares(len(os.sched_getaffinity(0)))))
            group.mkdir(exist_ok=True)
        if self.is_unified:
            _write(group / "cpu.weight", str(weight(cpus)))
        else:
            _write(group / "cpu.shares", str(shares(cpus)))
        return group

    def _join(self, group: Path) -> None:
        # A supervisor starts with one thread. Moving a process blocks all forks on the machine, for up to several
        # hundred ms; a thread that moves itself does not. Version 2 can only move processes.
        _write(group / ("cgroup.procs" if self.is_unified else "tasks"), "0")

    def _group(self, pid: int) -> Path:
        return self.base / f"{self.prefix}{pid}"


def _processes(group: Path) -> set[int]:
    try:
        return {int(line) for line in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def _write(file: Path, text: str) -> None:
    with open(file, "r+") as stream:  # "r+" does not create the file, which only the kernel can
        stream.write(text)
