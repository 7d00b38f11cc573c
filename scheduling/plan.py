"""The data of planning: what bounds it (limits, what is paid) and what is answered (a plan).

Only frozen data; :mod:`lading.scheduling.provisioning.planner` decides. Money is USD, time seconds, memory and disk
MiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.reasons import Reason

# The policies that come with Lading, and how hard they try.
POLICY_NAMES = ("greedy", "priced", "alone")
EFFORTS = ("fast", "best")
# The one that knows what is still to come, where a workflow is simulated.
FORECAST = "forecast"
# What the end of a run is worth (:mod:`lading.scheduling.forecast.choice`), and names for it.
MOST_HURRY = 100.0
HURRIES = {"cheap": 0.0, "balanced": 1.0, "fast": 10.0}
# What is known of the lengths of a workflow's tasks: each, the median of those of the same name, or nothing yet.
LENGTHS = ("known", "task", "unknown")
# What a workflow's tasks request: their authors' amounts, what Lading would choose, or what they use.
SIZES = (ASKED, AUTO, EXACT) = ("asked", "auto", "exact")


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """How many instances there may be at once, those that are there included; None or absent: as many as it takes.

    :param instances: at the site
    :param types: of one instance type, by its name
    :param tasks: on which jobs of one step are, by ``Job.task``
    :param runs: on which jobs of one Dag run are, by ``Job.run``
    :param usd_per_hour: what all of them may cost
    :param vcpus: of all of one quota, by its name (:mod:`lading.scheduling.quotas`)
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
    """

    per_instance: float = 0.0
    horizon_hours: float = 1.0

    @property
    def per_launch(self) -> float:
        """USD per hour that each launch adds."""
        return self.per_instance / self.horizon_hours


@dataclass(frozen=True, slots=True)
class PlannedLaunch:
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


class FilledMachines(NamedTuple):
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
    """An empty instance to release, and why."""

    location: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """``count`` of the jobs called ``job`` have to wait, and why."""

    job: str
    count: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    """A job that can never run here, and what it is that it lacks."""

    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do next.

    :param placements: made when they are asked for, as are ``launches`` and ``filled``
    :param filled: the machines that get jobs, those together that are filled alike
    :param cost: USD per hour of the launches; what is there already is not counted
    :param objective: USD per hour with the one-off cost of every launch spread over the horizon
    :param bound: USD per hour below which no plan can place the jobs that this one places; None: not asked for
    :param gap: cost / bound - 1; None where nothing is placed or the bound is zero and the cost is not
    """

    policy: str
    effort: str
    placements: Sequence[Placement]
    launches: Sequence[PlannedLaunch]
    filled: Sequence[FilledMachines]
    releases: tuple[Release, ...]
    waits: tuple[Wait, ...]
    refusals: tuple[Refusal, ...]
    cost: float
    objective: float
    bound: float | None
    gap: float | None
