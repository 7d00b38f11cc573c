"""Which runs are live, and the upcoming jobs of each, from Airflow's task instances and the jobs in the store."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy.exc import SQLAlchemyError

from lading.executors.forecast.tasks import AskingTask, asking_task
from lading.executors.orchestrator.orchestrator import DagPast, DagStructure, DagTask, Orchestrator, TaskState
from lading.executors.settings import Settings
from lading.executors.store import State, groups, queue
from lading.executors.store.durations import Durations, PastWaits
from lading.executors.store.gangs import runs
from lading.executors.store.gangs.runs import DagRunKey
from lading.executors.store.run_rows import RunForecast, RunKey, RunRequest
from lading.hooks.files.logs import Trouble
from lading.scheduling.accounting.who import Tenant
from lading.scheduling.forecast import critical_path
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, alone
from lading.scheduling.forecast.forecast import RoomWait
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.groups import run_name
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.routes import first_stop, router
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Route
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.prediction import ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN, Prediction

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

# A run's task instances are reread when its jobs have changed and after this many seconds, for at most this many runs
# per tick.
SECONDS_BETWEEN_LOOKS = 5.0
MOST_RUNS_PER_TICK = 20
# How many otherwise unchanged runs are recomputed per tick because more running times have been measured.
MOST_RUNS_TO_LEARN = 4
# Between two tasks a run may have no job for a moment, so it is remembered for this many seconds.
SECONDS_UNTIL_FORGOTTEN = 60.0
BEGUN = (TaskState.RUNNING, TaskState.DEFERRED, TaskState.UP_FOR_RESCHEDULE)
FAILED = (TaskState.FAILED, TaskState.UPSTREAM_FAILED)
# Airflow has handed over tasks in these states: without a live job such a task has ended, but Airflow has not stored
# that yet.
HANDED_OVER = (TaskState.QUEUED, TaskState.RUNNING, TaskState.RESTARTING)
TROUBLE = (
    "The requests of the tasks of some runs cannot be read, so their jobs are planned without the tasks after them"
)
CIRCLE = "Gangs of some runs wait for each other, so their starts cannot be predicted"
AT_ONCE = Prediction(0.0, source="it has no job")


@dataclass(slots=True)
class KnownRun:
    """What is known about a run.

    :param seen_at: when it last had a live job; ``read_at``: when its task instances were read; epoch seconds
    :param began: when its first job was queued, in epoch seconds
    :param jobs: the signatures of its live jobs at ``read_at``
    :param rows: its unfinished task instances at ``read_at``
    :param structure: its Dag; None: not read yet, or unreadable; ``past``: how earlier runs went
    :param asks: its tasks according to their hints; ``asks_of_jobs``: by task and index, the jobs with hints of their
        own
    :param tenant: the tenant of its Dag
    :param request: a user's request to hurry it
    :param is_read: whether Dag and hints have been read
    :param version: how often any of these has changed
    :param made: the upcoming jobs, preceded by what they were computed from; ``learnt`` and ``launching``: the number
        of measured running times, and the launch facts of sites, at that time
    :param rests: the longest remaining path of each waiting job, by token, in seconds; computed from ``rests_of``
    """

    seen_at: float
    began: float
    read_at: float = 0.0
    jobs: AbstractSet[tuple[Any, ...]] = frozenset()
    rows: Sequence[Any] = ()
    structure: DagStructure | None = None
    past: DagPast = field(default_factory=DagPast)
    asks: Mapping[str, AskingTask] = field(default_factory=dict)
    asks_of_jobs: Mapping[str, Mapping[int, AskingTask]] = field(default_factory=dict)
    tenant: Tenant = Tenant()  # noqa: RUF009 - a tuple, which nothing changes
    request: RunRequest = RunRequest()  # noqa: RUF009 - a tuple, which nothing changes
    is_read: bool = False
    version: int = 0
    made: tuple[object, ComingRun] | None = None
    learnt: int = 0
    launching: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    rests_of: ComingRun | None = None
    rests: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TaskToCome:
    """A task with upcoming jobs.

    :param team: the team of its Dag; None: none
    :param site: the site its jobs go to first, and (``need``) what each of them takes there; None: unknown
    :param room_wait: how long they wait for room that no forecast provides; None: not at all, or unknown
    """

    run: DagRunKey
    task_id: str
    task: DagTask
    past: DagPast
    expected: Prediction
    team: str | None = None
    site: str | None = None
    need: PlannedJob | None = None
    room_wait: RoomWait | None = None

    def name(self, index: int) -> str:
        return job_name(self.run, self.task_id, index)

    def job(self, index: int, row: Any) -> ComingJob:
        """Build an upcoming job of the task.

        :param row: its task instance, or the task's only one if it has not been expanded yet
        """
        its_pool = row.pool, row.pool_slots
        return ComingJob(
            self.name(index),
            self.expected,
            self.site,
            self.need,
            index,
            None,
            None,
            None,
            *its_pool,
            self.room_wait,
            row.state == TaskState.UP_FOR_RETRY,
        )


class LiveRuns:
    """What is known about live runs, kept from tick to tick.

    :param ways: how placement finds room for jobs
    :param waits: how long jobs have waited in queues, and how long launched machines took until they were up
    """

    def __init__(self, host: Orchestrator, settings: Settings, ways: Ways, waits: PastWaits) -> None:
        self.host, self.settings, self.ways, self.waits = host, settings, ways, waits
        self.may_look_ahead = True
        """False: a plugin crashed a controller over an upcoming task, so plugins are no longer called for such tasks.
        """
        self.durations, self.dags = Durations(), self.host.forecaster()
        self.known: dict[DagRunKey, KnownRun] = {}
        self.needs: dict[str, FirstPlace | None] = {}
        self.pools: dict[str, int] = {}
        self.trouble = Trouble(log)
        self.learnt: dict[str | None, int] = {}
        self.queued_at: dict[str, float] = {}
        """When live jobs were queued, by token, in epoch seconds."""
        self._is_ours = self.dags.is_ours

    def coming_runs(
        self, session: Session, sites: Sequence[SiteView], now: float, *, by_dag: bool, database_ahead: float = 0.0
    ) -> list[ComingRun]:
        """Return the upcoming and live jobs of all live runs, and the live jobs that belong to no run.

        :param sites: all sites, in their order
        :param now: epoch seconds
        :param by_dag: whether some site accepts only certain Dags
        :param database_ahead: seconds by which the database's clock is ahead of this host's
        """
        for dag_id in self.durations.learn(session):
            self.learnt[dag_id] = self.learnt.get(dag_id, 0) + 1
        rows = runs.live_jobs(session)
        self.queued_at = {row.token: row.queued_at - database_ahead for row in rows}
        by_run: dict[DagRunKey, list[Any]] = {}
        for row in rows:
            if row.task_id is not None:
                by_run.setdefault(DagRunKey(row.dag_id, row.run_id), []).append(row)
        for run, its_rows in by_run.items():
            queued = min(row.queued_at for row in its_rows) - database_ahead
            known = self.known.setdefault(run, KnownRun(now, queued))
            known.seen_at, known.began = now, min(known.began, queued)
        self._forget(rows, now)
        self._read_requests(self.host.run_requests(session))
        self._read(session, by_run, by_dag, now, database_ahead)
        self.waits.read(session)
        first_sites = FirstSites(sites, self.ways, self.needs, self.waits, by_dag, database_ahead, self._is_ours)
        found = [self._coming(run, known, by_run.get(run, ()), first_sites, now) for run, known in self.known.items()]
        for row in rows:
            if row.task_id is None:
                job = self._job(row, row.token, first_sites, now)
                found.append(alone(job, row.queued_at - database_ahead))
        return found

    def forecasts(self, ends: Mapping[str, float]) -> dict[RunKey, RunForecast]:
        """Return the forecasts of the live runs.

        :param ends: the predicted ends of runs, by name, in epoch seconds
        """
        made = {run: known.made[1] for run, known in self.known.items() if known.made is not None}
        return {run: RunForecast(each.hurry, each.finish_by, ends.get(each.name)) for run, each in made.items()}

    def rests(self, now: float) -> dict[str, float]:
        """Return the remaining paths that order jobs of equal priority
        (:mod:`lading.scheduling.forecast.critical_path`).

        :param now: epoch seconds
        :returns: by token, in seconds
        """
        longest: dict[str, float] = {}
        for known in self.known.values():
            if known.made is None:
                continue
            if known.rests_of is not known.made[1]:
                known.rests_of, known.rests = known.made[1], critical_path.rests(known.made[1])
            longest |= known.rests
        return critical_path.in_turn(longest, self.queued_at, now)

    @property
    def without_structure(self) -> set[str]:
        return {run_name(*run) for run, known in self.known.items() if known.structure is None}

    def try_number(self, run: DagRunKey, task_id: str) -> int:
        rows = self.known[run].rows if run in self.known else ()
        return next((row.try_number for row in rows if row.task_id == task_id), 1)

    @property
    def names(self) -> set[str]:
        return {run_name(*run) for run in self.known}

    @property
    def without_needs(self) -> set[str]:
        """The names of the live runs with upcoming tasks of ours whose needs are unknown."""
        nothing = AskingTask()
        return {
            run_name(*run)
            for run, known in self.known.items()
            if any(
                not known.asks.get(row.task_id, nothing).is_foreseen and self._is_ours(row.executor, known.tenant.team)
                for row in known.rows
            )
        }

    @property
    def with_budget(self) -> set[str]:
        limited = (run for run, known in self.known.items() if any(ask.has_budget for ask in known.asks.values()))
        return {run_name(*run) for run in limited}

    def _forget(self, rows: Iterable[Any], now: float) -> None:
        gone = [run for run, known in self.known.items() if abs(now - known.seen_at) > SECONDS_UNTIL_FORGOTTEN]
        for run in gone:
            del self.known[run]
        live = {row.token for row in rows}
        self.needs = {token: need for token, need in self.needs.items() if token in live}

    def _read_requests(self, asked: Mapping[RunKey, RunRequest]) -> None:
        for run, known in self.known.items():
            if (request := asked.get(run, RunRequest())) != known.request:
                known.request, known.version = request, known.version + 1

    def _read(
        self,
        session: Session,
        by_run: Mapping[DagRunKey, Sequence[Any]],
        by_dag: bool,
        now: float,
        database_ahead: float,
    ) -> None:
        """Update what Airflow knows about runs, starting with those that were read longest ago."""
        jobs = {run: frozenset(signature(row) for row in by_run.get(run, ())) for run in self.known}
        due = [
            run
            for run, known in self.known.items()
            if known.jobs != jobs[run] or abs(now - known.read_at) >= SECONDS_BETWEEN_LOOKS
        ]
        due = sorted(due, key=lambda run: self.known[run].read_at)[:MOST_RUNS_PER_TICK]
        if not due:
            return
        new = [run for run in due if not self.known[run].is_read]
        new += self.dags.changed(session, [run for run in due if self.known[run].is_read])
        structures = self.dags.read_structures(session, new) if new else {}
        # The first job may have ended before this controller started.
        for run, queued in (runs.first_queued(session, new) if new else {}).items():
            self.known[run].began = min(self.known[run].began, queued - database_ahead)
        coming = self.host.unfinished(session, due)
        self.pools = dict(self.host.pools(session))
        for run in due:
            known = self.known[run]
            rows, past = coming.get(run, ()), self.dags.past(session, run.dag_id)
            if (rows, past) != (known.rows, known.past):
                known.rows, known.past, known.version = rows, past, known.version + 1
            known.jobs, known.read_at = jobs[run], now
            if run in structures:
                known.structure = structures[run]
                facts = self.dags.facts(session, run.dag_id)
                known.tenant = Tenant.from_columns(
                    facts.get("team"), run.dag_id, facts.get("dag_owner"), facts.get("dag_tags")
                )
                try:
                    known.asks, known.asks_of_jobs = self._asks(session, run, by_dag)
                except SQLAlchemyError:
                    raise
                except Exception as error:  # an executor_config may hold objects of unknown classes
                    self.trouble.begin(TROUBLE, error, traceback=True)
                    known.structure = None
                if known.structure is not None:
                    known.asks = self._without_circles(known.structure, known.asks)
                known.is_read, known.version = True, known.version + 1

    def _asks(
        self, session: Session, run: DagRunKey, by_dag: bool
    ) -> tuple[dict[str, AskingTask], dict[str, dict[int, AskingTask]]]:
        """Return the requests of a run's tasks, and of those of its jobs that have hints of their own."""
        last = runs.last_jobs(session, run.dag_id)
        facts = self.dags.facts(session, run.dag_id)

        def ask(task_id: str, config: object) -> AskingTask:
            return asking_task(run, task_id, config, last, self.settings, by_dag, facts)

        of_jobs: dict[str, dict[int, AskingTask]] = {}
        for task_id, configs in self.host.hints_of_jobs(session, run).items():
            asks = {id(config): ask(task_id, config) for config in configs.values()}
            of_jobs[task_id] = {index: asks[id(config)] for index, config in configs.items()}
        of_tasks = {task_id: ask(task_id, config) for task_id, config in self.host.hints(session, run).items()}
        return of_tasks, of_jobs

    def _without_circles(self, structure: DagStructure, asks: Mapping[str, AskingTask]) -> Mapping[str, AskingTask]:
        """Drop all gangs of a run if some of them wait for each other in a circle."""
        gangs = {task_id: ask.gang for task_id, ask in asks.items() if ask.gang is not None}
        if not gangs:
            return asks

        def party(task_id: str) -> tuple[str, bool]:
            return gangs.get(task_id, task_id), task_id in gangs

        before: dict[tuple[str, bool], set[tuple[str, bool]]] = {}
        for task_id, task in structure.tasks.items():
            here = party(task_id)
            before.setdefault(here, set()).update(party(each) for each in task.upstream if party(each) != here)
        try:
            TopologicalSorter(before).prepare()
        except CycleError as error:
            self.trouble.begin(CIRCLE, error)
            return {task_id: replace(ask, gang=None) for task_id, ask in asks.items()}
        return asks

    def _coming(
        self, run: DagRunKey, known: KnownRun, rows: Sequence[Any], first_sites: FirstSites, now: float
    ) -> ComingRun:
        """Return the upcoming and live jobs of a run.

        The last result is reused if nothing has changed; if only running times or sites are better known, just a few
        runs per tick are recomputed.
        """
        asked, learnt = (frozenset(map(signature, rows)), known.version), self.learnt.get(run.dag_id, 0)
        is_same = known.made is not None and known.made[0] == asked
        knows_more = known.learnt != learnt or first_sites.know_more(known.launching)
        if is_same and knows_more and first_sites.more_to_learn > 0:
            first_sites.more_to_learn -= 1
            is_same = False
        if known.made is None or not is_same:
            known.made = asked, self._made(run, known, rows, first_sites, now)
            known.learnt, known.launching = learnt, first_sites.launching
        return known.made[1]

    def _made(
        self, run: DagRunKey, known: KnownRun, rows: Sequence[Any], first_sites: FirstSites, now: float
    ) -> ComingRun:
        by_task: dict[str, list[Any]] = {}
        for each in known.rows:
            by_task.setdefault(each.task_id, []).append(each)
        live: dict[str, list[Any]] = {}
        for row in rows:
            live.setdefault(row.task_id, []).append(row)
            by_task.setdefault(row.task_id, [])
        doomed = self._doomed(known, by_task)
        structure = {} if known.structure is None else known.structure.tasks
        tasks = {}
        for task_id, its_rows in by_task.items():
            task, ask = structure.get(task_id, DagTask()), known.asks.get(task_id, AskingTask())
            mine = live.get(task_id, ())
            pools = {row.map_index: (row.pool, row.pool_slots) for row in its_rows}
            jobs = [
                self._job(row, job_name(run, task_id, row.map_index), first_sites, now, *pools.get(row.map_index, ()))
                for row in mine
            ]
            # If a Dag cannot be read, nothing is known about the tasks after its jobs.
            have_come = {row.map_index for row in mine}
            rest = [each for each in its_rows if each.map_index not in have_come]
            its_asks: dict[int, tuple[AskingTask, list[Any]]] = {}
            for each in rest if known.structure is not None and task_id not in doomed else ():
                own = known.asks_of_jobs.get(task_id, {}).get(each.map_index, ask)
                its_asks.setdefault(id(own), (own, []))[1].append(each)
            for own, its_rest in its_asks.values():
                of = TaskToCome(run, task_id, task, known.past, self._expected(own), known.tenant.team)
                place = self._place_ahead(own, first_sites)
                if place is not None and own.is_planned:
                    of = replace(of, site=place.site, need=place.need)
                if place is not None and not (own.is_planned and first_sites.is_covered(place.site)):
                    of = replace(of, room_wait=first_sites.wait_at(place))
                jobs += self._to_come(of, its_rest, first_sites, now, has_come=bool(mine))
            has_ended = not jobs and rest and all(each.state in HANDED_OVER for each in rest)
            if not has_ended:
                tasks[task_id] = ComingTask(
                    jobs,
                    task.upstream,
                    task.by_index,
                    least((ask.most, task.most)),
                    task.priority,
                    ask.may_ask_ahead,
                    ask.gang,
                    ask.is_held,
                    task.before,
                    least((ask.max_instances, *(row.max_instances for row in mine))),
                )
        of_run = [each.run_most for each in known.asks.values()]
        limits_of_run = [*of_run, None if known.structure is None else known.structure.most_at_once]
        # An unreadable Dag is assumed to have the time zone that Airflow uses for Dags that name none.
        zone = self.dags.zone if known.structure is None else known.structure.zone
        wants = known.asks.values() if known.request.finish_by is None else (known.request,)
        moments = [each.finish_by.at(known.began, zone) for each in wants if each.finish_by is not None]
        wants = known.asks.values() if known.request.hurry is None else (known.request,)
        hurries = [each.hurry for each in wants if each.hurry is not None]
        return ComingRun(
            run_name(*run),
            known.began,
            tasks,
            max(hurries, default=None),
            least(limits_of_run),
            min(moments, default=None),
            least(
                (*(each.run_max_instances for each in known.asks.values()), *(row.run_max_instances for row in rows))
            ),
        )

    def _place_ahead(self, ask: AskingTask, first_sites: FirstSites) -> FirstPlace | None:
        """Return where the jobs of an upcoming task go first; None: nowhere, or unknown."""
        if ask.job is None or not self.may_look_ahead:
            return None
        return first_sites.find(ask.job, together=ask.is_held)

    def _doomed(self, known: KnownRun, rows: Mapping[str, Sequence[Any]]) -> set[str]:
        """Return the tasks that will have no more jobs because they or tasks before them have failed."""
        failed = {task_id for task_id, some in rows.items() if any(row.state in FAILED for row in some)}
        if not failed or known.structure is None:
            return failed
        tasks, found = known.structure.tasks, set(failed)
        for task_id in TopologicalSorter({name: task.upstream for name, task in tasks.items()}).static_order():
            if task_id in tasks and tasks[task_id].needs_success and not found.isdisjoint(tasks[task_id].upstream):
                found.add(task_id)
        return found

    def _to_come(
        self, of: TaskToCome, rows: Sequence[Any], first_sites: FirstSites, now: float, *, has_come: bool
    ) -> list[ComingJob]:
        """Return the upcoming jobs of a task, and its instances that are running without a job.

        :param has_come: whether a job of the task has already been queued
        """
        found: list[ComingJob] = []
        for row in rows:
            is_ours = first_sites.is_ours(row.executor, of.team)
            if row.state in BEGUN and not (is_ours and row.state in HANDED_OVER):  # it is running without a job
                begun = now if row.start_date is None else min(now, row.start_date.timestamp())
                found.append(ComingJob(of.name(row.map_index), of.expected, index=row.map_index, begun=begun))
            elif of.task.is_empty or not is_ours:
                expected = AT_ONCE if of.task.is_empty else of.expected
                found.append(
                    ComingJob(
                        of.name(row.map_index),
                        expected,
                        index=row.map_index,
                        pool=None if of.task.is_empty else row.pool,
                        pool_slots=row.pool_slots,
                        retries=row.state == TaskState.UP_FOR_RETRY,
                    )
                )
            elif row.state in HANDED_OVER or (row.state is None and of.task_id in of.past.skipped and not has_come):
                continue
            elif of.task.is_mapped and row.map_index < 0:
                found += (of.job(index, row) for index in range(max(1, of.past.lengths.get(of.task_id, 1))))
            else:
                found.append(of.job(row.map_index, row))
        return found

    def _expected(self, ask: AskingTask) -> Prediction:
        return (
            self.durations.history.predict((), None, ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN)
            if ask.row is None
            else self.durations.predict(ask.row, ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN)
        )

    def _job(
        self, row: Any, name: str, first_sites: FirstSites, now: float, pool: str | None = None, pool_slots: int = 1
    ) -> ComingJob:
        expected = self.durations.predict(row, ENOUGH_WITHIN_A_RUN, WEIGHT_WITHIN_A_RUN)
        its_own = row.map_index, row.token
        if (room_wait := first_sites.wait_of(row)) is not None or row.state not in groups.AT_WORK:
            site, need = first_sites.of_waiting(row)
            return ComingJob(name, expected, site, need, *its_own, None, None, pool, pool_slots, room_wait)
        began = row.started_at if row.state == State.RUNNING else row.placed_at
        begun = now if began is None else min(now, began)
        site, need = first_sites.of_working(row)
        # A job in a queue shares no known machine.
        location = None if first_sites.is_queue(row.site, row.location) else row.location
        return ComingJob(name, expected, site, need, *its_own, begun, location, pool, pool_slots)


