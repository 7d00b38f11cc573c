"""What a run will cost: its tasks one after the other as they depend on each other, on machines that are bought. Pure.

USD and seconds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from graphlib import TopologicalSorter
from typing import Any

from lading.scheduling import billing
from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import MachineKind
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.placing.policies import GREEDY
from lading.scheduling.plan import FORECAST
from lading.scheduling.prediction import Prediction
from lading.scheduling.reasons import Reason
from lading.scheduling.scale_in import ScaleIn
from lading.scheduling.simulation.conditions import Conditions
from lading.scheduling.simulation.simulator import simulate
from lading.scheduling.simulation.trace import Arrival
from lading.scheduling.simulation.workflow import expected_lengths

# The most dependencies between jobs: where all of 1,000 wait for 1,000, that is a million.
MOST_WAITS = 2_000_000
# For more jobs than these what a forecast buys is not simulated: that would take minutes.
MOST_FORESEEN = 500
# No job is over sooner than this, seconds.
LEAST_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class RunTask:
    """A task of a run.

    :param jobs: how many it becomes
    :param job: what each of them asks for
    :param expected: how long each of them will run
    """

    name: str
    jobs: int
    job: PlannedJob
    expected: Prediction

    @property
    def seconds(self) -> float:
        """How long a job runs on average: of log-normal times that is more than the median, which is predicted."""
        mean = self.expected.seconds * math.exp(self.expected.spread**2 / 2)
        return mean if self.expected.most is None else min(mean, self.expected.most)


@dataclass(frozen=True, slots=True)
class Bill:
    """What steps cost together.

    :param usd: all that is paid for the machines, boots and gaps included
    :param of_steps: how it is shared among the steps, by their names
    :param refused: why steps have no place, by their names
    :param is_foreseen: whether machines are bought by a forecast, as the site does
    """

    usd: float
    of_steps: Mapping[str, float]
    refused: Mapping[str, Reason]
    is_foreseen: bool = False


def begins(upstream: Mapping[str, Sequence[str]], seconds: Mapping[str, float]) -> dict[str, float]:
    """When each task of a run can begin at the earliest, seconds after the run.

    :param upstream: the tasks that come before each
    :param seconds: how long each of them takes; 0 where that is not known
    """
    found: dict[str, float] = {}
    for name in TopologicalSorter(upstream).static_order():
        found[name] = max((found[each] + seconds.get(each, 0.0) for each in upstream.get(name, ())), default=0.0)
    return found


def as_workflow(steps: Sequence[RunTask], upstream: Mapping[str, Sequence[str]]) -> list[Arrival]:
    """The jobs of steps of a run, each of which waits for all jobs of the steps before its own.

    :param upstream: the tasks that come before each task of the run; those that are no steps take no time
    :raises ValueError: jobs wait for each other in more ways than :data:`MOST_WAITS`
    """
    by_name = {step.name: step for step in steps}
    before: dict[str, frozenset[str]] = {}
    for name in TopologicalSorter(upstream).static_order():
        above = (frozenset({each}) if each in by_name else before[each] for each in upstream.get(name, ()))
        before[name] = frozenset().union(*above)
    names = {step.name: [f"{step.name}[{number}]" for number in range(step.jobs)] for step in steps}
    waits = sum(step.jobs * len(names[parent]) for step in steps for parent in before[step.name])
    if waits > MOST_WAITS:
        raise ValueError(f"its jobs wait for each other in {waits:,} ways; valid: at most {MOST_WAITS:,}")
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
    """What steps cost at a site that buys machines for them and has none yet, as the simulator computes it: by what
    waits alone, where they are more than :data:`MOST_FORESEEN` jobs.

    :param begin: when each step begins, seconds after the run
    :param upstream: the tasks that come before each task of the run, by which a site buys that does so by a forecast
    :raises NoEnd: it would never end
    :raises ValueError: jobs wait for each other in more ways than :data:`MOST_WAITS`
    """
    jobs = [replace(step.job, name=step.name, count=step.jobs, expected=None) for step in steps]
    trace = [Arrival(job, begin[step.name], step.seconds) for job, step in zip(jobs, steps, strict=True) if step.jobs]
    known: dict[str, Any] = {}
    is_foreseen = market.policy == FORECAST and sum(step.jobs for step in steps) <= MOST_FORESEEN
    if is_foreseen:
        trace = as_workflow(steps, {**{step.name: () for step in steps}, **upstream})
        known = {"hurry": market.hurry, "lengths": expected_lengths(trace, "known")}
    rules = ScaleIn(market.idle_seconds, min_instances=0)
    conditions = Conditions(boot_seconds=market.boot_seconds)
    report = simulate(
        trace,
        market.catalogue,
        market.limits,
        market.policy if is_foreseen else GREEDY,
        scale_in=rules,
        conditions=conditions,
        **known,
    )
    refused = {name.partition("[")[0] if known else name: reason for name, reason in report.refusals}
    parts = {
        step.name: step.jobs * step.seconds * least_price(step.job, market.catalogue)
        for step in steps
        if step.name not in refused
    }
    whole = sum(parts.values())
    shares = {name: report.cost * part / whole if whole else 0.0 for name, part in parts.items()}
    return Bill(report.cost, shares, refused, is_foreseen)


def least_price(job: PlannedJob, catalogue: Catalogue) -> float:
    """The least that a job costs per hour by its dominant share of a machine; 0: no machine is for it."""
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
