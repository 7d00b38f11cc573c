"""A location, which is a machine or a queue of a batch system, and the jobs on it. Money is USD, time seconds, memory
MiB."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from lading.scheduling.model.job import NOTHING, PlannedJob, Wish
from lading.scheduling.model.machine_traits import DEFAULT_OS, ON_DEMAND
from lading.scheduling.model.prediction import Prediction, predicted
from lading.scheduling.model.resources import Resources

# The native directives of SLURM, Moab and LSF that can give a job more nodes than the limits of its queue: a quality of
# service, or another cluster.
OTHER_LIMITS = frozenset(("qos", "q", "clusters", "M"))


def has_other_limits(native: Iterable[str]) -> bool:
    """Whether any of these keys of native directives is in :data:`OTHER_LIMITS`."""
    return not OTHER_LIMITS.isdisjoint(key.lstrip("-") for key in native)


class MachineKind(NamedTuple):
    """The properties of a machine other than amounts; the fields are those of :class:`Location`."""

    arch: str | None
    features: frozenset[str]
    instance_type: str | None
    capacity_type: str | None
    hints: frozenset[str] = frozenset()
    os: str = DEFAULT_OS

    def grants(self, wish: Wish) -> bool:
        """Whether the machine meets a job's requirements."""
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
    """A job that is running, or starts as soon as its machine is up.

    :param begun: when it started or will start, epoch seconds
    :param resources: what it frees when it finishes; nothing if that is unknown
    """

    begun: float
    expected: Prediction
    resources: Resources = NOTHING


@dataclass(frozen=True, slots=True)
class Location:
    """A machine or a queue of a batch system, existing or potential, and what is on it.

    Locations are listed in the order of their age, oldest first.

    :param name: unique within its site
    :param capacity: what jobs can use of it, after overheads; for a queue: the largest job that it accepts
    :param used: what its jobs occupy, started or not
    :param instance_type: its name for the hint ``instance_type``; set for every instance that can be released
    :param usd_per_hour: what it costs while it exists
    :param priced_at: since when that price holds, epoch seconds; None: since its launch, or unknown
    :param surcharges: the parts of the price that are not for the machine itself, USD per hour by name
    :param capacity_type: ``on-demand``: it is not reclaimed; ``spot``: it can be reclaimed at any time
    :param arch: its architecture, as uname names it; None: it runs the jobs of any
    :param features: names of what it has, which jobs can request; one with a value is a property: ``license=matlab``
    :param os: its operating system
    :param hints: the kinds of hints it supports: ``NATIVE``, ``LAYOUT`` (:mod:`lading.scheduling.model.job`)
    :param site: the site that it belongs to
    :param max_jobs: for a queue: how many jobs it accepts at a time, to run whenever it likes; None: a machine, which
        is limited by its capacity
    :param ends_at: when it goes away, as a batch allocation does, epoch seconds
    :param launched_at: since when it is billed, epoch seconds
    :param idle_since: since when no job runs on it, epoch seconds; None: unknown
    :param tasks: the tasks that have a job on it, for ``Limits.tasks``
    :param runs: the Dag runs that have a job on it, for ``Limits.runs``
    :param draining: whether it accepts no more jobs
    :param booting: whether it is starting up, and accepts no jobs yet
    :param jobs: how many jobs are on it
    :param prefetched: its jobs that have not started
    :param prefetchable: how many jobs it can be given beyond its capacity, because its jobs are known to be short
    :param running_jobs: its jobs whose length is known or predicted
    :param ready_at: when it will be up, epoch seconds; None: it is up, or that is unknown
    :param nodes: for a queue: how many nodes it has; None: a machine, or unknown
    :param idle_nodes: how many of its nodes accept jobs and have none; None: unknown
    :param most_nodes: for a batch site: the largest number of nodes that a job can ever have, by queue, whether the
        nodes are up or down; the empty name stands for jobs that name no queue, and a missing queue for an unknown
        number. None: ``nodes`` is the limit
    :param wraps: the location of its site that contains it, as a machine contains a container; None: none
    :param stacked: whether its jobs also occupy the location that contains it; otherwise only its own figures count
    :param data: bytes of files on it that unfinished runs have written
    :param held: the part of ``used`` that is held for a gang
    :param promised: the names of the waiting jobs that were promised a place on it while it was booting
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
        return MachineKind(self.arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os)

    def suits(self, job: PlannedJob) -> bool:
        """Whether a job can ever run there, busy or not."""
        return job.resources.fits(self.capacity) and self.kind.grants(job.wish) and self.has_nodes(job)

    def has_nodes(self, job: PlannedJob) -> bool:
        """Whether a job can ever get the nodes it requests there, as far as is known."""
        return job.nodes == 1 or (most := self.nodes_for(job)) is None or job.nodes <= most

    def nodes_for(self, job: PlannedJob) -> int | None:
        """How many nodes a job can ever have there; None: unknown."""
        if job.native is not None and has_other_limits(json.loads(job.native)):
            return None
        if self.most_nodes is None:
            return self.nodes if job.queue is None else None
        return dict(self.most_nodes).get(job.queue or "")

    def lasts(self, time: float | None, now: float) -> bool:
        """Whether it stays for ``time`` seconds; a location that ends is not used for jobs of unknown length (None)."""
        return self.ends_at is None or (time is not None and now + time <= self.ends_at)

    def given(self, jobs: Sequence[PlannedJob]) -> Location:
        """The location after these jobs have been given to it, before they start."""
        used, prefetched = self.used.with_all([job.resources for job in jobs]), (*self.prefetched, *jobs)
        return replace(self, used=used, prefetched=prefetched, jobs=self.jobs + len(jobs)).with_labels(jobs)

    def kept_for(self, jobs: Sequence[PlannedJob], now: float) -> Location:
        """The location with these waiting jobs running on it from the moment it is up."""
        used, begin = sum((job.resources for job in jobs), self.used), max(now, self.ready_at or now)
        running = tuple(AssignedJob(begin, predicted(job), job.resources) for job in jobs)
        there = replace(self, used=used, running_jobs=self.running_jobs + running, jobs=self.jobs + len(jobs))
        return there.with_labels(jobs)

    def with_labels(self, jobs: Sequence[PlannedJob]) -> Location:
        """The location with the tasks and runs of these jobs added to its own, if limits apply to them."""
        tasks = {job.task for job in jobs if job.task is not None}
        runs = {job.run for job in jobs if job.run is not None}
        return replace(self, tasks=self.tasks | tasks, runs=self.runs | runs) if tasks or runs else self

    @property
    def running(self) -> Resources:
        """The resources of the jobs that have started."""
        return self.used - sum((job.resources for job in self.prefetched), NOTHING)

    @property
    def empty(self) -> bool:
        return self.used == NOTHING and not self.tasks and not self.runs
