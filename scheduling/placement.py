"""Placement: which job goes to which location of which site. Pure; one decision over all sites.

A job goes to the first site that can ever run it. Where it finds no room there it waits for as long as that site says,
then the next one that takes jobs which name no site may have it. A job that names a site goes to no other, and one that
has targets to these alone, in their order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lading.scheduling.backlog import fill
from lading.scheduling.groups import Machines, labels
from lading.scheduling.matching.bindings import FILTERS, GetTargets, filtered
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.sites import SiteView, refusal, route
from lading.scheduling.matching.stops import Stop, of_text
from lading.scheduling.matching.waiting import Waiting, once_per_shape
from lading.scheduling.placing.filling import Filling, in_turn, machines, run_now
from lading.scheduling.placing.words import SECONDS_UNTIL_EXPLAINED, awaited, reason
from lading.scheduling.plan import Job
from lading.scheduling.provisioning import Provision, decide


@dataclass(slots=True)
class Assignment:
    """Where jobs go, by their names.

    :param placed: the site and the location
    :param passed: of those that another site should have had: why it has not taken them, in words
    :param waits: why a job waits, in words; None: for its turn
    :param turned_away: by site, the jobs that found no room there
    :param refused: why no site can ever run a job, in words
    :param provisions: by site, what is launched and released there
    :param stops: of the jobs that ask for something else than their hints say where they are placed: that stop
    """

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str | None] = field(default_factory=dict)
    turned_away: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    provisions: dict[str, Provision] = field(default_factory=dict)
    stops: dict[str, Stop] = field(default_factory=dict)


# A job that has been given to a site, and the location.
AtWork: TypeAlias = tuple[Job, str, str]
# The stops of a job.
Route: TypeAlias = tuple[Stop, ...]


def assign(
    jobs: Sequence[Waiting],
    sites: Sequence[SiteView],
    at_work: Sequence[AtWork] = (),
    *,
    now: float,
    filters: Mapping[str, GetTargets] = FILTERS,
) -> Assignment:
    """Give waiting jobs to the sites that have room.

    First all sites get what they can run at once, then what they have in store: so no job lies behind others at one
    site while the next one is idle. What is launched is decided in between, as if what is in store had no place: a job
    waits for that, and goes to no other site.

    :param jobs: in the order in which they should start
    :param sites: all of them, in their order
    :param at_work: the jobs of groups whose machines are limited that sites have been given and that have not ended
    :param now: epoch seconds
    :param filters: the binding filters by name
    """
    route_of = once_per_shape(lambda job: route(job, sites))
    why_none = once_per_shape(lambda job: refusal(job, sites))
    routes = {job.name: route_of(job) for job in jobs}
    found = Assignment(refused={job.name: why_none(job) for job in jobs if not routes[job.name]})
    for job in jobs:
        if job.targets is not None and routes[job.name]:
            try:
                routes[job.name] = through_filters(job, routes[job.name], filters)
            except ValueError as error:
                found.refused[job.name], routes[job.name] = str(error), ()
    by_name = {site.name: site for site in sites}
    tour = _Tour(jobs, routes, by_name, found, used_by_groups(jobs, at_work, by_name))
    tour.visit(lambda some, locations, limits: run_now(some, locations, limits, now=now), now)
    tour.visit(lambda some, locations, limits: fill(some, machines(locations), limits, now=now), now)
    tour.explain(now)
    return found


def through_filters(job: Waiting, its_route: Route, known: Mapping[str, GetTargets]) -> Route:
    """The stops that the binding filters of a job leave, in their order.

    :raises ValueError: a filter has failed, or leaves none
    """
    filters = of_text(job.targets or "[[], []]")[1]
    if not filters:
        return its_route
    by_target = {stop.target: stop for stop in its_route}
    left = filtered(job, [str(target) for target in by_target], filters, known)
    if not left:
        raise ValueError(f"its binding filters ({', '.join(filters)}) leave none of {', '.join(map(str, by_target))}")
    return tuple(by_target[target] for target in left)


def used_by_groups(jobs: Sequence[Waiting], at_work: Sequence[AtWork], sites: Mapping[str, SiteView]) -> Machines:
    """The machines on which the jobs of limited groups are."""
    found = Machines.of(jobs)
    for job, site, location in at_work:
        found.put(job, site, location, is_queue=site in sites and sites[site].is_queue(location))
    return found


@dataclass(slots=True)
class _Tour:
    """The way of jobs from site to site.

    :param routes: where a job may ever run, by its name
    :param sites: by name, with what they were given
    :param groups: on which machines the jobs of limited groups are
    :param stops: how many stops have turned a job away, by its name
    :param held: the jobs that nothing takes now, for others that nobody has looked at come before them
    :param awaited: of the jobs for which something is launched, or is there: the site, by their names
    :param said: why the first sites of its route do not take a job of a shape now, in words
    """

    jobs: Sequence[Waiting]
    routes: Mapping[str, Route]
    sites: dict[str, SiteView]
    found: Assignment
    groups: Machines
    stops: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, str] = field(default_factory=dict)
    said: dict[tuple[Hashable, Route], list[str]] = field(default_factory=dict)

    def visit(self, filling: Filling, now: float) -> None:
        """Let each site take what it can of the jobs that come to it, in their order."""
        done = self.found.placed.keys() | self.held
        self.stops = {
            job.name: self._first_stop(job) for job in self.jobs if job.name not in done and self.routes[job.name]
        }
        unvisited = dict.fromkeys(self.sites)  # something may be released where no job comes
        while (name := self._next_site() or next(iter(unvisited), None)) is not None:
            unvisited.pop(name, None)
            site, here = self.sites[name], [job for job in self.jobs if self._next_name(job) == name]
            needs = {job.name: site.need(self._asked(job)) for job in here}
            limits = self.groups.limits(name, site.locations)
            taken = filling(list(needs.values()), site.locations, limits) if here and site.trouble is None else {}
            passing = [job for job in self.jobs if job.hidden or job.name in taken]
            asking = [(job, stop) for job in passing if (stop := stop_at(self.routes[job.name], name)) is not None]
            in_order = [(job, needs.get(job.name) or site.need(stop.asked(job))) for job, stop in asking]
            kept = in_turn(in_order, taken, site.locations)
            for job in here:
                if job.name in kept:
                    self._place(job, site, kept[job.name])
                elif job.name in taken:
                    self.held.add(job.name)
                else:
                    self.stops[job.name] += 1
            after = self.sites[name] = site.given([needs[token] for token in kept], kept)
            if name not in self.found.provisions and site.market is not None and site.trouble is None:
                self._provide(after, site.market, [job for job in here if job.name not in taken], needs, now)

    def _first_stop(self, job: Waiting) -> int:
        """Where a job comes first: where something is launched for it, if that is so."""
        site = self.awaited.get(job.name)
        return 0 if site is None else [stop.site for stop in self.routes[job.name]].index(site)

    def _next_site(self) -> str | None:
        """The site that is visited next; None: no job goes on.

        It is one to which no job can come later, from another one; where there is none, that of the first job.
        """
        comes: dict[str, None] = {}
        later: set[str] = set()
        for key in dict.fromkeys((self.routes[job.name], stop) for job in self.jobs if (stop := self._stop(job)) >= 0):
            its_route, stop = key
            comes[its_route[stop].site] = None
            later |= {each.site for each in its_route[stop + 1 :]}
        return next((name for name in self.sites if name in comes and name not in later), next(iter(comes), None))

    def _stop(self, job: Waiting) -> int:
        """The stop to which a job comes next, by its number; -1: to none now."""
        return -1 if self._next_name(job) is None else self.stops[job.name]

    def _asked(self, job: Waiting) -> Waiting:
        """The job as it asks for room where it comes next."""
        return self.routes[job.name][self.stops[job.name]].asked(job)

    def _next_name(self, job: Waiting) -> str | None:
        """The site to which a job comes next; None: to none now."""
        if job.name in self.held or job.name in self.found.placed or job.name not in self.stops:
            return None
        its_route, stop = self.routes[job.name], self.stops[job.name]
        may_go = stop == 0 or self._may_leave(job, its_route[stop - 1].site)
        return its_route[stop].site if may_go and stop < len(its_route) else None

    def _may_leave(self, job: Waiting, name: str) -> bool:
        """Whether a job that found no room at a site may go to the next one."""
        if (full := self.groups.full(job)) is not None and not self.groups.are_at(full, name):
            return True  # nothing that comes free there is for it
        return self.awaited.get(job.name) != name and self.sites[name].lets_go(job)

    def _provide(
        self, site: SiteView, market: Market, jobs: Sequence[Waiting], needs: Mapping[str, Job], now: float
    ) -> None:
        """Decide what is launched for jobs that found no room at a site."""
        # Of those that were not looked at nothing is known but that they are alike.
        waiting = [replace(needs[job.name], count=1 + job.hidden) for job in jobs]
        since = {job.name: now - site.turned_away.get(job.name, 0.0) for job in jobs}
        found = self.found.provisions[site.name] = decide(
            waiting, site.launched, market, since, self.groups.limits(site.name, site.launched), now=now
        )
        turned_away = found.waits.keys() | found.refused.keys()
        self.awaited |= {job.name: site.name for job in jobs if job.name not in turned_away}
        # What makes way takes nothing more.
        there = [each for each in site.locations if each.name not in found.releases]
        self.sites[site.name] = replace(site, locations=there)

    def _place(self, job: Waiting, site: SiteView, location: str) -> None:
        self.found.placed[job.name] = site.name, location
        stop = self.routes[job.name][self.stops[job.name]]
        if stop.changes:
            self.found.stops[job.name] = stop
        if labels(job):  # few have any
            self.groups.put(job, site.name, location, is_queue=site.is_queue(location))
        if self.stops[job.name]:
            self.found.passed[job.name] = "; ".join(self._words(job))

    def _words(self, job: Waiting) -> list[str]:
        """Why the sites that a job has come to have not taken it."""
        been = self.routes[job.name][: self.stops[job.name]]
        key = job.shape, been
        if key not in self.said:  # thousands are alike
            self.said[key] = list(dict.fromkeys(self._why_not(job, stop) for stop in been))
        return self.said[key]

    def _why_not(self, job: Waiting, stop: Stop) -> str:
        site = self.sites[stop.site]
        found = self.found.provisions.get(site.name, Provision())
        if (words := found.waits.get(job.name)) is not None:
            return f"site {site.name!r}: {words}"
        refused = found.refused.get(job.name)
        return site.why_not(stop.asked(job)) if refused is None else f"site {site.name!r}: it {refused}"

    def explain(self, now: float) -> None:
        """Say why the others wait."""
        for job in self.jobs:
            if job.name in self.held:
                self.found.waits[job.name] = None
            elif job.name in self.stops and job.name not in self.found.placed:
                its_route, stop = self.routes[job.name], self.stops[job.name]
                for name in dict.fromkeys(each.site for each in its_route[:stop]):
                    self.found.turned_away.setdefault(name, []).append(job.name)
                last, following = self.sites[its_route[stop - 1].site], [each.site for each in its_route[stop:]]
                if (full := self.groups.full(job)) is not None:
                    is_late = now - job.queued_at >= SECONDS_UNTIL_EXPLAINED
                    self.found.waits[job.name] = self.groups.reason(full) if is_late else None
                    continue
                if self.awaited.get(job.name) == last.name:
                    self.found.waits[job.name] = awaited(its_route[stop - 1].asked(job), last, now)
                    continue
                self.found.waits[job.name] = reason(job, self._words(job), last, following, len(self.sites), now)


def stop_at(its_route: Route, site: str) -> Stop | None:
    """The first stop of a route at a site; None: it has none there."""
    return next((stop for stop in its_route if stop.site == site), None)
