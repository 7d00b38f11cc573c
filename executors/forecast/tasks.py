"""What tasks ask for before Airflow has queued them, as far as their hints and their last jobs say it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lading.executors.gangs.ahead_requests import coming_row
from lading.executors.settings import Settings
from lading.executors.store import queue
from lading.executors.store.gangs.runs import DagRunKey
from lading.scheduling.hints.finish_by import FinishBy
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.matching.waiting import WaitingJob


@dataclass(frozen=True, slots=True)
class AskingTask:
    """A task that is still to come, as its hints have it.

    :param row: as a row of the queue; None: it is not known what it asks for
    :param job: the same as a job that waits; None: it is not known, or it is not planned by a forecast
    :param most: how many of its jobs may be at work at a time; ``run_most``: of its run; None: any number
    :param hurry: what time is worth to its run; None: what its site says
    :param finish_by: when its run shall have ended; None: at any time
    :param has_budget: whether its run may cost no more than a sum
    :param ahead: whether what it needs is asked for before it has come; None: where its start is certain
    """

    row: Any = None
    job: WaitingJob | None = None
    most: int | None = None
    run_most: int | None = None
    hurry: float | None = None
    finish_by: FinishBy | None = None
    has_budget: bool = False
    ahead: bool | None = None


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
    known = (hints.max_jobs, hints.run_max_jobs, hints.hurry, hints.finish_by, hints.max_usd is not None, hints.ahead)
    row = coming_row(run, task_id, hints, settings, facts)
    if hints.expressions or hints.auto or hints.matching:
        row = last.get(task_id)
    if row is None:
        return AskingTask(None, None, *known)
    # Where members of gangs may start, and jobs that share few machines, is decided when they have come.
    is_planned = not (hints.gang or hints.attempts or hints.max_instances or hints.run_max_instances)
    return AskingTask(row, queue.as_waiting(row, by_dag) if is_planned else None, *known)
