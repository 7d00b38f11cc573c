"""The backlog: how much a location is given beyond what it can run at once.

A node agent starts its next job the moment room appears, without asking anybody, so it needs some jobs in store. It
must not have many: whoever arrives later with a higher priority should find a place near the front, and every job in
store carries a secret that runs out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from lading.scheduling.resources import Resources

# A location is given at most its own capacity once more (more of short jobs), in at most so many jobs.
MOST_JOBS_IN_STORE = 128


@dataclass(frozen=True, slots=True)
class Stocked:
    """A location and what it has been given.

    :param name: the location
    :param capacity: what it can run at once
    :param running: the sum of the resources of its running jobs
    :param stored: the resources of each job that it has been given and that has not started
    :param instance_type: what a job must want if it wants any
    :param ahead: so many jobs it has in store whatever they need, for its jobs are known to be short
    :param longest: seconds that a job given to it may take; None: any number
    """

    name: str
    capacity: Resources
    running: Resources
    stored: tuple[Resources, ...]
    instance_type: str | None = None
    ahead: int = 0
    longest: float | None = None


def fill(
    jobs: Iterable[tuple[str, Resources]],
    locations: Sequence[Stocked],
    instance_types: Mapping[str, str] = MappingProxyType({}),
    times: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, str]:
    """Give jobs to locations until their stores are full.

    The jobs come in the order in which they should start, and none is passed over: one that no location takes now
    closes those that could ever take it to the jobs behind it, so that a large job comes to its turn. Other locations
    stay open: a full store of one type holds up no job of another. Which of the stored jobs starts first is the rule
    of ``lading.scheduling.queueing``.

    :param jobs: token and resources of each job
    :param instance_types: the type that a job wants, by token, of those that want one
    :param times: the seconds that a job takes, by token, of those of which it is known
    :returns: the location of each job that was given away, by token
    """
    # The emptiest store comes first, of equal ones the first location.
    stores = [(len(location.stored), number, _Store(location)) for number, location in enumerate(locations)]
    heapq.heapify(stores)
    placed: dict[str, str] = {}
    left_out: set[tuple[Resources, str | None, float]] = set()
    for token, asked in jobs:
        if not stores:
            break
        shape = (asked, instance_types.get(token), times.get(token, 0.0))
        if shape in left_out:
            continue
        full = []
        while stores and not stores[0][2].takes(*shape):
            full.append(heapq.heappop(stores))
        if stores:
            _, number, store = stores[0]
            placed[token] = store.location.name
            store.put(asked)
            heapq.heapreplace(stores, (store.count, number, store))
        else:
            left_out.add(shape)
            full = [each for each in full if not each[2].suits(*shape)]
        for each in full:
            heapq.heappush(stores, each)
    return placed


class _Store:
    """The store of one location while it is filled."""

    __slots__ = ("count", "location", "room")

    def __init__(self, location: Stocked) -> None:
        self.location = location
        self.count = len(location.stored)
        self.room = location.capacity + location.capacity - sum(location.stored, location.running)

    def put(self, asked: Resources) -> None:
        self.count += 1
        self.room -= asked

    def suits(self, asked: Resources, instance_type: str | None, time: float) -> bool:
        """Whether the location could ever run such a job."""
        location = self.location
        if instance_type not in (None, location.instance_type) or not asked.fits(location.capacity):
            return False
        return location.longest is None or time <= location.longest

    def takes(self, asked: Resources, instance_type: str | None, time: float) -> bool:
        """Whether its store takes such a job now."""
        if self.count >= MOST_JOBS_IN_STORE or not self.suits(asked, instance_type, time):
            return False
        return self.count < max(1, self.location.ahead) or asked.fits(self.room)
