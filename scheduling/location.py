"""A location: a machine, or a queue of a batch system, and what is on it. Money is USD, time seconds, memory MiB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lading.scheduling.job import NOTHING, PlannedJob, Wish
from lading.scheduling.machine_traits import DEFAULT_OS, ON_DEMAND
from lading.scheduling.prediction import Prediction, predicted
from lading.scheduling.resources import Resources

# The native directives, as SLURM, Moab and LSF call them, by which a job may have more nodes than its queue gives to
# others: a quality of service, or another cluster.
OTHER_LIMITS = frozenset(("qos", "q", "clusters", "M"))


def has_other_limits(native: Iterable[str]) -> bool:
    """Whether some of these keys of native directives are in :data:`OTHER_LIMITS`."""
    return not OTHER_LIMITS.isdisjoint(key.lstrip("-") for key in native)


class MachineKind(NamedTuple):
    """What a machine is besides amounts; the fields are those of :class:`Location`."""

    arch: str | None
    features: frozenset[str]
    instance_type: str | None
    capacity_type: str | None
    hints: frozenset[str] = frozenset()
    os: str = DEFAULT_OS

    def grants(self, wish: Wish) -> bool:
        """Whether it is what a job asks for."""
        return (
            (wish.arch is None or self.arch is None or wish.arch == self.arch)
            and wish.features <= self.features
            and (wish.instance_type is None or wish.instance_type == self.instance_type)
            and (wish.capacity_type is None or wish.capacity_type == self.capacity_type)
            and wish.hints <= self.hints
            and (wish.os is None or wish.os == self.os)
            and (wish.types is None or self.instance_type in wish.types)
        )


class AssignedJob(NamedTuple):
    """A job that has begun, or will as soon as its machine is up.

    :param begun: epoch seconds
    :param resources: what its end will free; nothing: that is not known
    """

    begun: float
    expected: Prediction
    resources: Resources = NOTHING


@dataclass(frozen=True, slots=True)
class Location:
    """A machine, or a queue of a batch system, that is there or could be, and what is on it.

    The order in which locations are given is their age, oldest first.

    :param name: unique within its site
    :param capacity: what jobs can use of it, overheads taken off; of a queue: the largest job that it takes
    :param used: what the jobs take that are placed on it already, begun or not
    :param instance_type: what the hint of that name calls it; of an instance that can be released: its type
    :param usd_per_hour: what it costs as long as it is there
    :param priced_at: epoch seconds since when it costs that; None: since it was launched, or it is not known
    :param surcharges: what of that is not the machine itself, USD per hour by its name
    :param capacity_type: ``on-demand``: it is not reclaimed; ``spot``: it may be reclaimed at any time
    :param arch: its architecture, as uname has it; None: any job's
    :param features: names of what it has, which jobs may ask for; one with a value is a property: ``license=matlab``
    :param os: its operating system
    :param hints: which sorts of hints it understands: ``NATIVE``, ``LAYOUT`` (:mod:`lading.scheduling.job`)
    :param site: the site that it belongs to
    :param max_jobs: for a queue: how many jobs it takes at a time, which it runs when it likes; None: a machine, which
        its capacity fills
    :param ends_at: epoch seconds at which it goes away, as a batch allocation does
    :param launched_at: epoch seconds since when it is paid for
    :param idle_since: epoch seconds since when nothing runs on it; None: not known
    :param tasks: steps of which a job is on it, for ``Limits.tasks``; ``runs``: Dag runs, for ``Limits.runs``
    :param draining: whether it takes no more jobs; ``booting``: whether it is starting, and takes none yet
    :param jobs: how many jobs are on it
    :param prefetched: those of them that have not begun
    :param prefetchable: so many jobs may be prefetched to it beyond its capacity, for its jobs are known to be short
    :param running_jobs: those that are on it, as far as it is known how long they will run
    :param ready_at: epoch seconds at which it is up, where that is to come; None: it is, or it is not known
    :param nodes: of a queue: how many nodes it has; None: a machine, or it is not known
    :param idle_nodes: how many of them take jobs and have none; None: it is not known
    :param most_nodes: of a batch site: by queue, how many nodes one job there can ever have, down or not; by the empty
        name: one that names no queue. Of a queue that is missing it is not known. None: as many as ``nodes``
    :param wraps: the name of the location at its site in which it lies, as a container lies in a machine; None: in none
    :param stacked: whether what its jobs take, they take of what it wraps as well; if not, its own figures count alone
    :param data: bytes of files on it that runs have left which have not ended
    :param held: what of ``used`` is held for a gang that is to start there
    :param promised: the names of the waiting jobs that were to have a place on it while it booted
    """

    name: str
    capacity: Resources
    used: Resources = NOTHING
    instance_type: str | None = None
    capacity_type: str | None = ON_DEMAND
    usd_per_hour: float = 0.0
    arch: str | None = None
    features: frozenset[str] = frozenset()
    hints: frozenset[str] = frozenset()
    site: str = ""
    max_jobs: int | None = None
    ends_at: float | None = None
    launched_at: float | None = None
    idle_since: float | None = None
    tasks: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    draining: bool = False
    booting: bool = False
    jobs: int = 0
    prefetched: tuple[PlannedJob, ...] = ()
    prefetchable: int = 0
    os: str = DEFAULT_OS
    running_jobs: tuple[AssignedJob, ...] = ()
    ready_at: float | None = None
    surcharges: tuple[tuple[str, float], ...] = ()
    priced_at: float | None = None
    nodes: int | None = None
    idle_nodes: int | None = None
    most_nodes: tuple[tuple[str, int], ...] | None = None
    wraps: str | None = None
    stacked: bool = False
    data: int = 0
    promised: frozenset[str] = frozenset()
    held: Resources = NOTHING

    @property
    def kind(self) -> MachineKind:
        """What it is besides amounts."""
        return MachineKind(self.arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os)

    def suits(self, job: PlannedJob) -> bool:
        """Whether a job can ever run there, busy or not."""
        return job.resources.fits(self.capacity) and self.kind.grants(job.wish) and self.has_nodes(job)

    def has_nodes(self, job: PlannedJob) -> bool:
        """Whether a job can ever have as many nodes there as it asks for, as far as that is known."""
        return job.nodes == 1 or (most := self.nodes_for(job)) is None or job.nodes <= most

    def nodes_for(self, job: PlannedJob) -> int | None:
        """How many nodes a job can ever have there; None: that is not known."""
        if job.native is not None and has_other_limits(json.loads(job.native)):
            return None
        if self.most_nodes is None:
            return self.nodes if job.queue is None else None
        return dict(self.most_nodes).get(job.queue or "")

    def lasts(self, time: float | None, now: float) -> bool:
        """Whether it stays for so many seconds; one that ends takes no job of unknown length (None)."""
        return self.ends_at is None or (time is not None and now + time <= self.ends_at)

    def given(self, jobs: Sequence[PlannedJob]) -> Location:
        """The same when it has been given these jobs, too, and they have not begun."""
        used, prefetched = self.used.with_all([job.resources for job in jobs]), (*self.prefetched, *jobs)
        return replace(self, used=used, prefetched=prefetched, jobs=self.jobs + len(jobs)).with_labels(jobs)

    def kept_for(self, jobs: Sequence[PlannedJob], now: float) -> Location:
        """The same when these waiting jobs are on it as soon as it is up.

        :param now: epoch seconds
        """
        used, begin = sum((job.resources for job in jobs), self.used), max(now, self.ready_at or now)
        running = tuple(AssignedJob(begin, predicted(job), job.resources) for job in jobs)
        there = replace(self, used=used, running_jobs=self.running_jobs + running, jobs=self.jobs + len(jobs))
        return there.with_labels(jobs)

    def with_labels(self, jobs: Sequence[PlannedJob]) -> Location:
        """The same where these jobs' steps and runs, as far as they have limits, are on it."""
        tasks = {job.task for job in jobs if job.task is not None}
        runs = {job.run for job in jobs if job.run is not None}
        return replace(self, tasks=self.tasks | tasks, runs=self.runs | runs) if tasks or runs else self

    @property
    def running(self) -> Resources:
        """What the jobs take that have begun."""
        return self.used - sum((job.resources for job in self.prefetched), NOTHING)

    @property
    def empty(self) -> bool:
        """Whether no job is on it."""
        return self.used == NOTHING and not self.tasks and not self.runs
