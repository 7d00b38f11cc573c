"""The tasks of a run over time: when each waited and ran, when pending ones are expected, and the critical path.

Times are seconds since the epoch. None means unknown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, State
from pydantic import BaseModel
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session, defer

from lading.executors.orchestrator import airflow_run_requests
from lading.executors.orchestrator.airflow_dags import Dags
from lading.executors.starts import expected_starts
from lading.executors.starts.expected_starts import NoStart
from lading.executors.store import LIVE, JobRow
from lading.executors.store.durations import Durations
from lading.executors.store.jobs import QUEUED
from lading.executors.store.leases import database_ahead
from lading.plugin.ui.queries.runs import TryPhase, as_phases, boots_of, columns, totals, waited
from lading.scheduling.insight.run_path import Stretch, critical, to_come, without
from lading.scheduling.model.prediction import History
from lading.scheduling.model.reason_codes import CODES
from lading.scheduling.starts.expected_starts import ExpectedStart, cause_text, end_interval

# The most tries shown per task, spread evenly over their states, and per run. The latter lowers the former if needed.
MOST_TRIES, MOST_TRIES_OF_RUN = 60, 3_000
MOST_UNPREDICTED = 5
MOST_TASKS = 500
# The search for the last finished run gives up after this many live runs.
MOST_LIVE_RUNS = 20
SCHEDULING = "scheduling"
# What the expected end of a run is based on.
PLANNED, SUMMED = "Lading's plan", "the expected starts of its jobs and the durations of earlier ones"


class GanttTry(BaseModel):
    """A try of a task with its phases."""

    id: str
    map_index: int
    try_number: int
    state: str
    phases: list[TryPhase]


class ExpectedSpan(BaseModel):
    """When an unfinished task is expected to run."""

    since: float
    until: float


class GanttTask(BaseModel):
    """A task of a run."""

    task_id: str
    upstream: list[str]
    jobs: int
    """Number of tries; 0: it has none yet, or never will have any."""
    live: int
    failed: int
    ready_at: float | None
    """When all its upstream tasks had finished, or are expected to."""
    since: float | None
    """When its first try was queued."""
    started_at: float | None
    """When the first of its tries started."""
    until: float | None
    """When its last try finished; None: it is unfinished or has not begun."""
    expected: ExpectedSpan | None
    """None: the task has finished, or its duration or start is unknown."""
    is_critical: bool
    """Whether it is on the critical path of the run."""
    tries: list[GanttTry]
    is_cut: bool
    """Whether it has more tries than are listed."""
    median_wait: float | None
    """Median wait of its tries until they started or ended, or until now; None: it has no tries."""
    longest_wait: float | None
    """Longest wait of any of its tries."""
    cpu_hours: float
    usd: float | None
    cpus_used: float | None
    """Fraction of the requested cpus that was used, 0 to 1; the next two fields are the same for memory and time."""
    memory_used: float | None
    time_used: float | None
    last_seconds: float | None
    """Seconds from its first queued to its last finished job in the last finished run; None: not in that run."""


class LastRun(BaseModel):
    """The last finished run of the Dag that began before this one."""

    run_id: str
    seconds: float


class RunGantt(BaseModel):
    """The tasks of a run, in the order in which they began or are expected to begin."""

    now: float
    began_at: float | None
    ended_at: float | None
    """None: the run has not finished."""
    expected_end: float | None
    """From the forecast if there is one, otherwise from expected starts and past durations of its tasks; None: the run
    has finished, or its end is unknown."""
    expected_end_span: ExpectedSpan | None
    """The earliest and the latest expected end; None as above."""
    expected_end_basis: str | None
    """What the expected end is based on, as part of a sentence; None as above."""
    end_unknown: str | None
    """Why its end is unknown, as text; None: it is known, or the run has finished."""
    critical: list[str]
    """The critical path, in order: the chain of tasks that determines how long the run takes."""
    last_run: LastRun | None
    tasks: list[GanttTask]


@dataclass(slots=True)
class TaskOfRun:
    """The jobs of a task of a run."""

    sums: dict[str, Any]
    started_at: float | None
    waits: list[float] = field(default_factory=list)
    tries: list[GanttTry] = field(default_factory=list)

    @property
    def until(self) -> float | None:
        return None if self.sums["live"] else self.sums["ended_at"]


@dataclass(frozen=True, slots=True)
class RunTimes:
    """When the tasks of a run began and ended, and when unfinished ones are expected to.

    :param upstream: the upstream tasks of each task; empty: unknown
    :param before_each: the same without tasks that have no time
    :param expected: (start, end) of unfinished tasks
    :param ends: when each task ended or is expected to end
    :param unknown: the tasks whose end is unknown
    :param before: by task, the seconds it took in the last finished run
    :param end: when the run is expected to end; None: it has finished, or its end is unknown
    :param basis: what ``end`` is based on
    :param end_unknown: why its end is unknown; None: it is known, or the run has finished
    """

    live: bool
    began: float | None
    upstream: Mapping[str, tuple[str, ...]]
    stretches: Mapping[str, Stretch]
    before_each: Mapping[str, set[str]]
    expected: Mapping[str, tuple[float, float]]
    ends: Mapping[str, float]
    unknown: Sequence[str]
    last: LastRun | None
    before: Mapping[str, float]
    end: float | None
    basis: str
    end_unknown: str | None


class Predictor:
    """What predictions for runs are based on, read once and only if needed.

    :param now: epoch seconds
    :param is_for_many: whether it is used for several runs, so that reading all waiting jobs at once pays off
    """

    def __init__(self, session: Session, now: float, *, is_for_many: bool = False) -> None:
        self.session, self.now, self.is_for_many = session, now, is_for_many

    @cached_property
    def history(self) -> History:
        """How long earlier jobs ran."""
        return Durations().read(self.session).history

    @cached_property
    def outlook_of_all(self) -> expected_starts.Outlook:
        return expected_starts.Outlook(self.session, self.now)

    def outlook(self, jobs: Sequence[Any]) -> expected_starts.Outlook:
        """Return when the waiting jobs of a run start."""
        if not self.is_for_many:
            return expected_starts.Outlook(self.session, self.now, jobs)
        self.outlook_of_all.learn(jobs)
        return self.outlook_of_all


def run_times(predictor: Predictor, dag_id: str, run_id: str, tasks: Mapping[str, TaskOfRun]) -> RunTimes:
    """Read when the tasks of a run began and ended, and predict when unfinished ones will.

    :param tasks: see :func:`sums_of`
    """
    session, now = predictor.session, predictor.now
    dag_run = session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id)).first()
    upstream, pending = structure(session, dag_run)
    live = dag_run is not None and dag_run.state in (DagRunState.QUEUED, DagRunState.RUNNING)
    began = min((task.sums["began_at"] for task in tasks.values()), default=None)
    if dag_run is not None and dag_run.start_date is not None:
        began = min(began or now, dag_run.start_date.timestamp())
    lengths = durations(predictor.history, dag_id, [*tasks, *pending]) if live else {}
    last = last_run(session, dag_id, run_id, began)
    before = {} if last is None else tasks_took(session, dag_id, last.run_id)
    waits = last_starts(predictor, dag_id, run_id) if live else RunWaits()
    lasts, held = waits.lasts, waits.held
    stretches = {
        name: Stretch(
            task.sums["began_at"],
            task.started_at,
            task.until,
            lengths.get(name) if task.until is not None or lasts.get(name) is not None else None,
            lasts.get(name),
        )
        for name, task in tasks.items()
    }
    # Tasks without a job yet. The duration in the last run covers all jobs of a mapped task.
    for name in pending:
        if name not in tasks and live and name in lengths:
            stretches[name] = Stretch(None, None, None, max(lengths[name], before.get(name, 0.0)))
        elif name not in tasks and live:
            stretches[name] = Stretch(None, None, None, None)
    before_each = without(upstream, stretches)
    expected = to_come(stretches, before_each, now)
    ends = {name: each.until for name, each in stretches.items() if each.until is not None}
    ends |= {name: each[1] for name, each in expected.items()}
    unknown = [name for name in stretches if name not in ends]
    forecast = airflow_run_requests.terms(session, dag_id, run_id).get(run_id)
    planned = None if forecast is None or forecast.forecast is None else forecast.forecast.ends_at
    end = planned if planned is not None or unknown else max(ends.values(), default=None)
    why = held
    if not live and any(task.sums["live"] for task in tasks.values()):
        why = "Airflow does not know the run"
        if dag_run is not None:
            why = f"Airflow has marked the run as {dag_run.state}, although it has unfinished jobs"
    elif live and held is None and end is None:
        why = why_unknown(unknown, stretches, before_each, lengths, waits)
    return RunTimes(
        live, began, upstream, stretches, before_each, expected, ends, unknown, last, before,
        end if live and held is None else None, SUMMED if planned is None else PLANNED, why,
    )  # fmt: skip


def why_unknown(
    unknown: Sequence[str], stretches: Mapping[str, Stretch], before_each: Mapping[str, Iterable[str]],
    lengths: Mapping[str, float], waits: RunWaits,
) -> str:  # fmt: skip
    """Say why the end of a live run is unknown.

    :param unknown: the tasks whose end is unknown; only the first ones of each chain are named
    :param lengths: how long jobs of a task take, where earlier ones have finished
    """
    first = sorted(name for name in unknown if not set(before_each[name]) & set(unknown)) or sorted(unknown)
    no_start = [name for name in first if name in waits.lasts and waits.lasts[name] is None]
    no_length = [name for name in first if name not in no_start and name not in lengths]
    parts = []
    if no_start:
        causes = sum((waits.causes.get(name, Counter()) for name in no_start), Counter[str]())
        why = f" ({spoken(expected_starts.commonest(causes)[0])})" if causes else ""
        parts.append(f"there is no estimate of when the waiting jobs of {named(no_start)} start{why}")
    if no_length:
        parts.append(f"no job of {named(no_length)} has finished before, so its duration is unknown")
    if not parts and first:
        parts.append(f"no end can be predicted for {named(first)}")
    return "; ".join(parts) or "none of its tasks has a job yet"


def named(tasks: Sequence[str]) -> str:
    """Return the names of the first few tasks."""
    more = len(tasks) - MOST_UNPREDICTED
    return ", ".join(tasks[:MOST_UNPREDICTED]) + (f" and {more} more" if more > 0 else "")


def gantt(session: Session, dag_id: str, run_id: str, now: float) -> RunGantt:
    """Read the tasks of a run over time, with the expected times of unfinished ones."""
    tasks = tasks_of(session, dag_id, run_id, now)
    times = run_times(Predictor(session, now), dag_id, run_id, tasks)
    stretches, expected, ends = times.stretches, times.expected, times.ends
    # Started tasks of unknown duration last at least until now.
    lasting = {name: now for name in times.unknown if stretches[name].since is not None}
    chain = critical({**ends, **lasting}, times.before_each) if times.upstream else []
    ended = None
    if not times.live and not any(each.sums["live"] for each in tasks.values()):
        ended = max((each.sums["ended_at"] or 0.0 for each in tasks.values()), default=None)
    names = sorted(stretches, key=lambda name: (begin_of(stretches[name], expected.get(name)), name))[:MOST_TASKS]
    return RunGantt(
        now=now,
        began_at=times.began,
        ended_at=ended,
        **end_fields(times, now),
        end_unknown=times.end_unknown,
        critical=chain,
        last_run=times.last,
        tasks=[
            gantt_task(
                name, tasks.get(name), times.upstream.get(name, ()), expected.get(name), name in chain,
                ready_at(times.before_each[name], ends, times.began), times.before.get(name),
            )
            for name in names
        ],
    )  # fmt: skip


def end_fields(times: RunTimes, now: float) -> dict[str, Any]:
    """Return the expected end of a run, with its range and basis, as the fields of the models."""
    if times.end is None:
        return {"expected_end": None, "expected_end_span": None, "expected_end_basis": None}
    since, until = end_interval(now, times.end)
    span = ExpectedSpan(since=since, until=until)
    return {"expected_end": times.end, "expected_end_span": span, "expected_end_basis": times.basis}


@dataclass(frozen=True, slots=True)
class RunWaits:
    """What the waiting jobs of a run wait for.

    :param lasts: by task, when its last live job started or is expected to start; None: unknown
    :param held: what holds jobs of the run; None: nothing does
    :param causes: by task, why its jobs without an expected start wait, and how many
    """

    lasts: Mapping[str, float | None] = field(default_factory=dict)
    held: str | None = None
    causes: Mapping[str, Counter[str]] = field(default_factory=dict)


def last_starts(predictor: Predictor, dag_id: str, run_id: str) -> RunWaits:
    """Read what the waiting jobs of a run wait for, and when they are expected to start."""
    session, now = predictor.session, predictor.now
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id.is_not(None))
    at_work = (*mine, JobRow.state.in_(LIVE), JobRow.state.not_in(expected_starts.WAITING))
    # None: not all of them have started.
    begun = case((func.count() == func.count(JobRow.started_at), func.max(JobRow.started_at)))
    query = select(JobRow.task_id, begun).where(*at_work).group_by(JobRow.task_id)
    found: dict[str, float | None] = {str(task_id): at for task_id, at in session.execute(query)}
    whose = {"dag_id": JobRow.dag_id, "run_id": JobRow.run_id, "task_id": JobRow.task_id}
    rows = expected_starts.together(session, now, {**whose, **expected_starts.TENANT}, *mine)
    outlook = predictor.outlook(rows)
    held: Counter[str] = Counter()
    causes: dict[str, Counter[str]] = {}
    for row in rows:
        lasts: list[float | None] = [None]
        if (text := outlook.held.by(row)) is not None:
            held[text] += row.jobs
        else:
            its = [*outlook.known_starts(row), *((last_start(outlook, row),) if row.unsaid else ())]
            no_starts = [each.text for each in its if isinstance(each, NoStart)]
            lasts = [
                None if isinstance(each, NoStart) else each.at if isinstance(each, ExpectedStart) else each
                for each in its
            ]
            if no_starts:
                held[no_starts[0]] += row.jobs
            elif None in lasts and row.reason_code in CODES:
                text = cause_text(row.reason_code, row.reason_limit, expected_starts.site_of(row))
                causes.setdefault(row.task_id, Counter())[text] += row.jobs
        known = [found.get(row.task_id, now), *lasts] if row.task_id in found else lasts
        found[row.task_id] = None if None in known else max(at for at in known if at is not None)
    if not held:
        return RunWaits(found, None, causes)
    text, number = expected_starts.commonest(held)
    return RunWaits(found, f"{number:,} {'jobs are' if number > 1 else 'job is'} held ({spoken(text)})", causes)


def last_start(outlook: expected_starts.Outlook, row: Any) -> float | NoStart | None:
    """Return when the last of the jobs counted together is expected to start if no plan predicts it, or what holds it;
    None: unknown."""
    start = outlook.start(row, end="last", is_drawn=False)
    if start is not None:
        return start.at if isinstance(start, ExpectedStart) else start
    # A job that was just queued, or that is next in line, can start at once.
    is_new = row.oldest - outlook.ahead > outlook.now - expected_starts.SECONDS_UNTIL_SAID
    return outlook.now if is_new or outlook.backlogs.before(row, end="last").jobs < 1 else None


def spoken(title: str) -> str:
    """Make a title start in lower case, for use within a sentence."""
    return title[:1].lower() + title[1:]


def begin_of(stretch: Stretch, expected: tuple[float, float] | None) -> float:
    return stretch.since if stretch.since is not None else expected[0] if expected is not None else float("inf")


def ready_at(upstream: Iterable[str], ends: Mapping[str, float], began: float | None) -> float | None:
    """Return when all upstream tasks had finished or are expected to; without any, when the run began."""
    known = [ends[name] for name in upstream if name in ends]
    return max(known, default=began)


def gantt_task(
    name: str,
    task: TaskOfRun | None,
    upstream: Sequence[str],
    expected: tuple[float, float] | None,
    is_critical: bool,
    ready: float | None,
    last_seconds: float | None,
) -> GanttTask:
    sums = {} if task is None else task.sums
    measured, used = sums.get("cpu_hours_measured", 0.0), sums.get("cpu_hours_used", 0.0)
    since = sums.get("began_at")
    return GanttTask(
        task_id=name,
        upstream=list(upstream),
        jobs=sums.get("jobs", 0),
        live=sums.get("live", 0),
        failed=sums.get("failed", 0),
        ready_at=ready if since is None or ready is None else min(ready, since),
        since=since,
        started_at=None if task is None else task.started_at,
        until=None if task is None else task.until,
        expected=None if expected is None else ExpectedSpan(since=expected[0], until=expected[1]),
        is_critical=is_critical,
        tries=[] if task is None else task.tries,
        is_cut=task is not None and len(task.tries) < task.sums["jobs"],
        median_wait=median(task.waits) if task is not None and task.waits else None,
        longest_wait=max(task.waits, default=None) if task is not None else None,
        cpu_hours=sums.get("cpu_hours", 0.0),
        usd=sums.get("usd"),
        cpus_used=used / measured if measured else None,
        memory_used=sums.get("memory_used"),
        time_used=sums.get("time_used"),
        last_seconds=last_seconds,
    )


def sums_of(session: Session, dag_id: str, run_id: str, now: float) -> dict[str, TaskOfRun]:
    """Return the tasks of a run that have jobs, without their tries and waits."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id.is_not(None))
    sums = session.execute(
        select(JobRow.task_id, func.min(JobRow.started_at), *columns(now)).where(*mine).group_by(JobRow.task_id)
    )
    return {str(task_id): TaskOfRun(totals(row), started) for task_id, started, *row in sums}


