"""Gangs in the controller, one turn each per tick: the pass takes in what has happened; its effects are applied."""

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
from lading.executors.gangs.tick import SECONDS_UNTIL_ANSWERED, Files, GangMemory, ReadRoster, Taken, Tick
from lading.executors.orchestrator import current
from lading.executors.store import State
from lading.executors.store.fair_queue import FairTurns
from lading.executors.store.gangs.rows import EndedMember, GangMember, GangRecords
from lading.executors.store.gangs.tables import HoldRow
from lading.hooks.files.logs import Trouble
from lading.hooks.spool.hold import SECONDS_UNTIL_RENEWED
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
from lading.scheduling.job import NOTHING
from lading.scheduling.matching.routes import nowhere
from lading.scheduling.matching.rules import minimum
from lading.scheduling.matching.sites import SiteView, asked
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import Apart, WaitingJob
from lading.scheduling.placing.placement_pass import SECONDS_UNTIL_EXPLAINED
from lading.scheduling.provisioning.budgets import reason as unpaid
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import Resources
from lading.scheduling.shares.bounds import OF_SHARES, ShareBounds
from lading.scheduling.site_names import is_named

log = logging.getLogger(__name__)

# A site that has not answered is asked again after this, seconds.
SECONDS_UNTIL_REPEATED = 5.0
# The codes of ends for the sake of another member.
WITH_OTHERS = ("gang_member_failed", "gang_member_back", "gang_member_late")
# Those of a gang that others have left are gangs of their own.
PARTED = uuid.UUID("0d9a8f4e-5a0b-4f41-8f0e-0a3f6c1c2b11")


