"""The shapes of waiting jobs in the store: so that a thousand of one shape hide no other.

A shape is all that decides which sites and locations can run a job, and what it takes of them; where some site does not
take every Dag, the Dag and its team are part of it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from lading.executors.store import JobRow, groups

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.executors.store.groups import QueueColumns

SHAPE = (
    JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus, JobRow.memory_limit, JobRow.time_limit, JobRow.site_hint,
    JobRow.instance_type, JobRow.arch, JobRow.os, JobRow.features, JobRow.capacity_type, JobRow.queue_hint,
    JobRow.native_hint, JobRow.targets, JobRow.soft, JobRow.nodes,
)  # fmt: skip


def totals(session: Session, by_dag: bool) -> dict[tuple[Any, ...], int]:
    """How many jobs of each shape wait, but for those of groups with a limit; Dag and team come first, or None."""
    dag, no_dag = ((JobRow.dag_id, JobRow.team), ()) if by_dag else ((), (None, None))
    queued = select(*dag, *SHAPE).where(*groups.CAN_BE_PLACED, groups.UNLIMITED).subquery()
    rows = session.execute(select(*queued.c, func.count()).group_by(*queued.c))
    return {(*no_dag, *shape): total for *shape, total in rows}


def of_each(
    session: Session, shapes: Collection[tuple[Any, ...]], by_dag: bool, count: int, most: int, page: int
) -> Sequence[QueueColumns]:
    """The first ``count`` jobs of each shape, in the order in which they should start.

    :param shapes: those that there are, as :func:`totals` has them
    :param most: how many are returned at most
    :param page: so many times ``most`` are passed over
    """
    columns = ((JobRow.dag_id, JobRow.team) if by_dag else (None, None)) + SHAPE
    # Databases sort by fewer columns in half the time, and most of them are the same for all jobs.
    differ = [
        column
        for column, *values in zip(columns, *shapes, strict=True)
        if column is not None and any(value != values[0] for value in values)
    ]
    number = func.row_number().over(partition_by=differ or None, order_by=groups.ORDER).label("number")
    numbered = select(JobRow.token, number).where(*groups.CAN_BE_PLACED, groups.UNLIMITED).subquery()
    query = groups.in_order().join(numbered, JobRow.token == numbered.c.token).where(numbered.c.number <= count)
    return groups.read(session, query.limit(most).offset(page * most))
