"""Where the members of a partition find room together: the places that suit all of them, and their free room. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from lading.scheduling.gangs.gang import NO_RULE
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.ranking import Rank
from lading.scheduling.matching.routes import reordered, router, through_filters
from lading.scheduling.matching.rules import RULES, Rule, minimum
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Changes, Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources

# The site and the name of a location.
Where: TypeAlias = tuple[str, str]
# The stop of each member by name, at one place and by one rule; members can request different amounts.
Stops: TypeAlias = Mapping[str, Stop]


class MemberPlace(NamedTuple):
    stop: Stop
    location: str
    resources: Resources


@dataclass(frozen=True, slots=True)
class Options:
    """Where members can be tried together.

    :param rules: the empty one first
    :param matches: the places that suit all members, in the order in which they are tried; the last one is all places
        together, over which members can be spread
    :param stops: by rule and place; missing if the rule changes nothing there
    :param why: why there is no place to try, as far as is known
    """

    rules: tuple[str, ...] = (NO_RULE,)
    matches: tuple[str, ...] = ()
    stops: Mapping[tuple[str, str], Sequence[Stops]] = field(default_factory=dict)
    why: Reason | None = None

    def in_order(self) -> list[Sequence[Stops]]:
        """The places to try, one after the other: first with the full requests, then by each rule."""
        steps = ((rule, match) for rule in self.rules for match in self.matches)
        return [self.stops[step] for step in steps if step in self.stops]


@dataclass(frozen=True, slots=True)
class Ways:
    """How places are found and ordered.

    :param rules: the rules that reduce requests when no place has room for the full ones, in order
    :param rank: a plugin's ranking of the sites for each job; None: none
    :param filters: the binding filters by name
    """

    rules: Sequence[Rule] = RULES
    rank: Rank | None = None
    filters: Mapping[str, GetTargets] = field(default_factory=lambda: FILTERS)


def options(members: Sequence[WaitingJob], sites: Sequence[SiteView], ways: Ways = Ways()) -> Options:
    """Where members can be tried together, among the sites that can hold room.

    :raises ValueError: a plugin's rule or a binding filter failed, or filters leave no place
    """
    able = [site for site in sites if site.holds]
    route_of = router(able, ways.rules, ways.rank)
    steps = {}
    for job in members:
        its_own = route_of(job)
        targets = through_filters(job, its_own, ways.filters) if its_own else None
        steps[job.name] = _steps(its_own if targets is None else reordered(its_own, targets))
    first = steps[members[0].name] if members else {}
    common = [key for key in first if all(key in each for each in steps.values())]
    stops: dict[tuple[str, str], Sequence[Stops]] = {
        key: [{name: each[key] for name, each in steps.items()}] for key in common
    }
    names = tuple(dict.fromkeys(name for _, name in common))
    if len(names) > 1:
        together = " + ".join(names)
        for rule in dict.fromkeys(rule for rule, _ in common):
            stops[rule, together] = [stops[key][0] for key in common if key[0] == rule]
        names = (*names, together)
    return Options(tuple(dict.fromkeys((NO_RULE, *(rule for rule, _ in common)))), names, stops)


def _steps(stops: Sequence[Stop]) -> dict[tuple[str, str], Stop]:
    """The stops of a job by rule and place; further steps of one rule count as rules of their own."""
    labels: dict[tuple[str | None, Changes], str] = {}
    counts: Counter[str] = Counter()
    for stop in stops:
        if (key := (stop.rule, stop.relaxed)) not in labels:
            counts[stop.rule or NO_RULE] += 1
            number = counts[stop.rule or NO_RULE]
            labels[key] = (stop.rule or NO_RULE) + (f", step {number}" if number > 1 else "")
    return {(labels[stop.rule, stop.relaxed], stop.target or stop.site): stop for stop in stops}


class GangRoom:
    """The free room at the locations of all sites, while gangs take from it.

    Prefetched jobs have not started, so they only take room that is declared with :meth:`take`. Locations that share
    their room with others are left out.

    :param held: the room held at locations
    :param is_empty: whether to assume that nothing runs, as after all running jobs have finished
    """

    def __init__(self, sites: Iterable[SiteView], held: Mapping[Where, Resources], *, is_empty: bool = False) -> None:
        self.sites = {site.name: site for site in sites}
        self.held = held
        self.is_empty = is_empty
        self.reserved: set[Where] = set()
        self._left: dict[str, dict[str, tuple[Location, Resources]]] = {}
        # By shape of jobs: the locations that suit them, and how many of them fitted at the last count, which is an
        # upper bound because free room only shrinks.
        self._suiting: dict[object, list[str]] = {}
        self._most: dict[object, int] = {}
        self._sum: Resources | None = None

    def find(
        self, members: Sequence[WaitingJob], places: Sequence[Stops], now: float, apart: Collection[Where] | None = None
    ) -> tuple[dict[str, MemberPlace], list[WaitingJob]]:
        """Find places for members: (place by member, members without a place). The room is only taken if all members
        have a place.

        Members go where most of them have room, to be as close to each other as possible.

        :param places: a member goes to the first place with room
        :param apart: the locations of other members of the gang, if each needs a location of its own; None: they can
            share
        """
        member_places: dict[str, MemberPlace] = {}
        left = list(members)
        for stops in places:
            site = self.sites.get(stops[left[0].name].site) if left else None
            if site is not None and site.trouble is None:
                left = self._fill(site, stops, left, member_places, now, apart)
        for place in () if left else member_places.values():
            location, free = self._left[place.stop.site][place.location]
            self._left[place.stop.site][place.location] = location, free - place.resources
            if self._sum is not None and not self.sites[place.stop.site].launches:
                self._sum -= place.resources
        return member_places, left

    def take(self, site: str, location: str, resources: Resources) -> None:
        """Take room at a location, as much as is free."""
        free = self._free(self.sites[site])
        if location in free:
            each, room = free[location]
            free[location] = each, room - resources
            self._sum = None

    def reserve(self, where: Iterable[Where]) -> None:
        """Reserve locations for a gang that has no room yet: nothing else gets them."""
        for site, location in where:
            self._free(self.sites[site]).pop(location, None)
            self.reserved.add((site, location))
        self._suiting.clear()
        self._most.clear()
        self._sum = None

    def may_fit(self, members: Sequence[WaitingJob]) -> bool:
        """A quick check: whether the total free room, where nothing is launched, is at least the total of the
        requests."""
        cpus, memory = 0.0, 0
        for job in members:
            least = (job if job.soft is None else minimum(job)).resources
            cpus += least.cpus
            memory += least.memory
        return Resources(cpus, memory).fits(self._there_anyway())

    def would_fit(
        self, partitions: Sequence[tuple[Sequence[WaitingJob], Sequence[Sequence[Stops]]]], now: float, *, spread: bool
    ) -> bool:
        """Whether a pass would find room for these partitions, one after the other; nothing is taken.

        :param partitions: the members of each, and the places at which it is tried, best chance first
        :param spread: whether each member needs a location of its own
        """
        left, most, total = {name: dict(free) for name, free in self._left.items()}, dict(self._most), self._sum
        apart: set[Where] | None = set() if spread else None
        try:
            return all(self._takes(jobs, matches, now, apart) for jobs, matches in partitions)
        finally:
            self._left, self._most, self._sum = left, most, total

    def _takes(
        self, jobs: Sequence[WaitingJob], matches: Sequence[Sequence[Stops]], now: float, apart: set[Where] | None
    ) -> bool:
        """Take room for the members of a partition at the first match with enough; returns whether there is one."""
        for places in matches:
            found, left = self.find(jobs, places, now, apart)
            if not left:
                if apart is not None:
                    apart.update((place.stop.site, place.location) for place in found.values())
                return True
        return False

    def _there_anyway(self) -> Resources:
        """The total free room of all sites that launch nothing."""
        if self._sum is None:
            sites = [site for site in self.sites.values() if site.holds and not site.launches and site.trouble is None]
            free = [each for site in sites for _, each in self._free(site).values()]
            names = ("cpus", "memory", "disk", "gpus")
            self._sum = Resources(**{name: sum(max(0, getattr(each, name)) for each in free) for name in names})
        return self._sum

    def with_held(self) -> list[SiteView]:
        """The sites with held room counted as used, and without reserved locations."""
        there = {site for site, _ in (*self.held, *self.reserved)}
        return [self._taken(site) if site.name in there else site for site in self.sites.values()]

    def _taken(self, site: SiteView) -> SiteView:
        def taken(location: Location) -> Location:
            amounts = self.held.get((site.name, location.name))
            return location if amounts is None else replace(location, used=location.used + amounts, held=amounts)

        open_ones = [each for each in site.locations if (site.name, each.name) not in self.reserved]
        return replace(site, locations=list(map(taken, open_ones)), launched=list(map(taken, site.launched)))

    def _free(self, site: SiteView) -> dict[str, tuple[Location, Resources]]:
        if site.name not in self._left:
            self._left[site.name] = {
                each.name: (each, each.capacity - self._taken_at(site, each))
                for each in site.locations
                if each.max_jobs is None and not (each.draining or each.booting or each.stacked)
            }
        return self._left[site.name]

    def _taken_at(self, site: SiteView, location: Location) -> Resources:
        held = self.held.get((site.name, location.name), Resources())
        return held if self.is_empty else location.running + held

    def _fill(
        self,
        site: SiteView,
        stops: Stops,
        members: Sequence[WaitingJob],
        member_places: dict[str, MemberPlace],
        now: float,
        apart: Collection[Where] | None,
    ) -> list[WaitingJob]:
        """Find places at a site for members; returns the members without one."""
        alike: dict[object, tuple[PlannedJob, list[WaitingJob]]] = {}
        for job in members:
            need = site.need(stops[job.name].asked(job))
            alike.setdefault((site.name, need.resources, need.wish, need.time), (need, []))[1].append(job)
        free = self._free(site)
        taken: dict[str, Resources] = {}
        shut = set()
        if apart is not None:
            shut = {name for where, name in apart if where == site.name}
            shut |= {place.location for place in member_places.values() if place.stop.site == site.name}
        left: list[WaitingJob] = []
        for shape, (need, jobs) in alike.items():
            if self._most.get(shape) == 0:
                left += jobs
                continue
            counts = []
            for name in self._suits(shape, site, need, now):
                if apart is not None and (name in shut or name in taken):
                    continue
                room = free[name][1] if name not in taken else free[name][1] - taken[name]
                if count := most_fitting(need.resources, room):
                    counts.append((count if apart is None else 1, name))
            if not taken and apart is None:
                self._most[shape] = sum(count for count, _ in counts)
            waiting, most = jobs, len(jobs)
            # The location that takes most of them first; of equal ones the oldest.
            counts = sorted(((min(count, most), name) for count, name in counts), key=lambda each: -each[0])
            for count, name in counts:
                if not waiting:
                    break
                here, waiting = waiting[:count], waiting[count:]
                member_places |= {job.name: MemberPlace(stops[job.name], name, need.resources) for job in here}
                taken[name] = taken.get(name, Resources()) + need.resources * len(here)
            left += waiting
        return left

    def _suits(self, shape: object, site: SiteView, need: PlannedJob, now: float) -> list[str]:
        """The locations that suit jobs of a shape, whatever is on them."""
        if shape not in self._suiting:
            self._suiting[shape] = [
                name for name, (each, _) in self._free(site).items() if each.suits(need) and each.lasts(need.time, now)
            ]
        return self._suiting[shape]


def most_fitting(asked: Resources, free: Resources) -> int:
    """How many jobs with these requests fit into the free room; one if they request nothing."""
    found = asked.copies(free)
    return 1 if found == math.inf else int(found)
