"""The work left to running and waiting jobs, by tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import case, func, select

from lading.executors.accounting.share_rows import TENANT, WorkLeft
from lading.executors.starts.expected_starts import known_lengths, task_of
from lading.executors.store.figures import CPUS
from lading.executors.store.tables import LIVE, JobRow, State
from lading.scheduling.accounting.budgets import foreseen_hours
from lading.scheduling.accounting.who import Tenant

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def work_left(session: Session, now: float) -> list[WorkLeft]:
    """Return the work left, by tenant and task. A job runs as long as the last tries of its task did on average."""
    is_running = JobRow.state == State.RUNNING
    elapsed = func.sum(case((is_running, CPUS * (now - JobRow.started_at)), else_=0.0)).label("elapsed")
    query = select(
        *TENANT,
        JobRow.task_id,
        func.count().label("jobs"),
        func.sum(CPUS).label("cpus"),
        is_running.label("is_running"),
        elapsed,
    )
    query = query.where(JobRow.state.in_(LIVE)).group_by(*TENANT, JobRow.task_id, is_running)
    rows: Any = session.execute(query).all()
    lengths = known_lengths(session, rows)
    found = []
    for row in rows:
        length, cpus = lengths.get(task_of(row)), float(row.cpus)
        ran = float(row.elapsed or 0.0) / cpus if cpus else 0.0
        hours = foreseen_hours(cpus, None if length is None else length.mean, ran if row.is_running else None)
        tenant = Tenant.from_columns(row.team, row.dag_id, row.dag_owner, row.dag_tags)
        found.append(WorkLeft(tenant, cpus if row.is_running else 0.0, hours))
    return found
