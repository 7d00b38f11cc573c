"""What tasks ask for before Airflow has queued them, as far as their hints and their last jobs say it."""

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

# All that waits comes before what is yet to come.
LAST = -(10**9)
NO_COLUMNS = {column.key: None for column in queued.COLUMNS}


@dataclass(frozen=True, slots=True)
class AskingTask:
    """A task that is still to come, as its hints have it.

    :param row: as a row of the queue; None: it is not known what it asks for
    :param job: the same as a job that waits; None: that is not known
    :param most: how many of its jobs may be at work at a time; ``run_most``: of its run; None: any number
    :param hurry: what time is worth to its run; None: what its site says
    :param finish_by: when its run shall have ended; None: at any time
    :param has_budget: whether its run may cost no more than a sum
    :param ahead: what its hint ``ahead`` says; None: it has none
    :param gang: with whose tasks it begins together; None: it is in none
    :param is_planned: whether a forecast plans where its jobs run; else that is decided when they have come, as of
        members of gangs
    :param max_instances: on how many machines its jobs may be at once; ``run_max_instances``: those of its run; None:
        any number
    :param is_held: whether its jobs go to sites that hold room alone, as members of gangs and jobs with attempts do
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
    is_planned: bool = True
    is_held: bool = False
    max_instances: int | None = None
    run_max_instances: int | None = None

    @property
    def may_ask_ahead(self) -> bool | None:
        """Whether what it needs is asked for before it has come; None: where its start is certain. What a run with a
        limit may still cost is decided when its jobs wait."""
        return False if self.has_budget else self.ahead

    @property
    def is_foreseen(self) -> bool:
        """Whether it is known what it needs, and a forecast plans that."""
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
    """A task by its ``executor_config``.

    :param last: the last job of each task of the Dag, of which one asks for as much whose hints depend on its run
    :param by_dag: whether some site does not take every Dag
    :param facts: the columns of its jobs that say whose its Dag is
    """
    try:
        hints = Hints.from_config(config)
    except HintError:  # which is said when its job has come
        return AskingTask()
    row, known = coming_row(run, task_id, hints, settings, facts), last.get(task_id)
    if hints.expressions or hints.auto or hints.matching:
        row = None if known is None else as_to_come(known, row)
    elif known is not None:
        # What its author leaves to Lading was chosen by what is known of it.
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
        not (hints.gang or hints.attempts),
        bool(hints.gang or hints.attempts),
        hints.max_instances,
        hints.run_max_instances,
    )


def as_to_come(last: Any, row: Any) -> Any:
    """A task that asks for as much as its last job did, as a row of the queue.

    :param row: the task by its hints
    """
    columns = {column.key: getattr(last, column.key) for column in queued.COLUMNS}
    names = ("token", "run_id", "map_index", "priority", "queued_at")
    return SimpleNamespace(**{**columns, **{name: getattr(row, name) for name in names}})


def coming_row(run: DagRunKey, task_id: str, hints: Hints, settings: Settings, facts: Mapping[str, Any]) -> Any:
    """A task that is still to come as a row of the queue, by its hints alone.

    :param facts: the columns of its jobs that say whose its Dag is
    """
    named = {"token": task_id, "dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id, "map_index": -1}
    columns = {**NO_COLUMNS, **facts, **hint_columns(hints, settings), **named, "priority": LAST, "queued_at": 0.0}
    return SimpleNamespace(**columns)
