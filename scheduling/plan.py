"""The words of planning: what is asked (jobs, locations, limits) and what is answered (a plan).

Only frozen data; :mod:`lading.scheduling.planner` decides. Money is USD, time seconds, memory and disk MiB.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lading.scheduling.resources import Resources

NOTHING = Resources()
# The policies that come with Lading, and how hard they try.
POLICY_NAMES = ("greedy", "priced")
EFFORTS = ("fast", "best")


@dataclass(frozen=True, slots=True)
class Job:
    """A job that waits for a place, or ``count`` equal ones.

    :param name: identifies it in the plan (in the engine: its token); unique among the jobs of a plan
    :param priority: higher ones are placed first
    :param queued_at: epoch seconds of its arrival
    :param time: seconds that it runs at most or is known to run; None: unknown
    :param arch: the only architecture that it runs on; None: any
    :param features: words that its location must have
    :param instance_type: the only type that it may use
    :param capacity_type: ``on-demand`` or ``spot``; None: whichever is cheaper
    :param task: the step it belongs to, for ``Limits.tasks``
    :param run: the Dag run it belongs to, for ``Limits.runs``
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
    task: str | None = None
    run: str | None = None


@dataclass(frozen=True, slots=True)
class Location:
    """A machine that is there.

    The order in which locations are given is their age, oldest first.

    :param capacity: what jobs can use of it, overheads taken off
    :param used: what the jobs take that are placed on it already
    :param instance_type: its type where it is an instance, which can be released; None for a machine that stays
    :param usd_per_hour: what it costs as long as it is there
    :param arch: its architecture; None: any job's
    :param ends_at: epoch seconds at which it goes away, as a batch allocation does
    :param launched_at: epoch seconds since when it is paid for
    :param idle_since: epoch seconds since when nothing runs on it; None: not known
    :param tasks: steps of which a job is on it, for ``Limits.tasks``
    :param runs: Dag runs of which a job is on it, for ``Limits.runs``
    :param draining: whether it takes no more jobs
    """

    name: str
    capacity: Resources
    used: Resources = NOTHING
    instance_type: str | None = None
    capacity_type: str | None = None
    usd_per_hour: float = 0.0
    arch: str | None = None
    features: frozenset[str] = frozenset()
    ends_at: float | None = None
    launched_at: float | None = None
    idle_since: float | None = None
    tasks: frozenset[str] = frozenset()
    runs: frozenset[str] = frozenset()
    draining: bool = False

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
    """

    instances: int | None = None
    types: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a plan costs: the price per hour, and what every launch costs once, spread over a horizon.

    :param per_instance: USD that a launched instance costs once: its boot time and its billing minimum
    :param horizon_hours: hours over which that is spread, above zero
    """

    per_instance: float = 0.0
    horizon_hours: float = 1.0

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

    :param cost: USD per hour of the launches; what is there already is not counted
    :param objective: USD per hour with the one-off cost of every launch spread over the horizon
    :param bound: USD per hour below which no plan can place the jobs that this one places; None: not asked for
    :param gap: cost / bound - 1; None where nothing is placed or the bound is zero and the cost is not
    """

    policy: str
    effort: str
    placements: tuple[Placement, ...]
    launches: tuple[Launch, ...]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refusals: tuple[Refusal, ...]
    cost: float
    objective: float
    bound: float | None
    gap: float | None
