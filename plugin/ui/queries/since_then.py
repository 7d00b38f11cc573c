"""What has become of tasks since one of their tries failed, by the state of their task instances in Airflow.

Airflow is imported by the functions, because commands for Snakemake, where there is no Airflow, import this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from pydantic import BaseModel
from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow
from lading.executors.store.jobs import chunks


class Since(str, Enum):
    """What has become of a task since one of its tries failed."""

    SUCCEEDED = "succeeded"
    RUNS = "runs"
    """It runs again."""
    WAITS = "waits"
    """It will run again."""
    GAVE_UP = "gave_up"
    """It has failed, and Airflow does not retry it."""
    SKIPPED = "skipped"
    """Airflow skipped it, or its Dag no longer has it."""


class SinceThen(BaseModel):
    """What has become of a task since one of its tries failed."""

    state: Since
    try_number: int | None
    """The later try; None: there is none yet."""
    at: float | None
    """When the task succeeded, epoch seconds; None: it has not."""


def task_of(job: Any) -> Any:
    """Return the condition for the task instance of a job.

    :param job: the table, or the columns of a subquery
    """
    from airflow.models.taskinstance import TaskInstance

    return and_(
        TaskInstance.dag_id == job.dag_id,
        TaskInstance.run_id == job.run_id,
        TaskInstance.task_id == job.task_id,
        TaskInstance.map_index == job.map_index,
    )


def became(state: str | None) -> Since:
    """Return what has become of a task instance.

    :param state: its state in Airflow
    """
    from airflow.utils.state import State as AirflowState
    from airflow.utils.state import TaskInstanceState

    if state in AirflowState.unfinished:
        return Since.RUNS if state in (TaskInstanceState.RUNNING, TaskInstanceState.DEFERRED) else Since.WAITS
    if state in (TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED):
        return Since.SKIPPED
    return Since.SUCCEEDED if state == TaskInstanceState.SUCCESS else Since.GAVE_UP


def since_then(session: Session, tokens: Sequence[str]) -> dict[str, SinceThen]:
    """Return by token what has become of the tasks of failed jobs; jobs of tasks unknown to Airflow are left out."""
    from airflow.models.taskinstance import TaskInstance

    query: Any = select(
        JobRow.token, JobRow.try_number, TaskInstance.state, TaskInstance.try_number.label("last"),
        TaskInstance.end_date,
    ).join(TaskInstance, task_of(JobRow))  # fmt: skip
    found = {}
    for chunk in chunks(tokens):
        for row in session.execute(query.where(JobRow.token.in_(chunk))):
            state, ended = became(row.state), row.end_date
            found[row.token] = SinceThen(
                state=state,
                try_number=row.last if row.last > row.try_number else None,
                at=ended.timestamp() if state is Since.SUCCEEDED and ended is not None else None,
            )
    return found
