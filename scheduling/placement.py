"""Placement: which job goes to which location of which site. Pure; one decision over all sites.

A job goes to the first site that can ever run it. Where it finds no room there it waits for as long as that site says,
then the next one that takes jobs which name no site may have it. A job that names a site goes to no other.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from lading.scheduling.backlog import fill
from lading.scheduling.hints import dag_rules
from lading.scheduling.hints.hints import no_such_type
from lading.scheduling.plan import LAYOUT, NATIVE, Job, Location
from lading.scheduling.planner import placements
from lading.scheduling.units import format_resources, format_time

T = TypeVar("T")

# A job is told that it waits for room when it has waited for so long, not at every short wait, seconds.
SECONDS_UNTIL_EXPLAINED = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting(Job):
    """A queued job; its name is the token.

    :param site: the only one that it may go to; None: each that takes jobs which name none
    :param reason: why it waits, as far as it was told
    :param dag_id: its Dag, where some site does not take every one; None: each does, or it belongs to none
    :param is_ahead: whether jobs that should start before it may not have been looked at
    :param hides_more: whether it is the last one of its shape that was looked at, and others of it come behind it
    """

    site: str | None = None
    reason: str | None = None
    dag_id: str | None = None
    is_ahead: bool = False
    hides_more: bool = False

    @property
    def shape(self) -> tuple[Hashable, ...]:
        """What jobs have in common that are decided about in the same way."""
        asked = self.resources
        native, layout = NATIVE in self.hints, LAYOUT in self.hints
        amounts = asked.cpus, asked.memory, asked.disk, asked.gpus
        return self.dag_id, *amounts, self.site, self.instance_type, native, layout

    @property
    def rank(self) -> tuple[int, float, str]:
        """Its place among the jobs that wait."""
        return -self.priority, self.queued_at, self.name


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SiteView:
    """A site as placement sees it.

    :param locations: those that take jobs now, with what is on them, oldest first
    :param possible: all that is there in whatever state, and all that could be; empty: that is not known
    :param trouble: why it takes no jobs at all now, in words; None: it does
    :param in_trouble: seconds for which it has been so
    :param is_new: whether it has not answered yet, which it is given time for before a job goes elsewhere
    :param takes_unnamed: whether it takes jobs that name no site
    :param burst_after: seconds after which a job that names no site, and finds no room here, may go to the next site
    :param allowed_dags: patterns of the Dags that it takes; None: every Dag
    """

    name: str
    locations: Sequence[Location] = ()
    possible: Sequence[Location] = ()
    trouble: str | None = None
    in_trouble: float = 0.0
    is_new: bool = False
    takes_unnamed: bool = True
    burst_after: float = 0.0
    allowed_dags: Sequence[str] | None = None

    def may_run(self, job: Job) -> bool:
        """Whether it could ever run a job, busy or not."""
        return not self.possible or any(each.suits(job) for each in self.possible)

    def lets_go(self, job: Job, now: float) -> bool:
        """Whether a job that found no room here may go to the next site."""
        return not self.is_new and max(now - job.queued_at, self.in_trouble) >= self.burst_after


@dataclass(slots=True)
class Assignment:
    """Where jobs go, by their names.

    :param placed: the site and the location
    :param passed: of those that another site should have had: why it did not, in words
    :param waits: why a job waits, in words; None: for its turn
    :param refused: why no site can ever run a job, in words
    """

    placed: dict[str, tuple[str, str]] = field(default_factory=dict)
    passed: dict[str, str] = field(default_factory=dict)
    waits: dict[str, str | None] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)


def assign(jobs: Sequence[Waiting], sites: Sequence[SiteView], *, now: float) -> Assignment:
    """Give waiting jobs to the sites that have room.

    :param jobs: in the order in which they should start
    :param sites: all of them, in their order
    :param now: epoch seconds
    """
    found = Assignment()
    route_of = once_per_shape(lambda job: route(job, sites))
    why_none = once_per_shape(lambda job: refusal(job, sites))
    come: dict[str, list[int]] = {site.name: [] for site in sites}
    before: dict[int, list[str]] = {}
    routes = [route_of(job) for job in jobs]
    for number, (job, its_route) in enumerate(zip(jobs, routes, strict=True)):
        if its_route:
            come[its_route[0].name].append(number)
        else:
            found.refused[job.name] = why_none(job)
    for site in sites:
        numbers = sorted(come[site.name])
        placed = place([jobs[number] for number in numbers], site, now=now)
        trouble = site.trouble or full(site)
        words = trouble or f"site {site.name!r} has no room"
        for number in numbers:
            job = jobs[number]
            if (location := placed.get(job.name)) is not None:
                found.placed[job.name] = site.name, location
                if number in before:
                    found.passed[job.name] = "; ".join(before[number])
                continue
            following = routes[number][routes[number].index(site) + 1 :]
            before.setdefault(number, []).append(words)
            if following and site.lets_go(job, now):
                come[following[0].name].append(number)
            else:
                young = trouble is None and now - job.queued_at < SECONDS_UNTIL_EXPLAINED
                found.waits[job.name] = None if young else reason(job, before[number], site, following)
    return found


def once_per_shape(decide: Callable[[Waiting], T]) -> Callable[[Waiting], T]:
    """A decision that thousands of jobs share which are alike."""
    made: dict[tuple[Hashable, ...], T] = {}

    def decided(job: Waiting) -> T:
        shape = job.shape
        if shape not in made:
            made[shape] = decide(job)
        return made[shape]

    return decided


def asked(job: Waiting, sites: Sequence[SiteView]) -> list[SiteView]:
    """The sites that a job may go to."""
    return [site for site in sites if (site.name == job.site if job.site else site.takes_unnamed)]


def route(job: Waiting, sites: Sequence[SiteView]) -> list[SiteView]:
    """The sites that may ever run a job, in the order in which it goes to them; empty: none can."""
    return [site for site in open_to(job, asked(job, sites)) if site.may_run(job)]


def open_to(job: Waiting, sites: Iterable[SiteView]) -> list[SiteView]:
    """Those that take jobs of its Dag."""
    return [site for site in sites if dag_rules.takes(site.allowed_dags, job.dag_id)]


def reason(job: Waiting, words: Sequence[str], site: SiteView, following: Sequence[SiteView]) -> str | None:
    """Why a job waits, in words; None: for its turn at the only site that there is for it.

    :param words: why the sites that it came to have not taken it
    :param site: the last one of these
    :param following: those that it may go to later
    """
    is_busy = site.trouble is None and full(site) is None
    if is_busy and len(words) == 1 and not following and not job.site:
        return None
    said = "; ".join(words)
    if following and not site.is_new:
        then = f"after {format_time(int(site.burst_after))} it may go to site {following[0].name!r} (burst_after)"
        return f"waits: {said}; {then}"
    return f"waits: {said}, and its hint site names no other" if is_busy and job.site else f"waits: {said}"


def refusal(job: Waiting, sites: Sequence[SiteView]) -> str:
    """Why no site can ever run a job."""
    names = [site.name for site in sites]
    if job.site and job.site not in names:
        return f"there is no site {job.site!r}; the sites are: {', '.join(names)}"
    its_own = asked(job, sites)
    takers = open_to(job, its_own)
    if its_own and not takers:
        words = dag_rules.refusal([(site.name, site.allowed_dags) for site in its_own], job.dag_id or "")
    else:
        words = unsuited(job, takers) if its_own else "it names no site"
    others = [site.name for site in sites if site not in its_own]
    if job.site or not others:
        return words
    some = f"only {', '.join(site.name for site in its_own)}" if its_own else "no site"
    return f"{words}; {some} may run tasks that name no site: name one of {', '.join(others)} with the hint site"


def unsuited(job: Job, sites: Sequence[SiteView]) -> str:
    """Why no location of these sites can ever run a job, named by the location that comes closest."""
    places = [(site.name, location) for site in sites for location in site.possible]
    names = ", ".join(repr(site.name) for site in sites)
    for hint, words in (
        (NATIVE, "its hints queue and native are for a batch system"),
        (LAYOUT, "its hints nodes, ppn and threads are for a batch site with mode = 'job'"),
    ):
        if hint in job.hints:
            places = [each for each in places if hint in each[1].hints]
            if not places:
                return f"{words}, which {names} is not; name another site"
    if job.instance_type is not None:
        types = {location.instance_type for _, location in places if location.instance_type}
        places = [each for each in places if each[1].instance_type == job.instance_type]
        if not places:
            return no_such_type(job.instance_type, types)
    site, closest = min(places, key=lambda each: len(job.resources.lacking(each[1].capacity)))
    lacking = " and ".join(job.resources.lacking(closest.capacity))
    return (
        f"asks for {format_resources(job.resources)}, more than any site can ever give: the closest location, "
        f"{closest.name!r} of site {site!r}, has {format_resources(closest.capacity)}, too little {lacking}"
    )


def place(jobs: Sequence[Waiting], site: SiteView, *, now: float) -> dict[str, str]:
    """The location of each job that one of the site's locations takes now, by the job's name."""
    if site.trouble is not None:
        return {}
    machines = [each for each in site.locations if each.max_jobs is None]
    placed = fill_up(jobs, machines, now=now)
    rest = [job for job in jobs if job.name not in placed]
    placed |= queue_up(rest, [each for each in site.locations if each.max_jobs is not None])
    return in_turn(jobs, placed, site.locations)


def in_turn(jobs: Sequence[Waiting], placed: Mapping[str, str], locations: Sequence[Location]) -> dict[str, str]:
    """What may be placed of this now: nothing goes where jobs that come before it could go next.

    That is so where a location has taken all jobs of a shape that were looked at and there are more of them. Their
    turn is the next tick.
    """
    kept: dict[str, str] = {}
    closed: set[str] = set()
    for job in jobs:
        location = placed.get(job.name)
        if location is None:
            continue
        if not (job.is_ahead and location in closed):
            kept[job.name] = location
        if job.hides_more:
            closed.update(each.name for each in locations if each.name not in closed and each.suits(job))
    return kept


def fill_up(jobs: Sequence[Job], machines: Sequence[Location], *, now: float) -> dict[str, str]:
    """The machine of each job that one takes now, by the job's name.

    What a machine can run at once is the planner's choice; behind that each gets a store of jobs to start by itself the
    moment there is room.
    """
    if not (jobs and machines):
        return {}
    placed = {each.job: each.location for each in placements(jobs, machines, now=now)}
    given: dict[str, list[Job]] = {}
    for job in jobs:
        if job.name in placed:
            given.setdefault(placed[job.name], []).append(job)
    rest = [job for job in jobs if job.name not in placed]
    return placed | fill(rest, [each.given(given.get(each.name, ())) for each in machines], now=now)


def queue_up(jobs: Sequence[Waiting], queues: Sequence[Location]) -> dict[str, str]:
    """The queue of each job that one takes now, by the job's name: each takes its number of jobs, in their order."""
    left = {each.name: (each.max_jobs or 0) - each.jobs for each in queues}
    placed: dict[str, str] = {}
    for job in jobs if queues else ():
        suiting = (each for each in queues if each.suits(job))
        if (name := next((each.name for each in suiting if left[each.name] > 0), None)) is not None:
            placed[job.name] = name
            left[name] -= 1
    return placed


def full(site: SiteView) -> str | None:
    """Why jobs wait that the queues of a site do not take; None: it has no queues."""
    most = sum(each.max_jobs or 0 for each in site.locations)
    return f"site {site.name!r} has {most} jobs already (max_jobs)" if most else None