class FirstPlace(NamedTuple):
    """Where similar jobs go first.

    :param asked: one of the jobs, with its request at that site
    :param need: what it takes there
    """

    site: str
    asked: WaitingJob
    need: PlannedJob


class FirstSites:
    """Finds where jobs go first, within one tick.

    :param needs: the results found so far for live jobs, by token; None: nowhere
    :param waits: how long jobs have waited in queues, and how long launched machines took until they were up
    :param database_ahead: seconds by which the database's clock is ahead of this host's
    :param is_ours: whether a task becomes a job, given the executor it names and the team of its Dag
    """

    def __init__(
        self,
        sites: Sequence[SiteView],
        ways: Ways,
        needs: dict[str, FirstPlace | None],
        waits: PastWaits,
        by_dag: bool,
        database_ahead: float,
        is_ours: Callable[[str | None, str | None], bool],
    ) -> None:
        self.sites = {site.name: site for site in sites}
        self.ways, self.needs, self.waits, self.by_dag = ways, needs, waits, by_dag
        self.database_ahead = database_ahead
        self.route: Callable[[WaitingJob], Route] = router(sites, ways.rules, ways.rank)
        able = [site for site in sites if site.holds]
        self.route_together: Callable[[WaitingJob], Route] = router(able, ways.rules, ways.rank)
        self.launching = {site.name: launch_facts(site.market) for site in sites if site.market is not None}
        """What follows from the launches possible at each site that has answered, by its name."""
        self.more_to_learn = MOST_RUNS_TO_LEARN
        self.is_ours = is_ours

    def find(self, job: WaitingJob, *, together: bool = False) -> FirstPlace | None:
        """Return where a job goes first; None: nowhere, or unknown.

        :param together: whether it needs a site that holds room, as members of gangs and jobs with attempts do
        """
        try:
            stop = first_stop(job, (self.route_together if together else self.route)(job), self.ways.filters)
        except ValueError:  # a plugin failed, which is reported when the job is placed
            return None
        if stop is None:
            return None
        asked = stop.asked(job)
        return FirstPlace(stop.site, asked, self.sites[stop.site].need(asked))

    def know_more(self, before: Mapping[str, tuple[object, ...]]) -> bool:
        """Whether the launch facts of a site have changed; a site that does not answer does not count."""
        return any(facts != before.get(name) for name, facts in self.launching.items())

    def is_covered(self, site: str) -> bool:
        market = self.sites[site].market
        return isinstance(market, Market) or (isinstance(market, MachineMarket) and market.policy == FORECAST)

    def is_queue(self, site: str, location: str) -> bool:
        """Whether a location of a site is a queue, in which each job is a batch job of its own."""
        return site in self.sites and self.sites[site].is_queue(location)

    def wait_at(self, place: FirstPlace, since: float | None = None) -> RoomWait | None:
        """Return how long a job is expected to wait where it goes first; see :meth:`room_wait`."""
        asked = place.asked
        return self.room_wait(place.site, asked.queue, asked.resources.cpus * asked.nodes, since)

    def room_wait(self, site: str, queue_name: str | None, cpus: float, since: float | None = None) -> RoomWait | None:
        """Return how long a job is expected to wait for room at a site; None: not at all, or unknown.

        :param queue_name: the queue it requests; None: it names none
        :param cpus: of all its nodes together
        :param since: when the room was requested, in epoch seconds; None: it was not
        """
        market, seconds = self.sites[site].market, None
        if isinstance(market, MachineMarket):
            seconds = market.boot_seconds
        else:
            known = self.waits.known if market is None else self.waits.launches
            seconds = known.expected(site, queue_name, cpus)
            if seconds is None and market is not None:
                seconds = market.queue_seconds
        return RoomWait(seconds, since) if seconds else None

    def of_working(self, row: Any) -> tuple[str | None, PlannedJob | None]:
        """Return the site where a job is at work, and what it takes there."""
        if row.site not in self.sites:
            return None, None
        return row.site, self.sites[row.site].need(queue.as_waiting(row, self.by_dag))

    def of_waiting(self, row: Any) -> tuple[str | None, PlannedJob | None]:
        """Return the site a job goes to first, and what it takes there, if a forecast can plan that; otherwise None."""
        place = self._first_place(row) if row.gang is None and row.state not in groups.AT_WORK else None
        return (None, None) if place is None else (place.site, place.need)

    def wait_of(self, row: Any) -> RoomWait | None:
        """Return how long a job waits for room that no forecast provides; None: not at all, or unknown."""
        if row.state in groups.AT_WORK:
            if row.state != State.PLACED or not self.is_queue(row.site, row.location):
                return None
            return self.room_wait(row.site, row.queue or row.queue_hint, row.cpus * (row.nodes or 1), row.placed_at)
        if (place := self._first_place(row)) is None:
            return None
        if row.gang is None and self.is_covered(place.site):
            return None
        return self.wait_at(place, row.wake_at or row.queued_at - self.database_ahead)

    def _first_place(self, row: Any) -> FirstPlace | None:
        """Return where a waiting job goes first; None: nowhere, or unknown."""
        if row.sizing is not None:
            return None
        if row.token in self.needs:
            return self.needs[row.token]
        place = self.find(queue.as_waiting(row, self.by_dag), together=row.gang is not None)
        site = None if place is None else self.sites[place.site]
        # What a job takes in an allocation is known once the site has answered.
        if site is None or site.market is not None or not site.launches:
            self.needs[row.token] = place
        return place


def least(limits: Iterable[int | None]) -> int | None:
    """Return the lowest limit; None: there is none."""
    return min((each for each in limits if each is not None), default=None)


def launch_facts(market: Market | MachineMarket) -> tuple[object, ...]:
    """Return what decides whether, and how early, room is requested ahead at a site."""
    if isinstance(market, MachineMarket):
        return market.policy, market.boot_seconds
    return (market.queue_seconds,)


def signature(row: Any) -> tuple[Any, ...]:
    """Return the properties of a live job that a plan depends on."""
    return row.token, row.state, row.location, row.started_at, row.sizing is None, row.wake_at


def job_name(run: DagRunKey, task_id: str, map_index: int) -> str:
    """Return the name of a job in a forecast, which stays the same before and after it is queued."""
    return f"{run.dag_id} {run.run_id} {task_id} {map_index}"


def named(name: str) -> tuple[DagRunKey, str, int]:
    """Return the run, task and map index to which a job's name in a forecast refers."""
    dag_id, others = name.split(" ", 1)
    run_id, task_id, map_index = others.rsplit(" ", 2)  # only the id of a run can contain spaces
    return DagRunKey(dag_id, run_id), task_id, int(map_index)
