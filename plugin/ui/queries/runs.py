"""Runs and the tries in them: what they took and cost, how they were packed, for what they waited; queries with models.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None is what is not known, or what the user
may not see.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import LIVE, JobRow, State, instances, usd_until
from lading.executors.store.bills import bill_of_runs
from lading.executors.store.figures import CPUS
from lading.executors.store.gangs.rows import held_for
from lading.executors.store.jobs import QUEUED
from lading.executors.store.leases import database_ahead
from lading.executors.store.starts import show_starts
from lading.plugin.ui.queries.bill import BillAmounts, as_amounts
from lading.plugin.ui.queries.chart import machines
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.starts import StartEstimate, as_estimate
from lading.scheduling.insight.phases import TITLES, Times, phases
from lading.scheduling.reason_codes import CAUSES

Boot = tuple[float, float | None]
RunSort = Literal["began", "cost"]
MOST_TRIES = 500
MOST_RUNS = 1_000
# Of so many runs whose jobs cost most it is looked which is the dearest with what its machines idled.
MOST_DEAR_RUNS = 200
MOST_WAITS = 10
RAN = JobRow.ended_at - JobRow.started_at
KNOWN_PEAK = case((JobRow.peak_memory.is_not(None), JobRow.memory))
LIMITED = JobRow.time_limit.is_not(None) & RAN.is_not(None)


class TryPhase(BaseModel):
    """A part of a try's life."""

    key: str
    title: str
    since: float
    until: float | None


class TrySummary(BaseModel):
    """One try of a task, or another job."""

    id: str
    hidden: bool
    dag_id: str | None
    team: str | None
    """Airflow's team of its Dag."""
    run_id: str | None
    task_id: str | None
    map_index: int
    try_number: int
    state: str | None
    cause: str | None
    cause_title: str | None
    """What that means, in short."""
    reason: str | None
    reason_code: str | None
    remedy: str | None
    """What would change that it waits, or that it has failed."""
    site: str | None
    location: str | None
    node: str | None
    native_id: str | None
    held: str | None = None
    """Where room is held for it until it starts with its gang, as site/location."""
    placed_because: str | None
    """Why it is not at a site that comes before its own; None: none does."""
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
    """Of one that runs until now; None: it has no price."""
    queued_at: float
    started_at: float | None
    ended_at: float | None
    phases: list[TryPhase]
    start: StartEstimate | None = None
    """When it is expected to start; None: it does not wait, or nothing says it."""


class TryPage(BaseModel):
    """Jobs, youngest first, in pages."""

    now: float
    jobs: list[TrySummary]
    after: str | None
    """What asks for the next page; None: this is the last."""


