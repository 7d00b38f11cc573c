"""The plan of each site that uses allocations, for the upcoming work there."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lading.executors.forecast.site_plan import SitePlan
from lading.scheduling.forecast.coming import ComingRun, site_forecast
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.matching.market import Market, queue_of
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.location import Location
from lading.scheduling.provisioning.allocation_plan import (
    allocation_plan,
    as_machine,
    as_machines,
    margin,
    sure_steps,
)
from lading.scheduling.provisioning.launch import AllocationPlan

# How many of the latest allocations are used to measure how long their first jobs had to wait.
MOST_BEGINS = 20
# If an allocation was last seen longer than this before it was up, it may have been up for a long time; seconds.
SECONDS_UNSEEN = 60.0


class BeginTimes:
    """How long allocations take from their start until jobs can begin, which shortens their usable walltime.

    A node may have to boot or pull a container. The measurements are lost when the controller exits.
    """

    def __init__(self) -> None:
        self.lately: deque[float] = deque(maxlen=MOST_BEGINS)
        self.asked: dict[str, tuple[float, float]] = {}
        """The allocations in the queue: their requested seconds, and when each was last seen."""

    def measure(self, allocations: Iterable[Location], now: float) -> float | None:
        """Return the longest time that a recent allocation took; None: not measured yet.

        :param now: epoch seconds
        """
        before, self.asked = self.asked, {}
        for allocation in allocations:
            seconds, seen_at = before.pop(allocation.name, (math.inf, -math.inf))
            if allocation.ends_at is None or allocation.draining:
                continue
            if allocation.booting:
                self.asked[allocation.name] = allocation.ends_at - now, now
            elif abs(now - seen_at) <= SECONDS_UNSEEN:
                self.lately.append(max(0.0, seconds - (allocation.ends_at - now)))
        # An allocation that ended before it was up may have been too short even for that.
        self.lately += [seconds for seconds, _ in before.values()]
        return max(self.lately, default=None)


class AllocationWork:
    """The plan of one site that uses allocations, and the allocations requested by it."""

    def __init__(self, plan: SitePlan) -> None:
        self.plan = plan
        self.begins = BeginTimes()
        self.seen: dict[str, tuple[float, float | None]] = {}
        """When each allocation was first seen, and when it was first up, in epoch seconds; None: it is not up yet."""
        self.foreseen: dict[str, bool] = {}
        """For each allocation that had jobs: whether all of them belonged to runs whose remaining steps are known."""
        self.prefetched: frozenset[str] = frozenset()
        """The tokens of jobs that were prefetched according to a plan, or can be now."""

    def next_plan(
        self,
        runs: Sequence[ComingRun],
        site: SiteView,
        market: Market,
        waits: QueueWaits,
        known: Collection[str],
        now: float,
        *,
        pools: Mapping[str, int],
        turns: Mapping[str, tuple[int, float]],
        is_blind: bool,
        held: Collection[str] = (),
        barred: Collection[str] = (),
        not_ahead: Collection[str] = (),
    ) -> AllocationPlan:
        """Return what the plan requests now for the runs whose remaining steps are known.

        :param waits: how long allocations have waited in their queues
        :param known: the runs whose remaining steps are known
        :param now: epoch seconds
        :param pools: the number of slots of each of Airflow's pools
        :param turns: the priority and turn of waiting jobs, by token; empty: they belong to one share
        :param is_blind: whether the remaining steps of some other run are unknown
        :param held: the runs whose jobs cannot start; ``barred``: the tokens of jobs that cannot; ``not_ahead``: the
            runs for which nothing is requested before their jobs wait
        """
        every = site_forecast(self.plan.parts(runs, site.name), pools, turns)
        self._note(every.forecast, site, known, now)
        strange = [name for name, step in every.forecast.steps.items() if step.job.run not in known]
        its = every.without(strange)
        tokens = {token: name for name, token in its.waiting.items()}
        forecast = its.forecast
        kinds = {step.job.instance_type for step in forecast.steps.values() if not step.elsewhere}
        kinds |= {each.instance_type for each in site.launched}
        expected = {str(kind): queue_wait(waits, site.name, str(kind), market) for kind in kinds}
        there = [
            as_machine(each, *self.seen[each.name], expected[str(each.instance_type)], now) for each in site.launched
        ]
        sure = sure_steps(forecast, tokens.values(), set(known).difference(not_ahead), expected, now)
        foreseen = self.plan.next_actions(
            its,
            replace(site, launched=there),
            as_machines(market, expected),
            now,
            is_blind=is_blind,
            held=held,
            barred=barred,
            # It is unknown which other jobs may need these.
            kept=[each.name for each in there if not self.foreseen.get(each.name, False)],
            unsure=forecast.steps.keys() - sure,
        )
        schedule = self.plan.planner.schedule
        given = {job.name for each in site.launched for job in each.prefetched}
        self.prefetched = self.prefetched.intersection(given).union(foreseen.prefetch_to)
        found = allocation_plan(
            foreseen.actions,
            foreseen.planned | foreseen.pending,
            forecast,
            tokens,
            {} if schedule is None else schedule.starts,
            sure - foreseen.not_ahead,
            there,
            expected,
            market,
            margin(self.begins.measure(site.launched, now)),
            now,
        )
        return replace(found, prefetch_to=foreseen.prefetch_to, prefetched=self.prefetched, known=frozenset(known))

    def _note(self, forecast: Forecast, site: SiteView, known: Collection[str], now: float) -> None:
        """Record when each allocation was first seen and first up, and which runs its jobs belonged to."""
        before, self.seen = self.seen, {}
        for each in site.launched:
            seen_at, up_at = before.get(each.name, (now, None))
            self.seen[each.name] = seen_at, None if each.booting else (now if up_at is None else up_at)
        self.foreseen = {name: value for name, value in self.foreseen.items() if name in self.seen}
        for name, are_known in located(forecast, known).items():
            if name in self.seen:
                self.foreseen[name] = self.foreseen.get(name, True) and are_known


def queue_wait(waits: QueueWaits, site: str, kind: str, market: Market) -> float:
    """Return the expected queue wait in seconds: measured on earlier allocations, or else from the sites file."""
    known = waits.expected(site, queue_of(kind), market.capacity.cpus)
    return market.queue_seconds if known is None else known


def located(forecast: Forecast, known: Collection[str]) -> Mapping[str, bool]:
    """Return which allocations have jobs, and whether all of those belong to known runs."""
    found: dict[str, bool] = {}
    for step in forecast.steps.values():
        if step.location is not None:
            found[step.location] = found.get(step.location, True) and step.job.run in known
    return found
