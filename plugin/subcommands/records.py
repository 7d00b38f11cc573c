"""Which Dags and runs the store has records of, for commands that were given another name."""

from __future__ import annotations

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow
from lading.plugin.host import Host
from lading.plugin.ui.queries.runs import totals_by_run


def has_records(session: Session, dag_id: str, run_id: str | None) -> bool:
    mine = (JobRow.dag_id == dag_id, *([] if run_id is None else [JobRow.run_id == run_id]))
    return session.scalar(select(JobRow.token).where(*mine).limit(1)) is not None


def unknown(host: Host, session: Session, dag_id: str, run_id: str | None, now: float) -> str:
    """Say that there is no record of a run or Dag, and list those with records."""
    kept = f"Records are kept for {host.settings().job_retention_days} days{host.option('job_retention_days')}."
    if run_id is not None and (runs := totals_by_run(session, dag_id, 10, now)):
        known = ", ".join(name for name, _ in runs)
        return f"There is no record of run {run_id!r} of Dag {dag_id!r}; its newest runs: {known}. {kept}"
    query = select(JobRow.dag_id).distinct().where(JobRow.dag_id.is_not(None)).order_by(JobRow.dag_id).limit(10)
    known = ", ".join(map(str, session.scalars(query))) or "none"
    return f"There is no record of a job of Dag {dag_id!r}; Dags with jobs: {known}. {kept}"
