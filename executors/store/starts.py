"""How long jobs have waited until they started, of what is most like the ones that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from lading.executors.store.jobs import chunks
from lading.executors.store.tables import JobRow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# So many of the last tries of a task, or of the last jobs of a site, are looked at.
MOST_TRIES = 100
MOST_OF_SITE = 500
WAITED = JobRow.started_at - JobRow.queued_at


def waits_of_tasks(session: Session, tasks: Collection[tuple[str, str]]) -> dict[tuple[str, str], list[float]]:
    """How long the last tries of tasks have waited, seconds, by Dag and task."""
    by_dag: dict[str, list[str]] = {}
    for dag, task in sorted(tasks):
        by_dag.setdefault(dag, []).append(task)
    found: dict[tuple[str, str], list[float]] = {}
    for dag_id, names in by_dag.items():
        for chunk in chunks(names):
            mine = (JobRow.dag_id == dag_id, JobRow.task_id.in_(chunk), JobRow.ended_at.is_not(None))
            # The index has them in this order.
            number = func.row_number().over(partition_by=JobRow.task_id, order_by=JobRow.ended_at.desc())
            numbered = select(JobRow.token, number.label("number")).where(*mine).subquery()
            last = select(JobRow.task_id, WAITED).join(numbered, JobRow.token == numbered.c.token)
            for task_id, seconds in session.execute(
                last.where(numbered.c.number <= MOST_TRIES, JobRow.started_at.is_not(None))
            ):
                found.setdefault((dag_id, str(task_id)), []).append(max(0.0, seconds or 0.0))
    return found


def waits_of_queues(session: Session, jobs: Iterable[Any]) -> dict[str, list[float]]:
    """How long the last batch jobs at the sites of jobs have waited since those were queued, seconds, by site."""
    found = {}
    for site in sorted({job.site for job in jobs if job.site is not None}):
        query = select(WAITED).where(
            JobRow.site == site, JobRow.started_at.is_not(None), JobRow.submitted_at.is_not(None)
        )
        rows = session.scalars(query.order_by(JobRow.started_at.desc()).limit(MOST_OF_SITE))
        found[site] = [max(0.0, seconds) for seconds in rows if seconds is not None]
    return found
