"""The plan of one site by what is to come: made in a thread of its own, and followed tick by tick.

A tick waits for a new plan for a moment only, and goes by the last one else: jobs begin where that has them, and
nothing is released before there is a plan that is of now.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotYet
from dataclasses import dataclass, replace

from lading.executors.forecast.held_up import HeldUpSteps
from lading.scheduling.forecast.choice import ChosenSchedule, Way, choose
from lading.scheduling.forecast.coming import ComingRun, RunAtSite, SiteForecast, parts_at
from lading.scheduling.forecast.fleets import Fleet
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.policy import Actions, Planner, act_late, find_prefetches
from lading.scheduling.forecast.spending import Spending
from lading.scheduling.location import Location
from lading.scheduling.matching.groups import limits_left
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.packing.problem import Problem, pose
from lading.scheduling.plan import Objective, Placement, Wait
from lading.scheduling.provisioning.foreseen import ForeseenActions, affordable, as_planned
from lading.scheduling.provisioning.machines import left_of, with_kept

# A tick waits for a new plan for so long, seconds.
SECONDS_FOR_A_PLAN = 0.05
# What has come so lately waits for the plan that is being made, seconds; what waits longer is decided about without it.
SECONDS_PENDING = 10.0
NOTHING = Actions((), (), (), (), {}, None, {}, {})


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """What a plan is made of; nothing in it changes.

    :param spent: USD that the machines have cost since the first live run has begun
    :param boot: seconds from a launch to the first job; ``boots``: the same of instance types that take other ones
    :param kept: the names of the machines that stay in any case
    :param most_boot_paid: of a boot so many seconds cost money at most
    """

    forecast: Forecast
    locations: Sequence[Location]
    problem: Problem
    boot: float
    boots: Mapping[str, float]
    hurry: float
    spent: float
    now: float
    kept: frozenset[str]
    most_boot_paid: float = math.inf

    @property
    def most(self) -> float:
        """How many machines there may be."""
        return math.inf if self.problem.limits.instances is None else self.problem.limits.instances

    @property
    def on_sale(self) -> frozenset[tuple[str, str, str]]:
        """What can be launched: types, capacity types and zones."""
        bins = self.problem.bins
        return frozenset((each.type.name, each.offering.capacity_type, each.offering.zone or "") for each in bins)


class SitePlan:
    """The plan of one site.

    :param start: has a plan made in another thread
    :param ring: called when one is ready for which no tick has waited until then
    :param may_plan: cleared while a tick is at work that does not wait for a plan
    :param most_boot_paid: of a boot so many seconds cost money at most
    """

    def __init__(
        self,
        market: MachineMarket,
        start: Callable[..., Future[ChosenSchedule]],
        ring: Callable[[], None],
        may_plan: threading.Event,
        *,
        most_boot_paid: float = math.inf,
    ) -> None:
        self.most_boot_paid = most_boot_paid
        self.planner = Planner(market.boot_seconds, market.hurry)
        self.start, self.ring, self.may_plan = start, ring, may_plan
        self.making: Future[ChosenSchedule] | None = None
        """The plan that is being made."""
        self.made_of: PlanningInput | None = None
        self.is_awaited = False
        """Whether a tick has waited for it in vain."""
        self.at_site: dict[str, RunAtSite] = {}
        self.on_sale: frozenset[tuple[str, str, str]] = frozenset()
        """What could be launched when the last plan was made: types, capacity types and zones."""
        self.most = math.inf
        """How many machines there could be then."""
        self.planned_ends: Mapping[str, float] = {}
        """When runs end by the last plan, epoch seconds."""
        self.ends: Mapping[str, float] = {}
        """The same of those of which nothing is withheld or left out."""
        self.starts: Mapping[str, float] = {}
        """When waiting jobs are planned to start, by token, epoch seconds."""
        self.of_now_at = -math.inf
        """When there was a plan of now last, epoch seconds."""
        self.pending_since: dict[str, float] = {}
        self.held_up = HeldUpSteps()
        self.has_waited: set[str] = set()
        """The steps that have waited at the site, and have not ended."""
        self.unplanned: set[str] = set()
        """The machines whose last jobs have come in another way than by a plan, as from a site that was full."""
        self.spending = Spending()

    def next_actions(
        self,
        its: SiteForecast,
        site: SiteView,
        market: MachineMarket,
        now: float,
        *,
        is_blind: bool = False,
        held: Collection[str] = (),
        barred: Collection[str] = (),
        kept: Collection[str] = (),
        unsure: Collection[str] = (),
        cut: Collection[str | None] = (),
    ) -> ForeseenActions:
        """What is to be done now.

        :param its: what is to come at the site
        :param now: epoch seconds
        :param is_blind: whether it is not known of some run what comes after its jobs, so that nothing goes by the plan
        :param held: the runs whose jobs may not start, so that they are in no plan; ``barred``: jobs that may not, by
            their tokens
        :param kept: the names of machines that do not go by the plan
        :param unsure: the steps for which nothing is launched before they wait, beside those that Airflow could have
            queued
        :param cut: the runs of which steps are left out already, so that it is not known when they end
        :raises Exception: whatever planning has raised
        """
        self.planner.hurry = market.hurry
        unqueued, held_up = self.held_up.update(its, now)
        left_out = [*held_up, *its.held(held, barred)]
        forecast = its.forecast.without(left_out) if left_out else its.forecast
        # What was held up may go on at any time.
        is_blind = is_blind or any(not its.forecast.steps[name].elsewhere for name in held_up)
        self._note_uses(its, site)
        here = self._input(forecast, its, site, market, now)
        waiting = [name for name in its.waiting if name in forecast.steps]
        kept = here.kept.union(self.unplanned, kept)
        if is_blind:
            kept = frozenset(each.name for each in here.locations)
        # Nor for what comes after them.
        not_ahead = frozenset(its.forecast.steps.keys() - its.forecast.without(unqueued).steps.keys())
        self.planner.not_ahead = not_ahead.union(unsure).difference(waiting)
        if not self._is_of_now(here):
            self._plan(here)
        if is_of_now := self._is_of_now(here):
            self.of_now_at = now
            actions = self.planner.act(here.forecast, waiting, here.problem, now, kept)
            planned = {name for name in waiting if name not in actions.refused}
        else:
            actions = self._act_late(here, waiting)
            planned = {*(each.job for each in actions.placements), *(each.job for each in actions.waits)}
        homes = self._homes(name for name in waiting if name in planned)
        tokens = its.waiting
        withheld = self.planner.withheld(forecast)
        schedule = self.planner.schedule
        known = {} if schedule is None else schedule.starts
        prefetch_to = {} if schedule is None else find_prefetches(schedule, forecast, planned, now, withheld)
        self.starts = {tokens[name]: known[name] for name in waiting if name in known and name not in withheld}
        # When that goes on is not known.
        unsure_runs = {*cut, *(its.forecast.steps[name].job.run for name in (*withheld, *left_out))}
        self.ends = {run: end for run, end in self.planned_ends.items() if run not in unsure_runs}
        return ForeseenActions(
            with_tokens(actions, tokens),
            is_of_now,
            frozenset(tokens[name] for name in planned),
            frozenset(tokens[name] for name in self._pending(waiting, planned, now)),
            {tokens[name]: place for name, place in homes.items()},
            {tokens[name]: place for name, place in prefetch_to.items()},
            not_ahead=not_ahead,
            begins={
                name: known[name]
                for names in actions.launched_for.values()
                for name in names
                if name in known and name not in tokens
            },
        )

    def _note_uses(self, its: SiteForecast, site: SiteView) -> None:
        """Note which machines have jobs that no plan had before they began, as of gangs and from other sites. Of those
        that run when a controller begins it is not known."""
        steps = its.forecast.steps
        self.has_waited = {name for name in self.has_waited if name in steps}.union(its.waiting)
        planned, odd = Counter[str](), set[str]()
        for name in its.come:
            if (location := steps[name].location) is not None and steps[name].begun is not None:
                planned[location] += 1
                if name not in self.has_waited:
                    odd.add(location)
        there = {each.name: each for each in site.launched}
        odd.update(name for name, each in there.items() if each.jobs > planned[name])
        self.unplanned = {
            name for name, each in there.items() if name in odd or (each.empty and name in self.unplanned)
        }

    def parts(self, runs: Sequence[ComingRun], name: str) -> Iterable[RunAtSite]:
        """What runs have to do at the site of this name; of those that are the same as before it is known."""
        self.at_site = parts_at(runs, name, self.at_site)
        return self.at_site.values()

    def _act_late(self, here: PlanningInput, waiting: Sequence[str]) -> Actions:
        """What is done as long as no plan is of now."""
        if (schedule := self.planner.schedule) is None:
            return NOTHING
        is_late = here.now - self.of_now_at > SECONDS_PENDING
        not_ahead = self.planner.not_ahead
        return act_late(
            schedule, waiting, here.forecast, here.locations, here.now, launches=is_late, not_ahead=not_ahead
        )

    def _pending(self, waiting: Iterable[str], planned: Collection[str], now: float) -> list[str]:
        """The jobs for which a plan is being made, and not for long."""
        names = [] if self.making is None else [name for name in waiting if name not in planned]
        self.pending_since = {name: self.pending_since.get(name, now) for name in names}
        return [name for name in names if now - self.pending_since[name] < SECONDS_PENDING]

    def _is_of_now(self, here: PlanningInput) -> bool:
        """Whether there is a plan by which all has gone so far, and nothing is on sale, or within the limits, that was
        not when it was made."""
        if not here.on_sale <= self.on_sale or (here.most > self.most and self._is_full()):
            return False
        return self.planner.holds(here.forecast, here.locations, here.problem, here.now)

    def _is_full(self) -> bool:
        """Whether the last plan has as many machines as there could be."""
        return self.planner.schedule is not None and len(self.planner.schedule.machines) >= self.most

    def _plan(self, here: PlanningInput) -> None:
        """Have a plan made, and take it if it is there soon."""
        is_in_tick = not self.may_plan.is_set()
        self.may_plan.set()
        try:
            self._wait_for_a_plan(here)
        finally:
            if is_in_tick:
                self.may_plan.clear()

    def _wait_for_a_plan(self, here: PlanningInput) -> None:
        deadline = time.monotonic() + SECONDS_FOR_A_PLAN
        for _ in range(2):  # the one that is being made may be of before, and the next one quick
            if self.making is None:
                self.made_of = here
                self.is_awaited = False
                self.making = self.start(here, self.planner.ways(here.forecast), self.planner.going_on(here.forecast))
            try:
                # One for which an earlier tick has waited takes long.
                choice = self.making.result(0.0 if self.is_awaited else max(0.0, deadline - time.monotonic()))
            except NotYet:
                if not self.is_awaited:
                    self.is_awaited = True
                    self.making.add_done_callback(lambda _: self.ring())
                return
            except BaseException:
                self.making = self.made_of = None
                raise
            made_of, self.making, self.made_of = self.made_of, None, None
            assert made_of is not None
            self.planner.adopt(choice, made_of.forecast)
            self.planned_ends, self.on_sale, self.most = choice.ends, made_of.on_sale, made_of.most
            if self._is_of_now(here):
                return

    def _homes(self, waiting: Iterable[str]) -> dict[str, str]:
        """The machines that are there on which waiting steps have their places."""
        schedule = self.planner.schedule
        if schedule is None:
            return {}
        homes = ((name, schedule.homes[name]) for name in waiting if name in schedule.homes)
        return {name: home.location.name for name, home in homes if home.location is not None and not home.released}

    def _input(
        self, forecast: Forecast, its: SiteForecast, site: SiteView, market: MachineMarket, now: float
    ) -> PlanningInput:
        closed = [each for each in site.launched if each.draining]
        names = {token: name for name, token in its.waiting.items()}
        seen = [with_steps(as_planned(each, market, now), names) for each in site.launched if not each.draining]
        locations, _ = with_kept(seen, market.min_instances - len(closed))
        paid = {
            each.name: (now if each.launched_at is None else min(now, each.launched_at), each.usd_per_hour)
            for each in site.launched
        }
        self.spending.see(paid, now)
        limits = left_of(market.limits, limits_left(its.groups, closed), closed)
        catalogue = None if market.held is not None else market.catalogue
        problem = pose([], locations, catalogue, limits, Objective(), now, None)
        if limits.types or limits.vcpus or limits.usd_per_hour is not None:
            problem.bins = affordable(problem.bins, seen, limits)
        kept = frozenset(each.name for each, before in zip(locations, seen, strict=True) if each is not before)
        return PlanningInput(
            forecast,
            locations,
            problem,
            market.boot_seconds,
            market.boots,
            market.hurry,
            self.spending.usd(forecast, now),
            now,
            kept,
            self.most_boot_paid,
        )


def planned(
    here: PlanningInput, ways: Sequence[Way | Fleet], more: Sequence[Way], pause: Callable[[], None]
) -> ChosenSchedule:
    """The plan of one site, made in a thread of its own.

    :param pause: called again and again; other threads may want to run
    """
    return choose(
        here.forecast,
        here.locations,
        here.problem,
        boot=here.boot,
        boots=here.boots,
        hurry=here.hurry,
        spent=here.spent,
        ways=ways,
        more=more,
        now=here.now,
        pause=pause,
        most_boot_paid=here.most_boot_paid,
    )


def with_steps(location: Location, names: Mapping[str, str]) -> Location:
    """A location where the jobs to which it is promised are called by the names of their steps.

    :param names: of those that wait, by their tokens
    """
    if not location.promised:
        return location
    return replace(location, promised=frozenset(names.get(each, each) for each in location.promised))


def with_tokens(actions: Actions, tokens: Mapping[str, str]) -> Actions:
    """Actions in which jobs that have come are called by their tokens."""
    return replace(
        actions,
        placements=tuple(Placement(tokens[each.job], each.location) for each in actions.placements),
        waits=tuple(Wait(tokens[each.job], 1, each.reason) for each in actions.waits),
        refused={},
        launched_for={
            launch: tuple(tokens.get(name, name) for name in names) for launch, names in actions.launched_for.items()
        },
    )
