"""The plans of all sites for upcoming work, made in a thread next to the ticks, and what each tick takes from them."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from lading.executors.forecast.allocation_work import AllocationWork
from lading.executors.forecast.live_runs import LiveRuns, named
from lading.executors.forecast.site_plan import PlanningInput, SitePlan, chosen
from lading.executors.orchestrator.orchestrator import Orchestrator, TaskNote, TaskTry
from lading.executors.settings import CRITICAL_PATH, Settings
from lading.executors.starts.expected_starts import note_plans, stored_plans
from lading.executors.store import run_rows
from lading.executors.store.durations import PastWaits
from lading.executors.store.gangs.runs import DagRunKey
from lading.executors.store.run_rows import RunForecast, RunKey
from lading.hooks.files.logs import Trouble
from lading.scheduling.accounting.budgets import NO_BUDGETS, BudgetTerms
from lading.scheduling.accounting.who import Tenant
from lading.scheduling.forecast.coming import ComingRun, SiteForecast, site_forecast
from lading.scheduling.forecast.fleet_work import Fleet
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.groups import run_name
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import Budget
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.provisioning.allocation_plan import SECONDS_PAID, after_unknown
from lading.scheduling.provisioning.foreseen import Foreseen, ForeseenActions
from lading.scheduling.provisioning.launch import AllocationPlan, Provision
from lading.scheduling.text.units import format_moment

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

EVENT = "lading asks ahead"
# While a tick is running, planning advances by one step per this many seconds.
SECONDS_OF_A_PAUSE = 0.1
# How many seconds pass before forecasts of runs are stored again.
SECONDS_BETWEEN_NOTES = 3.0
# Without sites that launch by plan, upcoming work is read again after this many times the duration of the last read.
PAUSE_BETWEEN_LOOKS = 10.0
NO_WORK = "Upcoming work is unknown at site {site!r}, so allocations are requested there only for waiting jobs"
TROUBLE = "Upcoming work cannot be planned at site {site!r}, so machines are launched there only for waiting jobs"
NO_RESTS = "The remaining paths of live runs are unknown, so jobs of equal priority start in the order of their arrival"
NO_STARTS: Mapping[str, float] = MappingProxyType({})


class PlanningEnded(Exception):
    """The running search is no longer needed."""


class SitePlans:
    """The plans of all sites that launch machines by forecast or ahead, and the upcoming work at sites of allocations.

    :param ring: called when a plan has been made that no tick waits for
    :param waits: how long allocations have waited in their queues
    :param budgets: returns the limits for a tenant's jobs
    :param launches: whether any site launches machines or allocations
    """

    def __init__(
        self,
        host: Orchestrator,
        settings: Settings,
        ways: Ways,
        ring: Callable[[], None],
        waits: PastWaits,
        budgets: Callable[[Tenant], BudgetTerms] = lambda tenant: NO_BUDGETS,
        *,
        launches: bool = True,
    ) -> None:
        self.live_runs = LiveRuns(host, settings, ways, waits)
        self.noted: set[tuple[DagRunKey, str]] = set()
        """The tasks of live runs whose event logs already say that room is requested ahead."""
        self.ring, self.waits, self.launches = ring, waits, launches
        self.plans: dict[str, SitePlan] = {}
        self.work: dict[str, AllocationWork] = {}
        self.allocations: dict[str, AllocationPlan] = {}
        """The last result at sites that use allocations."""
        self.due_at = -math.inf
        """When to compute it again, on the monotonic clock."""
        self.threads: Executor = ThreadPoolExecutor(1, thread_name_prefix="lading-forecast")
        self.trouble = Trouble(log)
        self.is_closed = False
        self.next_note = 0.0
        self.has_noted = True  # an earlier controller may have stored forecasts
        self.settings = settings
        self.planned: Mapping[str, float] | None = None
        """When jobs are planned to start, by token, as stored; None: not read yet."""
        self.runs: Sequence[ComingRun] = ()
        self.read_at = -math.inf
        self.rests_due_at = -math.inf
        self.rests: Mapping[str, float] = {}
        """The longest remaining path of each waiting job's run, by token, in seconds; empty: jobs start by arrival."""
        self.budgets = budgets
        self.barred: Mapping[str, frozenset[str]] = {}
        """By site, the tokens of the jobs that the limits of their shares kept from it in the last tick."""
        self.terms: Mapping[str, BudgetTerms] = {}
        """The budgets of live runs that have any, by the names of the runs."""
        self.may_plan = threading.Event()
        self.may_plan.set()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the planner while a tick runs, because threads share the interpreter lock."""
        self.may_plan.clear()
        try:
            yield
        finally:
            self.may_plan.set()

    def foresee(
        self,
        session: Session,
        sites: Sequence[SiteView],
        waiting: Iterable[WaitingJob],
        now: float,
        *,
        by_dag: bool,
        database_ahead: float = 0.0,
    ) -> dict[str, Foreseen]:
        """Return what the plans request now, by site; at sites with another policy, only what is launched ahead.

        :param sites: all sites in their order, with holds counted as taken
        :param waiting: the jobs to place, with the budgets of their runs
        :param now: epoch seconds
        :param by_dag: whether some site accepts only certain Dags
        :param database_ahead: seconds by which the database's clock is ahead of this host's
        """
        by_forecast = {
            site.name: (site, site.market)
            for site in sites
            if isinstance(site.market, MachineMarket) and site.market.policy == FORECAST and site.trouble is None
        }
        allocating = [site for site in sites if isinstance(site.market, Market) and site.trouble is None]
        if not (by_forecast or allocating):
            self._note(session, {})
        if not self.launches:
            return {}
        begun = time.monotonic()
        has_chosen = any(work.plan.has_chosen for work in self.work.values())
        is_early = not by_forecast and begun < self.due_at and not has_chosen
        if is_early and not self.plans:
            return {**self._as_before(allocating)}
        runs = self.read(session, sites, now, by_dag=by_dag, database_ahead=database_ahead)
        self.terms = self._terms()
        others = launching_ahead(sites, runs)
        self.plans = {name: plan for name, plan in self.plans.items() if name in by_forecast or name in others}
        blind = self.live_runs.without_structure
        held = self._held()
        waiting = list(waiting)
        budgets = self._budgets(waiting)
        are_shared = len({job.share for job in waiting}) > 1
        turns = {job.name: (job.priority, job.turn) for job in waiting} if are_shared else {}
        barred = {site: with_alike(tokens, waiting, runs) for site, tokens in self.barred.items()}
        found = dict[str, Foreseen]()
        for name, (site, market) in {**by_forecast, **others}.items():
            start = at_once if name in others else self._start
            plan = self.plans.setdefault(name, SitePlan(market, start, self.ring))
            trouble = TROUBLE.format(site=name)
            try:
                its = site_forecast(plan.parts(runs, name), self.live_runs.pools, turns)
                # The plan of a site with another policy releases nothing.
                is_blind = name in others or not blind.isdisjoint(its.forecast.began)
                late = not_ahead_without_forecast(its.forecast) if name in others else None
                actions = plan.next_actions(
                    its,
                    site,
                    market,
                    now,
                    is_blind=is_blind,
                    held=held,
                    barred=barred.get(name, frozenset()),
                    unsure=its.forecast.launched_when_waiting() if late is None else late,
                )
            except Exception as error:  # without a plan, machines are launched for waiting jobs
                self.trouble.begin(trouble, error, traceback=True)
                self.plans.pop(name)
                continue
            self.trouble.end(trouble)
            if late is not None:
                actions = actions.ahead_only(its.waiting.values())
            found[name] = self._within_budgets(actions, its, budgets, {job.name for job in waiting})
        if is_early:
            return found | self._as_before(allocating)
        self.allocations = self._allocation_plans(session, runs, allocating, barred, turns, now) if allocating else {}
        ends: dict[str, float] = {}
        starts: dict[str, float] = {}
        planning = (self.plans[name] for name in by_forecast if name in self.plans)
        for some in (*planning, *(work.plan for work in self.work.values())):
            starts.update(some.starts)
            for run, end in some.ends.items():
                ends[run] = max(end, ends.get(run, end))
        if by_forecast or allocating:
            self._note(session, self.live_runs.forecasts(ends), starts)
        self.due_at = time.monotonic() + PAUSE_BETWEEN_LOOKS * (time.monotonic() - begun)
        return found | self.allocations

    def _as_before(self, sites: Iterable[SiteView]) -> dict[str, AllocationPlan]:
        """Return the last result for sites that use allocations, without its launches."""
        there = (site.name for site in sites if site.name in self.allocations)
        return {name: self.allocations[name].without_launches() for name in there}

    def _allocation_plans(
        self,
        session: Session,
        runs: Sequence[ComingRun],
        sites: Sequence[SiteView],
        barred: Mapping[str, frozenset[str]],
        turns: Mapping[str, tuple[int, float]],
        now: float,
    ) -> dict[str, AllocationPlan]:
        """Return what the plans of sites that use allocations request now."""
        unclear = self.live_runs.without_structure | self.live_runs.without_needs
        known = self.live_runs.names - unclear
        self.waits.read(session)
        found = {}
        for site, market in ((site, site.market) for site in sites if isinstance(site.market, Market)):
            trouble = NO_WORK.format(site=site.name)
            if (work := self.work.get(site.name)) is None:
                plan = SitePlan(MachineMarket(Catalogue({})), self._start, self.ring, most_boot_paid=SECONDS_PAID)
                work = self.work[site.name] = AllocationWork(plan)
            try:
                found[site.name] = work.next_plan(
                    runs,
                    site,
                    market,
                    self.waits.launches,
                    known,
                    now,
                    pools=self.live_runs.pools,
                    turns=turns,
                    is_blind=bool(unclear),
                    held=self._held(),
                    barred=barred.get(site.name, frozenset()),
                    not_ahead=[name for name, terms in self.terms.items() if not terms.may_launch],
                )
            except Exception as error:  # without this, allocations are requested for waiting jobs only
                self.trouble.begin(trouble, error, traceback=True)
                self.work.pop(site.name)
                continue
            self.trouble.end(trouble)
        return found

    def read(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> Sequence[ComingRun]:
        """Return the upcoming jobs of all live runs, read once per tick; see :meth:`LiveRuns.coming_runs`."""
        if self.read_at != now:
            self.runs = self.live_runs.coming_runs(session, sites, now, by_dag=by_dag, database_ahead=database_ahead)
            self.read_at = now
            if self.settings.order == CRITICAL_PATH:
                self._read_rests(now)
        return self.runs

    def refresh_rests(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> None:
        """Update the remaining paths that order jobs; if that takes long, not in every tick."""
        if (begun := time.monotonic()) < self.rests_due_at:
            return
        self.read(session, sites, now, by_dag=by_dag, database_ahead=database_ahead)
        self.rests_due_at = time.monotonic() + PAUSE_BETWEEN_LOOKS * (time.monotonic() - begun)

    def _read_rests(self, now: float) -> None:
        try:
            self.rests = self.live_runs.rests(now)
        except Exception as error:  # without them, jobs start by arrival
            self.trouble.begin(NO_RESTS, error, traceback=True)
            self.rests = {}
        else:
            self.trouble.end(NO_RESTS)

    def _note(
        self, session: Session, forecasts: Mapping[RunKey, RunForecast], starts: Mapping[str, float] = NO_STARTS
    ) -> None:
        """Store the forecasts of runs and the planned starts of waiting jobs from time to time, for users to see.

        :param starts: by token, epoch seconds
        """
        if time.monotonic() < self.next_note or not (forecasts or self.has_noted or self.planned):
            return
        self.next_note = time.monotonic() + SECONDS_BETWEEN_NOTES
        run_rows.note(session, forecasts)
        before = stored_plans(session) if self.planned is None else self.planned
        self.planned = note_plans(session, starts, before, time.time())
        self.has_noted = bool(forecasts)

    def notes(self, provisions: Mapping[str, Provision]) -> list[TaskNote]:
        """Return notes for the event logs of upcoming tasks for which room is requested, once per task and run."""
        found: list[TaskNote] = []
        self.noted = {(run, task_id) for run, task_id in self.noted if run in self.live_runs.known}
        launched = ((site, *each) for site, provision in provisions.items() for each in provision.ahead.items())
        for site, name, begin in launched:
            run, task_id, index = named(name)
            text = f"room is requested at {site} for a planned start at {format_moment(begin)}"
            key = TaskTry(run.dag_id, task_id, run.run_id, self.live_runs.try_number(run, task_id), index)
            if (run, task_id) not in self.noted:
                log.info("Task %r of Dag %r, run %r: %s", task_id, *run, text)
                found.append(TaskNote(EVENT, key, text))
                self.noted.add((run, task_id))
        return found

    @property
    def expects_jobs(self) -> bool:
        """Whether a live run may have upcoming jobs even though none waits."""
        is_unread = self.read_at == -math.inf  # an earlier controller may have placed jobs that are still running
        return self.launches and (is_unread or bool(self.live_runs.known))

    def _terms(self) -> dict[str, BudgetTerms]:
        terms = ((run_name(*run), self.budgets(known.tenant)) for run, known in self.live_runs.known.items())
        return {name: its_own for name, its_own in terms if its_own != NO_BUDGETS}

    def _held(self) -> frozenset[str]:
        """The runs whose jobs cannot start."""
        return frozenset(name for name, terms in self.terms.items() if terms.held is not None)

    def _budgets(self, waiting: Iterable[WaitingJob]) -> dict[str, tuple[Budget, ...]]:
        """Return the budgets of live runs by name, as far as their costs so far are known."""
        limited, found = self.live_runs.with_budget, {}
        for name, terms in self.terms.items():
            if terms.held is None and name not in limited:
                found[name] = terms.launches
        for job in waiting:
            name = run_name(job.dag_id, job.run_id)
            # How much a run has spent is only read for its waiting jobs with a limit.
            if job.budgets and (name not in limited or any(each.name == name for each in job.budgets)):
                found[name] = job.budgets
        return found

    def _within_budgets(
        self,
        actions: ForeseenActions,
        its: SiteForecast,
        budgets: Mapping[str, tuple[Budget, ...]],
        looked_at: Container[str],
    ) -> ForeseenActions:
        """Add the budgets of runs to the actions for upcoming jobs, and for waiting jobs not considered in this tick.

        :param looked_at: the tokens of the considered jobs, which carry their budgets themselves
        """
        if not (limited := self.live_runs.with_budget | budgets.keys() | self.terms.keys()):
            return actions
        runs = {its.waiting.get(name, name): step.job.run for name, step in its.forecast.steps.items()}
        launched_for = (name for some in actions.actions.launched_for.values() for name in some)
        names = [name for name in launched_for if name not in looked_at and runs.get(name) in limited]
        if not names:
            return actions
        known = {name: budgets[str(runs[name])] for name in names if runs[name] in budgets}
        return replace(actions, budgets=known, not_ahead=actions.not_ahead | (frozenset(names) - known.keys()))

    def _start(self, here: PlanningInput, fleets: Sequence[Fleet]) -> Future[Fleet | None]:
        return self.threads.submit(chosen, here, fleets, self._pause)

    def _pause(self) -> None:
        """Let other threads take the interpreter lock.

        :raises PlanningEnded: the controller is shutting down
        """
        if self.is_closed:
            raise PlanningEnded
        if self.may_plan.wait(SECONDS_OF_A_PAUSE):
            time.sleep(0)

    def close(self) -> None:
        """Abandon the running search."""
        self.is_closed = True
        self.may_plan.set()
        self.threads.shutdown(wait=False, cancel_futures=True)


def at_once(_here: PlanningInput, _fleets: Sequence[Fleet]) -> Future[Fleet | None]:
    """Choose the fleet on which each step starts as soon as it can, as at sites that launch for each waiting job."""
    chosen_fleet: Future[Fleet | None] = Future()
    chosen_fleet.set_result(Fleet(None))
    return chosen_fleet


def launching_ahead(sites: Iterable[SiteView], runs: Sequence[ComingRun]) -> dict[str, tuple[SiteView, MachineMarket]]:
    """Return the sites that launch machines by another policy than the forecast, but ahead for some upcoming task."""
    named = {job.site for run in runs for task in run.tasks.values() if task.ahead for job in task.jobs}
    return {
        site.name: (site, site.market)
        for site in sites
        if isinstance(site.market, MachineMarket) and site.market.policy != FORECAST and site.trouble is None
        if site.name in named
    }


def not_ahead_without_forecast(forecast: Forecast) -> frozenset[str]:
    """Return the steps for which a site with another policy than the forecast launches nothing ahead."""
    return after_unknown(forecast).union(name for name, step in forecast.steps.items() if not step.ahead)


def with_alike(tokens: frozenset[str], waiting: Iterable[WaitingJob], runs: Iterable[ComingRun]) -> frozenset[str]:
    """Return jobs that the limits of their shares kept from a site, and those of the same tasks that were not
    considered in this tick because many others come before them.

    :param waiting: the considered jobs
    :param runs: the jobs of all live runs
    """
    looked_at = {job.name: (job.dag_id, job.task_id) for job in waiting}
    tasks = {looked_at[token] for token in tokens if token in looked_at}
    if not tasks:
        return tokens
    behind = (
        job.token
        for run in runs
        for task_id, task in run.tasks.items()
        if (run.name.split(" ", 1)[0], task_id) in tasks
        for job in task.jobs
    )
    return tokens.union(token for token in behind if token is not None and token not in looked_at)
