"""Asking ahead: what runs will need next is launched in time, before Airflow has queued the tasks for it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, TypeAlias

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.columns import hint_columns
from lading.executors.orchestrator import current
from lading.executors.orchestrator.orchestrator import TaskNote, TaskState, TaskTry
from lading.executors.settings import Settings
from lading.executors.store import State, groups, queue
from lading.executors.store.durations import Durations, PastWaits
from lading.executors.store.gangs import runs
from lading.executors.store.gangs.runs import DagRunKey
from lading.hooks.files.logs import Trouble
from lading.scheduling.gangs.ahead_times import Expected, Time, before, start_times
from lading.scheduling.gangs.inheritance import Inheritance
from lading.scheduling.gangs.room import Ways, Where
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.bindings import GetTargets
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.routes import first_stop, router
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Route
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.provisioning import LONGEST_ARRIVAL, SECONDS_TO_BEGIN
from lading.scheduling.resources import Resources
from lading.scheduling.shares.budgets import NO_BUDGETS, BudgetTerms
from lading.scheduling.shares.who import Tenant
from lading.scheduling.text.units import format_moment, format_time

log = logging.getLogger(__name__)

# What is to come of a run is reckoned anew after so many seconds, in a tick of so many runs; what has come since counts
# at once.
SECONDS_BETWEEN_LOOKS = 5.0
MOST_RUNS_PER_TICK = 5
TROUBLE = "Of some runs it is not known what they will need, so nothing is asked for ahead"
# Between two tasks a run may have no job for a moment; what is known of it is forgotten after so many seconds.
SECONDS_UNTIL_FORGOTTEN = 60.0

EVENT = "lading asks ahead"
TO_COME = (None, TaskState.SCHEDULED)
BEGUN = (TaskState.RUNNING, TaskState.DEFERRED, TaskState.UP_FOR_RESCHEDULE)
FAILED = (TaskState.FAILED, TaskState.UPSTREAM_FAILED)

# Whether what is to come of a task of a run is launched at the site of a name by its forecast.
IsPlanned: TypeAlias = Callable[[DagRunKey, str, str], bool]
# All that waits comes before what is yet to come.
LAST = -(10**9)
NO_COLUMNS = {column.key: None for column in groups.COLUMNS}


@dataclass(slots=True)
class Outlook:
    """What is asked for ahead.

    :param wanted: by site, jobs that are to come
    :param notes: what the event logs of their tasks say of it
    """

    wanted: dict[str, list[WaitingJob]] = field(default_factory=dict)
    notes: list[TaskNote] = field(default_factory=list)


class AheadRequests:
    """The requests for capacity ahead of tasks that are to come, from tick to tick, by their hint ``ahead``.

    They are for what no forecast plans. Members of gangs and jobs that share few machines find their places together,
    when they have come; sites that buy by ``greedy`` look at what waits alone; and of a Dag that cannot be read the
    hints of its tasks are all that says what comes after what.

    :param durations: predict how long tasks run; ``waits``: how long it takes until there is room for them
    :param latency: says how many seconds a decision takes
    :param is_planned: whether what is to come of a task of a run is launched at a site by its forecast
    :param budgets: what they allow a tenant's jobs
    """

    def __init__(
        self,
        settings: Settings,
        durations: Durations,
        waits: PastWaits,
        latency: Callable[[], float],
        ways: Ways,
        is_planned: IsPlanned = lambda run, task_id, site: False,
        budgets: Callable[[Tenant], BudgetTerms] = lambda tenant: NO_BUDGETS,
    ) -> None:
        self.settings, self.durations, self.waits, self.latency, self.ways = settings, durations, waits, latency, ways
        self.is_planned, self.budgets = is_planned, budgets
        self.dags = current.orchestrator().forecaster()
        self.steps: dict[DagRunKey, dict[str, GangTask]] = {}
        self.seen_at: dict[DagRunKey, float] = {}
        self.asked_at: dict[DagRunKey, dict[str, float]] = {}
        self.found: dict[DagRunKey, list[UpcomingJob]] = {}
        self.looked_at: dict[DagRunKey, float] = {}
        self.trouble = Trouble(log)

    def look_ahead(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> Outlook:
        """What is to be launched for tasks that are to come.

        :param sites: with what is held taken
        :param now: epoch seconds
        :param by_dag: whether some site does not take every Dag
        :param database_ahead: seconds by which the database's clock is ahead of this one's
        """
        live, outlook = runs.live(session), Outlook()
        self.seen_at |= dict.fromkeys(live, now)
        self._forget(now)
        due = [run for run in live if abs(now - self.looked_at.get(run, 0.0)) >= SECONDS_BETWEEN_LOOKS]
        due = sorted(due, key=lambda run: self.looked_at.get(run, 0.0))[:MOST_RUNS_PER_TICK]
        if due:
            sites = [replace(each, waits=self.waits.read(session)) for each in sites]
            known = self._known(session, sites, by_dag, database_ahead)
            coming = current.orchestrator().unfinished(session, due)
            for run in due:
                self.looked_at[run] = now
                here = RunAhead(run, known, sites, self.asked_at.setdefault(run, {}), now)
                outlook.notes += self._look_at(session, here, coming.get(run, ()), live[run])
        for run, upcoming in self.found.items():
            if not upcoming or not (terms := self._terms(session, run)).may_launch:
                continue
            have_come = {row.task_id for row in live.get(run, ())}
            for coming_job in upcoming if have_come else ():
                if coming_job.task_id not in have_come:
                    # All of them are known, so none that may still arrive is waited for.
                    since = self.asked_at[run][coming_job.partition] - LONGEST_ARRIVAL
                    outlook.wanted.setdefault(coming_job.site, []).append(
                        replace(coming_job.job, queued_at=since, budgets=terms.launches)
                    )
        return outlook

    def _known(self, session: Session, sites: Sequence[SiteView], by_dag: bool, database_ahead: float) -> AheadHistory:
        """What predictions rest on; jobs that are alike have one route."""
        ways, able = self.ways, [site for site in sites if site.holds]
        return AheadHistory(
            self.durations.read(session),
            self.waits.launches,
            self.latency(),
            router(sites, ways.rules, ways.rank),
            router(able, ways.rules, ways.rank),
            ways.filters,
            by_dag,
            database_ahead,
            self.is_planned,
        )

    def _look_at(self, session: Session, here: RunAhead, rows: Sequence[Any], live: Sequence[Any]) -> list[TaskNote]:
        """Find out what is asked for for a run; returns what is said of it."""
        run, asked_at, notes = here.run, self.asked_at[here.run], list[TaskNote]()
        self.found[run] = []
        if not self._terms(session, run).may_launch:
            return notes
        try:
            self.found[run] = here.ask(self._steps(session, run), rows, live)
        except SQLAlchemyError:
            raise  # no run's trouble
        except Exception as error:  # hints are whatever was stored, and plugins may raise anything
            self.trouble.begin(TROUBLE, error, traceback=True)
        for partition in {each.partition for each in self.found[run]} - asked_at.keys():
            asked_at[partition] = here.now
            notes += self._notes(run, [each for each in self.found[run] if each.partition == partition])
        return notes

    def _terms(self, session: Session, run: DagRunKey) -> BudgetTerms:
        """What budgets allow the jobs of a run."""
        facts = self.dags.facts(session, run.dag_id)
        return self.budgets(
            Tenant.from_columns(facts.get("team"), run.dag_id, facts.get("dag_owner"), facts.get("dag_tags"))
        )

    def _steps(self, session: Session, run: DagRunKey) -> dict[str, GangTask]:
        """The tasks of a run; read once."""
        if run not in self.steps:
            configs = current.orchestrator().hints(session, run).items()
            facts = self.dags.facts(session, run.dag_id)
            self.steps[run] = {
                task_id: gang_task(run, task_id, config, self.settings, facts) for task_id, config in configs
            }
        return self.steps[run]

    def _forget(self, now: float) -> None:
        for run in [run for run, at in self.seen_at.items() if abs(now - at) > SECONDS_UNTIL_FORGOTTEN]:
            for known in (self.seen_at, self.looked_at, self.steps, self.asked_at, self.found):
                known.pop(run, None)

    def _notes(self, run: DagRunKey, asked: Sequence[UpcomingJob]) -> list[TaskNote]:
        """What is said of what is asked for first: of each task once."""
        first = {each.task_id: each for each in reversed(asked)}
        for each in first.values():
            log.info("Task %r of Dag %r, run %r: %s", each.task_id, *run, each.text)
        return [each.note(run) for each in first.values()]


@dataclass(frozen=True, slots=True)
class AheadHistory:
    """What predictions rest on.

    :param launches: for how long what was launched took until it was up
    :param latency: seconds that a decision takes
    :param route: says where a job may ever run; ``route_together``: one of a gang
    :param filters: the binding filters by name
    :param by_dag: whether some site does not take every Dag
    :param database_ahead: seconds by which the database's clock, which dates their queueing, is ahead of this one's
    """

    durations: Durations
    launches: QueueWaits
    latency: float
    route: Callable[[WaitingJob], Route]
    route_together: Callable[[WaitingJob], Route]
    filters: Mapping[str, GetTargets]
    by_dag: bool
    database_ahead: float = 0.0
    is_planned: IsPlanned = lambda run, task_id, site: False


@dataclass(frozen=True, slots=True)
class FirstPlace:
    """Where the jobs of a task would go first.

    :param job: one of them, with what it asks for there
    :param wait: predicted seconds until there is room for it
    """

    site: SiteView
    job: WaitingJob
    wait: float


@dataclass(frozen=True, slots=True)
class UpcomingJob:
    """A job that is to come, for which room is to be launched.

    :param row: its task instance
    """

    partition: str
    site: str
    job: WaitingJob
    text: str
    row: Any

    @property
    def task_id(self) -> str:
        return str(self.row.task_id)

    def note(self, run: DagRunKey) -> TaskNote:
        """What the event log of its task says of it."""
        key = TaskTry(run.dag_id, self.task_id, run.run_id, self.row.try_number, self.row.map_index)
        return TaskNote(EVENT, key, self.text)


@dataclass(slots=True)
class RunAhead:
    """A run at one moment.

    :param sites: with what is held taken, and with how long jobs have waited there
    :param asked_at: since when room is asked for, by partition, epoch seconds
    """

    run: DagRunKey
    known: AheadHistory
    sites: Sequence[SiteView]
    asked_at: Mapping[str, float]
    now: float
    steps: Mapping[str, GangTask] = field(default_factory=dict)
    jobs: dict[str, WaitingJob] = field(default_factory=dict)
    places: dict[str, FirstPlace | None] = field(default_factory=dict)
    to_come: set[str] = field(default_factory=set)

    def ask(self, steps: Mapping[str, GangTask], rows: Sequence[Any], live: Sequence[Any]) -> list[UpcomingJob]:
        """What is asked for now.

        :param steps: its tasks
        :param rows: its task instances that have not ended
        :param live: its jobs
        """
        self.steps = steps
        known = {task_id: each.row for task_id, each in steps.items() if each.row is not None}
        self.jobs = {
            task_id: queue.as_waiting(row, self.known.by_dag, self.known.durations) for task_id, row in known.items()
        }
        by_task: dict[str, list[Any]] = {}
        for row in rows:
            by_task.setdefault(row.task_id, []).append(row)
        tasks: dict[str, dict[str, list[Any]]] = {}
        for task_id, its_rows in by_task.items():
            tasks.setdefault(self._step(task_id).partition, {})[task_id] = its_rows
        partitions = {
            name: together(name, [self._expected(task_id, its_own[task_id], live) for task_id in its_own])
            for name, its_own in tasks.items()
        }
        room = self._room(live)
        upcoming: list[UpcomingJob] = []
        done: set[str] = set()
        due = self._due(partitions, done)
        while due:
            name, times = due.pop()
            done.add(name)
            missing = self._missing(name, before(name, partitions), tasks[name], room, times)
            upcoming += missing
            if not missing:  # it waits for nothing, so what comes after it starts sooner
                partitions[name] = replace(partitions[name], wait=0.0)
                due = self._due(partitions, done)
        return upcoming

    def _step(self, task_id: str) -> GangTask:
        return self.steps.get(task_id) or GangTask(task_id)

    def _expected(self, task_id: str, rows: Sequence[Any], live: Sequence[Any]) -> Expected:
        """When one task starts, as far as it says so itself."""
        step = self._step(task_id)
        after = frozenset(self._step(each).partition for each in step.after)
        if step.row is None or any(row.state in FAILED for row in rows):
            return Expected(step.partition, None, after)
        expected = Expected(step.partition, self.known.durations.known(step.row), after)
        if all(row.state in BEGUN and row.start_date is not None for row in rows):
            # Airflow's start is dated by the clock of the task's machine, that of our job by ours.
            said = min(max(row.start_date.timestamp() for row in rows), self.now)
            runs = (row for row in live if row.task_id == task_id and row.state == State.RUNNING)
            return replace(expected, begun_at=max((row.started_at for row in runs if row.started_at), default=said))
        place = self._place(task_id)
        if waiting := [row for row in live if row.task_id == task_id and row.state != State.RUNNING]:
            wait = max(self._wait_of(row, place) for row in waiting)
            return replace(expected, wait=wait, asked_at=max(map(self._asked_at, waiting)))
        if place is None or not all(row.state in TO_COME for row in rows) or self._is_planned(task_id, place):
            return expected
        if not step.asks or place.site.market is None:
            return replace(expected, wait=place.wait)
        self.to_come.add(task_id)
        return replace(expected, wait=place.wait, may_ask=True, asked_at=self.asked_at.get(step.partition))

    def _is_planned(self, task_id: str, place: FirstPlace) -> bool:
        """Whether what it needs is launched by a forecast, so that it waits for nothing as far as that can be had."""
        return self.known.is_planned(self.run, task_id, place.site.name)

    def _asked_at(self, row: Any) -> float:
        """Since when room is looked for for a job that waits, by our clock."""
        return float(row.wake_at or row.queued_at - self.known.database_ahead)

    def _place(self, task_id: str) -> FirstPlace | None:
        if task_id not in self.places:
            self.places[task_id] = self._first_place(task_id)
        return self.places[task_id]

    def _first_place(self, task_id: str) -> FirstPlace | None:
        job, is_alone = self.jobs[task_id], self._step(task_id).partition == task_id
        try:
            its_own = (self.known.route if is_alone else self.known.route_together)(job)
            stop = first_stop(job, its_own, self.known.filters)
        except ValueError:  # what a plugin has added has failed, which is said when the job has come
            return None
        if stop is None:
            return None
        site = next(each for each in self.sites if each.name == stop.site)
        asked = stop.asked(job)
        return FirstPlace(site, asked, self._wait(site, asked.queue, asked.resources.cpus * asked.nodes))

    def _wait(self, site: SiteView, queue_name: str | None, cpus: float) -> float:
        """Predicted seconds from asking for room at a site until it is there; 0 where nothing is known of that."""
        if isinstance(site.market, MachineMarket):
            return site.market.boot_seconds
        waits = site.waits if site.market is None else self.known.launches
        known = None if waits is None else waits.expected(site.name, queue_name, cpus)
        return known or 0.0

    def _wait_of(self, row: Any, place: FirstPlace | None) -> float:
        """The same of a job that has come: in the queue in which it is, or where it would go first."""
        site = next((each for each in self.sites if each.name == row.site), None)
        if row.state == State.PLACED and site is not None:
            return 0.0 if site.market is not None else self._wait(site, row.queue, row.cpus * (row.nodes or 1))
        return 0.0 if place is None else place.wait

    def _room(self, live: Sequence[Any]) -> Inheritance:
        """What comes free when jobs of the run end."""
        sites = {site.name: site for site in self.sites}
        at_work: list[tuple[str, Where, Resources]] = []
        for row in live:
            job, site = self.jobs.get(row.task_id), sites.get(row.site)
            if job is not None and site is not None and row.location is not None:
                need = site.need(replace(job, resources=Resources(row.cpus, row.memory, row.disk, row.gpus)))
                at_work.append((self._step(row.task_id).partition, (site.name, row.location), need.resources))
        there = [
            each for site in self.sites for each in ((site.name, one) for one in (*site.launched, *site.locations))
        ]
        return Inheritance({(name, each.name): each for name, each in there}, at_work)

    def _due(self, partitions: Mapping[str, Expected], done: set[str]) -> list[tuple[str, Time]]:
        """The partitions for which room is to be asked for, with their times; what starts first is last."""
        times = start_times(partitions.values(), self.now, self.known.latency)
        due = [
            (name, each)
            for name, each in times.items()
            if partitions[name].may_ask and name not in done
            if each.due <= self.now or name in self.asked_at
        ]
        return sorted(due, key=lambda each: (each[1].start, each[0]), reverse=True)

    def _missing(
        self, name: str, earlier: frozenset[str], tasks: Mapping[str, Sequence[Any]], room: Inheritance, times: Time
    ) -> list[UpcomingJob]:
        """The jobs of a partition for which nothing comes free."""
        upcoming = []
        for task_id in tasks.keys() & self.to_come:
            place = self._place(task_id)
            assert place is not None  # to come is only what has one
            rows = {f"{self.run.dag_id} {self.run.run_id} {task_id} {row.map_index}": row for row in tasks[task_id]}
            names = list(rows)[: self._step(task_id).most]
            needs = [place.site.need(replace(place.job, name=each)) for each in names]
            left = room.missing(name, earlier, place.site.name, needs, times.start)
            room.asked(name, place.site.name, left)
            job, text = self._until_its_end(place, times), self._text(place, times)
            upcoming += [
                UpcomingJob(name, place.site.name, replace(job, name=each.name), text, rows[each.name]) for each in left
            ]
        return upcoming

    def _until_its_end(self, place: FirstPlace, times: Time) -> WaitingJob:
        """A job with the time until its end, so that an allocation that is there early still lasts for it, as far as
        allocations of the site do."""
        job, market = place.job, place.site.market
        if not isinstance(market, Market) or job.time is None:
            return job
        lead = max(0.0, times.start - self.now)
        return replace(job, time=max(job.time, min(job.time + lead, market.seconds - SECONDS_TO_BEGIN)))

    def _text(self, place: FirstPlace, times: Time) -> str:
        return (
            f"what it needs is asked for at {place.site.name}: it is to start at {format_moment(times.start)}, "
            f"and until there is room it takes {format_time(round(place.wait))}"
        )


def together(name: str, tasks: Sequence[Expected]) -> Expected:
    """The tasks of a partition as one: they start together, and it ends with the last of them."""
    begun = [each.begun_at for each in tasks if each.begun_at is not None]
    asked = [each.asked_at for each in tasks if each.asked_at is not None]
    seconds = [each.seconds for each in tasks if each.seconds is not None]
    return Expected(
        name,
        max(seconds) if len(seconds) == len(tasks) else None,
        frozenset().union(*(each.after for each in tasks)) - {name},
        max(begun) if len(begun) == len(tasks) else None,
        max(each.wait for each in tasks),
        any(each.may_ask for each in tasks),
        min(asked, default=None),
    )


@dataclass(frozen=True, slots=True)
class GangTask:
    """A task.

    :param partition: its gang, or the task alone
    :param after: the tasks that come right before it
    :param row: as a row of the queue; None: nothing is known of it
    :param asks: whether what it needs is to be asked for ahead, and is known before the task has come
    :param most: how many of its jobs may be at work at once; None: any number
    """

    partition: str
    after: tuple[str, ...] = ()
    row: Any = None
    asks: bool = False
    most: int | None = None


def gang_task(run: DagRunKey, task_id: str, config: object, settings: Settings, facts: Mapping[str, Any]) -> GangTask:
    """A task by its ``executor_config``; of one that is not Lading's, or not readable, nothing is known."""
    try:
        hints = Hints.from_config(config)
    except HintError:
        return GangTask(task_id)
    if hints.ahead_after is None:
        return GangTask(task_id)
    limits = (hints.max_jobs, hints.run_max_jobs, hints.max_instances, hints.run_max_instances)
    return GangTask(
        task_id if hints.gang is None else f"gang {hints.gang}",
        hints.ahead_after,
        coming_row(run, task_id, hints, settings, facts),
        # What a run may still cost is decided when its jobs wait.
        bool(hints.ahead) and not (hints.expressions or hints.auto or hints.matching or hints.max_usd),
        min((each for each in limits if each is not None), default=None),
    )


def coming_row(run: DagRunKey, task_id: str, hints: Hints, settings: Settings, facts: Mapping[str, Any]) -> Any:
    """A task that is still to come as a row of the queue, by its hints alone.

    :param facts: the columns of its jobs that say whose its Dag is
    """
    named = {"token": task_id, "dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id, "map_index": -1}
    columns = {**NO_COLUMNS, **facts, **hint_columns(hints, settings), **named, "priority": LAST, "queued_at": 0.0}
    return SimpleNamespace(**columns)
