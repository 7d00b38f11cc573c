"""The words of planning: what is asked (jobs, locations, limits) and what is answered (a plan).

Only frozen data; :mod:`lading.scheduling.planner` decides. Money is USD, time seconds, memory and disk MiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from lading.scheduling.hints.durations import Prediction
from lading.scheduling.hints.machine_words import DEFAULT_OS, ON_DEMAND
from lading.scheduling.resources import Resources

NOTHING = Resources()
# What only some locations understand of a job's hints: the words of a batch system (queue, native directives), and how
# the processes of one job lie on several nodes (nodes, ppn, threads).
NATIVE = "native"
LAYOUT = "layout"
# The policies that come with Lading, and how hard they try.
POLICY_NAMES = ("greedy", "priced", "alone", "hours")
EFFORTS = ("fast", "best")


class Wish(NamedTuple):
    """What a job asks of a machine besides amounts; the fields are those of :class:`Job`."""

    arch: str | None
    features: frozenset[str]
    instance_type: str | None
    capacity_type: str | None
    hints: frozenset[str]
    os: str | None = None
    types: frozenset[str] | None = None


class Kind(NamedTuple):
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


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits for a place, or ``count`` equal ones.

    :param name: identifies it in the plan (in the engine: its token); unique among the jobs of a plan
    :param priority: higher ones are placed first
    :param queued_at: epoch seconds of its arrival
    :param time: seconds that it runs at most or is known to run; None: unknown
    :param arch: the only architecture that it runs on; None: any, or the default of its site where that has several
    :param features: words that its location must have
    :param os: the only operating system that it runs on; None: any
    :param instance_type: the only type that it may use; ``types``: those of which it may use any, None: all
    :param capacity_type: ``on-demand`` or ``spot``; None: whichever is cheaper
    :param hints: which sorts of hints it has that only some locations understand: :data:`NATIVE`, :data:`LAYOUT`
    :param task: the step it belongs to, for ``Limits.tasks``; ``run``: the Dag run, for ``Limits.runs``
    :param nodes: the machines of a batch job of its own, which such a job counts as for these limits
    :param expected: how long it will run; None: ``time``, or nothing is known
    """

    name: str
    resources: Resources
    count: int = 1
    priority: int = 0
    queued_at: float = 0.0
    time: float | None = None
    arch: str | None = None
    features: frozenset[str] = frozenset()
    instance_type: str | None = None
    capacity_type: str | None = None
    hints: frozenset[str] = frozenset()
    task: str | None = None
    run: str | None = None
    os: str | None = None
    nodes: int = 1
    expected: Prediction | None = None
    types: frozenset[str] | None = None

    @property
    def wish(self) -> Wish:
        """What it asks of a machine besides amounts."""
        return Wish(self.arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os, self.types)


class Running(NamedTuple):
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
    :param capacity_type: ``on-demand``: nobody takes it away from Lading; ``spot``: it may be reclaimed at any time
    :param arch: its architecture, as uname has it; None: any job's
    :param features: words for what it has, which jobs may ask for; one with a name is a property: ``license=matlab``
    :param os: its operating system
    :param hints: which sorts of hints it understands: :data:`NATIVE`, :data:`LAYOUT`
    :param site: the site that it belongs to
    :param max_jobs: for a queue: how many jobs it takes at a time, which it runs when it likes; None: a machine, which
        its capacity fills
    :param ends_at: epoch seconds at which it goes away, as a batch allocation does
    :param launched_at: epoch seconds since when it is paid for
    :param idle_since: epoch seconds since when nothing runs on it; None: not known
    :param tasks: steps of which a job is on it, for ``Limits.tasks``; ``runs``: Dag runs, for ``Limits.runs``
    :param draining: whether it takes no more jobs; ``booting``: whether it comes up, and takes none yet
    :param jobs: how many jobs are on it
    :param stored: those of them that have not begun
    :param ahead: so many jobs it has in store whatever they need, for its jobs are known to be short
    :param running_jobs: those that are on it, as far as it is known how long they will run
    :param ready_at: epoch seconds at which it is up, where that is to come; None: it is, or it is not known
    :param nodes: of a queue: how many nodes it has; None: a machine, or it is not known
    :param idle_nodes: how many of them take jobs and have none; None: it is not known
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
    stored: tuple[Job, ...] = ()
    ahead: int = 0
    os: str = DEFAULT_OS
    running_jobs: tuple[Running, ...] = ()
    ready_at: float | None = None
    nodes: int | None = None
    idle_nodes: int | None = None

    @property
    def kind(self) -> Kind:
        """What it is besides amounts."""
        return Kind(self.arch, self.features, self.instance_type, self.capacity_type, self.hints, self.os)

    def suits(self, job: Job) -> bool:
        """Whether a job can ever run there, busy or not."""
        return job.resources.fits(self.capacity) and self.kind.grants(job.wish)

    def lasts(self, time: float | None, now: float) -> bool:
        """Whether it stays for so many seconds; one that ends takes no job of unknown length (None)."""
        return self.ends_at is None or (time is not None and now + time <= self.ends_at)

    def given(self, jobs: Sequence[Job]) -> Location:
        """The same when it has been given these jobs, too, and they have not begun."""
        used, stored = sum((job.resources for job in jobs), self.used), (*self.stored, *jobs)
        return replace(self, used=used, stored=stored, jobs=self.jobs + len(jobs)).with_labels(jobs)

    def with_labels(self, jobs: Sequence[Job]) -> Location:
        """The same where these jobs' steps and runs, as far as they have limits, are on it."""
        tasks = {job.task for job in jobs if job.task is not None}
        runs = {job.run for job in jobs if job.run is not None}
        return replace(self, tasks=self.tasks | tasks, runs=self.runs | runs) if tasks or runs else self

    @property
    def running(self) -> Resources:
        """What the jobs take that have begun."""
        return self.used - sum((job.resources for job in self.stored), NOTHING)

    @property
    def empty(self) -> bool:
        """Whether no job is on it."""
        return self.used == NOTHING and not self.tasks and not self.runs


