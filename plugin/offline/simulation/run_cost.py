"""Estimate what a run will cost: its tasks in the order of their dependencies, on machines that are bought. Pure.

USD and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.accounting import billing
from lading.scheduling.forecast.choice import choose
from lading.scheduling.forecast.fleet_work import FleetWork
from lading.scheduling.forecast.fleets import FleetRun
from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import MachineKind
from lading.scheduling.model.plan import FORECAST, Objective
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import Shape, pose, refusal, vector
from lading.scheduling.placing.policies import GREEDY
from lading.scheduling.provisioning.scale_in import ScaleIn

# Limit on the dependencies between jobs: if each of 1,000 jobs waits for 1,000, there are a million.
MOST_WAITS = 2_000_000
# For more jobs than this, a plan is not made anew as the run goes on, which would take minutes: the first one counts.
MOST_REPLANNED = 500
# The shortest running time of a job, seconds.
LEAST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RunTask:
    """A task of a run.

    :param jobs: how many jobs it becomes
    :param job: what each of them requests
    :param expected: how long each of them will run
    """

    name: str
    jobs: int
    job: PlannedJob
    expected: Prediction

    @property
    def seconds(self) -> float:
        """The mean running time of a job. The prediction is the median; the mean of log-normal times is higher."""
        mean = self.expected.seconds * math.exp(self.expected.spread**2 / 2)
        return mean if self.expected.most is None else min(mean, self.expected.most)


@dataclass(frozen=True, slots=True)
class Bill:
    """What the steps of a run cost together.

    :param usd: everything paid for the machines, including boots and gaps
    :param of_steps: how it is divided among the steps, by name
    :param refused: why steps have no place, by name
    """

    usd: float
    of_steps: Mapping[str, float]
    refused: Mapping[str, Reason]


def begins(upstream: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> dict[str, float]:
    """Return when each task of a run can start at the earliest, in seconds after the start of the run.

    :param upstream: the tasks that come before each
    :param seconds: how long each of them takes; 0 if unknown
    """
    found: dict[str, float] = {}
    for name in TopologicalSorter(upstream).static_order():
        found[name] = max((found[each] + seconds.get(each, 0.0) for each in upstream.get(name, ())), default=0.0)
    return found


def steps_before(steps: Iterable[RunTask], upstream: Mapping[str, Sequence[str]]) -> dict[str, frozenset[str]]:
    """Return the last steps before each task of a run."""
    names = {step.name for step in steps}
    before: dict[str, frozenset[str]] = {}
    for name in TopologicalSorter(upstream).static_order():
        above = (frozenset({each}) if each in names else before[each] for each in upstream.get(name, ()))
        before[name] = frozenset().union(*above)
    return before


def as_workflow(steps: Sequence[RunTask], upstream: Mapping[str, Sequence[str]]) -> list[Arrival]:
    """Return the jobs of steps of a run, each of which waits for all jobs of the steps before its own.

    :param upstream: the tasks that come before each task of the run; tasks that are not steps take no time
    :raises ValueError: the jobs have more than :data:`MOST_WAITS` dependencies
    """
    before = steps_before(steps, upstream)
    names = {step.name: [f"{step.name}[{number}]" for number in range(step.jobs)] for step in steps}
    waits = sum(step.jobs * len(names[parent]) for step in steps for parent in before[step.name])
    if waits > MOST_WAITS:
        raise ValueError(f"its jobs have {waits:,} dependencies; valid: at most {MOST_WAITS:,}")
    return [
        Arrival(
            replace(step.job, name=name, count=1, task=step.name, run="", expected=None),
            0.0,
            max(step.seconds, LEAST_SECONDS),
            tuple(parent for each in sorted(before[step.name]) for parent in names[each]),
        )
        for step in steps
        for name in names[step.name]
    ]


def on_machines(
    steps: Sequence[RunTask],
    begin: Mapping[str, float],
    market: MachineMarket,
    upstream: Mapping[str, Sequence[str]] = {},
) -> Bill:
    """Simulate what steps cost at a site that buys machines for them and has none yet.

    A site that buys by a forecast buys the machines of its plan. For more than :data:`MOST_REPLANNED` jobs, these are
    the machines of the first plan.

    :param begin: when each step starts, seconds after the start of the run
    :param upstream: the tasks that come before each task of the run, used by a forecast
    :raises NoEnd: it would never end
    :raises ValueError: the jobs have more than :data:`MOST_WAITS` dependencies
    """
    jobs = [replace(step.job, name=step.name, count=step.jobs, expected=None) for step in steps]
    trace = [Arrival(job, begin[step.name], step.seconds) for job, step in zip(jobs, steps, strict=True) if step.jobs]
    known: dict[str, Any] = {}
    if market.policy == FORECAST:
        upstream = {**{step.name: () for step in steps}, **upstream}
        if sum(step.jobs for step in steps) > MOST_REPLANNED:
            usd, refused = by_first_plan(steps, upstream, market)
            return Bill(usd, shared(usd, steps, refused, market), refused)
        trace = as_workflow(steps, upstream)
        known = {"hurry": market.hurry, "lengths": expected_lengths(trace, "known")}
    rules = ScaleIn(market.idle_seconds, min_instances=0)
    conditions = Conditions(boot_seconds=market.boot_seconds)
    report = simulate(
        trace,
        market.catalogue,
        market.limits,
        market.policy if known else GREEDY,
        scale_in=rules,
        conditions=conditions,
        **known,
    )
    refused = {name.partition("[")[0] if known else name: reason for name, reason in report.refusals}
    return Bill(report.cost, shared(report.cost, steps, refused, market), refused)


def by_first_plan(
    steps: Sequence[RunTask], upstream: Mapping[str, Sequence[str]], market: MachineMarket
) -> tuple[float, dict[str, Reason]]:
    """Return what the machines of the first plan for a run cost in USD, and why tasks have no place, by name."""
    planned: dict[str, WorkflowStep] = {}
    before = steps_before(steps, upstream)
    for step in steps:
        names = [f"{step.name}[{number}]" for number in range(step.jobs)]
        job = replace(step.job, count=1, task=step.name, run="", expected=None)
        parents = tuple(sorted(before[step.name]))
        seconds = max(step.seconds, LEAST_SECONDS)
        planned |= {name: WorkflowStep(replace(job, name=name), seconds, parents, measured=1) for name in names}
        # It ends with the last of its jobs, so that jobs have few parents.
        end = PlannedJob(step.name, Resources(), run="")
        planned[step.name] = WorkflowStep(end, 0.0, tuple(names) or parents, elsewhere=True)
    forecast, problem = Forecast(planned), pose([], [], market.catalogue, market.limits, Objective(), 0.0, None)
    work = FleetWork(forecast, [], problem, market.boot_seconds, 0.0, market.boots)
    schedule = FleetRun(work, choose(work, market.hurry)).schedule()
    tasks = {step.name: step.job for step in steps if step.jobs}
    shapes = {name: Shape(vector(job.resources), job.wish, None, None, None) for name, job in tasks.items()}
    able = {name: problem.on_sale.granting(shape.wish).cheapest(shape.need) for name, shape in shapes.items()}
    return schedule.usd, {
        name: refusal(problem, job, shapes[name]) for name, job in tasks.items() if able[name] is None
    }


def shared(usd: float, steps: Iterable[RunTask], refused: Container[str], market: MachineMarket) -> dict[str, float]:
    """Divide a cost among the tasks that have a place, by what each would cost at least."""
    parts = {
        step.name: step.jobs * step.seconds * least_price(step.job, market.catalogue)
        for step in steps
        if step.name not in refused
    }
    whole = sum(parts.values())
    return {name: usd * part / whole if whole else 0.0 for name, part in parts.items()}


def least_price(job: PlannedJob, catalogue: Catalogue) -> float:
    """Return the lowest price of a job per hour, by its dominant share of a machine; 0 if no machine suits it."""
    return min(
        (
            offering.usd_per_hour * billing.dominant_share(job.resources, kind.capacity)
            for kind in catalogue.types.values()
            for offering in kind.offerings
            if job.resources.fits(kind.capacity)
            and MachineKind(kind.arch, kind.features, kind.name, offering.capacity_type).grants(job.wish)
        ),
        default=0.0,
    )
