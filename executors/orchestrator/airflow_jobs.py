"""What Airflow's task instances tell about jobs, and its event log."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from airflow.configuration import conf
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, and_, or_, select

from lading.executors.orchestrator.orchestrator import TaskNote
from lading.executors.store import LIVE, JobRow, State, chunks
from lading.executors.store.leases import DatabaseNow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# In these states Airflow still wants a job that has not started.
WANTED = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING, TaskInstanceState.RESTARTING)


def same_task() -> ColumnElement[bool]:
    return and_(
        TaskInstance.dag_id == JobRow.dag_id,
        TaskInstance.task_id == JobRow.task_id,
        TaskInstance.run_id == JobRow.run_id,
        TaskInstance.map_index == JobRow.map_index,
    )


def unwanted(session: Session, tokens: Sequence[str], seconds: float) -> Sequence[str]:
    """Return the waiting jobs that Airflow no longer wants.

    Their task instance has ended, was cleared or was queued again; or it does not exist although the job was queued
    longer ago than `seconds`.
    """
    is_another = or_(
        TaskInstance.external_executor_id.is_distinct_from(JobRow.token),
        TaskInstance.state.is_(None),
        TaskInstance.state.not_in(WANTED),
    )
    waits = JobRow.kind == "ExecuteTask", JobRow.state.in_((State.QUEUED, State.ATTEMPTED))
    is_known = or_(TaskInstance.id.is_not(None), JobRow.queued_at < DatabaseNow() - seconds)
    query = select(JobRow.token).outerjoin(TaskInstance, same_task()).where(*waits, is_another, is_known)
    return [token for chunk in chunks(tokens) for token in session.scalars(query.where(JobRow.token.in_(chunk)))]


def disowned(session: Session, seconds: float, most: int) -> Sequence[tuple[str, str]]:
    """Return the token and state of placed or sleeping jobs that Airflow no longer wants, at most `most`.

    Jobs queued within the last `seconds` are left out.
    """
    wanted = (
        select(TaskInstance.id)
        .where(same_task(), TaskInstance.external_executor_id == JobRow.token, TaskInstance.state.in_(WANTED))
        .exists()
    )
    found = session.execute(
        select(JobRow.token, JobRow.state)
        .where(
            JobRow.kind == "ExecuteTask",
            JobRow.state.in_((State.ATTEMPTED, State.PLACED)),
            JobRow.queued_at < DatabaseNow() - seconds,
            or_(JobRow.cancel.is_(None), JobRow.state != State.PLACED),
            ~wanted,
        )
        .limit(most)
    )
    return [(token, state) for token, state in found]


def still_at_work(session: Session, tokens: Sequence[str], now: float) -> set[str]:
    """Return the jobs whose task still sends heartbeats to the API server.

    :param now: epoch seconds
    """
    silent_since = datetime.fromtimestamp(now - seconds_until_silent(), tz=timezone.utc)
    heard = (
        TaskInstance.external_executor_id == JobRow.token,
        TaskInstance.state == TaskInstanceState.RUNNING,
        TaskInstance.last_heartbeat_at > silent_since,
    )
    return {
        str(token)
        for chunk in chunks(tokens)
        for token in session.scalars(
            select(JobRow.token).join(TaskInstance, same_task()).where(JobRow.token.in_(chunk), *heard)
        )
    }


def seconds_until_silent() -> float:
    """Return how long a task at a location that is gone can be silent before it counts as dead."""
    # A live task can miss this many heartbeats in a row.
    heartbeats = 4 * conf.getint("workers", "min_heartbeat_interval", fallback=5)
    return max(60.0, heartbeats)


def reporting(session: Session, dag_id: str, run_id: str, tasks: Iterable[str]) -> str | None:
    """Return a job whose task has succeeded but whose output files are not reported yet; None: there is none.

    :param tasks: the tasks of the run to check
    """
    same = [
        getattr(TaskInstance, name) == getattr(JobRow, name) for name in ("dag_id", "run_id", "task_id", "map_index")
    ]
    query = select(JobRow.token).join(TaskInstance, and_(*same))
    of_tasks = JobRow.dag_id == dag_id, JobRow.run_id == run_id, JobRow.task_id.in_(list(tasks)), JobRow.state.in_(LIVE)
    found: str | None = session.scalar(query.where(*of_tasks, TaskInstance.state == "success").limit(1))
    return found


# How the events of Lading in Airflow's event log start.
OURS = "lading "


def notes(session: Session, job: JobRow) -> list[tuple[float, str]]:
    """Return Lading's notes on a try from Airflow's event log, oldest first: epoch seconds and text."""
    same = [
        getattr(Log, name) == getattr(job, name) for name in ("dag_id", "run_id", "task_id", "map_index", "try_number")
    ]
    query = select(Log.dttm, Log.event, Log.extra).where(*same, Log.event.startswith(OURS))
    rows = session.execute(query.order_by(Log.id.desc()).limit(50)).all()
    return [
        (at.timestamp(), text or "" if event == "lading waits" else ": ".join(filter(None, (event[len(OURS) :], text))))
        for at, event, text in reversed(rows)
        if at is not None
    ]


def log_row(note: TaskNote) -> Log:
    task = note.task
    if task is None:
        return Log(event=note.event, owner="lading", extra=note.text)
    key = TaskInstanceKey(task.dag_id, task.task_id, task.run_id, task.try_number, task.map_index)
    return Log(event=note.event, task_instance=key, extra=note.text)
