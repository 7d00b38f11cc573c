"""The backlog: how much a location is given beyond what it can run at once.

A node agent starts its next job the moment room appears, without asking the controller, so some jobs are prefetched to
it. They must not be many: a job that arrives later with a higher priority should find a place near the front, and every
prefetched job carries a secret that runs out. The last jobs should go where there is room first, so no more are
prefetched to a location than its share of what waits: guided self-scheduling (Polychronopoulos and Kuck 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import attrgetter

from lading.scheduling.job import ASKED, PlannedJob, Wish
from lading.scheduling.location import Location
from lading.scheduling.matching.groups import Allowance
from lading.scheduling.plan import InstanceLimits

# A location is given at most its own capacity once more, in at most so many jobs.
MOST_JOBS_IN_STORE = 128
# Where jobs are short it is given more, but so many times its capacity at most: those that come next may be long.
MOST_AHEAD = 8
# What makes jobs alike here: where one finds no store, none of them does.
alike = attrgetter(*ASKED, "time", "task", "run")


def fill(
    jobs: Sequence[PlannedJob],
    locations: Sequence[Location],
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
) -> dict[str, str]:
    """Give jobs to locations until their stores are full.

    The jobs come in the order in which they should start, and none is passed over: one that no location takes now
    closes those that could ever take it to the jobs behind it, so that a large job comes to its turn. Other locations
    stay open: a full backlog of one type holds up no job of another. Which of the prefetched jobs starts first is the
    rule of ``lading.scheduling.queueing``.

    :param jobs: all that wait for these locations
    :param limits: on how many of these locations jobs of a task or a run may be
    :param now: epoch seconds
    :returns: the name of the location of each job that was given away, by the job's name
    """
    # The emptiest store comes first, of equal ones the first location.
    allowance = Allowance(limits, locations)
    stores = [
        (len(location.stored), number, _Store(location, now, allowance)) for number, location in enumerate(locations)
    ]
    running = sum(store.running for _, _, store in stores)
    heapq.heapify(stores)
    placed: dict[str, str] = {}
    left_out: set[tuple[object, ...]] = set()
    for behind, job in zip(reversed(range(len(jobs))), jobs, strict=True):
        if not stores:
            break
        shape = alike(job)
        if shape in left_out:
            continue
        wish = job.wish
        full = []
        while stores and not stores[0][2].takes(job, wish, behind, running):
            full.append(heapq.heappop(stores))
        if stores:
            _, number, store = stores[0]
            placed[job.name] = store.location.name
            store.put(job)
            heapq.heapreplace(stores, (store.count, number, store))
        else:
            left_out.add(shape)
            full = [each for each in full if not each[2].suits(job, wish)]
        for each in full:
            heapq.heappush(stores, each)
    return placed


class _Store:
    """The store of one location while it is filled."""

    __slots__ = ("allowance", "count", "kind", "later", "location", "now", "room", "running")

    def __init__(self, location: Location, now: float, allowance: Allowance) -> None:
        self.location = location
        self.allowance = allowance
        self.kind = location.kind
        self.now = now
        self.count = stored = len(location.stored)
        begun = location.jobs - stored
        # Where nothing has begun, what it has been given is about to.
        self.running, self.later = (begun, stored) if begun else (stored, 0)
        self.room = location.capacity + location.capacity - location.used

    def put(self, job: PlannedJob) -> None:
        self.count += 1
        self.later += 1
        self.room -= job.resources
        self.allowance.put(job, self.location.name)

    def suits(self, job: PlannedJob, wish: Wish) -> bool:
        """Whether the location could run such a job, now or later, while its groups are where they are."""
        location = self.location
        if not self.allowance.admits(job, location.name):
            return False
        fits = job.resources.fits(location.capacity) and self.kind.grants(wish)
        return fits and location.lasts(job.time, self.now)

    def takes(self, job: PlannedJob, wish: Wish, behind: int, running: int) -> bool:
        """Whether its store takes such a job now.

        :param behind: how many jobs wait behind it
        :param running: how many jobs run at all locations together, of which this one has its share
        """
        if self.count >= MOST_JOBS_IN_STORE or self.later * running > self.running * (behind + self.later):
            return False
        room = self.room
        if self.count < self.location.ahead:
            room = room + self.location.capacity * (MOST_AHEAD - 1)
        return (self.count < 1 or job.resources.fits(room)) and self.suits(job, wish)
