"""The shapes of waiting jobs: so that a thousand of one shape hide no other.

A shape is all that decides which sites and locations can run a job, and what it takes of them; where some site does not
take every Dag, the Dag and its team are part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from lading.executors.store.queued import LaneKey, QueueColumns, QueuedJobs, by


def of_lane(by_dag: bool) -> Callable[[LaneKey], tuple[Hashable, ...]]:
    """What says the shape of the jobs of a lane: Dag and team come first, or None."""
    return lambda key: (*((key.dag_id, key.team) if by_dag else (None, None)), *key.shape)


def totals(queued: QueuedJobs, by_dag: bool) -> dict[tuple[Any, ...], int]:
    """How many jobs of each shape wait, but for those of groups with a limit."""
    lanes = by(queued.lanes.values(), of_lane(by_dag))
    return {shape: sum(len(lane.ranks) for lane in some) for shape, some in lanes.items()}


def of_each(queued: QueuedJobs, by_dag: bool, count: int, most: int, page: int) -> list[QueueColumns]:
    """The first ``count`` jobs of each shape, in the order in which they should start.

    :param most: how many are returned at most
    :param page: so many times ``most`` are passed over
    """
    lanes = by(queued.lanes.values(), of_lane(by_dag)).values()
    rows = [row for some in lanes for row in queued.first(some, count)]
    rows.sort(key=lambda row: (-row.priority, row.queued_at, row.token))
    return rows[page * most : (page + 1) * most]
