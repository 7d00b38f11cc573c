"""Dispatch: from what waits and what sites answered to what is to be done. The decisions here are pure."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import select

from lading.executors.store import groups, shapes, store
from lading.executors.store.store import Change, Job, State
from lading.hooks.batch.site_rules import SiteRules, refusal
from lading.hooks.site import Place
from lading.hooks.spool.spool import Envelope
from lading.scheduling.backlog import Stocked, fill
from lading.scheduling.hints.hints import no_such_type
from lading.scheduling.plan import Job as Planned
from lading.scheduling.plan import Location as Machine
from lading.scheduling.planner import placements
from lading.scheduling.resources import Resources
from lading.scheduling.units import format_resources

if TYPE_CHECKING:
    from sqlalchemy import Row
    from sqlalchemy.orm import Session

T = TypeVar("T")

# So many waiting jobs are looked at in one tick in the order in which they should start, and so many again of those
# behind them: some of each shape, so that none hides another.
MOST_JOBS_PER_TICK = 1000
# A location of short jobs has so many in store for each that it runs, at most.
MOST_AHEAD = 2
# A job that its site does not know may be between two of its files, or its news may be on the way.
SECONDS_UNTIL_REPEATED = 5.0
SECONDS_UNTIL_LOST = 30.0
# What a site has and the store does not want: another database, or a job that was given up too early.
SECONDS_UNTIL_STRANGE = 60.0
STRANGE = "Lading does not know this job (any more)"

BEHIND_OTHERS = "waits for its turn: jobs with a higher priority or an earlier arrival come first"


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits(Planned):
    """A queued job, as the planner sees it and as far as dispatch needs it; its name is the token.

    :param is_native: whether it has hints in the words of a batch system, so that no other site can run it
    :param has_layout: whether it has nodes, ppn and threads, which only a batch job of its own can have
    :param dag_id: its Dag, where some site does not take every one; None: each does, or it belongs to none
    :param is_ahead: whether jobs that should start before it may not have been looked at
    :param hides_more: whether it is the last one of its shape that was looked at, and others of it come behind it
    """

    site_hint: str | None = None
    reason: str | None = None
    is_native: bool = False
    has_layout: bool = False
    dag_id: str | None = None
    is_ahead: bool = False
    hides_more: bool = False

    @property
    def token(self) -> str:
        return self.name

    @property
    def kind(self) -> tuple[Hashable, ...]:
        """Its shape, as :mod:`lading.executors.store.shapes` has it."""
        asked = self.resources
        amounts = asked.cpus, asked.memory, asked.disk, asked.gpus
        return self.dag_id, *amounts, self.site_hint, self.instance_type, self.is_native, self.has_layout

    @property
    def rank(self) -> tuple[int, float, str]:
        """Its place among the jobs that wait."""
        return -self.priority, self.queued_at, self.token


@dataclass(frozen=True, slots=True)
class Given:
    """A job that a site has been given and that has not ended."""

    token: str
    state: str
    resources: Resources
    location: str | None
    expires_at: float | None
    cancel: str | None


@dataclass(frozen=True, slots=True)
class Room:
    """A site's locations and the jobs that it has been given.

    :param ahead: how many jobs a location may have in store, by its name, where its jobs are short
    """

    site: str
    places: tuple[Place, ...]
    jobs: tuple[Given, ...]
    ahead: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to be done in this tick.

    :param changes: what is recorded before anything is done
    :param placed: the tokens that each site is given (again)
    :param cancels: by site, the tokens of jobs to end, each with the reason in words
    :param more_waiting: whether there may be waiting jobs that nobody looked at
    """

    changes: tuple[Change, ...] = ()
    placed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cancels: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    more_waiting: bool = False

    def with_changes(self, changes: Iterable[Change]) -> Decision:
        return replace(self, changes=(*self.changes, *changes))

    def with_repeats(self, site: str, tokens: Iterable[str]) -> Decision:
        repeated = (*self.placed.get(site, ()), *tokens)
        return replace(self, placed={**self.placed, site: repeated})

    def with_cancels(self, site: str, messages: Mapping[str, str]) -> Decision:
        return replace(self, cancels={**self.cancels, site: messages}) if messages else self


