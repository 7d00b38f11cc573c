"""The tasks of a run whose Dag asks ahead, as their hints have them."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lading.executors.columns import hint_columns
from lading.executors.settings import Settings
from lading.executors.store import groups
from lading.executors.store.gangs.runs import DagRunKey
from lading.scheduling.hints.hints import HintError, Hints

# All that waits comes before what is yet to come.
LAST = -(10**9)
NO_COLUMNS = {column.key: None for column in groups.COLUMNS}


@dataclass(frozen=True, slots=True)
class GangTask:
    """A task.

    :param partition: its gang, or the task alone
    :param after: the tasks that come right before it
    :param row: as a row of the queue; None: nothing is known of it
    :param asks: whether what it needs is to be asked for ahead, and is known before the task has come
    :param most: how many of its jobs may be at work at once; None: any number
    """

    partition: str
    after: tuple[str, ...] = ()
    row: Any = None
    asks: bool = False
    most: int | None = None


def step(run: DagRunKey, task_id: str, config: object, settings: Settings) -> GangTask:
    """A task by its ``executor_config``; of one that is not Lading's, or not readable, nothing is known."""
    try:
        hints = Hints.of(config)
    except HintError:
        return GangTask(task_id)
    if hints.ahead_after is None:
        return GangTask(task_id)
    limits = (hints.max_jobs, hints.run_max_jobs, hints.max_instances, hints.run_max_instances)
    return GangTask(
        task_id if hints.gang is None else f"gang {hints.gang}",
        hints.ahead_after,
        coming_row(run, task_id, hints, settings),
        # What a run may still cost is decided when its jobs wait.
        hints.ahead and not (hints.expressions or hints.auto or hints.matching or hints.max_usd),
        min((each for each in limits if each is not None), default=None),
    )


def coming_row(run: DagRunKey, task_id: str, hints: Hints, settings: Settings) -> Any:
    """A task that is still to come as a row of the queue, by its hints alone."""
    named = {"token": task_id, "dag_id": run.dag_id, "run_id": run.run_id, "task_id": task_id, "map_index": -1}
    columns = {**NO_COLUMNS, **hint_columns(hints, settings), **named, "priority": LAST, "queued_at": 0.0}
    return SimpleNamespace(**columns)
