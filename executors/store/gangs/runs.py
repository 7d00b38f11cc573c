"""The queries on runs: what of them is live, what of them is to come, and how earlier runs of their Dags went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import func, or_, select

from lading.executors.store import LIVE, JobRow, State, chunks, groups
from lading.executors.store.gangs.tables import GangRow
from lading.scheduling.gangs.gang import Stage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

LIVE_AHEAD = (JobRow.ahead.is_(True), JobRow.state.in_(LIVE), JobRow.task_id.is_not(None))
# What has ended and holds up nothing behind it.
OVER = (TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED)
COLUMNS = (
    TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state,
    TaskInstance.start_date, TaskInstance.try_number, TaskInstance.executor, TaskInstance.pool, TaskInstance.pool_slots,
)  # fmt: skip


class DagRunKey(NamedTuple):
    """A run of a Dag."""

    dag_id: str
    run_id: str


def any_live(session: Session) -> bool:
    """Whether a job of such a run lives."""
    return session.scalar(select(JobRow.token).where(*LIVE_AHEAD).limit(1)) is not None


def live(session: Session) -> dict[DagRunKey, list[Any]]:
    """The live jobs of such runs, with ``wake_at`` of the gang that sleeps."""
    columns = (
        JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.state, JobRow.site, JobRow.location, JobRow.queued_at,
        JobRow.started_at, JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus, JobRow.nodes,
        func.coalesce(JobRow.queue, JobRow.queue_hint).label("queue"),
    )  # fmt: skip
    asleep = (GangRow.token == JobRow.gang) & (GangRow.stage == Stage.ATTEMPTED)
    found: dict[DagRunKey, list[Any]] = {}
    for row in session.execute(select(*columns, GangRow.wake_at).outerjoin(GangRow, asleep).where(*LIVE_AHEAD)):
        found.setdefault(DagRunKey(row.dag_id, row.run_id), []).append(row)
    return found


def unfinished(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, list[Any]]:
    """The task instances of runs that have not ended, or have failed; none of Dags that are paused, or of runs that are
    not running, for nothing comes of these."""
    by_run: dict[DagRunKey, list[Any]] = {}
    for dag_id, its_runs in _by_dag(runs).items():
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
    """How many slots each pool has; those without a limit are left out."""
    query = select(Pool.pool, Pool.slots).where(Pool.pool.is_not(None), Pool.slots >= 0)
    return {str(name): slots for name, slots in session.execute(query)}


def configs(session: Session, run: DagRunKey) -> dict[str, Any]:
    """The ``executor_config`` of each task of a run."""
    columns = TaskInstance.task_id, TaskInstance.executor_config
    query = select(*columns).where(TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id)
    # Of a task that is mapped over thousands of elements one says it for all.
    query = query.where(TaskInstance.map_index <= 0)
    return {str(task_id): config for task_id, config in session.execute(query)}


def live_jobs(session: Session) -> list[Any]:
    """All live jobs, as rows of the queue, with where they are and since when."""
    columns = (
        *groups.COLUMNS, JobRow.state, JobRow.site, JobRow.location, JobRow.placed_at, JobRow.started_at, JobRow.gang,
        JobRow.sizing, JobRow.max_jobs, JobRow.run_max_jobs,
    )  # fmt: skip
    return list(session.execute(select(*columns).where(JobRow.state.in_(LIVE))))


def first_queued(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, float]:
    """When the first job of each run was queued that the store has, by the database's clock, epoch seconds."""
    found: dict[DagRunKey, float] = {}
    for dag_id, its_runs in _by_dag(runs).items():
        for chunk in chunks(its_runs):
            query = select(JobRow.run_id, func.min(JobRow.queued_at))
            query = query.where(JobRow.dag_id == dag_id, JobRow.run_id.in_(chunk)).group_by(JobRow.run_id)
            found |= {DagRunKey(dag_id, str(run_id)): float(at) for run_id, at in session.execute(query)}
    return found


def last_jobs(session: Session, dag_id: str) -> dict[str, Any]:
    """The job of each task of a Dag that has succeeded last, as a row of the queue."""
    mine = JobRow.dag_id == dag_id, JobRow.state == State.SUCCEEDED
    last_end = func.max(JobRow.ended_at).label("at")
    last = select(JobRow.task_id, last_end).where(*mine).group_by(JobRow.task_id).subquery()
    query = select(*groups.COLUMNS).join(last, (last.c.task_id == JobRow.task_id) & (last.c.at == JobRow.ended_at))
    return {str(row.task_id): row for row in session.execute(query.where(*mine))}


def dag_runs(session: Session, runs: Iterable[DagRunKey]) -> dict[DagRunKey, DagRun]:
    """Runs as Airflow has them."""
    found = {}
    for dag_id, its_runs in _by_dag(runs).items():
        for chunk in chunks(its_runs):
            for run in session.scalars(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id.in_(chunk))):
                found[DagRunKey(dag_id, run.run_id)] = run
    return found


def past_states(session: Session, dag_id: str, most: int) -> list[dict[str, Counter[str]]]:
    """How the task instances of the last runs of a Dag have ended, the last run first: by task, how many in which
    state.

    :param most: how many runs
    """
    ended = DagRun.dag_id == dag_id, DagRun.state.in_((DagRunState.SUCCESS, DagRunState.FAILED))
    last = list(session.scalars(select(DagRun.run_id).where(*ended).order_by(DagRun.start_date.desc()).limit(most)))
    columns = TaskInstance.run_id, TaskInstance.task_id, TaskInstance.state
    query = select(*columns, func.count()).where(TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(last))
    found: dict[str, dict[str, Counter[str]]] = {run_id: {} for run_id in last}
    for run_id, task_id, state, count in session.execute(query.group_by(*columns)):
        found[run_id].setdefault(task_id, Counter())[str(state)] += count
    return [found[run_id] for run_id in last]


def _by_dag(runs: Iterable[DagRunKey]) -> dict[str, list[str]]:
    # The index of Airflow's table begins with the Dag.
    found: dict[str, list[str]] = {}
    for run in runs:
        found.setdefault(run.dag_id, []).append(run.run_id)
    return found
