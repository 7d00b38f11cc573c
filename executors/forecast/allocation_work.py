"""The upcoming work at each site that uses allocations, as input for decisions about them."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from lading.executors.forecast.held_up import HeldUpSteps
from lading.executors.forecast.site_plan import SitePlan
from lading.scheduling.forecast.coming import ComingRun, RunAtSite, SiteForecast, parts_at, site_forecast
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.provisioning.allocation_plan import allocation_plan, as_machine, as_machines, needed_soon
from lading.scheduling.provisioning.coming_work import ComingWork, sure_steps
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
    """The upcoming work at one site that uses allocations, and the allocations requested for it.

    :param plan: the plan of the site; None: allocations are requested only for waiting jobs
    """

    def __init__(self, plan: SitePlan | None = None) -> None:
        self.plan = plan
        self.begins = BeginTimes()
        self.seen: dict[str, tuple[float, float | None]] = {}
        """When each allocation was first seen, and when it was first up, in epoch seconds; None: it is not up yet."""
        self.at_site: dict[str, RunAtSite] = {}
        self.held_up = HeldUpSteps()
        self.foreseen: dict[str, bool] = {}
        """For each allocation that had jobs: whether all of them belonged to runs whose remaining steps are known."""
        self.prefetched: frozenset[str] = frozenset()
        """The tokens of jobs that were prefetched according to a plan, or can be now."""

    def coming_work(
        self,
        runs: Sequence[ComingRun],
        site: SiteView,
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
    ) -> ComingWork:
        """Return the upcoming work of the site.

        :param waits: how long allocations have waited in their queues
        :param known: the runs whose remaining steps are known
        :param now: epoch seconds
        :param pools: the number of slots of each of Airflow's pools
        :param turns: the priority and turn of waiting jobs, by token; empty: they belong to one share
        :param is_blind: whether the remaining steps of some other run are unknown
        :param held: the runs whose jobs cannot start; ``barred``: the tokens of jobs that cannot; ``not_ahead``: the
            runs for which nothing is requested before their jobs wait
        """
        self.at_site = parts_at(runs, site.name, self.at_site)
        its = site_forecast(self.at_site.values(), pools, turns)
        _, held_up = self.held_up.update(its, now)
        left_out = [*held_up, *its.held(held, barred)]
        there = {each.name for each in site.launched}
        self.foreseen = {name: value for name, value in self.foreseen.items() if name in there}
        for name, are_known in located(its.forecast, known).items():
            if name in there:
                self.foreseen[name] = self.foreseen.get(name, True) and are_known
        coming = ComingWork(
            its.forecast.without(left_out) if left_out else its.forecast,
            {token: name for name, token in its.waiting.items()},
            frozenset(known),
            frozenset(name for name, value in self.foreseen.items() if value),
            is_blind or bool(held_up),  # held-up steps can continue at any time
            site.name,
            waits,
            self.begins.measure(site.launched, now),
            frozenset(not_ahead),
        )
        if self.plan is None or not isinstance(site.market, Market):
            return coming
        cut = {its.forecast.steps[name].job.run for name in left_out}
        return replace(coming, plan=self._planned(self.plan, its, coming, site, site.market, cut, now))

    def _planned(
        self,
        plan: SitePlan,
        its: SiteForecast,
        coming: ComingWork,
        site: SiteView,
        market: Market,
        cut: Collection[str | None],
        now: float,
    ) -> AllocationPlan:
        """Return what the plan requests now for the runs whose remaining steps are known.

        :param cut: the runs with steps that are left out
        """
        before, self.seen = self.seen, {}
        for each in site.launched:
            seen_at, up_at = before.get(each.name, (now, None))
            self.seen[each.name] = seen_at, None if each.booting else (now if up_at is None else up_at)
        steps = coming.forecast.steps
        strange = [name for name, step in steps.items() if step.job.run not in coming.known]
        forecast = coming.forecast.without(strange) if strange else coming.forecast
        waiting = {name: token for name, token in its.waiting.items() if name in forecast.steps}
        kinds = {step.job.instance_type for step in forecast.steps.values() if not step.elsewhere}
        kinds |= {each.instance_type for each in site.launched}
        waits = {str(kind): coming.wait(str(kind), market.capacity.cpus, market) for kind in kinds}
        there = [as_machine(each, *self.seen[each.name], waits[str(each.instance_type)], now) for each in site.launched]
        sure = sure_steps(replace(coming, forecast=forecast), market, now)
        foreseen = plan.next_actions(
            replace(
                its,
                forecast=forecast,
                waiting=waiting,
                come=frozenset(name for name in its.come if name in forecast.steps),
                ready=frozenset(name for name in its.ready if name in forecast.steps),
            ),
            replace(site, launched=there),
            as_machines(market, waits),
            now,
            is_blind=coming.is_blind,
            # It is unknown which other jobs may need these.
            kept=[each.name for each in there if each.name not in coming.foreseen],
            unsure=forecast.steps.keys() - sure,
            cut=cut,
        )
        schedule = plan.planner.schedule
        begins = {} if schedule is None else schedule.starts
        sure -= foreseen.not_ahead
        tokens = {token: name for name, token in waiting.items()}
        planned = foreseen.planned | foreseen.pending
        needed = needed_soon(foreseen.actions, there, waits, now)
        given = {job.name for each in site.launched for job in each.prefetched}
        self.prefetched = self.prefetched.intersection(given).union(foreseen.prefetch_to)
        found = allocation_plan(
            foreseen.actions, planned, forecast, tokens, begins, sure, needed, market, coming.margin
        )
        return replace(found, prefetch_to=foreseen.prefetch_to, prefetched=self.prefetched)


def located(forecast: Forecast, known: Collection[str]) -> Mapping[str, bool]:
    """Return which allocations have jobs, and whether all of those belong to known runs."""
    found: dict[str, bool] = {}
    for step in forecast.steps.values():
        if step.location is not None:
            found[step.location] = found.get(step.location, True) and step.job.run in known
    return found