def tasks_of(session: Session, dag_id: str, run_id: str, now: float) -> dict[str, TaskOfRun]:
    """Return the tasks of a run that have jobs, with their first tries."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id.is_not(None))
    found = sums_of(session, dag_id, run_id, now)
    for task_id, seconds in session.execute(select(JobRow.task_id, waited(now)).where(*mine)):
        if task_id in found:
            found[str(task_id)].waits.append(float(seconds))
    # Tries are picked evenly from all states, so that a few running or failed ones are seen among thousands waiting.
    of_state = func.row_number().over(
        partition_by=(JobRow.task_id, JobRow.state), order_by=(JobRow.queued_at, JobRow.token)
    )
    by_state: Any = select(JobRow.token, JobRow.task_id, JobRow.state, of_state.label("of_state")).where(*mine)
    by_state = by_state.subquery()
    number = func.row_number().over(
        partition_by=by_state.c.task_id, order_by=(by_state.c.of_state, by_state.c.state, by_state.c.token)
    )
    numbered = select(by_state.c.token, number.label("number")).subquery()
    most = min(MOST_TRIES, max(1, MOST_TRIES_OF_RUN // max(1, len(found))))
    first = select(JobRow).join(numbered, JobRow.token == numbered.c.token).where(numbered.c.number <= most)
    # Workloads can be large and are not shown.
    query = first.options(defer(JobRow.workload)).order_by(JobRow.queued_at, JobRow.token)
    jobs = session.scalars(query.limit(MOST_TRIES_OF_RUN)).all()
    boots, ahead = boots_of(session, jobs), database_ahead(session)
    for job in jobs:
        found[str(job.task_id)].tries.append(
            GanttTry(
                id=job.token,
                map_index=job.map_index,
                try_number=job.try_number,
                state=job.state,
                phases=as_phases(job, boots.get(job.location or ""), ahead),
            )
        )
    return found


def structure(session: Session, dag_run: DagRun | None) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the direct upstream tasks of each task of a run, and its unfinished tasks."""
    known = None if dag_run is None else Dags().structure(session, dag_run)
    if dag_run is None or known is None:
        return {}, []
    query = select(TaskInstance.task_id, TaskInstance.state).where(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    )
    states: dict[str, set[str | None]] = {}
    for task_id, state in session.execute(query):
        states.setdefault(task_id, set()).add(state)
    pending = [
        name
        for name, task in known.tasks.items()
        if not task.is_empty and not states.get(name, {None}) <= {*State.finished}
    ]
    return {name: task.upstream for name, task in known.tasks.items()}, pending


