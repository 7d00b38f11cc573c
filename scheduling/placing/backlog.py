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
MOST_PREFETCHED = 128
# Where jobs are short it is given more, but so many times its capacity at most: those that come next may be long.
MOST_AHEAD = 8
# What makes jobs alike here: where one finds no place in a backlog, none of them does.
alike = attrgetter(*ASKED, "time", "task", "run")


def fill(
    jobs: Sequence[PlannedJob],
    locations: Sequence[Location],
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
) -> dict[str, str]:
    """Give jobs to locations until their backlogs are full.

    The jobs come in the order in which they should start, and none is passed over: one that no location takes now
    closes those that could ever take it to the jobs behind it, so that a large job comes to its turn. Other locations
    stay open: a full backlog of one type holds up no job of another. Which of the prefetched jobs starts first is the
    rule of ``lading.scheduling.queueing``.

    :param jobs: all that wait for these locations
    :param limits: on how many of these locations jobs of a task or a run may be
    :param now: epoch seconds
    :returns: the name of the location of each job that was given away, by the job's name
    """
    # The emptiest backlog comes first, of equal ones the first location.
    allowance = Allowance(limits, locations)
    backlogs = [
        (len(location.prefetched), number, _Backlog(location, now, allowance))
        for number, location in enumerate(locations)
    ]
    running = sum(backlog.running for _, _, backlog in backlogs)
    heapq.heapify(backlogs)
    placed: dict[str, str] = {}
    left_out: set[tuple[object, ...]] = set()
    for behind, job in zip(reversed(range(len(jobs))), jobs, strict=True):
        if not backlogs:
            break
        shape = alike(job)
        if shape in left_out:
            continue
        wish = job.wish
        full = []
        while backlogs and not backlogs[0][2].takes(job, wish, behind, running):
            full.append(heapq.heappop(backlogs))
        if backlogs:
            _, number, backlog = backlogs[0]
            placed[job.name] = backlog.location.name
            backlog.put(job)
            heapq.heapreplace(backlogs, (backlog.count, number, backlog))
        else:
            left_out.add(shape)
            full = [each for each in full if not each[2].suits(job, wish)]
        for each in full:
            heapq.heappush(backlogs, each)
    return placed


class _Backlog:
    """The backlog of one location while it is filled."""

    __slots__ = ("allowance", "count", "kind", "later", "location", "now", "room", "running")

    def __init__(self, location: Location, now: float, allowance: Allowance) -> None:
        self.location = location
        self.allowance = allowance
        self.kind = location.kind
        self.now = now
        self.count = prefetched = len(location.prefetched)
        begun = location.jobs - prefetched
        # Where nothing has begun, what it has been given is about to.
        self.running, self.later = (begun, prefetched) if begun else (prefetched, 0)
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
        """Whether its backlog takes such a job now.

        :param behind: how many jobs wait behind it
        :param running: how many jobs run at all locations together, of which this one has its share
        """
        if self.count >= MOST_PREFETCHED or self.later * running > self.running * (behind + self.later):
            return False
        room = self.room
        if self.count < self.location.prefetchable:
            room = room + self.location.capacity * (MOST_AHEAD - 1)
        return (self.count < 1 or job.resources.fits(room)) and self.suits(job, wish)