# What the page shows of a job as the store has it.
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
    """Jobs, youngest first.

    :param conditions: which
    :param after: the end of the page before, as it says it
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
    """When the instances of these jobs were ordered and came up, by name."""
    return instances.boots(session, (job.location for job in jobs if job.location is not None))


def as_tries(
    session: Session, sight: Sight, jobs: Sequence[tuple[JobRow, float | None]], now: float
) -> list[TrySummary]:
    """Jobs with what each has cost, USD, as the page shows them: with boots, holds and expected starts."""
    rows = [job for job, _ in jobs]
    boots, held = boots_of(session, rows), held_for(session)
    expected, ahead = show_starts(session, rows, now), database_ahead(session)
    return [
        as_try(
            job,
            sight,
            usd,
            boots.get(job.location or ""),
            held.get(job.token),
            as_estimate(expected.get(job.token)),
            ahead,
        )
        for job, usd in jobs
    ]


def as_try(
    job: JobRow,
    sight: Sight,
    usd: float | None,
    boot: Boot | None,
    held: str | None = None,
    start: StartEstimate | None = None,
    ahead: float = 0.0,
) -> TrySummary:
    """A job, as far as it may be seen.

    :param usd: what it has cost, until now where it runs
    :param start: when it is expected to start
    :param ahead: seconds by which the database's clock, which dates its queueing, is ahead of the controller's
    """
    summary = TrySummary(
        id=job.token,
        hidden=False,
        task_id=job.task_id or job.kind,
        held=held,
        queue=job.queue or job.queue_hint,
        usd=usd,
        reason=None if job.reason is None else str(job.reason),
        placed_because=None if job.placed_because is None else str(job.placed_because),
        remedy=job.remedy,
        cause_title=None if (cause := CAUSES.get(job.cause or "")) is None else cause.title,
        phases=as_phases(job, boot, ahead),
        start=start,
        queued_at=job.queued_at - ahead,
        **{name: getattr(job, name) for name in AS_STORED},
    )
    return summary if sight.sees(job.dag_id) else unnamed(summary)


def unnamed(found: TrySummary) -> TrySummary:
    """What may be seen of a job of another Dag: that it is there, and how large it is."""
    nothing = {name: None for name in TrySummary.model_fields if name not in OF_EVERY_JOB}
    return found.model_copy(update={**nothing, "hidden": True, "map_index": -1, "try_number": 0, "phases": []})


def as_phases(job: JobRow, boot: Boot | None, ahead: float = 0.0) -> list[TryPhase]:
    """The parts of a job's life.

    :param boot: when the instance was ordered that has it, and when that came up; None: it has none
    :param ahead: see :func:`as_try`
    """
    times = Times(job.queued_at - ahead, job.placed_at, job.submitted_at, boot, job.started_at, job.ended_at)
    return [
        TryPhase(key=each.key, title=TITLES[each.key], since=each.since, until=each.until) for each in phases(times)
    ]


class Totals(BaseModel):
    """What a number of jobs took together."""

    jobs: int
    live: int
    """Those that have not ended."""
    failed: int
    began_at: float | None
    ended_at: float | None
    """Of the last that has ended."""
    wait_seconds: float
    """Until they started, or ended, or until now."""
    cpu_hours: float
    """That they asked for, while they ran, or have run until now."""
    cpu_hours_measured: float
    """The same of those of which it is known what they used."""
    cpu_hours_used: float
    memory_used: float | None
    """Peak by request, of those of which the peak is known; None: of none."""
    time_used: float | None
    """Time by limit, of those that had a limit and have ended; None: there are none."""
    usd: float | None
    """Of those that run until now; None: none has a price."""


class RunTotals(Totals):
    """The same of a run."""

    run_id: str
    billed: BillAmounts
    """Of its jobs and machines that have ended, in the parts of a bill."""


class RunPage(BaseModel):
    """The runs of a Dag, youngest first."""

    now: float
    runs: list[RunTotals]


class RunOutlook(BaseModel):
    """What a live run goes by where machines are bought by a forecast, and when it is expected to end."""

    hurry: float | None
    """What the forecast goes by; None: what each site says, or none was made yet."""
    finish_by: float | None
    """When it shall have ended; None: at any time, or likewise."""
    ends_at: float | None
    """When it is planned to end; None: no plan says it."""
    trouble: str | None
    """Why it does not end when it shall."""
    asked_hurry: float | None
    """What a user has asked; None: nothing, so that it is what the Dag says."""
    asked_finish_by: str | None
    asked_by: str | None
    asked_at: float | None
    is_planned: bool
    """Whether a forecast was made of it."""


class RunSummary(BaseModel):
    """A run: what it took, how it was packed, and the longest waits."""

    now: float
    totals: Totals
    states: dict[str, int]
    most_at_once: int
    bound_seconds: float | None
    """No way to run these jobs takes less: the longest of them, and all of them on the cpus that were there."""
    seconds: float | None
    billed: BillAmounts
    """Of its jobs and machines that have ended, in the parts of a bill."""
    median_wait: float | None
    """Of its tries, until they started, or ended, or until now."""
    longest_wait: float | None
    waits: list[TrySummary]
    outlook: RunOutlook | None = None
    """None: the run has ended, or Airflow does not know it."""
    may_edit: bool = False
    """Whether the user may say what its end is worth."""


def waited(now: float) -> Any:
    """For how long a job waited, or has waited until now, seconds."""
    return func.coalesce(JobRow.started_at, JobRow.ended_at, now) - QUEUED


def columns(now: float) -> tuple[Any, ...]:
    """The sums of jobs of which :func:`totals` makes text; those that run count until now."""
    asked = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    return (
        func.count(),
        func.sum(case((JobRow.state.in_(LIVE), 1), else_=0)),
        func.sum(case((JobRow.state == State.FAILED, 1), else_=0)),
        func.min(QUEUED),
        func.max(JobRow.ended_at),
        func.sum(waited(now)),
        func.sum(asked),
        # What a job used is known when it has ended: the others must not make the share of what was used smaller.
        func.sum(case((JobRow.cpu_seconds.is_not(None), asked))),
        func.sum(JobRow.cpu_seconds),
        func.sum(JobRow.peak_memory),
        func.sum(KNOWN_PEAK),
        func.sum(case((LIMITED, RAN))),
        func.sum(case((LIMITED, JobRow.time_limit))),
        func.sum(usd_until(now)),
    )


def totals(row: Sequence[Any]) -> dict[str, Any]:
    """What a row of these columns says."""
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
    """The runs of a Dag that the store knows, youngest or those whose jobs cost most first, each with its totals."""
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
    """The tasks of a run with the site that they were at and their totals there, in the order in which they began."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    query = select(JobRow.task_id, JobRow.site, *columns(now)).where(*mine).group_by(JobRow.task_id, JobRow.site)
    rows = session.execute(query.order_by(func.min(JobRow.queued_at), JobRow.task_id))
    return [(task_id, site, totals(row)) for task_id, site, *row in rows]