@dataclass(frozen=True, slots=True)
class Limits:
    """How many instances there may be at once, those that are there included; None or absent: as many as it takes.

    :param instances: at the site
    :param types: of one instance type, by its name
    :param tasks: on which jobs of one step are, by ``Job.task``
    :param runs: on which jobs of one Dag run are, by ``Job.run``
    :param usd_per_hour: what all of them may cost
    :param vcpus: of all of one quota, by its name (:mod:`lading.scheduling.packing.quotas`)
    """

    instances: int | None = None
    types: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: float | None = None
    vcpus: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a plan costs: the price per hour, and what every launch costs once, spread over a horizon.

    :param per_instance: USD that a launched instance costs once: its boot time and its billing minimum
    :param horizon_hours: hours over which that is spread, above zero
    :param boot_seconds: from a launch until its first job starts; paid for. Where durations count (policy ``hours``)
    :param billing_seconds: whole periods of this length are billed; 1: by the second
    """

    per_instance: float = 0.0
    horizon_hours: float = 1.0
    boot_seconds: float = 60.0
    billing_seconds: float = 1.0

    @property
    def room_seconds(self) -> float:
        """Seconds after it came until which a job may wait for room that is cheaper than a new machine (``hours``)."""
        return 3 * self.boot_seconds

    @property
    def per_launch(self) -> float:
        """USD per hour that each launch adds."""
        return self.per_instance / self.horizon_hours


@dataclass(frozen=True, slots=True)
class Launch:
    """An instance to launch.

    :param name: what the placements of this plan call it
    """

    name: str
    instance_type: str
    capacity_type: str
    zone: str | None
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Placement:
    """``count`` of the jobs called ``job`` go to a location, or to a launch, of that name."""

    job: str
    location: str
    count: int = 1


class Filled(NamedTuple):
    """Machines that are filled alike.

    :param location: the one that is there; None: they are launched
    :param instance_type: empty where that is not known
    :param jobs: names of jobs, and how many are on each machine
    :param number: of the machines
    """

    location: str | None
    instance_type: str
    usd_per_hour: float
    jobs: tuple[tuple[str, int], ...]
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    """An empty instance to give back."""

    location: str
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """``count`` of the jobs called ``job`` have to wait, and why."""

    job: str
    count: int
    reason: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that can never run here, and what it is that it lacks."""

    job: str
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next.

    :param placements: made when they are asked for, as are ``launches`` and ``filled``
    :param filled: the machines that get jobs, those together that are filled alike
    :param cost: USD per hour of the launches; what is there already is not counted
    :param objective: USD per hour with the one-off cost of every launch spread over the horizon
    :param bound: USD per hour below which no plan can place the jobs that this one places; None: not asked for
    :param gap: cost / bound - 1; None where nothing is placed or the bound is zero and the cost is not
    :param why: of a policy that compares several ways: which won, and by how much; else empty
    """

    policy: str
    effort: str
    placements: Sequence[Placement]
    launches: Sequence[Launch]
    filled: Sequence[Filled]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refusals: tuple[Refusal, ...]
    cost: float
    objective: float
    bound: float | None
    gap: float | None
    why: str = ""
