"""Runs and their tries: duration, cost, packing and waits; each query with its model.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None means unknown or hidden.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from lading.executors.accounting.bills import bill_of_runs
from lading.executors.starts.expected_starts import show_starts
from lading.executors.store import LIVE, JobRow, State, instances, usd_until
from lading.executors.store.figures import CPUS
from lading.executors.store.gangs.rows import held_for
from lading.executors.store.jobs import QUEUED
from lading.executors.store.leases import database_ahead
from lading.plugin.ui.queries.bill import BillAmounts, as_amounts
from lading.plugin.ui.queries.chart import machines
from lading.plugin.ui.queries.now import remedies
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.since_then import SinceThen, since_then
from lading.plugin.ui.queries.starts import StartEstimate, as_estimate
from lading.scheduling.insight.phases import TITLES, Times, phases
from lading.scheduling.model.reason_codes import CAUSES

Boot = tuple[float, float | None]
RunSort = Literal["began", "cost"]
MOST_TRIES = 500
MOST_RUNS = 1_000
# Idle machines are added to the cost of this many runs, those whose jobs cost most, before they are sorted by cost.
MOST_DEAR_RUNS = 200
MOST_WAITS = 10
RAN = JobRow.ended_at - JobRow.started_at
KNOWN_PEAK = case((JobRow.peak_memory.is_not(None), JobRow.memory))
LIMITED = JobRow.time_limit.is_not(None) & RAN.is_not(None)


class TryPhase(BaseModel):
    """A phase in the life of a try."""

    key: str
    title: str
    since: float
    until: float | None


class TrySummary(BaseModel):
    """One try of a task, or a job of another kind."""

    id: str
    hidden: bool
    dag_id: str | None
    team: str | None
    """The Airflow team that its Dag belongs to."""
    run_id: str | None
    task_id: str | None
    map_index: int
    try_number: int
    state: str | None
    cause: str | None
    cause_title: str | None
    """A short description of the cause."""
    reason: str | None
    reason_code: str | None
    remedy: str | None
    """What would end the wait or prevent the failure."""
    actors: list[str]
    """Who can apply the remedy; empty if there is no remedy, or it needs nobody."""
    site: str | None
    location: str | None
    node: str | None
    native_id: str | None
    held: str | None = None
    """Where room is held for it until its gang starts, as ``site/location``."""
    placed_because: str | None
    """Why sites that come before its own were passed over; None: its site is the first."""
    queue: str | None
    cpus: float
    nodes: int | None
    memory: int
    gpus: float
    memory_limit: int | None
    time_limit: int | None
    peak_memory: int | None
    cpu_seconds: float | None
    exit_code: int | None
    usd: float | None
    """Cost, for a running job until now; None: it has no price."""
    queued_at: float
    started_at: float | None
    ended_at: float | None
    phases: list[TryPhase]
    start: StartEstimate | None = None
    """When it is expected to start; None: it does not wait, or there is no estimate."""
    since_then: SinceThen | None = None
    """What has become of its task; None: this try has not failed, or Airflow does not know the task."""


class TryPage(BaseModel):
    """A page of jobs, newest first."""

    now: float
    jobs: list[TrySummary]
    after: str | None
    """The cursor to request the next page with; None: this is the last page."""


# Fields that are shown as they are stored.
AS_STORED = (TrySummary.model_fields.keys() & JobRow.__table__.columns.keys()) - {
    "task_id",
    "queue",
    "usd",
    "reason",
    "placed_because",
    "start",
    "queued_at",
}
OF_EVERY_JOB = frozenset(("id", "cpus", "nodes", "memory", "gpus", "queued_at", "started_at", "ended_at"))


def tries(
    session: Session, sight: Sight, now: float, conditions: Sequence[Any], limit: int, after: str | None = None
) -> TryPage:
    """Return a page of the jobs that meet conditions, newest first.

    :param after: the cursor of the previous page
    """
    query = select(JobRow, usd_until(now)).where(*conditions)
    if after is not None:
        at, _, token = after.partition(":")
        query = query.where(
            or_(JobRow.queued_at < float(at), and_(JobRow.queued_at == float(at), JobRow.token > token))
        )
    rows = session.execute(query.order_by(JobRow.queued_at.desc(), JobRow.token).limit(limit + 1)).all()
    shown, more = rows[:limit], len(rows) > limit
    last = shown[-1][0] if more else None
    return TryPage(
        now=now,
        jobs=as_tries(session, sight, [(job, usd) for job, usd in shown], now),
        after=None if last is None else f"{last.queued_at!r}:{last.token}",
    )


def boots_of(session: Session, jobs: Sequence[JobRow]) -> dict[str, Boot]:
    """Return when the instances of these jobs were ordered and came up, by name."""
    return instances.boots(session, (job.location for job in jobs if job.location is not None))


def as_tries(
    session: Session, sight: Sight, jobs: Sequence[tuple[JobRow, float | None]], now: float
) -> list[TrySummary]:
    """Convert jobs and their costs in USD to what the page shows, with boots, holds and expected starts."""
    rows = [job for job, _ in jobs]
    boots, held = boots_of(session, rows), held_for(session)
    expected, ahead = show_starts(session, rows, now), database_ahead(session)
    sequels = since_then(session, [job.token for job in rows if job.state == State.FAILED])
    advice = remedies(session, rows)
    return [
        as_try(
            job,
            sight,
            usd,
            advice.get(job.token),
            boots.get(job.location or ""),
            held.get(job.token),
            as_estimate(expected.get(job.token)),
            ahead,
            sequels.get(job.token),
        )
        for job, usd in jobs
    ]


def as_try(
    job: JobRow,
    sight: Sight,
    usd: float | None,
    remedy: str | None,
    boot: Boot | None,
    held: str | None = None,
    start: StartEstimate | None = None,
    ahead: float = 0.0,
    since_then: SinceThen | None = None,
) -> TrySummary:
    """Convert a job to what the user can see of it.

    :param usd: its cost, for a running job until now
    :param remedy: what to do about it
    :param ahead: seconds by which the database's clock, which dates its queueing, is ahead of the controller's
    """
    summary = TrySummary(
        id=job.token,
        hidden=False,
        task_id=job.task_id or job.kind,
        held=held,
        queue=job.queue or job.queue_hint,
        usd=usd,
        reason=why_failed(job) if job.state == State.FAILED else None if job.reason is None else str(job.reason),
        placed_because=None if job.placed_because is None else str(job.placed_because),
        remedy=remedy,
        actors=[] if job.meaning is None else [each.value for each in job.meaning.actors],
        cause_title=None if (cause := CAUSES.get(job.cause or "")) is None else cause.title,
        phases=as_phases(job, boot, ahead),
        start=start,
        since_then=since_then,
        queued_at=job.queued_at - ahead,
        **{name: getattr(job, name) for name in AS_STORED},
    )
    return summary if sight.sees(job.dag_id) else unnamed(summary)


def why_failed(job: Any) -> str | None:
    """Say why a job failed, with its exit code; None: its cause says it all.

    :param job: a row with ``reason``, ``exit_code`` and ``cause``
    """
    text = "" if job.reason is None else str(job.reason)
    # 0: the task reported its failure itself; negative: a signal, which the reason names.
    code = None if job.exit_code is None or "exit code" in text or (text and job.exit_code <= 0) else job.exit_code
    if text:
        return text if code is None else f"{text} (exit code {code})"
    if code is None:
        return "no exit code, no message" if job.cause == "error" else None
    return f"exit code {code}, no message"


def unnamed(found: TrySummary) -> TrySummary:
    """Remove everything from a job of a hidden Dag but its size and times."""
    nothing = {name: None for name in TrySummary.model_fields if name not in OF_EVERY_JOB}
    return found.model_copy(
        update={**nothing, "hidden": True, "map_index": -1, "try_number": 0, "phases": [], "actors": []}
    )


def as_phases(job: JobRow, boot: Boot | None, ahead: float = 0.0) -> list[TryPhase]:
    """Return the phases of a job.

    :param boot: when its instance was ordered and when it came up; None: it has none
    :param ahead: see :func:`as_try`
    """
    times = Times(job.queued_at - ahead, job.placed_at, job.submitted_at, boot, job.started_at, job.ended_at)
    return [
        TryPhase(key=each.key, title=TITLES[each.key], since=each.since, until=each.until) for each in phases(times)
    ]


class Totals(BaseModel):
    """Sums over a number of jobs."""

    jobs: int
    live: int
    """Number of unfinished jobs."""
    failed: int
    began_at: float | None
    ended_at: float | None
    """When the last of the finished jobs finished."""
    wait_seconds: float
    """Sum of waits until jobs started or ended, or until now."""
    cpu_hours: float
    """Requested cpus × run time, for running jobs until now."""
    cpu_hours_measured: float
    """The same for jobs whose usage was measured."""
    cpu_hours_used: float
    memory_used: float | None
    """Peak / request, over jobs with a measured peak; None: there are none."""
    time_used: float | None
    """Run time / limit, over finished jobs with a limit; None: there are none."""
    usd: float | None
    """Cost, for running jobs until now; None: none has a price."""


class RunTotals(Totals):
    """Sums over the jobs of a run."""

    run_id: str
    billed: BillAmounts
    """The bill of its finished jobs and machines."""


class RunPage(BaseModel):
    """The runs of a Dag, newest or most expensive first."""

    now: float
    runs: list[RunTotals]


class RunOutlook(BaseModel):
    """A live run's hurry, deadline and expected end according to the forecast, and what a user requested."""

    hurry: float | None
    """The hurry the forecast uses; None: each site's own, or there is no forecast yet."""
    finish_by: float | None
    """The time by which the run must finish; None: no deadline, or there is no forecast yet."""
    ends_at: float | None
    """When the forecast predicts the run to finish; None: unknown."""
    trouble: str | None
    """Why the run will miss its deadline; None: it will not."""
    asked_hurry: float | None
    """The hurry that a user requested; None: no request, so the Dag's applies."""
    asked_finish_by: str | None
    asked_by: str | None
    asked_at: float | None
    is_planned: bool
    """Whether Lading's plan includes the run, or any of its waiting jobs."""