def durations(history: History, dag_id: str, names: Sequence[str]) -> dict[str, float]:
    """Predict by task how long a job runs, seconds. Tasks without finished jobs are left out."""
    found = {}
    for name in names:
        level = (dag_id, name)
        if level in history.durations:
            found[name] = history.predict(((level, f"{dag_id}.{name}"),), None, enough=1).seconds
    return found


def last_run(session: Session, dag_id: str, run_id: str, began: float | None) -> LastRun | None:
    """Return the last run without live jobs before another run of the Dag; None: none found among the runs examined."""
    # Steps from run to run through the index on the Dag's jobs, because the tab polls and a Dag can have many jobs.
    youngest = select(JobRow.run_id, JobRow.queued_at).where(JobRow.dag_id == dag_id, JobRow.run_id.is_not(None))
    youngest = youngest.order_by(JobRow.queued_at.desc()).limit(1)
    passed = [run_id]
    condition = [] if began is None else [JobRow.queued_at < began]
    for _ in range(MOST_LIVE_RUNS):
        found = session.execute(youngest.where(JobRow.run_id.not_in(passed), *condition)).first()
        if found is None:
            return None
        ended = func.max(JobRow.ended_at) - func.min(QUEUED), func.count(), func.count(JobRow.ended_at)
        its_jobs = select(*ended).where(JobRow.dag_id == dag_id, JobRow.run_id == found.run_id)
        seconds, jobs, jobs_ended = session.execute(its_jobs).one()
        if jobs == jobs_ended:
            return LastRun(run_id=str(found.run_id), seconds=seconds or 0.0)
        # Other runs can have begun and finished since the first job of this live run, so continue from its latest job.
        passed.append(found.run_id)
        condition = [JobRow.queued_at <= found.queued_at]
    return None


def tasks_took(session: Session, dag_id: str, run_id: str) -> dict[str, float]:
    """Return the seconds that each task of a run took, from the first queued to the last finished job."""
    query = select(JobRow.task_id, func.max(JobRow.ended_at) - func.min(QUEUED)).where(
        JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id.is_not(None)
    )
    return {str(name): seconds for name, seconds in session.execute(query.group_by(JobRow.task_id)) if seconds}
