"""Entries in tasks' event logs about rules by which their jobs got less than the full request."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import select

from lading.executors import store
from lading.executors.orchestrator.orchestrator import TaskNote, TaskTry
from lading.executors.store import Change, JobRow

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading rule"


def entries(session: Session, changes: Iterable[Change]) -> list[TaskNote]:
    """Return an entry with the reason of the placement for each job that is placed by a rule."""
    tokens = [change.token for change in changes if change.values.get("rule") is not None]
    key = (JobRow.dag_id, JobRow.task_id, JobRow.run_id, JobRow.try_number, JobRow.map_index)
    logs = []
    for chunk in store.chunks(tokens):
        of_tasks = select(*key, JobRow.placed_because).where(JobRow.token.in_(chunk), JobRow.task_id.is_not(None))
        for *of_task, reason in session.execute(of_tasks):
            task = TaskTry(*of_task)  # type: ignore[arg-type]
            logs.append(TaskNote(EVENT, task, str(reason)))
    return logs