class GangController:
    """What is decided about all gangs, once in each tick.

    :param ways: how places are found for members
    :param read_roster: says which members are still to come; None: the orchestrator does
    :param files: says which files of jobs are still to be brought to where room is held for them
    """

    def __init__(
        self,
        ways: Ways | None = None,
        read_roster: ReadRoster | None = None,
        files: Files = lambda session, site, location, text, job: None,
    ) -> None:
        self.ways = ways or Ways()
        self.read_roster = read_roster or current.orchestrator().rosters
        self.files = files
        self.trouble = Trouble(log)
        self.turn_of: str | None = None
        """The gang whose turn it is, for which room is reserved: it keeps its turn while that comes free."""

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
        """What is to be done about gangs.

        :param known: all that the store has of them
        :param sites: all of them, in their order
        :param now: epoch seconds
        :param waiting: the jobs that start alone, of which those whose turn is before that of a gang take room first
        :param fair: how shares go in turn; None: they do not
        :param bounds: what is left for the jobs of each share, of which members take theirs; None: all there is
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

        # What has had its turn goes on; the others come at theirs.
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
            except Exception as error:  # what authors and plugins have said of its members
                self.trouble.begin(f"The turn of gang {memory.row.token} has failed", error, traceback=True)
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
    """One gang in one tick."""

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

    def take(self) -> None:
        """Take the gang as far as it gets."""
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
        """Whether it waits for room with all its members, and none is looked for now."""
        return self.gang.stage is Stage.ATTEMPTED or (self.gang.stage is Stage.GATHERING and self.is_gathered)

    def _is_behind(self) -> bool:
        """Whether it waits for its turn: what comes before it needs the room, and nothing is launched for it."""
        if not self.is_complete or self.is_barred:
            return False
        names = [each.name for each in self.gang.partitions]
        if not self.line.any_before or not all(map(self._is_there_anyway, names)) or self._fits_now():
            return False
        if self.gang.stage is Stage.GATHERING:
            self._give_reason(self.ready, because("turn"))
        return True

    def _fits_now(self) -> bool:
        """Whether all of it has room now."""
        names = [each.name for each in self.gang.partitions]
        partitions = [
            ([each.job for each in self.of_partition(name)], self._options(name).in_order()) for name in names
        ]
        return self.tick.room.would_fit(partitions, self.tick.now, spread=self.memory.terms.spread)

    def _reserve(self) -> None:
        """Leave to it, at its turn, the locations at which it is to have room when what runs there has ended."""
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
        """The members of partitions that are there."""
        tokens = {token for name in names for token in self.memory.members.get(name, ())}
        return [each for each in self.ready if each.token in tokens]

    # -- what has happened

    def _events(self) -> list[Event]:
        if self.memory.row.started_at is not None and self._watch():
            self._gather_again(0)
            return []
        if self.gang.stage is Stage.STARTED and self.ready:
            self._gather_again(0)
        if self.gang.stage in (Stage.TRYING, Stage.ATTEMPTED, Stage.FAILED):
            if {each.token for each in self.ready} == self.memory.tokens:
                if self.gang.stage is not Stage.FAILED and self._is_barred():
                    # What has begun while it was not is no attempt.
                    self._gather_again(self.gang.attempt - (self.gang.stage is Stage.TRYING))
                    return []
                return self._freed() if self.gang.stage is Stage.ATTEMPTED else self._answers()
            # One has gone, or come back: those that are there now are another gang.
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
        """See to it that no part of a gang runs on without the others, unless that is wanted.

        :returns: whether some are being ended, for which all others wait
        """
        terms, row, now = self.memory.terms, self.memory.row, self.tick.now
        if terms.on_failure != "cancel" or terms.name is None:
            return False
        back = [each for each in self.ready if each.token in self.memory.tokens and self.gang.stage is Stage.STARTED]
        why = because("gang_member_back", task=back[0].key[0], gang=terms.name) if back else None
        for end in self.tick.known.ended:
            if end.gang == row.token and end.began_at >= (row.started_at or 0.0):
                why = _with_whom(end, terms.name)
        if any(each.state == State.RUNNING for each in self.at_work):
            why = why or self._not_begun()
        ending = self.at_work if why is not None else []
        for each in ending:
            if why is not None and not each.is_cancelled:
                self.tick.outcome.cancel(each, why, now)
        self.is_blocked = bool(ending)
        return self.is_blocked

    def _not_begun(self) -> Reason | None:
        """Which of them has not begun though it was to long ago; None: none.

        The last word to a site may always be the one that is lost, so that others have begun without it.
        """
        seconds = self.gang.attempts.timeout
        for each in self.at_work:
            if each.state == State.PLACED and each.placed_at is not None and self.tick.now - each.placed_at > seconds:
                who = {"gang": self.memory.terms.name, "task": each.key[0]}
                return because("gang_member_late", seconds=seconds, site=each.site, **who)
        return None

    def _gathered(self) -> list[Event]:
        """Whether all members are there that are to come."""
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
            if missing and not self.at_work:  # else some go on that have begun, and these come back to them
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
        """Whether it waits for its share or a budget, which members are told; no room is looked for meanwhile."""
        if self.memory.row.started_at is not None:
            return False  # what has begun goes on
        why = next((each.held for each in self.ready if each.held is not None), None)
        if why is None and self.gang.stage is not Stage.TRYING:  # of which partitions may have room by now
            why = self._beyond_share() or self._unpaid()
        self.is_barred = why is not None
        if why is not None:
            self._give_reason(self.ready, why)
        return self.is_barred

    def _beyond_share(self) -> Reason | None:
        """Why its share may not have all that it needs, wherever that is; None: it may."""
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
        """The reason of a gang that its share keeps from all sites."""
        if any(each.code not in OF_SHARES for each in whys):
            return whys[0]
        jobs = [each.job for each in self.ready]
        asked = NOTHING.with_all([each.resources for each in jobs])
        return because("gang_share", jobs=len(jobs), all=asked, share=jobs[0].share or "").with_also(*whys)

    def _unpaid(self) -> Reason | None:
        """The budget over which nothing is launched for it, where it needs that; None: it may begin."""
        if (why := self._spent()) is None:
            return None
        if not any(self._is_launched(each.name) for each in self.gang.partitions):
            return None
        return None if self._fits_now() else why

    def _spent(self) -> Reason | None:
        """The spent budget of a member; None: none is."""
        every = (it for each in self.ready for it in each.job.budgets)
        return next((unpaid(it, 0.0) for it in every if it.until is not None and it.spent >= it.most), None)

    def _is_launched(self, partition: str) -> bool:
        """Whether something is launched at all sites to which a partition may go."""
        sites = self.tick.room.sites
        stops = [stops for places in self._options(partition).in_order() for stops in places]
        return bool(stops) and all(sites[each.site].market is not None for some in stops for each in some.values())

    def _attempts_there(self) -> AttemptSchedule | None:
        """How often room is looked for as the first site says that says it and to which members may go."""
        named = {each.job.site for each in self.ready}
        there = (
            site
            for site in self.tick.sites
            if any(is_named(site.name, name) for name in named) or (None in named and site.accept_untargeted)
        )
        return next((site.attempts for site in there if site.attempts is not None), None)

    def _freed(self) -> list[Event]:
        """Whether all members have room now, where that comes from the ends of other jobs alone."""
        if not self.gang.wakes_by_room(self.tick.now):
            return []
        if not self.tick.room.may_fit([each.job for each in self.ready]):
            return []  # before it is looked up where they may go
        names = [each.name for each in self.gang.partitions]
        if not all(self._is_there_anyway(name) for name in names):
            return []
        return [passes.Freed()] if self._fits_now() else []

    def _is_there_anyway(self, partition: str) -> bool:
        """Whether nothing is launched at the sites to which a partition may go."""
        names = {
            stop.site for places in self._options(partition).stops.values() for each in places for stop in each.values()
        }
        return bool(names) and not any(self.tick.room.sites[name].launches for name in names)

    def _answers(self) -> list[Event]:
        """What sites have said of what is held, and is to be."""
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
        """All have room; before any of them begins their files are brought to it."""
        readers = {each.token: each for each in self.of_partition(held.partition) if each.stage is not None}
        for row in (row for row in holds if row.job in readers):
            reader = readers[row.job]
            missing = self.tick.files(self.tick.session, row.site, row.location, str(reader.stage), reader.job)
            if missing is not None:
                self.files, never = missing
                return [passes.Lost(held.partition, self.files)] if never else []
        return [passes.RoomFound(held.partition)]

    # -- what follows

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
        """Where a partition may be tried, and by which rules; looked for once in a tick."""
        if partition not in self.options:
            jobs = [each.job for each in self.of_partition(partition)]
            try:
                self.options[partition] = options(jobs, self.tick.sites, self.tick.ways)
            except ValueError as error:  # what a plugin has added has failed
                self.options[partition] = Options(why=because("plugin_failed", text=str(error)))
        return self.options[partition]

    def _start(self, held: RoomAttempt) -> None:
        """Let the jobs of a partition begin in the room that is held for them."""
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
        """Why there can never be room, as far as it is known what sites can ever give; None: there may."""
        if not self._options(partition).matches:
            return self._why_nowhere(partition) if self._is_nowhere(partition) else None
        # Gangs that are alike are looked at once in a tick.
        terms, names = self.memory.terms, [partition] if self.memory.terms.partial else [*self.memory.members]
        jobs = {name: [each.job for each in self.of_partition(name)] for name in names}
        shapes = tuple((name, frozenset(Counter(job.shape for job in jobs[name]).items())) for name in names)
        if (key := (partition, shapes, terms.spread)) not in self.tick.shortages:
            self.tick.shortages[key] = self._shortage(partition, jobs)
        why = self.tick.shortages[key]
        return None if why is None else because("gang_never", gang=self.memory.called).with_also(why)

    def _shortage(self, partition: str, jobs: Mapping[str, Sequence[WaitingJob]]) -> Reason | None:
        """Why a partition can never have room, or it and the others together; None: that may be.

        What others lack is said when it is their turn.
        """
        sites, spread = self.tick.room.sites, self.memory.terms.spread
        demands = {name: demand(name, its_own, self._options(name), sites) for name, its_own in jobs.items()}
        known = [each for each in demands.values() if each is not None]
        if (its_own := demands[partition]) is None:
            return None
        why = shortage([its_own], spread=spread)
        return why or (shortage(known, spread=spread) if len(known) == len(demands) else None)

    def _is_nowhere(self, partition: str) -> bool:
        """Whether no site that holds room, and to which a partition may go, could ever hold one of its jobs."""
        if self._options(partition).why is not None:
            return False  # a plugin has failed, and may not the next time
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
        """Have room held for a partition where it is tried, or have launched what it needs there."""
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
            if site.is_new or (site.launches and site.market is None and site.in_trouble < SECONDS_UNTIL_ANSWERED):
                return []  # it is about to answer, or to say what it can launch
            if site.market is not None and site.trouble is None and site.market.held is None:
                if (why := self._spent()) is not None:
                    return [passes.NoRoomFound(wanted.partition, why)]
                missing = {job.name for job in left}
                # Also those that would find room there now: what is free for them is not free for the others.
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
        """The locations that other partitions have, where each member is to have one of its own; None: it is not."""
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
        """Make a partition that the others have left a gang of its own.

        :param wake_at: epoch seconds of its next attempt; None: it is tried as soon as its members are there
        """
        row, terms = self.memory.row, self.memory.terms
        token = str(uuid.uuid5(PARTED, f"{row.token} {partition}"))
        # Its task has no other members that it waits for: those of a mapped one are tried for themselves as well.
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
        """Leave room to the partitions that come later, or gangs that begin together would take it from each other."""
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

    # -- what is held, and what is said

    def _settle_holds(self) -> None:
        """Give back what the pass does not hold (any more), and go on asking for the rest."""
        kept = {each.partition for each in self.gang.held} if self.gang.stage is Stage.TRYING else set()
        kept |= {self.gang.trying.partition} if self.gang.trying is not None else set()
        new = {row.token for row in self.tick.outcome.new_holds}
        lost = {row.partition for row in self.holds if row.token not in new and self.tick.lost([row]) is not None}
        for row in self.holds:
            is_new = row.token in new
            if row.partition not in kept or (row.partition in lost and not is_new):
                self.tick.outcome.drop(row)
            elif not is_new:
                patience = SECONDS_UNTIL_REPEATED if row.state == "asked" else SECONDS_UNTIL_RENEWED
                if abs(self.tick.now - row.asked_at) > patience:  # a clock that was set back asks too often at worst
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
        """Say what members wait for while room is looked for."""
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


def _with_whom(end: EndedMember, gang: str) -> Reason:
    """Why the others are ended when one of a gang has failed; one that was ended so itself says which it was."""
    if end.reason is not None and end.reason.code in WITH_OTHERS:
        return end.reason
    return because("gang_member_failed", task=end.task_id, gang=gang).with_also(*filter(None, (end.reason,)))
