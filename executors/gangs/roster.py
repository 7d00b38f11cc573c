"""Which members of a gang Airflow is still to bring, and what keeps it from that."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow.models.dag import DagModel
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState
from sqlalchemy import select

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

Key = tuple[str, int]

FAILED = (TaskInstanceState.FAILED, TaskInstanceState.UPSTREAM_FAILED)
OVER = (TaskInstanceState.SUCCESS, TaskInstanceState.SKIPPED, TaskInstanceState.REMOVED, *FAILED)


@dataclass(frozen=True, slots=True)
class Roster:
    """The task instances of a gang, by task and map index.

    :param to_come: those that have not ended
    :param failed: those that have failed for good
    :param hindrance: what in Airflow is too small for all of them, in words; empty: nothing is known to be
    """

    to_come: frozenset[Key]
    failed: frozenset[Key] = frozenset()
    hindrance: str = ""


def read(session: Session, dag_id: str, run_id: str, tasks: Collection[str]) -> Roster:
    """What Airflow says of the members of a gang."""
    columns = (
        TaskInstance.task_id, TaskInstance.map_index, TaskInstance.state, TaskInstance.pool, TaskInstance.pool_slots,
    )  # fmt: skip
    conditions = TaskInstance.dag_id == dag_id, TaskInstance.run_id == run_id, TaskInstance.task_id.in_(list(tasks))
    rows = session.execute(select(*columns).where(*conditions)).all()
    coming = [row for row in rows if row.state not in OVER]
    slots: dict[str, int] = {}
    for row in coming:
        slots[str(row.pool)] = slots.get(str(row.pool), 0) + row.pool_slots
    words = []
    pools = session.execute(select(Pool.pool, Pool.slots).where(Pool.pool.in_(list(slots))))
    for name, has in ((str(name), has) for name, has in pools):
        if 0 <= has < slots[name]:
            words.append(f"its pool {name!r} has {has} slots, and all of them take {slots[name]}")
    most = session.scalar(select(DagModel.max_active_tasks).where(DagModel.dag_id == dag_id))
    if most is not None and most < len(coming):
        words.append(f"max_active_tasks of the Dag is {most}")
    return Roster(
        frozenset((row.task_id, row.map_index) for row in coming),
        frozenset((row.task_id, row.map_index) for row in rows if row.state in FAILED),
        "; ".join(words),
    )