def idle_shares(session: Session, dag_id: str, run_id: str, *more: Any) -> tuple[float, dict[str, float]]:
    """The shares of a run in idle machines and in surcharges, see :func:`lading.executors.store.instances.shares`.

    :param more: conditions for the jobs
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
    """The runs of a Dag that the store knows, youngest first, or those that cost most of the
    :data:`MOST_DEAR_RUNS` whose jobs do.
    """
    found = totals_by_run(session, dag_id, limit if sort == "began" else max(limit, MOST_DEAR_RUNS), now, sort)
    bills = bill_of_runs(session, dag_id, [run_id for run_id, _ in found])
    rows = [RunTotals(run_id=run_id, **sums, billed=as_amounts(bills[run_id])) for run_id, sums in found]
    if sort == "cost":
        rows.sort(key=lambda row: (-((row.usd or 0.0) + unused_machines(row.billed)), -row.cpu_hours))
    return RunPage(now=now, runs=rows[:limit])


def unused_machines(billed: BillAmounts) -> float:
    """What no job was charged of machines, USD."""
    return (billed.usd_idle or 0.0) + (billed.usd_boot or 0.0)


def run(session: Session, dag_id: str, run_id: str, now: float) -> RunSummary:
    """One run."""
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
    """What a run goes by; None: it has ended, or Airflow does not know it."""
    from lading.executors.orchestrator import airflow_run_requests

    if (found := airflow_run_requests.terms(session, dag_id, run_id).get(run_id)) is None:
        return None
    request, forecast = found
    return RunOutlook(
        hurry=None if forecast is None else forecast.hurry,
        finish_by=None if forecast is None else forecast.finish_by,
        ends_at=None if forecast is None else forecast.ends_at,
        trouble=None if forecast is None else forecast.trouble,
        asked_hurry=None if request is None else request.hurry,
        asked_finish_by=None if request is None else request.finish_by,
        asked_by=None if request is None else request.by,
        asked_at=None if request is None else request.at,
        is_planned=forecast is not None,
    )


def most_at_once(rows: Sequence[Any], now: float) -> int:
    """How many jobs ran at the same time at most."""
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
    """The cpus of all machines that were there; None: jobs were at a batch system, whose nodes are not known."""
    return sum(each.cpus or 0.0 for each in machines(session, since, until)) or None


def bound(rows: Sequence[Any], cpus: float | None, now: float) -> float | None:
    """Seconds below which no schedule can run these jobs: the two classic bounds for parallel machines.

    Graham, Bounds on multiprocessing timing anomalies, 1969: the longest job, and all work divided by all processors.
    What jobs wait for each other is not counted.
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
    """The tries that have waited longest before they started, those that still wait among them."""
    longest = select(JobRow, usd_until(now)).where(*mine).order_by(waited(now).desc(), JobRow.token).limit(MOST_WAITS)
    return as_tries(session, Sight(), [(job, usd) for job, usd in session.execute(longest)], now)
