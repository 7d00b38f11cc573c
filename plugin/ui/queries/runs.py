"""Runs: what they took and cost, how they were packed, and for what they waited longest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lading.executors.store import LIVE, JobRow, State, instances, usd_until
from lading.executors.store.figures import CPUS
from lading.plugin.ui.queries.models import RunPage, RunSummary, RunTotals, Totals
from lading.plugin.ui.queries.places import machines
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.tries import as_try, boots_of

MOST_RUNS = 100
MOST_WAITS = 10
RAN = JobRow.ended_at - JobRow.started_at
KNOWN_PEAK = case((JobRow.peak_memory.is_not(None), JobRow.memory))
LIMITED = JobRow.time_limit.is_not(None) & RAN.is_not(None)


def waited(now: float) -> Any:
    """For how long a job waited, or has waited until now, seconds."""
    return func.coalesce(JobRow.started_at, JobRow.ended_at, now) - JobRow.queued_at


def columns(now: float) -> tuple[Any, ...]:
    """The sums of jobs of which :func:`totals` makes words; those that run count until now."""
    asked = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    return (
        func.count(),
        func.sum(case((JobRow.state.in_(LIVE), 1), else_=0)),
        func.sum(case((JobRow.state == State.FAILED, 1), else_=0)),
        func.min(JobRow.queued_at),
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


def of_runs(session: Session, dag_id: str, limit: int, now: float) -> list[tuple[str, dict[str, Any]]]:
    """The runs of a Dag that the store knows, youngest first, each with its totals."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id.is_not(None))
    query = select(JobRow.run_id, *columns(now)).where(*mine).group_by(JobRow.run_id)
    rows = session.execute(query.order_by(func.min(JobRow.queued_at).desc()).limit(limit))
    return [(run_id, totals(row)) for run_id, *row in rows]


def of_tasks(
    session: Session, dag_id: str, run_id: str, now: float
) -> list[tuple[str | None, str | None, dict[str, Any]]]:
    """The tasks of a run with the site that they were at and their totals there, in the order in which they began."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    query = select(JobRow.task_id, JobRow.site, *columns(now)).where(*mine).group_by(JobRow.task_id, JobRow.site)
    rows = session.execute(query.order_by(func.min(JobRow.queued_at), JobRow.task_id))
    return [(task_id, site, totals(row)) for task_id, site, *row in rows]


def beside(session: Session, dag_id: str, run_id: str, *more: Any) -> tuple[float, dict[str, float]]:
    """What the jobs of a run have beside their own cost, see :func:`lading.executors.store.instances.shares`.

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


def runs(session: Session, dag_id: str, now: float, limit: int) -> RunPage:
    """The runs of a Dag that the store knows, youngest first."""
    found = of_runs(session, dag_id, limit, now)
    return RunPage(now=now, runs=[RunTotals(run_id=run_id, **sums) for run_id, sums in found])


def run(session: Session, dag_id: str, run_id: str, now: float) -> RunSummary:
    """One run."""
    mine = (JobRow.dag_id == dag_id, JobRow.run_id == run_id)
    found = Totals(**totals(session.execute(select(*columns(now)).where(*mine)).one()))
    rows = session.execute(
        select(JobRow.token, JobRow.state, JobRow.started_at, JobRow.ended_at, JobRow.cpus, JobRow.nodes).where(*mine)
    ).all()
    states = Counter(State(row.state).value for row in rows)
    began, ended = found.began_at, found.ended_at
    seconds = None if began is None else (now if found.live or ended is None else ended) - began
    return RunSummary(
        now=now,
        totals=found,
        states=dict(states),
        most_at_once=most_at_once(rows, now),
        bound_seconds=None if began is None else bound(rows, cpus_up(session, began, ended or now), now),
        seconds=seconds,
        usd_idle=None if found.usd is None else beside(session, dag_id, run_id)[0],
        waits=longest_waits(session, mine, now),
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
    ran = [
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
    rows = session.execute(longest).all()
    boots = boots_of(session, [job for job, _ in rows])
    return [as_try(job, Sight(), usd, boots.get(job.location or "")) for job, usd in rows]
