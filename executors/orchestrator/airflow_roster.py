"""Which members of a gang Airflow has yet to queue, and what prevents that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from airflow.models.dag import DagModel
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors.orchestrator.orchestrator import ExpectedGang, Roster
from lading.executors.store import chunks
from lading.scheduling.model.reasons import because

# In these states a task holds no room, and it comes back alone.
AWAY = (TaskInstanceState.DEFERRED, TaskInstanceState.UP_FOR_RESCHEDULE)


COLUMNS = (
    TaskInstance.dag_id, TaskInstance.run_id, TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state,
    TaskInstance.pool, TaskInstance.pool_slots,
)  # fmt: skip

# In these states a task occupies slots of its pool.
IN_POOL = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)
FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UPSTREAM_FAILED)
OVER = (TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED, *FAILED)


def read(session: Session, wanted: Mapping[str, ExpectedGang]) -> dict[str, Roster]:
    """Read the rosters of gangs, by gang token, with few queries for all of them."""
    by_run: dict[tuple[str, str], list[Any]] = {}
    runs: dict[str, set[str]] = {}
    for each in wanted.values():
        runs.setdefault(each.dag_id, set()).add(each.run_id)
    # By Dag, because runs of many Dags share a name, and the index of Airflow's table begins with the Dag.
    for dag_id, its_runs in runs.items():
        for chunk in chunks(sorted(its_runs)):
            here = TaskInstance.dag_id == dag_id, TaskInstance.run_id.in_(chunk)
            for row in session.execute(select(*COLUMNS).where(*here)):
                by_run.setdefault((row.dag_id, row.run_id), []).append(row)
    dags = runs.keys()
    columns = DagModel.dag_id, DagModel.max_active_tasks
    most = {
        dag_id: number
        for chunk in chunks(sorted(dags))
        for dag_id, number in session.execute(select(*columns).where(DagModel.dag_id.in_(chunk)))
    }
    pools = {str(name): slots for name, slots in session.execute(select(Pool.pool, Pool.slots))}
    slots = func.sum(TaskInstance.pool_slots)
    query = select(TaskInstance.pool, slots).where(TaskInstance.state.in_(IN_POOL)).group_by(TaskInstance.pool)
    taken = {str(name): int(number) for name, number in session.execute(query)}
    return {
        token: of_rows(
            [row for row in by_run.get((each.dag_id, each.run_id), ()) if row.task_id in each.tasks],
            pools,
            taken,
            most.get(each.dag_id),
            each.limits,
        )
        for token, each in wanted.items()
    }


def of_rows(
    rows: Sequence[Any],
    pools: Mapping[str, int],
    taken: Mapping[str, int],
    most: int | None,
    limits: Mapping[str, tuple[str, int]],
) -> Roster:
    """Build the roster of a gang from its task instances.

    :param pools: the number of slots of each pool; negative: unlimited
    :param taken: the number of occupied slots of each pool
    :param most: how many tasks of the Dag can run at once; None: unknown
    :param limits: by task, the name of its limit and how many of its jobs can run at once
    """
    coming = [row for row in rows if row.state not in (*OVER, *AWAY)]
    asked: Counter[str] = Counter()
    others = Counter(taken)
    for row in coming:
        asked[str(row.pool)] += row.pool_slots
        if row.state in IN_POOL:
            others[str(row.pool)] -= row.pool_slots
    hindrances = []
    for name, slots in asked.items():
        there, theirs = pools.get(name, -1), max(others[name], 0)
        if 0 <= there < slots + theirs:
            pool = {"pool": name, "there": there, "slots": slots}
            is_shared = slots <= there
            hindrances.append(
                because("gang_pool_shared", theirs=theirs, **pool) if is_shared else because("gang_pool", **pool)
            )
    if most is not None and most < len(coming):
        hindrances.append(because("gang_active_tasks", most=most))
    for task_id, number in Counter(row.task_id for row in coming).items():
        limit, allowed = limits.get(task_id, ("", number))
        if allowed < number:
            hindrances.append(because("gang_limit", name=limit, task=task_id, most=allowed))
    return Roster(
        frozenset((row.task_id, row.map_index) for row in coming),
        frozenset((row.task_id, row.map_index) for row in rows if row.state in FAILED),
        tuple(hindrances),
    )
