"""Queries on runs: their live jobs, when they began, and the last jobs of earlier runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from lading.executors.store import LIVE, JobRow, State, chunks, queued
from lading.executors.store.gangs.tables import GangRow
from lading.scheduling.gangs.gang import Stage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class DagRunKey(NamedTuple):
    dag_id: str
    run_id: str


def live_jobs(session: Session) -> list[Any]:
    """Return all live jobs as rows of the queue, with their state and place, and the ``wake_at`` of a sleeping gang."""
    columns = (
        *queued.COLUMNS, JobRow.state, JobRow.site, JobRow.location, JobRow.placed_at, JobRow.started_at, JobRow.gang,
        JobRow.sizing, JobRow.max_jobs, JobRow.run_max_jobs, GangRow.wake_at,
    )  # fmt: skip
    asleep = (GangRow.token == JobRow.gang) & (GangRow.stage == Stage.ATTEMPTED)
    return list(session.execute(select(*columns).outerjoin(GangRow, asleep).where(JobRow.state.in_(LIVE))))


def first_queued(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, float]:
    """Return when the first stored job of each run was queued, in epoch seconds by the database's clock."""
    found: dict[DagRunKey, float] = {}
    for dag_id, its_runs in by_dag(runs).items():
        for chunk in chunks(its_runs):
            query = select(JobRow.run_id, func.min(JobRow.queued_at))
            query = query.where(JobRow.dag_id == dag_id, JobRow.run_id.in_(chunk)).group_by(JobRow.run_id)
            found |= {DagRunKey(dag_id, str(run_id)): float(at) for run_id, at in session.execute(query)}
    return found


def last_jobs(session: Session, dag_id: str) -> dict[str, Any]:
    """Return the job of each task of a Dag that succeeded last, as a row of the queue."""
    mine = JobRow.dag_id == dag_id, JobRow.state == State.SUCCEEDED
    last_end = func.max(JobRow.ended_at).label("at")
    last = select(JobRow.task_id, last_end).where(*mine).group_by(JobRow.task_id).subquery()
    query = select(*queued.COLUMNS).join(last, (last.c.task_id == JobRow.task_id) & (last.c.at == JobRow.ended_at))
    return {str(row.task_id): row for row in session.execute(query.where(*mine))}


def by_dag(runs: Iterable[DagRunKey]) -> dict[str, list[str]]:
    # Grouped by Dag, because the index of Airflow's table begins with the Dag.
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(run.dag_id, []).append(run.run_id)
    return found
