"""The backlog: jobs given to a location in addition to those it can run at once.

A node agent starts its next job as soon as it has room, without asking the controller, so some jobs are prefetched to
it. Their number has to stay small: a job that arrives later with a higher priority should find a place near the front,
and every prefetched job carries a secret that expires. The last jobs should go where room appears first, so a location
prefetches no more than its share of the waiting jobs: guided self-scheduling (Polychronopoulos and Kuck 1987).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from operator import attrgetter

from lading.scheduling.matching.groups import Allowance
from lading.scheduling.model.job import ASKED, PlannedJob, Wish
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits

# Jobs with equal values are interchangeable here: if one finds no place in any backlog, none of them does.
alike = attrgetter(*ASKED, "time", "task", "run")


def fill(
    jobs: Sequence[PlannedJob],
    locations: Sequence[Location],
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
) -> dict[str, str]:
    """Give jobs to locations until their backlogs are full.

    The jobs are in the order in which they should start, and none is overtaken: a job that no location takes now closes
    every location that could ever take it to the jobs behind it, so that a large job gets its turn. Other locations
    stay open: a full backlog of one type holds up no job of another. Which of the prefetched jobs starts first is
    decided by ``lading.scheduling.starts.queueing``.

    :param jobs: all that wait for these locations
    :param limits: on the number of these locations with jobs of a task or a run
    :param now: epoch seconds
    :returns: the location of each job that was given away, by job name
    """
    # The emptiest backlog comes first; ties go to the earlier location.
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
    __slots__ = ("allowance", "count", "kind", "later", "location", "now", "room", "running")

    def __init__(self, location: Location, now: float, allowance: Allowance) -> None:
        self.location = location
        self.allowance = allowance
        self.kind = location.kind
        self.now = now
        self.count = prefetched = len(location.prefetched)
        begun = location.jobs - prefetched
        # If nothing has started, the jobs it has been given are about to.
        self.running, self.later = (begun, prefetched) if begun else (prefetched, 0)
        self.room = location.capacity + location.capacity - location.used

    def put(self, job: PlannedJob) -> None:
        self.count += 1
        self.later += 1
        self.room -= job.resources
        self.allowance.put(job, self.location.name)

    def suits(self, job: PlannedJob, wish: Wish) -> bool:
        """Return whether the location could run such a job, now or later, under the present limits of groups."""
        location = self.location
        if not self.allowance.admits(job, location.name):
            return False
        fits = job.resources.fits(location.capacity) and self.kind.grants(wish)
        return fits and location.lasts(job.time, self.now)

    def takes(self, job: PlannedJob, wish: Wish, behind: int, running: int) -> bool:
        """Return whether the backlog takes such a job now.

        :param behind: how many jobs wait behind it
        :param running: how many jobs run at all locations together; sets this location's share
        """
        # A location prefetches at most its own capacity once more, and at most 128 jobs.
        if self.count >= 128 or self.later * running > self.running * (behind + self.later):
            return False
        room = self.room
        if self.count < self.location.prefetchable:
            # With short jobs it prefetches more, but at most eight times its capacity, because later jobs can be long.
            room = room + self.location.capacity * 7
        return (self.count < 1 or job.resources.fits(room)) and self.suits(job, wish)
