"""How long batch jobs, allocations and instances waited before they started, by size; durations are seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

from pydantic import BaseModel
from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.store import SiteRow
from lading.executors.store.durations import MOST, PastWaits
from lading.scheduling.matching.ranking import QueueWaits

Waiter = Literal["jobs", "allocations", "instances"]


class QueueWait(BaseModel):
    """How long the latest batch jobs, allocations or instances of a size class waited in a queue."""

    what: Waiter
    site: str
    queue: str | None
    """None: the default queue of the site."""
    more_cpus_than: int
    """The size class: more cpus than this and at most ``most_cpus``."""
    most_cpus: int
    count: int
    median: float
    most: float
    """95 % of them started within this time."""


class WaitsBySize(BaseModel):
    """How long jobs and machines waited in queues."""

    read: int
    """At most this many of the latest batch jobs, and of the latest allocations and instances, are counted."""
    waits: list[QueueWait]


def queue_waits(session: Session) -> WaitsBySize:
    past = PastWaits()
    jobs = past.read(session)
    kinds = {row.name: row.kind for row in session.execute(select(SiteRow.name, SiteRow.kind))}
    launches = [
        each.model_copy(update={"what": "instances" if kinds.get(each.site) == "ec2" else "allocations"})
        for each in by_size(past.launches)
    ]
    order = ("jobs", "allocations", "instances")
    waits = sorted(
        [*by_size(jobs), *launches],
        key=lambda each: (order.index(each.what), each.site, each.queue or "", each.most_cpus),
    )
    return WaitsBySize(read=MOST, waits=waits)


def by_size(waits: QueueWaits) -> Iterator[QueueWait]:
    """Yield the waits of each size class, labelled as jobs."""
    for key, seconds in waits.seconds.items():
        if len(key) == 3:
            site, queue, size = key
            assert isinstance(size, int)
            yield QueueWait(
                what="jobs",
                site=str(site),
                queue=None if queue is None else str(queue),
                more_cpus_than=2 ** (size - 1) if size else 0,
                most_cpus=2**size,
                count=len(seconds),
                median=quantile(seconds, 0.5),
                most=quantile(seconds, 0.95),
            )


def quantile(values: list[float], share: float) -> float:
    """The quantile by nearest rank: the value at position ceil(share × n) of n sorted values."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
