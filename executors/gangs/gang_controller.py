"""Gangs in the controller: once per tick, each gang's pass gets the latest events, and its effects are applied."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.gangs.gang_outcome import GangOutcome
from lading.executors.gangs.line import Line, Rank
from lading.executors.gangs.tick import Files, GangMemory, ReadRoster, Taken, Tick
from lading.executors.store import State
from lading.executors.store.fair_queue import FairTurns
from lading.executors.store.gangs.rows import EndedMember, GangMember, GangRecords
from lading.executors.store.gangs.tables import HoldRow
from lading.hooks.files.logs import Trouble
from lading.hooks.spool.hold import SECONDS_UNTIL_RENEWED
from lading.scheduling.accounting.bounds import OF_SHARES, ShareBounds
from lading.scheduling.gangs import gang as passes
from lading.scheduling.gangs.gang import (
    Alone,
    Choices,
    Effect,
    Event,
    Fail,
    Gang,
    Partition,
    RoomAttempt,
    Sleep,
    Stage,
    Start,
)
from lading.scheduling.gangs.room import GangRoom, Options, Ways, Where, options
from lading.scheduling.gangs.supply import demand, shortage
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.matching.routes import nowhere
from lading.scheduling.matching.rules import minimum
from lading.scheduling.matching.sites import SiteView, asked
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import Apart, WaitingJob
from lading.scheduling.model.job import NOTHING
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.placing.placement_pass import SECONDS_UNTIL_EXPLAINED
from lading.scheduling.provisioning.budgets import reason as unpaid

log = logging.getLogger(__name__)

# The codes of reasons for which a member is cancelled because of another member.
WITH_OTHERS = ("gang_member_failed", "gang_member_back", "gang_member_late")
# Namespace for the tokens of partitions that continue as gangs of their own after the rest has started.
PARTED = uuid.UUID("0d9a8f4e-5a0b-4f41-8f0e-0a3f6c1c2b11")


class GangController:
    """Decides about all gangs, once in each tick.

    :param read_roster: returns which members are still to come
    :param ways: rules and rankings by which members find places
    :param files: returns why a job's files are not yet at the location where room is held for it
    """

    def __init__(
        self,
        read_roster: ReadRoster,
        ways: Ways | None = None,
        files: Files = lambda session, site, location, text, job: None,
    ) -> None:
        self.ways = ways or Ways()
        self.read_roster = read_roster
        self.files = files
        self.trouble = Trouble(log)
        self.turn_of: str | None = None
        """The gang that room is reserved for. It keeps its turn while that room becomes free."""

    def decide(
        self,
        session: Session,
        known: GangRecords,
        sites: Sequence[SiteView],
        now: float,
        *,
        waiting: Sequence[WaitingJob] = (),
        fair: FairTurns | None = None,
        bounds: ShareBounds | None = None,
    ) -> GangOutcome:
        """Decide about all gangs.

        :param known: the store's records of gangs
        :param sites: all sites, in the order of the sites file
        :param now: epoch seconds
        :param waiting: jobs outside gangs; those whose turn comes before a gang's take room before it
        :param fair: the turns of shares; None: shares take no turns
        :param bounds: what is left for each share's jobs, from which members take their part; None: everything
        """
        held: dict[Where, Resources] = {}
        for row in known.holds:
            if row.state in ("asked", "held"):
                held[row.site, row.location] = held.get((row.site, row.location), Resources()) + row.resources
        room = GangRoom(sites, held)
        tick = Tick(session, sites, now, known, room, held, self.read_roster, self.ways, self.files, bounds)
        outcome, waits = tick.outcome, tick.gangs()
        line = Line(waiting if waits else (), sites, room, self.ways, now, by_priority=fair is None or fair.by_level)
        active: set[str] = set()

        def rank(members: Sequence[GangMember]) -> Rank:
            first = members[0].job
            return line.rank(first if fair is None else replace(first, turn=fair.turn(members[0].gang)))

        # Gangs that have begun to take room continue first; the others follow in the order of their turns.
        begun = (Stage.TRYING, Stage.STARTED, Stage.FAILED)
        before, self.turn_of = self.turn_of, None
        for memory, members in sorted(
            waits, key=lambda each: (each[0].gang.stage not in begun, each[0].row.token != before, rank(each[1]))
        ):
            try:
                if memory.gang.stage not in begun and memory.row.token != before:
                    line.advance(rank(members))
                GangTick(tick, memory, members, line).take()
            except SQLAlchemyError:
                raise
            except Exception as error:  # a member's hints or a plugin can raise anything
                self.trouble.begin(f"Handling of gang {memory.row.token} has failed", error, traceback=True)
                outcome.forget(memory.row.token, members, known.holds)
                reason = because("gang_error", gang=memory.called, text=f"{type(error).__name__}: {error}")
                outcome.fail([each for each in members if each.is_ready], reason, now)
                continue
            if room.reserved and self.turn_of is None:
                self.turn_of = memory.row.token
            if memory.gang.stage not in (Stage.ATTEMPTED, Stage.FAILED):
                active.update(each.token for each in members)
        outcome.active = frozenset(active)
        outcome.sites = tick.room.with_held()
        return outcome


@dataclass(slots=True)
class GangTick:
    tick: Tick
    memory: GangMemory
    members: Sequence[GangMember]
    line: Line
    holds: list[HoldRow] = field(default_factory=list)
    options: dict[str, Options] = field(default_factory=dict)
    is_blocked: bool = False
    files: Reason | None = None
    is_barred: bool = False
    is_gathered: bool = False

    seconds_until_repeated = 5.0
    """Until a hold that a site has not answered is requested again."""

    def take(self) -> None:
        """Advance the gang as far as possible in this tick."""
        token, out = self.memory.row.token, self.tick.outcome
        self.holds = [row for row in self.tick.known.holds if row.gang == token]
        events = self._events()
        if not self._is_behind():
            self._step(events)
        self._claim()
        self._reserve()
        self._settle_holds()
        self._explain()
        if self.memory.write() or token not in self.tick.known.gangs:
            out.saved.append(self.memory.row)

    @property
    def is_complete(self) -> bool:
        """Whether all members are present and no search for room is under way."""
        return self.gang.stage is Stage.ATTEMPTED or (self.gang.stage is Stage.GATHERING and self.is_gathered)

    def _is_behind(self) -> bool:
        """Return whether the gang waits for its turn, as earlier jobs need the room and no site launches more."""
        if not self.is_complete or self.is_barred:
            return False
        names = [each.name for each in self.gang.partitions]
        if not self.line.any_before or not all(map(self._is_there_anyway, names)) or self._fits_now():
            return False
        if self.gang.stage is Stage.GATHERING:
            self._give_reason(self.ready, because("turn"))
        return True

    def _fits_now(self) -> bool:
        names = [each.name for each in self.gang.partitions]
        partitions = [
            ([each.job for each in self.of_partition(name)], self._options(name).in_order()) for name in names
        ]
        return self.tick.room.would_fit(partitions, self.tick.now, spread=self.memory.terms.spread)

    def _reserve(self) -> None:
        """At the gang's turn, reserve locations that would hold all of it once the jobs running there have finished."""
        if not self.is_complete or self.is_barred or self.tick.room.reserved:
            return
        apart: set[Where] | None = set() if self.memory.terms.spread else None
        found: set[Where] = set()
        empty = GangRoom(self.tick.sites, self.tick.held, is_empty=True)
        for name in (each.name for each in self.gang.partitions):
            jobs = [each.job for each in self.of_partition(name)]
            for places in self._options(name).in_order() if self._is_there_anyway(name) else ():
                there, left = empty.find(jobs, places, self.tick.now, apart)
                if not left:
                    where = {(each.stop.site, each.location) for each in there.values()}
                    found |= where
                    if apart is not None:
                        apart |= where
                    break
            else:
                return
        if not any(self.line.wants(*each) for each in found):
            self.tick.room.reserve(found)

    @property
    def gang(self) -> Gang:
        return self.memory.gang

    @property
    def ready(self) -> list[GangMember]:
        return [each for each in self.members if each.is_ready]

    def of_partition(self, *names: str) -> list[GangMember]:
        """Return the members of these partitions that are ready."""
        tokens = {token for name in names for token in self.memory.members.get(name, ())}
        return [each for each in self.ready if each.token in tokens]

    # -- events

    def _events(self) -> list[Event]:
        if self.memory.row.started_at is not None and self._watch():
            self._gather_again(0)
            return []
        if self.gang.stage is Stage.STARTED and self.ready:
            self._gather_again(0)
        if self.gang.stage in (Stage.TRYING, Stage.ATTEMPTED, Stage.FAILED):
            if {each.token for each in self.ready} == self.memory.tokens:
                if self.gang.stage is not Stage.FAILED and self._is_barred():
                    # The search that began before the gang was barred does not count as an attempt.
                    self._gather_again(self.gang.attempt - (self.gang.stage is Stage.TRYING))
                    return []
                return self._freed() if self.gang.stage is Stage.ATTEMPTED else self._answers()
            # A member has left or come back, so gather again with the members that are ready now.
            self._gather_again(0 if self.gang.stage is Stage.FAILED else self.gang.attempt)
        return self._gathered() if self.gang.stage is Stage.GATHERING else []

    @property
    def at_work(self) -> list[GangMember]:
        return [each for each in self.members if each.is_at_work]

    def _gather_again(self, attempt: int) -> None:
        self.tick.outcome.wake(self.members)
        self.memory.gang = Gang((), self.gang.partial, self.gang.attempts, attempt=attempt)
        self.memory.members = {}
        if not self.at_work:
            self.memory.row.started_at = None

    def _watch(self) -> bool:
        """Cancel the running members when another has failed, come back or not started, if the gang's terms say so.

        :returns: whether members are being cancelled, which the others wait for
        """
        terms, row, now = self.memory.terms, self.memory.row, self.tick.now
        if terms.on_failure != "cancel" or terms.name is None:
            return False
        back = [each for each in self.ready if each.token in self.memory.tokens and self.gang.stage is Stage.STARTED]
        why = because("gang_member_back", task=back[0].key[0], gang=terms.name) if back else None
        for end in self.tick.known.ended:
            if end.gang == row.token and end.began_at >= (row.started_at or 0.0):
                why = _cancel_reason(end, terms.name)
        if any(each.state == State.RUNNING for each in self.at_work):
            why = why or self._member_not_started()
        ending = self.at_work if why is not None else []
        for each in ending:
            if why is not None and not each.is_cancelled:
                self.tick.outcome.cancel(each, why, now)
        self.is_blocked = bool(ending)
        return self.is_blocked

    def _member_not_started(self) -> Reason | None:
        """Return the reason about a member that was placed but has not started in time; None: all have.

        The message that tells a site to start a member can get lost while the other members start.
        """
        seconds = self.gang.attempts.timeout
        for each in self.at_work:
            if each.state == State.PLACED and each.placed_at is not None and self.tick.now - each.placed_at > seconds:
                who = {"gang": self.memory.terms.name, "task": each.key[0]}
                return because("gang_member_late", seconds=seconds, site=each.site, **who)
        return None

    def _gathered(self) -> list[Event]:
        """Build the partitions if all members have arrived; otherwise tell the present ones what they wait for."""
        terms = self.memory.terms
        if not self.ready:
            return []
        if terms.name is not None:
            tick = self.tick
            roster = tick.roster(self.memory)
            missing = roster.to_come - {each.key for each in self.ready}
            if roster.failed and terms.on_failure == "cancel" and not terms.partial:
                failed = sorted({task for task, _ in roster.failed})
                tick.outcome.fail(self.ready, because("gang_task_failed", failed=failed, gang=terms.name), tick.now)
                return []
            if missing and not self.at_work:  # members that run already are rejoined without waiting for the rest
                here = len(self.ready)
                reason = because("gang_members", here=here, members=here + len(missing), gang=terms.name)
                self._give_reason(self.ready, reason.with_also(*roster.hindrances))
                return []
        parts: dict[str, list[GangMember]] = {task: [] for task in terms.tasks}
        for each in self.ready:
            parts.setdefault(each.partition(is_partial=terms.partial), []).append(each)
        self.memory.members = {
            name: tuple(each.token for each in its_own) for name, its_own in parts.items() if its_own
        }
        tasks = {name: its_own[0].key[0] for name, its_own in parts.items() if its_own}
        partitions = (Partition(name, frozenset(terms.tasks.get(task, ()))) for name, task in tasks.items())
        attempts = terms.attempts or self._attempts_there() or self.gang.attempts
        self.memory.gang = replace(self.gang, partitions=tuple(partitions), attempts=attempts)
        self.is_gathered = True
        return [] if self._is_barred() else [passes.Gathered()]

    def _is_barred(self) -> bool:
        """Return whether the gang must wait for its share or a budget, and tell its members so."""
        if self.memory.row.started_at is not None:
            return False  # a gang that has started continues
        why = next((each.held for each in self.ready if each.held is not None), None)
        if why is None and self.gang.stage is not Stage.TRYING:  # while trying, partitions may already hold room
            why = self._beyond_share() or self._unpaid()
        self.is_barred = why is not None
        if why is not None:
            self._give_reason(self.ready, why)
        return self.is_barred

    def _beyond_share(self) -> Reason | None:
        """Return why the gang's share has too little left for it at any site; None: there is enough."""
        if self.tick.bounds is None:
            return None
        given: list[Taken] = []
        whys: list[Reason] = []
        for name in (each.name for each in self.gang.partitions):
            jobs = [each.job for each in self.of_partition(name)]
            places = [stops for some in self._options(name).in_order() for stops in some]
            reasons = [self.tick.beyond(jobs, stops) for stops in places]
            if reasons and None not in reasons:
                whys = [each for each in reasons if each is not None]
                break
            if reasons:
                needs = self.tick.needs(jobs, places[reasons.index(None)])
                for each in needs:
                    self.tick.give(*each)
                given += needs
        for each in given:
            self.tick.give(*each, times=-1)
        return self._of_share([*dict.fromkeys(map(self.tick.as_now, whys))]) if whys else None

    def _of_share(self, whys: Sequence[Reason]) -> Reason:
        """Return the reason of a gang whose share bars it from all sites."""
        if any(each.code not in OF_SHARES for each in whys):
            return whys[0]
        jobs = [each.job for each in self.ready]
        asked = NOTHING.with_all([each.resources for each in jobs])
        return because("gang_share", jobs=len(jobs), all=asked, share=jobs[0].share or "").with_also(*whys)

    def _unpaid(self) -> Reason | None:
        """Return why a spent budget blocks the launches that the gang needs; None: it can start."""
        if (why := self._spent()) is None:
            return None
        if not any(self._is_launched(each.name) for each in self.gang.partitions):
            return None
        return None if self._fits_now() else why

    def _spent(self) -> Reason | None:
        """Return the reason about a member's spent budget; None: no budget is spent."""
        every = (it for each in self.ready for it in each.job.budgets)
        return next((unpaid(it, 0.0) for it in every if it.until is not None and it.spent >= it.most), None)

    def _is_launched(self, partition: str) -> bool:
        """Return whether a partition can go only to sites that launch locations."""
        sites = self.tick.room.sites
        stops = [stops for places in self._options(partition).in_order() for stops in places]
        return bool(stops) and all(sites[each.site].market is not None for some in stops for each in some.values())

    def _attempts_there(self) -> AttemptSchedule | None:
        """Return the attempt schedule of the first site that has one and that members can go to."""
        named = {each.job.site for each in self.ready}
        there = (
            site
            for site in self.tick.sites
            if any(is_named(site.name, name) for name in named) or (None in named and site.accept_untargeted)
        )
        return next((site.attempts for site in there if site.attempts is not None), None)

    def _freed(self) -> list[Event]:
        """Wake the sleeping gang if all members have room now, at sites where only finishing jobs make room."""
        if not self.gang.wakes_by_room(self.tick.now):
            return []
        if not self.tick.room.may_fit([each.job for each in self.ready]):
            return []  # a quick check, before the costly search for places
        names = [each.name for each in self.gang.partitions]
        if not all(self._is_there_anyway(name) for name in names):
            return []
        return [passes.Freed()] if self._fits_now() else []

    def _is_there_anyway(self, partition: str) -> bool:
        """Return whether a partition can go only to sites that launch nothing."""
        names = {
            stop.site for places in self._options(partition).stops.values() for each in places for stop in each.values()
        }
        return bool(names) and not any(self.tick.room.sites[name].launches for name in names)

    def _answers(self) -> list[Event]:
        events: list[Event] = []
        tries = [*self.gang.held, *([self.gang.trying] if self.gang.trying else [])]
        for attempt in tries:
            here = [row for row in self.holds if row.partition == attempt.partition]
            if (why := self.tick.lost(here)) is not None:
                events.append(passes.Lost(attempt.partition, why))
            elif attempt == self.gang.trying and not here:
                events += self._seek(attempt)
            elif attempt == self.gang.trying and all(row.state == "held" for row in here):
                events += self._with_files(attempt, here)
        return events

    def _with_files(self, held: RoomAttempt, holds: Sequence[HoldRow]) -> list[Event]:
        """Return that room was found, once the files of all members of the partition are at their locations."""
        readers = {each.token: each for each in self.of_partition(held.partition) if each.stage is not None}
        for row in (row for row in holds if row.job in readers):
            reader = readers[row.job]
            missing = self.tick.files(self.tick.session, row.site, row.location, str(reader.stage), reader.job)
            if missing is not None:
                self.files, never = missing
                return [passes.Lost(held.partition, self.files)] if never else []
        return [passes.RoomFound(held.partition)]

    # -- effects

    def _step(self, events: list[Event]) -> None:
        while True:
            before = self.gang.stage
            self.memory.gang, effects = passes.step(self.gang, events, self.tick.now, self._choices)
            if before is Stage.ATTEMPTED and self.gang.stage is not before:
                self.tick.outcome.wake(self.members)
            events = [event for effect in effects for event in self._do(effect)]
            if not events:
                return

    def _do(self, effect: Effect) -> list[Event]:
        out, now = self.tick.outcome, self.tick.now
        is_parted = self.gang.stage is Stage.STARTED
        if isinstance(effect, RoomAttempt):
            return self._seek(effect)
        if isinstance(effect, Start):
            for each in self.gang.held:
                self._start(each)
            self.holds = [row for row in self.holds if row.partition not in effect.partitions]
            self.memory.row.started_at = self.memory.row.started_at or now
        elif isinstance(effect, Sleep):
            out.sleep(self.of_partition(*effect.partitions), self._asleep(effect.until))
            if is_parted:
                self._part(effect.partitions[0], effect.until)
        elif isinstance(effect, Alone):
            for name in effect.partitions:
                self._part(name, None)
        elif isinstance(effect, Fail):
            out.fail(self.of_partition(*effect.partitions), effect.why, now)
        return []

    def _options(self, partition: str) -> Options:
        if partition not in self.options:
            jobs = [each.job for each in self.of_partition(partition)]
            try:
                self.options[partition] = options(jobs, self.tick.sites, self.tick.ways)
            except ValueError as error:  # a plugin's filter or rule has failed
                self.options[partition] = Options(why=because("plugin_failed", text=str(error)))
        return self.options[partition]

    def _start(self, held: RoomAttempt) -> None:
        rows = {row.job: row for row in self.holds if row.partition == held.partition}
        places = self._options(held.partition).stops.get((held.rule, held.match), ())
        for each in self.of_partition(held.partition):
            row = rows[each.token]
            stop = next((stops[each.token] for stops in places if stops[each.token].site == row.site), Stop(row.site))
            self.tick.outcome.start(each.job, row, stop, self.tick.now)

    def _choices(self, partition: str) -> Choices:
        found = self._options(partition)
        why = None if found.matches else found.why or self._why_nowhere(partition)
        is_costly = bool(found.matches) and not self._is_there_anyway(partition)
        return Choices(found.matches, found.rules, why, lambda: self._never(partition), is_costly)

    def _never(self, partition: str) -> Reason | None:
        """Return why a partition can never get room, judging by what sites could ever have; None: it may get some."""
        if not self._options(partition).matches:
            return self._why_nowhere(partition) if self._is_nowhere(partition) else None
        # Equal gangs are checked once per tick.
        terms, names = self.memory.terms, [partition] if self.memory.terms.partial else [*self.memory.members]
        jobs = {name: [each.job for each in self.of_partition(name)] for name in names}
        shapes = tuple((name, frozenset(Counter(job.shape for job in jobs[name]).items())) for name in names)
        if (key := (partition, shapes, terms.spread)) not in self.tick.shortages:
            self.tick.shortages[key] = self._shortage(partition, jobs)
        why = self.tick.shortages[key]
        return None if why is None else because("gang_never", gang=self.memory.called).with_also(why)

    def _shortage(self, partition: str, jobs: Mapping[str, Sequence[WaitingJob]]) -> Reason | None:
        """Return why a partition, alone or with the others, can never get room; None: it may get some.

        A shortage of another partition alone is reported when that one is tried.
        """
        sites, spread = self.tick.room.sites, self.memory.terms.spread
        demands = {name: demand(name, its_own, self._options(name), sites) for name, its_own in jobs.items()}
        known = [each for each in demands.values() if each is not None]
        if (its_own := demands[partition]) is None:
            return None
        why = shortage([its_own], spread=spread)
        return why or (shortage(known, spread=spread) if len(known) == len(demands) else None)

    def _is_nowhere(self, partition: str) -> bool:
        """Return whether one of a partition's jobs could never run at any of its sites that support holds."""
        if self._options(partition).why is not None:
            return False  # a plugin has failed, and may succeed next time
        for job in (each.job for each in self.of_partition(partition)):
            there = [site for site in asked(job, self.tick.sites) if site.holds]
            if there and not any(
                site.is_new
                or site.trouble is not None
                or site.barred_reason(job) is not None
                or site.may_run(minimum(job))
                for site in there
            ):
                return True
        return False

    def _why_nowhere(self, partition: str) -> Reason:
        able = {site.name: site for site in self.tick.sites if site.holds}
        job = self.of_partition(partition)[0].job
        named = job.site if any(is_named(site.name, job.site) for site in self.tick.sites) else None
        if able and (named is None or any(is_named(name, named) for name in able)):
            return nowhere(job, [*able.values()])
        return because("no_site_holds") if named is None else because("site_holds_none", site=named)

    def _seek(self, wanted: RoomAttempt) -> list[Event]:
        """Request holds for a partition where it is tried, or launches if there is not enough room."""
        tick, jobs = self.tick, [each.job for each in self.of_partition(wanted.partition)]
        places = self._options(wanted.partition).stops.get((wanted.rule, wanted.match), ())
        if tick.bounds is not None and places:
            beyond = [tick.beyond(jobs, stops) for stops in places]
            places = [stops for stops, why in zip(places, beyond, strict=True) if why is None]
            if not places:
                return [passes.NoRoomFound(wanted.partition, beyond[0])]
        member_places, left = tick.room.find(jobs, places, tick.now, self._apart(wanted.partition))
        if not left and member_places:
            made = tick.outcome.hold(self.memory.row.token, wanted.partition, member_places, tick.now)
            self.holds += made
            for row in made:
                here = row.site, row.location
                tick.held[here] = tick.held.get(here, Resources()) + row.resources
            for job in jobs:
                place = member_places[job.name]
                tick.give(job, place.stop.site, place.resources)
            return []
        for stops in places:
            site = tick.room.sites[stops[left[0].name].site]
            if site.is_new or (site.launches and site.market is None and site.in_trouble < tick.seconds_until_answered):
                return []  # the site is about to answer, or to report what it can launch
            if site.market is not None and site.trouble is None and site.market.held is None:
                if (why := self._spent()) is not None:
                    return [passes.NoRoomFound(wanted.partition, why)]
                missing = {job.name for job in left}
                # Include members that would find room there now: the room they take is not free for the others.
                wanting = [
                    stops[job.name].asked(job)
                    for job in jobs
                    if job.name in missing or member_places[job.name].stop.site == site.name
                ]
                if (apart := self._apart(wanted.partition)) is not None:
                    taken = frozenset(name for where, name in apart if where == site.name)
                    wanting = [replace(job, apart=Apart(self.memory.row.token, taken)) for job in wanting]
                tick.outcome.wanted.setdefault(site.name, []).extend(wanting)
                return []
        return [passes.NoRoomFound(wanted.partition, self._no_room(wanted, len(left), len(jobs)) if places else None)]

    def _apart(self, partition: str) -> set[Where] | None:
        """Return the locations of other partitions if each member must have its own; None: members can share."""
        if not self.memory.terms.spread:
            return None
        return {(row.site, row.location) for row in self.holds if row.partition != partition}

    def _no_room(self, wanted: RoomAttempt, left: int, jobs: int) -> Reason:
        trouble = [site.trouble for site in self.tick.sites if site.name == wanted.match and site.trouble is not None]
        if trouble:
            return trouble[0]
        where = {"place": wanted.match, "task": wanted.partition}
        if jobs == 1:
            return because("gang_no_room_for_one", **where)
        code = "gang_no_room_apart" if self.memory.terms.spread else "gang_no_room"
        return because(code, left=left, jobs=jobs, **where)

    def _part(self, partition: str, wake_at: float | None) -> None:
        """Make a partition that did not start with the others a gang of its own.

        :param wake_at: epoch seconds of its next attempt; None: as soon as its members are ready
        """
        row, terms = self.memory.row, self.memory.terms
        token = str(uuid.uuid5(PARTED, f"{row.token} {partition}"))
        # It waits for no other members: each member of a mapped task is tried separately, too.
        alone = replace(terms, tasks={}, partial=False, on_failure="leave")
        made = GangMemory.new(token, row.dag_id, row.run_id, alone)
        attempt = 0 if wake_at is None else self.gang.attempt
        made.members = {partition: self.memory.members.get(partition, ())}
        made.gang = replace(made.gang, partitions=(Partition(partition),), attempt=attempt, doubted=self.gang.doubted)
        if wake_at is not None:
            made.gang = passes.asleep(made.gang, self.tick.now, wake_at - self.tick.now)
        made.write()
        self.tick.outcome.saved.append(made.row)
        self.tick.outcome.move(self.of_partition(partition), token, alone.to_json())

    def _claim(self) -> None:
        """Claim room for the partitions that are tried later, or gangs that start together would compete for it."""
        if self.gang.stage is not Stage.TRYING or self.gang.trying is None:
            return
        taken = {each.partition for each in (*self.gang.held, self.gang.trying)}
        apart = None if self._apart("") is None else {(row.site, row.location) for row in self.holds}
        for name in (each.name for each in self.gang.partitions if each.name not in taken):
            jobs = [each.job for each in self.of_partition(name)]
            found = self._options(name)
            for match in found.matches:
                places = found.stops.get((passes.NO_RULE, match), ())
                if not places:
                    continue
                there, left = self.tick.room.find(jobs, places, self.tick.now, apart)
                if not left:
                    if apart is not None:
                        apart |= {(each.stop.site, each.location) for each in there.values()}
                    break

    # -- holds and reasons

    def _settle_holds(self) -> None:
        """Drop the holds that the pass no longer needs, and renew the others."""
        kept = {each.partition for each in self.gang.held} if self.gang.stage is Stage.TRYING else set()
        kept |= {self.gang.trying.partition} if self.gang.trying is not None else set()
        new = {row.token for row in self.tick.outcome.new_holds}
        lost = {row.partition for row in self.holds if row.token not in new and self.tick.lost([row]) is not None}
        for row in self.holds:
            is_new = row.token in new
            if row.partition not in kept or (row.partition in lost and not is_new):
                self.tick.outcome.drop(row)
            elif not is_new:
                patience = self.seconds_until_repeated if row.state == "asked" else SECONDS_UNTIL_RENEWED
                if abs(self.tick.now - row.asked_at) > patience:  # a clock that was set back only renews too often
                    self.tick.outcome.renew(row)

    def _asleep(self, until: float) -> Reason:
        gang = self.gang
        by_room = not gang.doubted and all(map(self._is_there_anyway, (each.name for each in gang.partitions)))
        reason = because(
            "attempted_or_freed" if by_room else "attempted",
            attempt=gang.attempt,
            attempts=gang.attempts.count,
            gang=self.memory.called,
            until=until,
        )
        return reason if gang.why is None else reason.with_also(gang.why)

    def _explain(self) -> None:
        gang = self.gang
        if gang.stage is Stage.TRYING and gang.trying is not None:
            which = {"attempt": gang.attempt, "attempts": gang.attempts.count}
            if self.files is not None:
                self._give_reason(self.ready, self.files.with_also(because("gang_attempt", **which)))
                return
            where = {"gang": self.memory.called, "place": gang.trying.match, **which}
            if len(gang.partitions) > 1:
                held, tasks = len(gang.held), len(gang.partitions)
                self._give_reason(self.ready, because("gang_room_partly", held=held, tasks=tasks, **where))
            else:
                self._give_reason(self.ready, because("gang_room", **where))
        elif self.is_blocked:
            self._give_reason(self.ready, because("gang_others", gang=self.memory.called))

    def _give_reason(self, members: Sequence[GangMember], reason: Reason) -> None:
        late = self.tick.now - SECONDS_UNTIL_EXPLAINED
        tokens = [each.token for each in members if each.job.queued_at < late and each.job.reason != reason]
        if tokens:
            self.tick.outcome.reasons.setdefault(reason, []).extend(tokens)


def _cancel_reason(end: EndedMember, gang: str) -> Reason:
    """Return why the other members are cancelled when one has failed.

    A member that was itself cancelled because of another one passes on that reason, which names the original member.
    """
    if end.reason is not None and end.reason.code in WITH_OTHERS:
        return end.reason
    return because("gang_member_failed", task=end.task_id, gang=gang).with_also(*filter(None, (end.reason,)))
