"""What tasks request before Airflow has queued them, as far as their hints and last jobs tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lading.executors.columns import hint_columns
from lading.executors.settings import Settings
from lading.executors.store import queue, queued
from lading.executors.store.gangs.runs import DagRunKey
from lading.scheduling.hints.finish_by import FinishBy
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.waiting import WaitingJob

# Lower than any priority, so that upcoming jobs come after all waiting ones.
LAST = -(10**9)
NO_COLUMNS = {column.key: None for column in queued.COLUMNS}


@dataclass(frozen=True, slots=True)
class AskingTask:
    """An upcoming task, according to its hints.

    :param row: as a row of the queue; None: its request is unknown
    :param job: as a waiting job; None: its request is unknown
    :param most: how many of its jobs can be at work at once; ``run_most``: of its run; None: any number
    :param hurry: how much finishing its run early is worth; None: as its site says
    :param finish_by: the deadline of its run; None: none
    :param has_budget: whether its run has a limit on its cost
    :param ahead: the hint ``ahead``; None: not given
    :param gang: the gang it belongs to; None: none
    :param max_instances: how many machines its jobs can use at once; ``run_max_instances``: those of its run; None: any
        number
    :param is_held: whether its jobs only go to sites that hold room, as members of gangs and jobs with attempts do
    """

    row: Any = None
    job: WaitingJob | None = None
    most: int | None = None
    run_most: int | None = None
    hurry: float | None = None
    finish_by: FinishBy | None = None
    has_budget: bool = False
    ahead: bool | None = None
    gang: str | None = None
    is_held: bool = False
    max_instances: int | None = None
    run_max_instances: int | None = None

    @property
    def may_ask_ahead(self) -> bool | None:
        """Whether room can be requested before the task is queued; None: only if its start is certain.

        False with a limit on the cost of the run, because how much it can still spend is decided when its jobs wait.
        """
        return False if self.has_budget else self.ahead

    @property
    def is_planned(self) -> bool:
        """Whether a forecast plans room for its jobs. For members of gangs and jobs with attempts, room is found once
        they are queued, so it is planned only if it is requested ahead.
        """
        return self.may_ask_ahead is True or not self.is_held

    @property
    def is_foreseen(self) -> bool:
        """Whether its needs are known and planned by a forecast."""
        return self.job is not None and self.is_planned


def asking_task(
    run: DagRunKey,
    task_id: str,
    config: object,
    last: Mapping[str, Any],
    settings: Settings,
    by_dag: bool,
    facts: Mapping[str, Any],
) -> AskingTask:
    """Build an upcoming task from its ``executor_config``.

    :param last: the last job of each task of the Dag, whose request is used if the hints depend on the run
    :param by_dag: whether some site accepts only certain Dags
    :param facts: the columns that identify the tenant of the Dag
    """
    try:
        hints = Hints.from_config(config)
    except HintError:  # reported when its job is queued
        return AskingTask()
    row, known = coming_row(run, task_id, hints, settings, facts), last.get(task_id)
    if hints.expressions or hints.auto or hints.matching:
        row = None if known is None else as_to_come(known, row)
    elif known is not None:
        # Amounts that the author leaves to Lading are those chosen for the last job.
        for name in settings.choices(hints):
            setattr(row, name, getattr(known, name))
    return AskingTask(
        row,
        None if row is None else queue.as_waiting(row, by_dag),
        hints.max_jobs,
        hints.run_max_jobs,
        hints.hurry,
        hints.finish_by,
        hints.max_usd is not None,
        hints.ahead,
        hints.gang,
        bool(hints.gang or hints.attempts),
        hints.max_instances,
        hints.run_max_instances,
    )


def as_to_come(last: Any, row: Any) -> Any:
    """Return an upcoming task as a row of the queue that requests as much as its last job did.

    :param row: the task according to its hints
    """
    columns = {column.key: getattr(last, column.key) for column in queued.COLUMNS}
    names = ("token", "run_id", "map_index", "priority", "queued_at")
    return SimpleNamespace(**{**columns, **{name: getattr(row, name) for name in names}})


def coming_row(run: DagRunKey, task_id: str, hints: Hints, settings: Settings, facts: Mapping[str, Any]) -> Any:
    """Return an upcoming task as a row of the queue, according to its hints alone.

    :param facts: the columns that identify the tenant of the Dag
    """
    named = {"token": task_id, "dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id, "map_index": -1}
    columns = {**NO_COLUMNS, **facts, **hint_columns(hints, settings), **named, "priority": LAST, "queued_at": 0.0}
    return SimpleNamespace(**columns)
