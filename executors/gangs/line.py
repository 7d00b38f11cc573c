"""The line in which gangs and other jobs wait for the same room: jobs ahead of a gang take their room first."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeAlias

from lading.scheduling.gangs.room import GangRoom, Stops, Ways, Where, options
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob, key
from lading.scheduling.model.job import PlannedJob

# Negative priority (0 if priority does not count between shares), turn, negative rest of the run, and time queued.
Rank: TypeAlias = tuple[float, float, float, float]


class Line:
    """The jobs outside gangs, which take their room before the gangs that they precede.

    :param waiting: in the order in which they should start
    :param sites: all sites, with the prefetched jobs at their locations
    :param room: the room that these jobs take from
    :param by_priority: whether a higher priority goes first regardless of turns
    """

    def __init__(
        self,
        waiting: Sequence[WaitingJob],
        sites: Sequence[SiteView],
        room: GangRoom,
        ways: Ways,
        now: float,
        *,
        by_priority: bool,
    ) -> None:
        self.sites, self.room, self.ways, self.now, self.by_priority = sites, room, ways, now, by_priority
        there = ((site.name, each.name, job) for site in sites for each in site.locations for job in each.prefetched)
        given = ((self.rank(job), where, place, job) for where, place, job in there)
        self._given = deque(sorted(given, key=lambda each: each[0]))
        self._waiting = deque(sorted(((self.rank(job), job) for job in waiting), key=lambda each: each[0]))
        self._stops: dict[Hashable, Sequence[Sequence[Stops]]] = {}
        self._names: dict[Hashable, str] = {}
        self.left_out: dict[Hashable, WaitingJob] = {}
        """One job of each shape that precedes the latest gang and has found no room."""
        self.taken: set[Where] = set()
        """Locations where jobs that precede the latest gang have found room."""
        self.any_before = False
        """Whether any job precedes the latest gang."""

    def rank(self, job: PlannedJob) -> Rank:
        return -job.priority if self.by_priority else 0, job.turn, -job.rest, job.queued_at

    def advance(self, rank: Rank) -> None:
        """Let the jobs that precede a rank take their room."""
        while self._given and self._given[0][0] < rank:
            _, site, place, given = self._given.popleft()
            self.room.take(site, place, given.resources)
            self.any_before = True
        while self._waiting and self._waiting[0][0] < rank:
            _, job = self._waiting.popleft()
            self.any_before = True
            if key(job) not in self.left_out and not self._takes(job):
                self.left_out[key(job)] = job

    def _takes(self, job: WaitingJob) -> bool:
        """Let a job take room; returns whether it found some."""
        for places in self._places(job):
            found, left = self.room.find([job], places, self.now)
            if not left:
                self.taken.update((each.stop.site, each.location) for each in found.values())
                return True
        return False

    def _places(self, job: WaitingJob) -> Sequence[Sequence[Stops]]:
        """Return where a job can go among the sites that support holds, computed once for each shape."""
        shape = key(job)
        if shape not in self._stops:
            try:
                self._stops[shape] = options([job], self.sites, self.ways).in_order()
            except ValueError:  # a plugin's filter or rule has failed, which placement reports
                self._stops[shape] = ()
            self._names[shape] = job.name
        first = self._names[shape]
        return [[{job.name: stops[first]} for stops in places] for places in self._stops[shape]]

    def wants(self, site: str, location: str) -> bool:
        """Return whether a waiting job that precedes the latest gang will or could run at a location."""
        if (site, location) in self.taken:
            return True
        there = self.room.sites[site]
        at = next(each for each in there.locations if each.name == location)
        return any(
            stops[job.name].site == site and at.suits(there.need(stops[job.name].asked(job)))
            for job in self.left_out.values()
            for places in self._places(job)
            for stops in places
        )
