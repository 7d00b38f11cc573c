"""The plan of one site for its upcoming work: updated in each tick, for the fleet that was chosen last.

The best fleet is searched for in a separate thread. Until the search has covered the work that has appeared since the
last one, nothing is released, and for a moment nothing is launched for that work.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from lading.executors.forecast.held_up import HeldUpSteps
from lading.scheduling.forecast.choice import choose, on_sale
from lading.scheduling.forecast.coming import ComingRun, RunAtSite, SiteForecast, parts_at
from lading.scheduling.forecast.fleet_work import Fleet, FleetWork
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.policy import SLACK, Actions, Planner, find_prefetches
from lading.scheduling.forecast.spending import Spending
from lading.scheduling.matching.groups import limits_left
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import Objective, Placement, Wait
from lading.scheduling.packing.problem import OnSale, Problem, pose
from lading.scheduling.provisioning.foreseen import ForeseenActions, affordable
from lading.scheduling.provisioning.machines import as_planned, left_of, with_kept

# Work that appeared within this many seconds waits for the search that is running; after that, the last fleet is used.
SECONDS_PENDING = 10.0


@dataclass(frozen=True, slots=True)
class PlanningInput:
    """The immutable input of a plan.

    :param spent: USD that the machines have cost since the first live run began
    :param boot: seconds from a launch to the first job; ``boots``: the same for instance types that differ
    :param kept: the names of the machines that stay in any case
    :param most_boot_paid: how many seconds of a boot are billed at most
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
    _to_do: FleetWork | None = field(default=None, init=False, repr=False, compare=False)

    @property
    def most(self) -> float:
        """The maximum number of machines."""
        return math.inf if self.problem.limits.instances is None else self.problem.limits.instances

    def to_do(self) -> FleetWork:
        """Return the work of the forecast, corrected by the jobs at work; computed once.

        ``functools.cached_property`` would not do: up to Python 3.11, its lock would make a tick wait for a search.
        """
        if self._to_do is None:
            work = FleetWork(
                self.forecast.by_those_at_work(self.now),
                self.locations,
                self.problem,
                self.boot,
                self.now,
                self.boots,
                self.most_boot_paid,
            )
            object.__setattr__(self, "_to_do", work)
            return work
        return self._to_do

    @property
    def on_sale(self) -> frozenset[tuple[str, str, str]]:
        """What can be launched, as instance type, capacity type and zone."""
        bins = self.problem.bins
        return frozenset((each.type.name, each.offering.capacity_type, each.offering.zone or "") for each in bins)


