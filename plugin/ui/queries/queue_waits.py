"""How long batch jobs have waited in queues, by their size; durations are seconds."""

from __future__ import annotations

import math

from pydantic import BaseModel
from sqlalchemy.orm import Session

from lading.executors.store.durations import PastWaits


class QueueWait(BaseModel):
    """The waits of batch jobs of about one size in one queue, those that began last."""

    site: str
    queue: str | None
    """None: that of the site."""
    more_cpus_than: int
    """They have more cpus than these, and at most ``most_cpus``; 0: from one on."""
    most_cpus: int
    jobs: int
    median: float
    most: float
    """Within so many seconds 95 of a hundred of them began."""


def queue_waits(session: Session) -> list[QueueWait]:
    """The waits in all queues."""
    found = []
    for key, seconds in PastWaits().read(session).seconds.items():
        if len(key) == 3:
            site, queue, size = key
            assert isinstance(size, int)
            found.append(
                QueueWait(
                    site=str(site),
                    queue=None if queue is None else str(queue),
                    more_cpus_than=2 ** (size - 1) if size else 0,
                    most_cpus=2**size,
                    jobs=len(seconds),
                    median=quantile(seconds, 0.5),
                    most=quantile(seconds, 0.95),
                )
            )
    return sorted(found, key=lambda each: (each.site, each.queue or "", each.most_cpus))


def quantile(values: list[float], share: float) -> float:
    """Of n values the one at position ceil(share × n)."""
    return sorted(values)[math.ceil(share * len(values)) - 1]
