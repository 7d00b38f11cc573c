"""Placement: which job goes to which location of which site. Pure; one decision over all sites.

A job goes to the first site that can ever run it. Where it finds no room there it waits for as long as that site says,
then the next one that takes jobs which name no site may have it. A job that names a site goes to no other, and one that
has targets to these alone, in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lading.scheduling.backlog import fill
from lading.scheduling.groups import Machines, labels
from lading.scheduling.job import Job
from lading.scheduling.matching.bindings import FILTERS, GetTargets, filtered
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView, refusal, route
from lading.scheduling.matching.stops import Stop, of_text
from lading.scheduling.matching.waiting import Waiting, once_per_shape
from lading.scheduling.placing.filling import Filling, in_turn, machines, run_now
from lading.scheduling.placing.words import SECONDS_UNTIL_EXPLAINED, awaited, reason
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
    alike_of = once_per_shape(lambda job: _Alike(route(job, sites)))
    why_none = once_per_shape(lambda job: refusal(job, sites))
    alike = {job.name: alike_of(job) for job in jobs}
    found = Assignment(refused={job.name: why_none(job) for job in jobs if not alike[job.name].route})
    for job in jobs:
        if job.targets is not None and alike[job.name].route:
            try:
                left = through_filters(job, alike[job.name].route, filters)
            except ValueError as error:
                found.refused[job.name], left = str(error), ()
            alike[job.name] = alike[job.name].going(left)
    by_name = {site.name: site for site in sites}
    positions = {job.name: position for position, job in enumerate(jobs)}
    tour = _Tour(jobs, alike, positions, by_name, found, used_by_groups(jobs, at_work, by_name))
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
class _Alike:
    """Jobs that are alike, of which there may be thousands.

    :param route: where they may ever run
    :param words: why the first stops of the route do not take them now, by how many these are
    :param reasons: why they wait, in words, by that number and whether a job has waited for long
    :param others: those that are alike but for the order of their stops, by their route
    """

    route: Route
    words: dict[int, list[str]] = field(default_factory=dict)
    reasons: dict[tuple[int, bool], str | None] = field(default_factory=dict)
    others: dict[Route, _Alike] = field(default_factory=dict)

    def going(self, its_route: Route) -> _Alike:
        """Jobs that are alike, and go by this route."""
        if its_route == self.route:
            return self
        return self.others.setdefault(its_route, _Alike(its_route))

    @property
    def sites(self) -> list[str]:
        """The site of each stop."""
        return [stop.site for stop in self.route]


@dataclass(slots=True)
class _Tour:
    """The way of jobs from site to site.

    :param alike: what a job is one of, by its name
    :param positions: of a job among all, by its name
    :param sites: by name, with what they were given
    :param groups: on which machines the jobs of limited groups are
    :param stops: how many stops have turned a job away, by its name
    :param held: the jobs that nothing takes now, for others that nobody has looked at come before them
    :param awaited: of the jobs for which something is launched, or is there: the site, by their names
    """

    jobs: Sequence[Waiting]
    alike: Mapping[str, _Alike]
    positions: Mapping[str, int]
    sites: dict[str, SiteView]
    found: Assignment
    groups: Machines
    stops: dict[str, int] = field(default_factory=dict)
    held: set[str] = field(default_factory=set)
    awaited: dict[str, str] = field(default_factory=dict)

    def visit(self, filling: Filling, now: float) -> None:
        """Let each site take what it can of the jobs that come to it, in their order."""
        coming = self._first_stops()
        unvisited = dict.fromkeys(self.sites)  # something may be released where no job comes
        while (name := self._next_site(coming) or next(iter(unvisited), None)) is not None:
            unvisited.pop(name, None)
            site = self.sites[name]
            here = sorted(coming.pop(name, ()), key=lambda job: self.positions[job.name])
            needs = {job.name: site.need(self._stop(job).asked(job)) for job in here}
            limits = self.groups.limits(name, site.locations)
            taken = filling(list(needs.values()), site.locations, limits) if here and site.trouble is None else {}
            passing = [job for job in self.jobs if job.hidden or job.name in taken]
            asking = [(job, stop) for job in passing if (stop := stop_at(self.alike[job.name].route, name)) is not None]
            in_order = [(job, needs.get(job.name) or site.need(stop.asked(job))) for job, stop in asking]
            kept = in_turn(in_order, taken, site.locations)
            left = []
            for job in here:
                if job.name in kept:
                    self._place(job, site, kept[job.name])
                elif job.name in taken:
                    self.held.add(job.name)
                else:
                    self.stops[job.name] += 1
                    left.append(job)
            after = self.sites[name] = site.given([needs[token] for token in kept], kept)
            if name not in self.found.provisions and site.market is not None and site.trouble is None:
                self._provide(after, site.market, left, needs, now)
            for job in left:
                if (following := self._next_stop(job)) is not None:
                    coming.setdefault(following, []).append(job)

    def _next_site(self, coming: Mapping[str, Sequence[Waiting]]) -> str | None:
        """The site that is visited next; None: no job goes on.

        It is one to which no job can come later, from another one; where there is none, that of the first job.
        """
        # By identity, for a route takes a while to hash, and thousands of jobs have the same.
        alike = ((self.alike[job.name], self.stops[job.name]) for jobs in coming.values() for job in jobs)
        pending = {(id(each), number): (each.route, number) for each, number in alike}
        later = {stop.site for its_route, number in pending.values() for stop in its_route[number + 1 :]}
        free = next((name for name in self.sites if name in coming and name not in later), None)
        first = {name: min(self.positions[job.name] for job in jobs) for name, jobs in coming.items()}
        return free or min(first, key=first.__getitem__, default=None)

    def _stop(self, job: Waiting) -> Stop:
        """Where a job is, or comes next."""
        return self.alike[job.name].route[self.stops[job.name]]

    def _first_stops(self) -> dict[str, list[Waiting]]:
        """The jobs that have no place by the sites to which they come first."""
        done = self.found.placed.keys() | self.held
        there = [job for job in self.jobs if job.name not in done and self.alike[job.name].route]
        self.stops = dict.fromkeys((job.name for job in there), 0)
        for name, site in self.awaited.items():
            if name in self.stops:  # first where something is launched for it
                self.stops[name] = self.alike[name].sites.index(site)
        coming: dict[str, list[Waiting]] = {}
        for job in there:
            if (first := self._next_stop(job)) is not None:
                coming.setdefault(first, []).append(job)
        return coming

    def _next_stop(self, job: Waiting) -> str | None:
        """The site to which a job comes next; None: to none now."""
        its_route, stop = self.alike[job.name].route, self.stops[job.name]
        if stop == len(its_route):
            return None
        return its_route[stop].site if stop == 0 or self._may_leave(job, its_route[stop - 1].site) else None

    def _may_leave(self, job: Waiting, name: str) -> bool:
        """Whether a job that found no room at a site may go to the next one."""
        if (full := self.groups.full(job)) is not None and not self.groups.are_at(full, name):
            return True  # nothing that comes free there is for it
        return self.awaited.get(job.name) != name and self.sites[name].lets_go(job)

    def _provide(
        self,
        site: SiteView,
        market: Market | MachineMarket,
        jobs: Sequence[Waiting],
        needs: Mapping[str, Job],
        now: float,
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
        if (stop := self._stop(job)).changes:
            self.found.stops[job.name] = stop
        if labels(job):  # few have any
            self.groups.put(job, site.name, location, is_queue=site.is_queue(location))
        if self.stops[job.name]:
            self.found.passed[job.name] = "; ".join(self._words(job))

    def _words(self, job: Waiting) -> list[str]:
        """Why the sites that a job has come to have not taken it."""
        alike, stop = self.alike[job.name], self.stops[job.name]
        if stop not in alike.words:
            alike.words[stop] = list(dict.fromkeys(self._why_not(job, each) for each in alike.route[:stop]))
        return alike.words[stop]

    def _why_not(self, job: Waiting, stop: Stop) -> str:
        site = self.sites[stop.site]
        found = self.found.provisions.get(site.name, Provision())
        if (words := found.waits.get(job.name)) is not None:
            return f"site {site.name!r}: {words}"
        refused = found.refused.get(job.name)
        return site.why_not(stop.asked(job)) if refused is None else f"site {site.name!r}: it {refused}"

    def explain(self, now: float) -> None:
        """Say why the others wait."""
        waits, turned_away = self.found.waits, self.found.turned_away
        for job in self.jobs:
            if job.name in self.held:
                waits[job.name] = None
            elif job.name in self.stops and job.name not in self.found.placed:
                waits[job.name] = self._reason(job, now)
                for name in dict.fromkeys(self.alike[job.name].sites[: self.stops[job.name]]):
                    turned_away.setdefault(name, []).append(job.name)

    def _reason(self, job: Waiting, now: float) -> str | None:
        """Why a job waits, in words; None: for its turn, or only for a moment."""
        is_late = now - job.queued_at >= SECONDS_UNTIL_EXPLAINED
        if (full := self.groups.full(job)) is not None:
            return self.groups.reason(full) if is_late else None
        alike, stop = self.alike[job.name], self.stops[job.name]
        before = alike.route[stop - 1]
        last, following = self.sites[before.site], alike.sites[stop:]
        if self.awaited.get(job.name) == last.name:
            return awaited(before.asked(job), last) if is_late else None
        if (stop, is_late) not in alike.reasons:
            words = reason(job, self._words(job), last, following, len(self.sites), is_late=is_late)
            alike.reasons[stop, is_late] = words
        return alike.reasons[stop, is_late]


def stop_at(its_route: Route, site: str) -> Stop | None:
    """The first stop of a route at a site; None: it has none there."""
    return next((stop for stop in its_route if stop.site == site), None)
