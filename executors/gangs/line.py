"""The line in which gangs and other jobs wait for the same room: what comes before a gang takes its room first."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from typing import TypeAlias

from lading.scheduling.gangs.room import GangRoom, Stops, Ways, Where, options
from lading.scheduling.job import PlannedJob
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob, key

# Its priority, where that counts between shares, its turn, the rest of its run, and when it was queued.
Rank: TypeAlias = tuple[float, float, float, float]


class Line:
    """The jobs that start alone, as gangs find them before them.

    :param waiting: in the order in which they should start
    :param sites: all of them, with what lies at their locations and has not begun
    :param room: of which they take
    :param by_priority: whether a higher priority goes first, whatever the turns are
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
        """One of each shape that comes before the last gang and has found no room."""
        self.taken: set[Where] = set()
        """Where others that come before it have found room."""
        self.any_before = False
        """Whether anything comes before that."""

    def rank(self, job: PlannedJob) -> Rank:
        """The place of a job in the line."""
        return -job.priority if self.by_priority else 0, job.turn, -job.rest, job.queued_at

    def advance(self, rank: Rank) -> None:
        """Let those take their room that come before a rank."""
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
        """Let a job take room, if it finds some."""
        for places in self._places(job):
            found, left = self.room.find([job], places, self.now)
            if not left:
                self.taken.update((each.stop.site, each.location) for each in found.values())
                return True
        return False

    def _places(self, job: WaitingJob) -> Sequence[Sequence[Stops]]:
        """Where a job may go of the sites that hold room, which those of its shape have in common."""
        shape = key(job)
        if shape not in self._stops:
            try:
                self._stops[shape] = options([job], self.sites, self.ways).in_order()
            except ValueError:  # what a plugin has added has failed, as is said where it is placed
                self._stops[shape] = ()
            self._names[shape] = job.name
        first = self._names[shape]
        return [[{job.name: stops[first]} for stops in places] for places in self._stops[shape]]

    def wants(self, site: str, location: str) -> bool:
        """Whether one that waits and comes before the last gang is to run at a location, or could."""
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
