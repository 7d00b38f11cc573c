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
from lading.scheduling.matching.bindings import FILTERS, GetTargets
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.routes import least_first, nowhere, reordered, route, stop_of, through_filters
from lading.scheduling.matching.rules import RULES, Rule
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Route, Stop
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


# What jobs that are alike are called where they are to be in store, among what filters have left of their targets.
IN_STORE = ("",)
# A job that has been given to a site, and the location.
AtWork: TypeAlias = tuple[Job, str, str]


def assign(
    jobs: Sequence[Waiting],
    sites: Sequence[SiteView],
    at_work: Sequence[AtWork] = (),
    *,
    now: float,
    filters: Mapping[str, GetTargets] = FILTERS,
    rules: Sequence[Rule] = RULES,
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
    :param rules: by which jobs ask for less where nothing has room for all that they wish, in their order
    """

    def going(job: Waiting) -> _Alike:
        try:
            found = route(job, sites, rules)
        except ValueError as error:
            return _Alike((), str(error))
        return _Alike(found, "" if found else nowhere(job, sites))

    alike_of = once_per_shape(going)
    alike = {job.name: alike_of(job) for job in jobs}
    found = Assignment(refused={job.name: alike[job.name].refused for job in jobs if not alike[job.name].route})
    for job in jobs:
        if job.targets is not None and alike[job.name].route:
            try:
                alike[job.name] = alike[job.name].going(through_filters(job, alike[job.name].route, filters))
            except ValueError as error:
                found.refused[job.name], alike[job.name] = str(error), _Alike(())
    by_name = {site.name: site for site in sites}
    positions = {job.name: position for position, job in enumerate(jobs)}
    tour = _Tour(jobs, alike, positions, by_name, found, used_by_groups(jobs, at_work, by_name))
    tour.visit(lambda some, locations, limits: run_now(some, locations, limits, now=now), now)
    tour.alike = {name: each.in_store() for name, each in alike.items()}
    tour.is_decided = True
    tour.visit(lambda some, locations, limits: fill(some, machines(locations), limits, now=now), now)
    tour.explain(now)
    return found


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
    :param refused: why nowhere, in words
    :param words: why the first stops of the route do not take them now, by how many these are
    :param reasons: why they wait, in words, by that number and whether a job has waited for long
    :param others: those that are alike but for what binding filters have left, by these targets
    """

    route: Route
    refused: str = ""
    words: dict[int, list[str]] = field(default_factory=dict)
    reasons: dict[tuple[int, bool], str | None] = field(default_factory=dict)
    others: dict[tuple[str, ...], _Alike] = field(default_factory=dict)

    def going(self, targets: tuple[str, ...] | None) -> _Alike:
        """Jobs that are alike, and go to these targets in this order; None: as their route says."""
        if targets is None:
            return self
        if targets not in self.others:
            self.others[targets] = _Alike(reordered(self.route, targets))
        return self.others[targets]

    def in_store(self) -> _Alike:
        """Jobs that are alike where nothing has room for them now: in store they are with the least that will do."""
        if all(stop.rule is None for stop in self.route):
            return self
        if IN_STORE not in self.others:
            self.others[IN_STORE] = _Alike(least_first(self.route))
        return self.others[IN_STORE]

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
    :param wanting: by site, what those need for which something may be launched there, and since when
    :param is_decided: whether it is decided what is launched
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
    wanting: dict[str, dict[str, tuple[Job, float]]] = field(default_factory=dict)
    is_decided: bool = False

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
            asking = [(job, stop) for job in passing if (stop := stop_of(self.alike[job.name].route, name)) is not None]
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
            is_due = not self.is_decided and (left or name not in self.found.provisions)
            if is_due and site.market is not None and site.trouble is None:
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
        name = its_route[stop].site
        if stop == 0 or self._may_leave(job, its_route[stop - 1].site, name):
            return name
        return None

    def _may_leave(self, job: Waiting, name: str, following: str) -> bool:
        """Whether a job that found no room at a site may go to the next one, or ask for something else there."""
        if (full := self.groups.full(job)) is not None and not self.groups.are_at(full, name):
            return True  # nothing that comes free there is for it
        return self.awaited.get(job.name) != name and (following == name or self.sites[name].lets_go(job))

    def _provide(
        self,
        site: SiteView,
        market: Market | MachineMarket,
        jobs: Sequence[Waiting],
        needs: Mapping[str, Job],
        now: float,
    ) -> None:
        """Decide what is launched for jobs that found no room at a site, with those that did so before in this tick."""
        wanting = self.wanting.setdefault(site.name, {})
        for job in jobs:
            # Of those that were not looked at nothing is known but that they are alike.
            need = replace(needs[job.name], count=1 + job.hidden)
            wanting[job.name] = need, now - site.turned_away.get(job.name, 0.0)
        waiting = [need for need, _ in wanting.values()]
        since = {name: at for name, (_, at) in wanting.items()}
        limits = self.groups.limits(site.name, site.launched)
        found = decide(waiting, site.launched, market, since, limits, now=now)
        before = self.found.provisions.get(site.name, Provision()).waits
        told = {name: words for name, words in before.items() if name not in wanting}
        self.found.provisions[site.name] = replace(found, waits={**told, **found.waits})
        for name in found.waits.keys() | found.refused.keys():
            wanting.pop(name, None)  # it may come again, and ask for less
            if self.awaited.get(name) == site.name:
                del self.awaited[name]
        self.awaited |= dict.fromkeys(wanting, site.name)
        # What makes way takes nothing more.
        there = [each for each in site.locations if each.name not in found.releases]
        self.sites[site.name] = replace(site, locations=there)

    def _place(self, job: Waiting, site: SiteView, location: str) -> None:
        self.found.placed[job.name] = site.name, location
        if (stop := self._stop(job)).changes or stop.rule is not None:
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
