"""The shapes of waiting jobs, which ensure that a thousand jobs of one shape do not hide another.

A shape is everything that decides which sites and locations can run a job and how much of them it takes. If some site
accepts only certain Dags, the Dag and its team are part of the shape.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from lading.executors.store.queued import LaneKey, QueueColumns, QueuedJobs, by


def of_lane(by_dag: bool) -> Callable[[LaneKey], tuple[Hashable, ...]]:
    """Return a function that gives the shape of a lane's jobs: its Dag and team come first, or None for both."""
    return lambda key: (*((key.dag_id, key.team) if by_dag else (None, None)), *key.shape)


def totals(queued: QueuedJobs, by_dag: bool) -> dict[tuple[Any, ...], int]:
    """Count the waiting jobs of each shape, without those of groups with a limit."""
    lanes = by(queued.lanes.values(), of_lane(by_dag))
    return {shape: sum(len(lane.ranks) for lane in some) for shape, some in lanes.items()}


def of_each(queued: QueuedJobs, by_dag: bool, count: int, most: int, page: int) -> list[QueueColumns]:
    """Return the first ``count`` jobs of each shape, in the order in which they should start.

    :param most: the size of a page
    :param page: which page of the result to return, from 0
    """
    lanes = by(queued.lanes.values(), of_lane(by_dag)).values()
    rows = [row for some in lanes for row in queued.first(some, count)]
    rows.sort(key=lambda row: (-row.priority, row.queued_at, row.token))
    return rows[page * most : (page + 1) * most]