class RunSummary(BaseModel):
    """A run: its duration and cost, how densely it was packed, and its longest waits."""

    now: float
    totals: Totals
    states: dict[str, int]
    most_at_once: int
    bound_seconds: float | None
    """Lower bound of the duration, see :func:`bound`."""
    seconds: float | None
    billed: BillAmounts
    """The bill of its finished jobs and machines."""
    median_wait: float | None
    """Median wait of its tries until they started or ended, or until now."""
    longest_wait: float | None
    waits: list[TrySummary]
    outlook: RunOutlook | None = None
    """None: the run has finished, or is unknown to Airflow."""
    may_edit: bool = False
    """Whether the user is allowed to hurry the run."""


def waited(now: float) -> Any:
    """Return the expression for a job's wait until it started or ended, or until now, seconds."""
    return func.coalesce(JobRow.started_at, JobRow.ended_at, now) - QUEUED


def columns(now: float) -> tuple[Any, ...]:
    """Return the sums over jobs that :func:`totals` converts; running jobs count until now."""
    asked = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    return (
        func.count(),
        func.sum(case((JobRow.state.in_(LIVE), 1), else_=0)),
        func.sum(case((JobRow.state == State.FAILED, 1), else_=0)),
        func.min(QUEUED),
        func.max(JobRow.ended_at),
        func.sum(waited(now)),
        func.sum(asked),
        # Usage is only known once a job has finished; unfinished jobs must not lower the fraction that was used.
        func.sum(case((JobRow.cpu_seconds.is_not(None), asked))),
        func.sum(JobRow.cpu_seconds),
        func.sum(JobRow.peak_memory),
        func.sum(KNOWN_PEAK),
        func.sum(case((LIMITED, RAN))),
        func.sum(case((LIMITED, JobRow.time_limit))),
        func.sum(usd_until(now)),
    )