def waiting(session: Session, turn: int = 0, *, by_dag: bool = False) -> list[Waits]:
    """The jobs to be placed, in the order in which they should start; of a group with a limit as many as may start.

    :param turn: of more shapes than can be looked at together each turn has others
    :param by_dag: whether some site does not take every Dag
    """
    rows = session.execute(groups.in_order(groups.UNLIMITED).limit(MOST_JOBS_PER_TICK))
    found = [as_waits(row, by_dag) for row in rows]
    limited = [as_waits(row, by_dag) for row in groups.may_start(session, MOST_JOBS_PER_TICK)]
    if len(found) == MOST_JOBS_PER_TICK:
        end = found[-1].rank
        found = with_all_shapes(session, found, turn, by_dag)
        limited = [replace(job, is_ahead=job.rank > end) for job in limited]
    return sorted(found + limited, key=lambda job: job.rank)


def with_all_shapes(session: Session, first: Sequence[Waits], turn: int, by_dag: bool) -> list[Waits]:
    """The first jobs that wait and some of each shape behind them, marked where others between them were left out."""
    totals, seen = shapes.totals(session, by_dag), Counter(job.kind for job in first)
    share = max(1, MOST_JOBS_PER_TICK // max(1, len(totals)))
    found = list(first)
    if any(seen[shape] < min(total, share) for shape, total in totals.items()):
        page = turn % -(-len(totals) // MOST_JOBS_PER_TICK)
        others = shapes.of_each(session, by_dag, share, MOST_JOBS_PER_TICK, page)
        end = first[-1].rank
        found += [replace(job, is_ahead=True) for row in others if (job := as_waits(row, by_dag)).rank > end]
    seen = Counter(job.kind for job in found)
    last = {job.kind: index for index, job in enumerate(found)}
    for shape, index in last.items():
        if seen[shape] < totals.get(shape, 0):
            found[index] = replace(found[index], hides_more=True)
    return found


def as_waits(row: Row[Any], by_dag: bool) -> Waits:
    """A row of the query for jobs that can be placed.

    :param by_dag: whether some site does not take every Dag
    """
    return Waits(
        name=row.token,
        resources=Resources(row.cpus, row.memory, row.disk, row.gpus),
        priority=row.priority,
        queued_at=row.queued_at,
        instance_type=row.instance_type,
        site_hint=row.site_hint,
        reason=row.reason,
        is_native=row.queue_hint is not None or row.native_hint is not None,
        has_layout=row.nodes is not None,
        dag_id=row.dag_id if by_dag else None,
    )


def given(session: Session, site: str) -> list[Given]:
    """The jobs that a site has been given and that have not ended."""
    amounts = (Job.cpus, Job.memory, Job.disk, Job.gpus)
    rows = session.execute(
        select(Job.token, Job.state, *amounts, Job.location, Job.expires_at, Job.cancel).where(
            Job.site == site, Job.state.in_((State.PLACED, State.RUNNING))
        )
    )
    return [
        Given(token, state, Resources(cpus, memory, disk, gpus), location, expires_at, cancel)
        for token, state, cpus, memory, disk, gpus, location, expires_at, cancel in rows
    ]


def to_send(session: Session, tokens: Sequence[str]) -> list[Job]:
    """The rows of placed jobs; one that ended meanwhile is not among them."""
    return [
        job
        for chunk in store.chunks(tokens)
        for job in session.scalars(select(Job).where(Job.token.in_(chunk), Job.state == State.PLACED))
    ]


def assign(
    jobs: Sequence[Waits],
    rooms: Sequence[Room],
    sites: Sequence[str],
    now: float,
    silent: Mapping[str, str] = MappingProxyType({}),
    unnamed: Sequence[str] | None = None,
    late: Container[str] = frozenset(),
    rules: Mapping[str, SiteRules] = MappingProxyType({}),
) -> Decision:
    """Give waiting jobs to the sites that have room; a job that can never run anywhere fails with the reason.

    :param rooms: of the sites that have ever been asked
    :param sites: all sites
    :param silent: the sites that could not be asked, each with the reason in words
    :param unnamed: the sites that take jobs which name none, the first that can run one before the others; None: all
    :param late: the sites in trouble for which such jobs wait no longer where another takes them
    :param rules: of the sites that do not take every Dag
    """
    by_site = {room.site: room for room in rooms}
    choice = Choice(by_site, sites, sites if unnamed is None else unnamed, silent, late, rules)
    for_site: dict[str, list[Waits]] = {site: [] for site in sites}
    changes: list[Change] = []
    site_of = once_per_kind(choice.site_of)
    for job in jobs:
        site = site_of(job)
        if site is not None:
            for_site[site].append(job)
        else:
            changes.append(refused(job, choice.why_none(job), now))
    decision = Decision(more_waiting=bool(jobs))
    for site, its_jobs in for_site.items():
        room = by_site.get(site)
        words = trouble(site, room, silent)
        if words is not None or room is None:
            changes += [change for job in its_jobs for change in blocked(job, words or "")]
            continue
        placed = place(its_jobs, room, now)
        if (words := full(room)) is not None:
            waiting = (job for job in its_jobs if job.token not in placed)
            changes += [change for job in waiting for change in blocked(job, words)]
        changes += [placement(token, site, location, now) for token, location in placed.items()]
        decision = decision.with_repeats(site, placed)
    return decision.with_changes(changes)


def once_per_kind(decide: Callable[[Waits], T]) -> Callable[[Waits], T]:
    """A decision that thousands of jobs share which are alike."""
    made: dict[tuple[Hashable, ...], T] = {}

    def decided(job: Waits) -> T:
        kind = job.kind
        if kind not in made:
            made[kind] = decide(job)
        return made[kind]

    return decided


@dataclass(frozen=True, slots=True)
class Choice:
    """Which site a job goes to, or waits for.

    :param rooms: of the sites that have ever been asked; the other parameters as in :func:`assign`
    """

    rooms: Mapping[str, Room]
    sites: Sequence[str]
    unnamed: Sequence[str]
    silent: Container[str]
    late: Container[str]
    rules: Mapping[str, SiteRules]

    def asked(self, job: Waits) -> Sequence[str]:
        """The sites that the job may go to, the first one first."""
        return [job.site_hint] if job.site_hint else self.unnamed

    def site_of(self, job: Waits) -> str | None:
        """The first site that can run a job, as far as is known; None: none ever can."""
        asked = [site for site in self.asked(job) if site in self.sites and self._takes(job, site)]
        fitting = [site for site in asked if self._may_fit(job, site)]
        # One that could not be asked may have grown.
        fitting = fitting or [site for site in asked if site in self.silent]
        return min(fitting, key=lambda site: site in self.late, default=None)

    def _takes(self, job: Waits, site: str) -> bool:
        """Whether the site takes tasks of the job's Dag."""
        return site not in self.rules or self.rules[site].takes(job.dag_id)

    def _may_fit(self, job: Waits, site: str) -> bool:
        """Whether a site could run the job, now or later; one that has no locations now may have some."""
        room = self.rooms.get(site)
        return room is None or not room.places or fits(job, room)

    def why_none(self, job: Waits) -> str:
        """Why no site can ever run the job."""
        if job.site_hint and job.site_hint not in self.sites:
            return f"there is no site {job.site_hint!r}; the sites are: {', '.join(self.sites)}"
        asked = self.asked(job)
        open_to_it = [site for site in asked if self._takes(job, site)]
        if asked and not open_to_it:
            words = refusal([(site, self.rules[site]) for site in asked], job.dag_id or "")
        else:
            words = unsuited(job, [self.rooms[site] for site in open_to_it]) if asked else "it names no site"
        others = [site for site in self.sites if site not in asked]
        if job.site_hint or not others:
            return words
        takers = f"only {', '.join(asked)}" if asked else "no site"
        return f"{words}; {takers} may run tasks that name no site: name one of {', '.join(others)} with the hint site"


def place(jobs: Sequence[Waits], room: Room, now: float) -> dict[str, str]:
    """The location of each job that one of the site's locations takes now, by token."""
    usable = [each for each in room.places if each.is_usable]
    is_queue = any(each.max_jobs is not None for each in usable)
    placed = queue_up(jobs, usable, room.jobs) if is_queue else fill_up(jobs, usable, room, now)
    return in_turn(jobs, placed, usable)


def in_turn(jobs: Sequence[Waits], placed: Mapping[str, str], places: Sequence[Place]) -> dict[str, str]:
    """What may be placed of this now, by token: nothing goes where jobs that come before it could go next.

    That is so where a location has taken all jobs of a shape that were looked at and there are more of them. Their
    turn is the next tick.
    """
    kept: dict[str, str] = {}
    closed: set[str] = set()
    for job in jobs:
        location = placed.get(job.token)
        if location is None:
            continue
        if not (job.is_ahead and location in closed):
            kept[job.token] = location
        if job.hides_more:
            closed.update(place.name for place in places if place.name not in closed and suits(place, job))
    return kept


def fill_up(jobs: Sequence[Waits], usable: Sequence[Place], room: Room, now: float) -> dict[str, str]:
    """The location of each job that a machine takes now, by token.

    What a location can run at once is the planner's choice; behind that each location gets a store of jobs to start
    by itself the moment there is room.
    """
    stocks = {each.name: stocked(each, room.jobs, room.ahead.get(each.name, 0)) for each in usable}
    planned = placements(jobs, [machine(stock) for stock in stocks.values()], now=now)
    placed = {each.job: each.location for each in planned}
    asked = {job.token: job.resources for job in jobs}
    for token, location in placed.items():
        stocks[location] = replace(stocks[location], stored=(*stocks[location].stored, asked[token]))
    rest = [(job.token, job.resources) for job in jobs if job.token not in placed]
    types = {job.token: job.instance_type for job in jobs if job.instance_type}
    return placed | fill(rest, list(stocks.values()), types)


def machine(stock: Stocked) -> Machine:
    """A location as the planner sees it."""
    used = sum(stock.stored, stock.running)
    return Machine(stock.name, stock.capacity, used, instance_type=stock.instance_type)


def queue_up(jobs: Sequence[Waits], queues: Sequence[Place], given: Sequence[Given]) -> dict[str, str]:
    """The queue of each job that one takes now, by token: each takes its number of jobs, in the jobs' order."""
    left = {each.name: (each.max_jobs or 0) - sum(job.location == each.name for job in given) for each in queues}
    placed: dict[str, str] = {}
    for job in jobs:
        suiting = (each for each in queues if suits(each, job))
        if (name := next((each.name for each in suiting if left[each.name] > 0), None)) is not None:
            placed[job.token] = name
            left[name] -= 1
    return placed


def full(room: Room) -> str | None:
    """Why the jobs wait that the queues of a site do not take; None: it has no queues."""
    most = sum(place.max_jobs or 0 for place in room.places)
    return f"waits: site {room.site!r} has {most} jobs already (max_jobs)" if most else None


def stocked(place: Place, jobs: Iterable[Given], ahead: int) -> Stocked:
    """A location with what it has been given.

    :param ahead: how many jobs it may have in store since its jobs are short; the next ones may be long
    """
    here = [job for job in jobs if job.location == place.name]
    running = [job.resources for job in here if job.state == State.RUNNING]
    stored = tuple(job.resources for job in here if job.state == State.PLACED)
    used = sum(running, Resources())
    most = MOST_AHEAD * len(running)
    return Stocked(place.name, place.capacity, used, stored, place.instance_type, min(ahead, most))


def fits(job: Waits, room: Room) -> bool:
    """Whether the job can ever run at one of the site's locations, busy or not."""
    return any(suits(place, job) for place in room.places)


def suits(place: Place, job: Waits) -> bool:
    """Whether a job can ever run at a location."""
    understood = (place.is_batch or not job.is_native) and (place.takes_layouts or not job.has_layout)
    return understood and place.suits(job.resources, job.instance_type)


def unsuited(job: Waits, rooms: Sequence[Room]) -> str:
    """Why no location of these sites can ever run this job, named by the location that comes closest."""
    places = [(room.site, place) for room in rooms for place in room.places]
    if job.is_native:
        places = [each for each in places if each[1].is_batch]
        if not places:
            sites = ", ".join(repr(room.site) for room in rooms)
            return f"its hints queue and native are for a batch system, which {sites} is not; name another site"
    if job.has_layout:
        places = [each for each in places if each[1].takes_layouts]
        if not places:
            sites = ", ".join(repr(room.site) for room in rooms)
            return (
                "its hints nodes, ppn and threads are for a batch site with mode = 'job', "
                f"which {sites} is not; name another site"
            )
    if job.instance_type is not None:
        places = [each for each in places if each[1].instance_type == job.instance_type]
        if not places:
            types = {place.instance_type for room in rooms for place in room.places if place.instance_type}
            return no_such_type(job.instance_type, types)
    site, closest = min(places, key=lambda each: len(job.resources.lacking(each[1].capacity)))
    lacking = " and ".join(job.resources.lacking(closest.capacity))
    return (
        f"asks for {format_resources(job.resources)}, more than any site can ever give: the closest location, "
        f"{closest.name!r} of site {site!r}, has {format_resources(closest.capacity)}, too little {lacking}"
    )


def refused(job: Waits, reason: str, now: float) -> Change:
    """The end of a job that can never run."""
    values = {"state": State.FAILED, "cause": "error", "reason": reason, "ended_at": now}
    return Change(job.token, values, report=True)


def placement(token: str, site: str, location: str, now: float) -> Change:
    """The intent to run a job at a location."""
    values = {"state": State.PLACED, "site": site, "location": location, "placed_at": now, "reason": None}
    return Change(token, values)


def trouble(site: str, room: Room | None, silent: Mapping[str, str]) -> str | None:
    """Why a site takes no jobs at all now; None: it does."""
    if site in silent:
        return f"waits: site {site!r} could not be asked: {silent[site]}"
    places = room.places if room is not None else ()
    if any(place.is_usable for place in places):
        return None
    notes = "; ".join(place.note for place in places if place.note)
    return f"waits: site {site!r} takes no jobs now: {notes or 'it has no locations'}"


def blocked(job: Waits, reason: str) -> list[Change]:
    """The reason of a job for its waiting, where it has changed."""
    return [Change(job.token, {"reason": reason}, report=True)] if job.reason != reason else []


@dataclass(slots=True)
class Absence:
    """Since when something has been missing, on a clock that never jumps."""

    since: dict[str, float] = field(default_factory=dict)

    def look(self, missing: Iterable[str]) -> dict[str, float]:
        """For each token that is missing now: for how many seconds it has been. The others are forgotten."""
        now = time.monotonic()
        self.since = {token: self.since.get(token, now) for token in missing}
        return {token: now - at for token, at in self.since.items()}


def lost(jobs: Iterable[Given], absent: Mapping[str, float], now: float) -> list[Change]:
    """The end of running jobs that their site has not known for long. Missing is never success."""
    values = {
        "state": State.FAILED,
        "cause": "lost",
        "reason": f"its site has known nothing of it for {SECONDS_UNTIL_LOST:.0f} s",
        "ended_at": now,
    }
    return [
        Change(job.token, values, report=True)
        for job in jobs
        if job.state == State.RUNNING and absent.get(job.token, 0.0) > SECONDS_UNTIL_LOST
    ]


def repeats(jobs: Iterable[Given], absent: Mapping[str, float], fresh_until: float) -> list[str]:
    """Placed jobs to be given again: they did not arrive, or their JWT runs out before ``fresh_until``."""

    def due(job: Given) -> bool:
        if job.token in absent:
            return absent[job.token] > SECONDS_UNTIL_REPEATED
        return job.expires_at is None or job.expires_at < fresh_until

    return [job.token for job in jobs if job.state == State.PLACED and due(job)]


def strangers(unknown: Mapping[str, float]) -> dict[str, str]:
    """The jobs to be ended that a site has and the store does not: by token, the reason in words.

    :param unknown: for how many seconds each has not been known
    """
    return {token: STRANGE for token, seconds in unknown.items() if seconds > SECONDS_UNTIL_STRANGE}


def envelopes(jobs: Iterable[Job], mint: Callable[[str], str], expires_at: float) -> list[Envelope]:
    """The jobs as they travel, each with a JWT that ``mint`` makes for its subject."""
    return [
        Envelope(
            token=job.token,
            workload={**json.loads(job.workload), "token": mint(job.subject)},
            resources=job.resources,
            memory_limit=job.memory_limit,
            time_limit=job.time_limit,
            priority=job.priority,
            queued_at=job.queued_at,
            expires_at=expires_at,
            queue=job.queue_hint,
            native=json.loads(job.native_hint) if job.native_hint else {},
            layout=job.layout,
        )
        for job in jobs
    ]
