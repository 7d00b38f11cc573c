"""Queries on Airflow's tables of runs: their unfinished task instances, and how earlier runs of their Dags went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import func, or_, select

from lading.executors.store import chunks
from lading.executors.store.gangs.runs import DagRunKey, by_dag

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Ended without holding up any task after it.
OVER = (TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED)
COLUMNS = (
    TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state,
    TaskInstance.start_date, TaskInstance.try_number, TaskInstance.executor, TaskInstance.pool, TaskInstance.pool_slots,
)  # fmt: skip


def unfinished(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, list[Any]]:
    """Return the task instances of runs that have not ended or have failed.

    Paused Dags and runs that are not running are left out, because they create no more jobs.
    """
    by_run: dict[DagRunKey, list[Any]] = {}
    for dag_id, its_runs in by_dag(runs).items():
        for chunk in chunks(its_runs):
            left = or_(TaskInstance.state.is_(None), TaskInstance.state.not_in(OVER))
            query = (
                select(*COLUMNS)
                .join(DagRun, (DagRun.dag_id == TaskInstance.dag_id) & (DagRun.run_id == TaskInstance.run_id))
                .join(DagModel, DagModel.dag_id == TaskInstance.dag_id)
                .where(TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(chunk), left)
                .where(DagRun.state == DagRunState.RUNNING, DagModel.is_paused.is_(False))
            )
            for row in session.execute(query):
                by_run.setdefault(DagRunKey(row.dag_id, row.run_id), []).append(row)
    return by_run


def pools(session: Session) -> dict[str, int]:
    """Return the number of slots of each pool with a limit."""
    query = select(Pool.pool, Pool.slots).where(Pool.pool.is_not(None), Pool.slots >= 0)
    return {str(name): slots for name, slots in session.execute(query)}


def configs(session: Session, run: DagRunKey) -> dict[str, Any]:
    """Return the ``executor_config`` of each task of a run."""
    columns = TaskInstance.task_id, TaskInstance.executor_config
    query = select(*columns).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    # One of the thousands of instances of a mapped task is enough.
    query = query.where(TaskInstance.map_index <= 0)
    return {str(task_id): config for task_id, config in session.execute(query)}


def dag_runs(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, DagRun]:
    found = {}
    for dag_id, its_runs in by_dag(runs).items():
        for chunk in chunks(its_runs):
            for run in session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id.in_(chunk))):
                found[DagRunKey(dag_id, run.run_id)] = run
    return found


def past_states(session: Session, dag_id: str, most: int) -> list[dict[str, Counter[str]]]:
    """Return how many task instances of the latest runs of a Dag ended in each state, by task, latest run first.

    :param most: the number of runs
    """
    ended = DagRun.dag_id == dag_id, DagRun.state.in_((DagRunState.SUCCESS, DagRunState.FAILED))
    last = list(session.scalars(select(DagRun.run_id).where(*ended).order_by(DagRun.start_date.desc()).limit(most)))
    columns = TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state
    query = select(*columns, func.count()).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(last))
    found: dict[str, dict[str, Counter[str]]] = {run_id: {} for run_id in last}
    for run_id, task_id, state, count in session.execute(query.group_by(*columns)):
        found[run_id].setdefault(task_id, Counter())[str(state)] += count
    return [found[run_id] for run_id in last]