def totals(row: Sequence[Any]) -> dict[str, Any]:
    """Convert a row of :func:`columns` to the fields of :class:`Totals`."""
    jobs, live, failed, began, ended, waits, asked, measured, used, peak, memory, ran, limit, usd = row
    return {
        "jobs": jobs,
        "live": int(live or 0),
        "failed": int(failed or 0),
        "began_at": began,
        "ended_at": ended,
        "wait_seconds": float(waits or 0.0),
        "cpu_hours": float(asked or 0.0) / 3600,
        "cpu_hours_measured": float(measured or 0.0) / 3600,
        "cpu_hours_used": float(used or 0.0) / 3600,
        "memory_used": float(peak) / float(memory) if peak is not None and memory else None,
        "time_used": float(ran) / float(limit) if ran is not None and limit else None,
        "usd": usd,
    }


def totals_by_run(
    session: Session, dag_id: str, limit: int, now: float, sort: RunSort = "began"
) -> list[tuple[str, dict[str, Any]]]:
    """Return the runs of a Dag with their totals, newest first or those with the most expensive jobs first."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id.is_not(None))
    query = select(JobRow.run_id, *columns(now)).where(*mine).group_by(JobRow.run_id)
    first: list[Any] = [func.min(JobRow.queued_at).desc(), JobRow.run_id]
    if sort == "cost":
        asked = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
        first = [func.coalesce(func.sum(usd_until(now)), 0).desc(), func.coalesce(func.sum(asked), 0).desc(), *first]
    rows = session.execute(query.order_by(*first).limit(limit))
    return [(run_id, totals(row)) for run_id, *row in rows]


def totals_by_task(
    session: Session, dag_id: str, run_id: str, now: float
) -> list[tuple[str | None, str | None, dict[str, Any]]]:
    """Return the tasks of a run by site, each with its totals there, in the order in which they began."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    query = select(JobRow.task_id, JobRow.site, *columns(now)).where(*mine).group_by(JobRow.task_id, JobRow.site)
    rows = session.execute(query.order_by(func.min(JobRow.queued_at), JobRow.task_id))
    return [(task_id, site, totals(row)) for task_id, site, *row in rows]


