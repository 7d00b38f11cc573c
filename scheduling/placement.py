"""Placement: which job goes to which location of which site. Pure; one decision over all sites.

A job goes to the first site that can ever run it. Where it finds no room there it waits for as long as that site says,
then the next one that takes jobs which name no site may have it. A job that names a site goes to no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lading.scheduling.backlog import fill
from lading.scheduling.groups import Allowance, Machines, labels
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView, refusal, route
from lading.scheduling.matching.waiting import Waiting, once_per_shape
from lading.scheduling.plan import Job, Limits, Location
from lading.scheduling.planner import placements
from lading.scheduling.provisioning import Provision, decide
from lading.scheduling.units import format_time

# Seconds for which a job must have waited before it is given a reason: short waits are not worth one.
SECONDS_UNTIL_EXPLAINED = 10.0


@dataclass(slots=True)
class Assignment:
    """Where jobs go, by their names.

    :param placed: the site and the location
    :param passed: of those that another site should have had: why it has not taken them, in words
    :param waits: why a job waits, in words; None: for its turn
    :param turned_away: by site, the jobs that found no room there
    :param refused: why no site can ever run a job, in words
    :param provisions: by site, what is launched and released there
    """

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str | None] = field(default_factory=dict)
    turned_away: dict[str, list[str]] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    provisions: dict[str, Provision] = field(default_factory=dict)


# Finds a location for each job that one takes now, by the job's name, within limits of tasks and runs.
Filling: TypeAlias = Callable[[Sequence[Job], Sequence[Location], Limits], dict[str, str]]
# A job that has been given to a site, and the location.
AtWork: TypeAlias = tuple[Job, str, str]


def assign(
    jobs: Sequence[Waiting], sites: Sequence[SiteView], at_work: Sequence[AtWork] = (), *, now: float
) -> Assignment:
    """Give waiting jobs to the sites that have room.

    First all sites get what they can run at once, then what they have in store: so no job lies behind others at one
    site while the next one is idle. What is launched is decided in between, as if what is in store had no place: a job
    waits for that, and goes to no other site.

    :param jobs: in the order in which they should start
    :param sites: all of them, in their order
    :param at_work: the jobs of groups whose machines are limited that sites have been given and that have not ended
    :param now: epoch seconds
    """
    alike_of = once_per_shape(lambda job: _Alike(tuple(site.name for site in route(job, sites))))
    why_none = once_per_shape(lambda job: refusal(job, sites))
    alike = {job.name: alike_of(job) for job in jobs}
    found = Assignment(refused={job.name: why_none(job) for job in jobs if not alike[job.name].route})
    by_name = {site.name: site for site in sites}
    positions = {job.name: position for position, job in enumerate(jobs)}
    tour = _Tour(jobs, alike, positions, by_name, found, used_by_groups(jobs, at_work, by_name))
    tour.visit(lambda some, locations, limits: run_now(some, locations, limits, now=now), now)
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

    :param route: the sites that may ever run them
    :param words: why the first sites of the route do not take them now, by how many these are
    :param reasons: why they wait, in words, by that number and whether a job has waited for long
    """

    route: tuple[str, ...]
    words: dict[int, list[str]] = field(default_factory=dict)
    reasons: dict[tuple[int, bool], str | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Tour:
    """The way of jobs from site to site.

    :param alike: what a job is one of, by its name
    :param positions: of a job among all, by its name
    :param sites: by name, with what they were given
    :param groups: on which machines the jobs of limited groups are
    :param stops: how many sites have turned a job away, by its name
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
        for name, site in self.sites.items():
            here = sorted(coming[name], key=lambda job: self.positions[job.name])
            needs = {job.name: site.need(job) for job in here}
            limits = self.groups.limits(name, site.locations)
            taken = filling(list(needs.values()), site.locations, limits) if here and site.trouble is None else {}
            passing = [job for job in self.jobs if job.hidden or job.name in taken]
            passing = [job for job in passing if name in self.alike[job.name].route]
            kept = in_turn([(job, needs.get(job.name) or site.need(job)) for job in passing], taken, site.locations)
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
                    coming[following].append(job)

    def _first_stops(self) -> dict[str, list[Waiting]]:
        """The jobs that have no place by the sites to which they come first."""
        done = self.found.placed.keys() | self.held
        there = [job for job in self.jobs if job.name not in done and self.alike[job.name].route]
        self.stops = dict.fromkeys((job.name for job in there), 0)
        for name, site in self.awaited.items():
            if name in self.stops:  # first where something is launched for it
                self.stops[name] = self.alike[name].route.index(site)
        coming: dict[str, list[Waiting]] = {name: [] for name in self.sites}
        for job in there:
            if (first := self._next_stop(job)) is not None:
                coming[first].append(job)
        return coming

    def _next_stop(self, job: Waiting) -> str | None:
        """The site to which a job comes next; None: to none now."""
        its_route, stop = self.alike[job.name].route, self.stops[job.name]
        if stop == len(its_route):
            return None
        return its_route[stop] if stop == 0 or self._may_leave(job, its_route[stop - 1]) else None

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
        if labels(job):  # few have any
            self.groups.put(job, site.name, location, is_queue=site.is_queue(location))
        if self.stops[job.name]:
            self.found.passed[job.name] = "; ".join(self._words(job))

    def _words(self, job: Waiting) -> list[str]:
        """Why the sites that a job has come to have not taken it."""
        alike, stop = self.alike[job.name], self.stops[job.name]
        if stop not in alike.words:
            alike.words[stop] = [self._why_not(job, self.sites[name]) for name in alike.route[:stop]]
        return alike.words[stop]

    def _why_not(self, job: Waiting, site: SiteView) -> str:
        found = self.found.provisions.get(site.name, Provision())
        if (words := found.waits.get(job.name)) is not None:
            return f"site {site.name!r}: {words}"
        refused = found.refused.get(job.name)
        return site.why_not(job) if refused is None else f"site {site.name!r}: it {refused}"

    def explain(self, now: float) -> None:
        """Say why the others wait."""
        waits, turned_away = self.found.waits, self.found.turned_away
        for job in self.jobs:
            if job.name in self.held:
                waits[job.name] = None
            elif job.name in self.stops and job.name not in self.found.placed:
                waits[job.name] = self._reason(job, now)
                for name in self.alike[job.name].route[: self.stops[job.name]]:
                    turned_away.setdefault(name, []).append(job.name)

    def _reason(self, job: Waiting, now: float) -> str | None:
        """Why a job waits, in words; None: for its turn, or only for a moment."""
        is_late = now - job.queued_at >= SECONDS_UNTIL_EXPLAINED
        if (full := self.groups.full(job)) is not None:
            return self.groups.reason(full) if is_late else None
        alike, stop = self.alike[job.name], self.stops[job.name]
        last, following = self.sites[alike.route[stop - 1]], alike.route[stop:]
        if self.awaited.get(job.name) == last.name:
            return awaited(job, last) if is_late else None
        if (stop, is_late) not in alike.reasons:
            words = reason(job, self._words(job), last, following, len(self.sites), is_late=is_late)
            alike.reasons[stop, is_late] = words
        return alike.reasons[stop, is_late]


def awaited(job: Waiting, site: SiteView) -> str | None:
    """What a job waits for at a site that launches what it needs, in words; None: only for a moment."""
    words = site.coming(job)
    return None if words is None else f"waits: {words}"


def reason(
    job: Waiting, words: Sequence[str], last: SiteView, following: Sequence[str], sites: int, *, is_late: bool
) -> str | None:
    """Why a job waits, in words; None: for its turn, or only for a moment.

    :param words: why the sites that it came to have not taken it
    :param last: the last one of these
    :param following: those to which it may go later
    :param sites: how many there are
    :param is_late: whether it has waited for so long that it is worth a reason
    """
    is_busy = words[-1] == last.no_room
    is_only = len(words) == 1 and not following and (sites == 1 or not job.site)
    if is_busy and (is_only or not is_late):
        return None
    said = "; ".join(words)
    if following and not last.is_new:
        then = f"after {format_time(int(last.burst_after))} it may go to site {following[0]!r} (burst_after)"
        return f"waits: {said}; {then}"
    return f"waits: {said}; its hint site allows no other" if is_busy and job.site else f"waits: {said}"


def in_turn(
    jobs: Sequence[tuple[Waiting, Job]], taken: Mapping[str, str], locations: Sequence[Location]
) -> dict[str, str]:
    """What of this may be placed now: nothing goes where jobs that come before it could go next.

    That is so where there are more jobs of a shape than were looked at. Their turn is the next tick.

    :param jobs: those that are taken, and the last of each such shape, in the order in which they should start, each
        with what it takes there
    :param taken: the location of each job that one takes, by the job's name
    """
    kept: dict[str, str] = {}
    closed: set[str] = set()
    for job, need in jobs:
        location = taken.get(job.name)
        if location is not None and not (job.is_ahead and location in closed):
            kept[job.name] = location
        if job.hidden:
            closed.update(each.name for each in locations if each.name not in closed and each.suits(need))
    return kept


def machines(locations: Sequence[Location]) -> list[Location]:
    """Those that their capacity fills; the others are queues."""
    return [each for each in locations if each.max_jobs is None]


def run_now(
    jobs: Sequence[Job],
    locations: Sequence[Location],
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    *,
    now: float,
) -> dict[str, str]:
    """The location of each job that a machine can run at once, which is the planner's choice, or that a queue takes.

    :param limits: on how many of these locations jobs of a task or a run may be
    """
    there = machines(locations)
    placed = {each.job: each.location for each in placements(jobs, there, limits, now=now)} if jobs and there else {}
    allowance = Allowance(limits, there)
    for job in jobs:
        if job.name in placed:
            allowance.put(job, placed[job.name])
    rest = [job for job in jobs if job.name not in placed]
    return placed | queue_up(rest, [each for each in locations if each.max_jobs is not None], allowance, now=now)


def queue_up(jobs: Sequence[Job], queues: Sequence[Location], allowance: Allowance, *, now: float) -> dict[str, str]:
    """The queue of each job that one takes now, by the job's name: each takes its number of jobs, in their order.

    :param allowance: what is left of the limits of groups, of which each job uses as many machines as it has nodes
    """
    left = {each.name: (each.max_jobs or 0) - each.jobs for each in queues}
    placed: dict[str, str] = {}
    for job in jobs if queues else ():
        suiting = (each for each in queues if each.suits(job) and each.lasts(job.time, now))
        name = None if allowance.full(job) else next((each.name for each in suiting if left[each.name] > 0), None)
        if name is not None:
            placed[job.name] = name
            left[name] -= 1
            allowance.put(job, *(f"{name} {job.name} {number}" for number in range(job.nodes)))
    return placed
