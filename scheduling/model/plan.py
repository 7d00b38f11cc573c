"""The data of planning: limits and objective as input, a plan as output.

Frozen data only; :mod:`lading.scheduling.provisioning.planner` decides. Money is USD, time seconds, memory and disk
MiB.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.model.reasons import Reason

# The policies that come with Lading, and the efforts they can make.
POLICY_NAMES = ("greedy", "priced", "alone")
EFFORTS = ("fast", "best")
# The policy that knows the upcoming tasks, when a workflow is simulated.
FORECAST = "forecast"
# The value of finishing a run early (:mod:`lading.scheduling.forecast.choice`), and names for some values.
MOST_HURRY = 100.0
HURRIES = {"cheap": 0.0, "balanced": 1.0, "fast": 10.0}
# What is known about the lengths of a workflow's tasks: each length, the median of the tasks of the same name, or
# nothing yet.
LENGTHS = ("known", "task", "unknown")
# What a workflow's tasks request: their authors' amounts, the amounts Lading would choose, or what they use.
SIZES = (ASKED, AUTO, EXACT) = ("asked", "auto", "exact")


@dataclass(frozen=True, slots=True)
class InstanceLimits:
    """How many instances are allowed at once, existing ones included; None or a missing key means no limit.

    :param instances: at the site
    :param types: by instance type
    :param tasks: with jobs of a task, by ``Job.task``
    :param runs: with jobs of a Dag run, by ``Job.run``
    :param usd_per_hour: the total price of all instances
    :param vcpus: the total vCPUs by quota (:mod:`lading.scheduling.model.quotas`)
    """

    instances: int | None = None
    types: Mapping[str, int] = field(default_factory=dict)
    tasks: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, int] = field(default_factory=dict)
    usd_per_hour: float | None = None
    vcpus: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Objective:
    """What a plan costs: the price per hour, plus the one-off cost of every launch spread over a horizon.

    :param per_instance: the one-off cost of a launch in USD: its boot time and its billing minimum
    :param horizon_hours: the hours over which that cost is spread, above zero
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

    :param name: the name by which the placements of the plan refer to it
    """

    name: str
    instance_type: str
    capacity_type: str
    zone: str | None
    usd_per_hour: float


@dataclass(frozen=True, slots=True)
class Placement:
    """``count`` of the jobs named ``job`` go to the location, or the launch, of that name."""

    job: str
    location: str
    count: int = 1


class FilledMachines(NamedTuple):
    """Machines that the plan fills alike.

    :param location: the existing machine; None: the machines are to be launched
    :param instance_type: empty if unknown
    :param jobs: (name of a job, how many of it are on each machine)
    :param number: how many machines
    """

    location: str | None
    instance_type: str
    usd_per_hour: float
    jobs: tuple[tuple[str, int], ...]
    number: int


@dataclass(frozen=True, slots=True)
class Release:
    location: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """``count`` of the jobs named ``job`` have to wait, and why."""

    job: str
    count: int
    reason: Reason


@dataclass(frozen=True, slots=True)
class Refusal:
    job: str
    reason: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """The result of planning.

    :param placements: computed on first use, as are ``launches`` and ``filled``
    :param filled: the machines that get jobs, grouped by equal contents
    :param cost: USD per hour of the launches, not of existing instances
    :param objective: USD per hour including the one-off cost of every launch, spread over the horizon
    :param bound: USD per hour below which no plan can place the jobs that this one places; None: not computed
    :param gap: cost / bound - 1; None if nothing is placed, or if the bound is zero and the cost is not
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