def idle_shares(session: Session, dag_id: str, run_id: str, *more: Any) -> tuple[float, dict[str, float]]:
    """Return a run's shares of idle time and surcharges, see :func:`lading.executors.store.instances.shares`.

    :param more: further conditions for the jobs
    """
    mine = (
        JobRow.dag_id == dag_id,
        JobRow.run_id == run_id,
        JobRow.usd.is_not(None),
        JobRow.location.is_not(None),
        *more,
    )
    query = select(JobRow.location, func.sum(JobRow.usd)).where(*mine).group_by(JobRow.location)
    return instances.shares(session, {str(place): float(usd or 0.0) for place, usd in session.execute(query)})


def runs(session: Session, dag_id: str, now: float, limit: int, sort: RunSort = "began") -> RunPage:
    """Return the runs of a Dag, newest or most expensive first.

    The most expensive ones are chosen among the :data:`MOST_DEAR_RUNS` whose jobs cost most.
    """
    found = totals_by_run(session, dag_id, limit if sort == "began" else max(limit, MOST_DEAR_RUNS), now, sort)
    bills = bill_of_runs(session, dag_id, [run_id for run_id, _ in found])
    rows = [RunTotals(run_id=run_id, **sums, billed=as_amounts(bills[run_id])) for run_id, sums in found]
    if sort == "cost":
        rows.sort(key=lambda row: (-((row.usd or 0.0) + unused_machines(row.billed)), -row.cpu_hours))
    return RunPage(now=now, runs=rows[:limit])


def unused_machines(billed: BillAmounts) -> float:
    """Return the cost of idle and booting machines, which no job was charged for, USD."""
    return (billed.usd_idle or 0.0) + (billed.usd_boot or 0.0)