class SitePlan:
    """The plan of one site.

    :param start: starts the search for the best of the given fleets, or of all fleets if none is given, in another
        thread
    :param ring: called when a search has finished
    :param most_boot_paid: how many seconds of a boot are billed at most
    """

    def __init__(
        self,
        market: MachineMarket,
        start: Callable[[PlanningInput, Sequence[Fleet]], Future[Fleet | None]],
        ring: Callable[[], None],
        *,
        most_boot_paid: float = math.inf,
    ) -> None:
        self.most_boot_paid = most_boot_paid
        self.planner = Planner(market.boot_seconds, market.hurry)
        self.start, self.ring = start, ring
        self.choosing: Future[Fleet | None] | None = None
        """The running search."""
        self.chosen_of: PlanningInput | None = None
        """The input of the running search, or of the last one."""
        self.is_changed = False
        """Whether anything has deviated from the plan since that search began."""
        self.at_site: dict[str, RunAtSite] = {}
        self.planned_ends: Mapping[str, float] = {}
        """When runs finish according to the plan, in epoch seconds."""
        self.ends: Mapping[str, float] = {}
        """The same for runs without steps that are withheld or left out."""
        self.starts: Mapping[str, float] = {}
        """When waiting jobs are planned to start, by token, in epoch seconds."""
        self.chosen_at = -math.inf
        """When the fleet last matched the upcoming work, in epoch seconds."""
        self.pending_since: dict[str, float] = {}
        self.held_up = HeldUpSteps()
        self.has_waited: set[str] = set()
        """The unfinished steps that have waited at the site."""
        self.unplanned: set[str] = set()
        """The machines whose last jobs did not come from a plan, for example jobs moved here from a full site."""
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
    ) -> ForeseenActions:
        """Return what the plan does now.

        :param its: the upcoming work at the site
        :param now: epoch seconds
        :param is_blind: whether the remaining steps of some run are unknown, so that no machine is released by the plan
        :param held: the runs whose jobs cannot start, and so are in no plan; ``barred``: the tokens of jobs that cannot
        :param kept: the names of machines that the plan does not release
        :param unsure: the steps for which nothing is launched before they wait, in addition to those that Airflow could
            have queued by now
        :raises Exception: any error in planning
        """
        self.planner.hurry = market.hurry
        if market.boot_seconds != self.planner.boot:  # more boots have been measured
            self.planner.boot, self.planner.schedule = market.boot_seconds, None
        unqueued, held_up = self.held_up.update(its, now)
        left_out = [*held_up, *its.held(held, barred)]
        forecast = its.forecast.without(left_out) if left_out else its.forecast
        # Steps that were held up can continue at any time.
        is_blind = is_blind or any(not its.forecast.steps[name].elsewhere for name in held_up)
        self._note_uses(its, site)
        here = self._input(forecast, its, site, market, now)
        waiting = [name for name in its.waiting if name in forecast.steps]
        kept = here.kept.union(self.unplanned, kept)
        # Nothing is launched ahead for the steps after these either.
        not_ahead = frozenset(its.forecast.steps.keys() - its.forecast.without(unqueued).steps.keys())
        self.planner.not_ahead = not_ahead.union(unsure).difference(waiting)
        self._choose(here)
        if is_of_now := self._is_chosen_for(here):
            self.chosen_at = now
        elif now - self.chosen_at < SECONDS_PENDING:
            self.planner.not_ahead |= here.forecast.steps.keys() - self.planner.chosen_for
        if self.planner.schedule is None:
            self.planner.follow(here.to_do())
            assert self.planner.schedule is not None
            self.planned_ends = self.planner.schedule.expected_ends(here.forecast)
        if is_blind or not is_of_now:
            kept = frozenset(each.name for each in here.locations)
        actions = self.planner.act(here.forecast, waiting, here.problem, now, kept)
        planned = {name for name in waiting if name not in actions.refused}
        homes = self._homes(name for name in waiting if name in planned)
        tokens = its.waiting
        withheld = self.planner.withheld(forecast)
        schedule = self.planner.schedule
        known = {} if schedule is None else schedule.starts
        until = now + max(SLACK, site.seconds_ahead)
        prefetch_to = {} if schedule is None else find_prefetches(schedule, forecast, planned, now, until, withheld)
        self.starts = {tokens[name]: known[name] for name in waiting if name in known and name not in withheld}
        # It is unknown when these continue.
        unsure_runs = {its.forecast.steps[name].job.run for name in (*withheld, *left_out)}
        self.ends = {run: end for run, end in self.planned_ends.items() if run not in unsure_runs}
        return ForeseenActions(
            with_tokens(actions, tokens),
            is_of_now,
            frozenset(tokens[name] for name in planned),
            frozenset(tokens[name] for name in self._pending(waiting, planned, now)),
            frozenset(tokens[name] for name in planned & withheld),
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
        """Record which machines have jobs that were in no plan before they began, for example from gangs.

        This is unknown for jobs that were already running when the controller started.
        """
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
        """Return what runs have to do at a site; the parts of unchanged runs are reused."""
        self.at_site = parts_at(runs, name, self.at_site)
        return self.at_site.values()

    def _pending(self, waiting: Iterable[str], planned: Collection[str], now: float) -> list[str]:
        """Return the jobs for which a search is running and that have not waited long."""
        names = [] if self.choosing is None else [name for name in waiting if name not in planned]
        self.pending_since = {name: self.pending_since.get(name, now) for name in names}
        return [name for name in names if now - self.pending_since[name] < SECONDS_PENDING]

    def _is_chosen_for(self, here: PlanningInput) -> bool:
        return self.planner.is_chosen_for(here.forecast) and self._is_as_before(here)

    def _is_as_before(self, here: PlanningInput) -> bool:
        """Whether the fleet is still on sale and within the limits, and no others have become so."""
        before, fleet = self.chosen_of, self.planner.fleet
        if before is None or not here.on_sale <= before.on_sale:
            return False
        if fleet is not None and on_sale(fleet, here.problem) is None:
            return False
        return here.most <= before.most or self.planner.machines < before.most

    def _choose(self, here: PlanningInput) -> None:
        """Use the fleet of a finished search, and start another search if that fleet may no longer be the best.

        :raises Exception: any error in the search
        """
        self._take()
        if not self.planner.holds(here.forecast, here.locations, here.problem, here.now):
            self.is_changed |= self.planner.schedule is not None
            self.planner.schedule = None
        is_for_all = self._is_chosen_for(here)
        if self.choosing is None and (self.is_changed or not is_for_all):
            fleets = self.planner.fleets(here.forecast) if self._is_as_before(here) else []
            self.chosen_of, self.is_changed = here, False
            self.choosing = self.start(here, fleets)
            if self.choosing.done():
                self._take()
            else:
                self.choosing.add_done_callback(lambda _: self.ring())

    @property
    def has_chosen(self) -> bool:
        """Whether a search has finished whose fleet is not used yet."""
        return self.choosing is not None and self.choosing.done()

    def _take(self) -> None:
        if self.choosing is None or not self.has_chosen:
            return
        chosen, self.choosing = self.choosing, None
        assert self.chosen_of is not None
        self.planner.adopt(chosen.result(), self.chosen_of.forecast)

    def _homes(self, waiting: Iterable[str]) -> dict[str, str]:
        """Return the existing machines on which waiting steps have their places."""
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
            problem.on_sale = OnSale(affordable(problem.bins, seen, limits))
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


def chosen(here: PlanningInput, fleets: Sequence[Fleet], pause: Callable[[], None]) -> Fleet | None:
    """Choose the fleet of one site; runs in a separate thread.

    :param fleets: the fleets to try; empty: all
    :param pause: called frequently to let other threads run
    """
    return choose(here.to_do(), here.hurry, here.spent, fleets, pause)


def with_steps(location: Location, names: Mapping[str, str]) -> Location:
    """Name the jobs that a location is promised to by their steps instead of their tokens.

    :param names: the steps of waiting jobs, by token
    """
    if not location.promised:
        return location
    return replace(location, promised=frozenset(names.get(each, each) for each in location.promised))


def with_tokens(actions: Actions, tokens: Mapping[str, str]) -> Actions:
    """Name jobs that have been queued by their tokens instead of their steps."""
    return replace(
        actions,
        placements=tuple(Placement(tokens[each.job], each.location) for each in actions.placements),
        waits=tuple(Wait(tokens[each.job], 1, each.reason) for each in actions.waits),
        refused={},
        launched_for={
            launch: tuple(tokens.get(name, name) for name in names) for launch, names in actions.launched_for.items()
        },
    )
