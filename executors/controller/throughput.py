"""Throughput: how many short jobs end at each location, from which follows how many are prefetched to it."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from lading.executors.store import Change

# Those that have run for longer, or whose end is old news, say nothing about the next tick, seconds.
SHORT = 5.0


@dataclass(slots=True)
class Throughput:
    """The last ends of short jobs at the locations of one site.

    :param seconds: as many jobs are prefetched to a location as have ended there in so many seconds
    """

    seconds: float
    ends: deque[tuple[float, str]] = field(default_factory=deque)

    def note(self, locations: Iterable[str]) -> None:
        """A short job has ended at each of these locations now."""
        now = time.monotonic()
        self.ends.extend((now, location) for location in locations)

    def ahead(self) -> Counter[str]:
        """How many jobs may be prefetched to each location, by its name."""
        horizon = time.monotonic() - self.seconds
        while self.ends and self.ends[0][0] < horizon:
            self.ends.popleft()
        return Counter(location for _, location in self.ends)


def short(changes: Iterable[Change], now: float) -> list[str]:
    """The tokens of the short jobs that have just ended.

    :param now: epoch seconds
    """
    found = []
    for change in changes:
        started, ended = change.values.get("started_at"), change.values.get("ended_at")
        if started is not None and ended is not None and ended - started < SHORT and now - ended < SHORT:
            found.append(change.token)
    return found
