"""Where the members of a partition find room together: the places that suit all, and what is free there. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from lading.scheduling.job import Job
from lading.scheduling.location import Location
from lading.scheduling.matching.routes import route
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import Waiting, once_per_shape
from lading.scheduling.resources import TOLERANCE, Resources


class Place(NamedTuple):
    """Where a member has room, and how much it takes there."""

    stop: Stop
    location: str
    resources: Resources


# A location, by its site and its name.
Where = tuple[str, str]


def matches(members: Sequence[Waiting], sites: Sequence[SiteView]) -> dict[str, tuple[Stop, ...]]:
    """The places that suit all of these members, each by its name, in the order in which they are tried.

    Each site alone comes first; the last match is all of them together, over which members may be spread.
    """
    able = [site for site in sites if site.holds]
    route_of = once_per_shape(lambda job: route(job, able))
    routes = [route_of(job) for job in members]
    stops = [stop for stop in routes[0] if all(stop in each for each in routes)] if routes else []
    found: dict[str, tuple[Stop, ...]] = {stop.target or stop.site: (stop,) for stop in stops}
    return {**found, " + ".join(found): tuple(stops)} if len(found) > 1 else found


class Room:
    """What is free at the locations of all sites, while gangs take of it.

    What is in store at a location has not begun and counts for nothing: it waits a little longer.

    :param held: what is held at locations
    """

    def __init__(self, sites: Iterable[SiteView], held: Mapping[Where, Resources]) -> None:
        self.sites = {site.name: site for site in sites}
        self.held = held
        self._left: dict[str, list[tuple[Location, Resources]]] = {}

    def find(
        self, members: Sequence[Waiting], stops: Sequence[Stop], now: float
    ) -> tuple[dict[str, Place], list[Waiting]]:
        """A place for each of these members, by its name, and those for which there is none; only where there are none
        of these the places are taken.

        Members go where the most of them have room, so that they are as near to each other as may be.
        """
        found: dict[str, Place] = {}
        left = list(members)
        for stop in stops:
            site = self.sites.get(stop.site)
            if site is not None and site.trouble is None and left:
                left = self._fill(site, stop, left, found, now)
        for place in () if left else found.values():
            self._take(place)
        return found, left

    def with_held(self) -> list[SiteView]:
        """The sites where what is held is taken."""
        there = {site for site, _ in self.held}
        return [self._taken(site) if site.name in there else site for site in self.sites.values()]

    def _taken(self, site: SiteView) -> SiteView:
        def taken(location: Location) -> Location:
            amounts = self.held.get((site.name, location.name))
            return location if amounts is None else replace(location, used=location.used + amounts)

        return replace(site, locations=list(map(taken, site.locations)), launched=list(map(taken, site.launched)))

    def _free(self, site: SiteView) -> list[tuple[Location, Resources]]:
        """The machines of a site with what is free on each; made once, and kept up to date by :meth:`_take`."""
        if site.name not in self._left:
            self._left[site.name] = [
                (each, each.capacity - each.running - self.held.get((site.name, each.name), Resources()))
                for each in site.locations
                if each.max_jobs is None and not (each.draining or each.booting)
            ]
        return self._left[site.name]

    def _fill(
        self, site: SiteView, stop: Stop, members: Sequence[Waiting], found: dict[str, Place], now: float
    ) -> list[Waiting]:
        """Find places at a site for members; returns those for which there is none."""
        alike: dict[object, tuple[Job, list[Waiting]]] = {}
        for job in members:
            need = site.need(stop.asked(job))
            alike.setdefault((need.resources, need.wish, need.time), (need, []))[1].append(job)
        taken: dict[str, Resources] = {}
        left: list[Waiting] = []
        for need, jobs in alike.values():
            suiting = [
                (min(len(jobs), most_fitting(need.resources, free - taken.get(each.name, Resources()))), each.name)
                for each, free in self._free(site)
                if each.suits(need) and each.lasts(need.time, now)
            ]
            waiting = jobs
            # By how many of them each takes, the oldest first among those that take as many.
            suiting.sort(key=lambda each: -each[0])
            for count, name in suiting:
                here, waiting = waiting[:count], waiting[count:]
                found |= {job.name: Place(stop, name, need.resources) for job in here}
                taken[name] = taken.get(name, Resources()) + need.resources * len(here)
            left += waiting
        return left

    def _take(self, place: Place) -> None:
        free = self._left[place.stop.site]
        for number, (location, amounts) in enumerate(free):
            if location.name == place.location:
                free[number] = location, amounts - place.resources


def most_fitting(asked: Resources, free: Resources) -> int:
    """How many jobs that each ask for so much go into what is free."""
    pairs = ((getattr(asked, name), getattr(free, name)) for name in ("cpus", "memory", "disk", "gpus"))
    counts = [math.floor((there + TOLERANCE) / wanted) for wanted, there in pairs if wanted > 0]
    return max(0, min(counts, default=1))