def run(session: Session, dag_id: str, run_id: str, now: float) -> RunSummary:
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    all_tries = Totals(**totals(session.execute(select(*columns(now)).where(*mine)).one()))
    rows = session.execute(
        select(
            JobRow.token,
            JobRow.state,
            JobRow.started_at,
            JobRow.ended_at,
            JobRow.cpus,
            JobRow.nodes,
            waited(now).label("waited"),
        ).where(*mine)
    ).all()
    waits = [float(row.waited) for row in rows]
    states = Counter(State(row.state).value for row in rows)
    began, ended = all_tries.began_at, all_tries.ended_at
    seconds = None if began is None else (now if all_tries.live or ended is None else ended) - began
    return RunSummary(
        now=now,
        totals=all_tries,
        states=dict(states),
        most_at_once=most_at_once(rows, now),
        bound_seconds=None if began is None else bound(rows, cpus_up(session, began, ended or now), now),
        seconds=seconds,
        billed=as_amounts(bill_of_runs(session, dag_id, [run_id])[run_id]),
        median_wait=median(waits) if waits else None,
        longest_wait=max(waits, default=None),
        waits=longest_waits(session, mine, now),
        outlook=outlook(session, dag_id, run_id),
    )


def outlook(session: Session, dag_id: str, run_id: str) -> RunOutlook | None:
    """Return the forecast and request of a run; None: it has finished, or is unknown to Airflow."""
    from lading.executors.orchestrator import airflow_run_requests

    if (found := airflow_run_requests.terms(session, dag_id, run_id).get(run_id)) is None:
        return None
    request, forecast = found.request, found.forecast
    return RunOutlook(
        hurry=None if forecast is None else forecast.hurry,
        finish_by=None if forecast is None else forecast.finish_by,
        ends_at=None if forecast is None else forecast.ends_at,
        trouble=None if forecast is None else forecast.trouble,
        asked_hurry=None if request is None else request.hurry,
        asked_finish_by=None if request is None else request.finish_by,
        asked_by=None if request is None else request.by,
        asked_at=None if request is None else request.at,
        is_planned=found.is_planned,
    )


def most_at_once(rows: Sequence[Any], now: float) -> int:
    """Return the largest number of jobs that ran at the same time."""
    steps = sorted(
        step
        for row in rows
        if row.started_at is not None
        for step in ((row.started_at, 1), (row.ended_at if row.ended_at is not None else now, -1))
    )
    most = count = 0
    for _, step in steps:
        count += step
        most = max(most, count)
    return most


def cpus_up(session: Session, since: float, until: float) -> float | None:
    """Return the cpus of all machines that were up; None: there were none, for example only a batch system."""
    return sum(each.cpus or 0.0 for each in machines(session, since, until)) or None


def bound(rows: Sequence[Any], cpus: float | None, now: float) -> float | None:
    """Return a lower bound, in seconds, for any schedule of these jobs; dependencies between them are ignored.

    The larger of the two classic bounds for parallel machines: the longest job, and all work divided by all processors
    (Graham, Bounds on multiprocessing timing anomalies, 1969).
    """
    ran: list[tuple[float, float]] = [
        ((row.ended_at if row.ended_at is not None else now) - row.started_at, row.cpus * (row.nodes or 1))
        for row in rows
        if row.started_at is not None
    ]
    if not ran:
        return None
    longest = max(seconds for seconds, _ in ran)
    work = sum(seconds * its_cpus for seconds, its_cpus in ran)
    return max(longest, work / cpus) if cpus else longest


def longest_waits(session: Session, mine: Sequence[Any], now: float) -> list[Any]:
    """Return the tries with the longest waits, including those still waiting."""
    longest = select(JobRow, usd_until(now)).where(*mine).order_by(waited(now).desc(), JobRow.token).limit(MOST_WAITS)
    return as_tries(session, Sight(), [(job, usd) for job, usd in session.execute(longest)], now)
