"""The state of gangs during a tick: what all of them share, and the conversion of each between its row and its pass."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from sqlalchemy.orm import Session

from lading.executors.gangs.gang_outcome import GangOutcome
from lading.executors.orchestrator.orchestrator import ExpectedGang, Roster
from lading.executors.store.gangs.rows import GangMember, GangRecords
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.executors.store.gangs.terms import GangTerms
from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.accounting.share_table import ShareAmounts
from lading.scheduling.gangs.gang import Gang, Partition, RoomAttempt, Stage
from lading.scheduling.gangs.room import GangRoom, Stops, Ways, Where
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.placing.bounded import once_per_need

log = logging.getLogger(__name__)

# Errors raised for invalid JSON, or JSON of another shape.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)


# Returns why a job's files are missing at a location, and whether they always will be; None: they are there. Arguments:
# session, site, location, the job's ``stage`` column, and the job.
Files: TypeAlias = Callable[["Session", str, str, str, WaitingJob], "tuple[Reason, bool] | None"]
ReadRoster: TypeAlias = Callable[["Session", Mapping[str, ExpectedGang]], Mapping[str, Roster]]

Members = Mapping[str, tuple[str, ...]]
# A job, a site's name, and the resources that the job takes there.
Taken: TypeAlias = tuple[WaitingJob, str, Resources]


@dataclass(slots=True)
class Tick:
    session: Session
    sites: Sequence[SiteView]
    now: float
    known: GangRecords
    room: GangRoom
    held: dict[Where, Resources]
    read_roster: ReadRoster
    ways: Ways
    files: Files
    bounds: ShareBounds | None = None
    outcome: GangOutcome = field(default_factory=GangOutcome)
    memories: list[GangMemory] = field(default_factory=list)
    rosters: dict[str, Roster] = field(default_factory=dict)
    amounts: dict[str, Callable[[PlannedJob], ShareAmounts]] = field(default_factory=dict)
    """By site, the function that returns what a job takes there from its share."""
    shortages: dict[object, Reason | None] = field(default_factory=dict)
    """Why gangs of these shapes can never get room; None: they may get some."""
    seconds_until_answered = 60.0
    """Until a site that has not answered counts as refusing."""

    def __post_init__(self) -> None:
        jobs = {each.token: each.job for each in self.known.members}
        for row in self.known.holds:
            if row.state in ("asked", "held") and row.job in jobs:
                self.give(jobs[row.job], row.site, row.resources)

    def give(self, job: WaitingJob, site: str, resources: Resources, times: int = 1) -> Reason | None:
        """Charge a job's share for what the job takes at a site; ``times = -1`` takes the charge back.

        :returns: why this exceeds the share's bounds; None: it does not
        """
        if self.bounds is None or site not in self.room.sites:
            return None
        if site not in self.amounts:
            self.amounts[site] = once_per_need(self.room.sites[site])
        amounts, share = self.amounts[site](replace(job, resources=resources)), job.share or ""
        why = self.bounds.admits(share, site, amounts, job.budgets) if times > 0 else None
        self.bounds.put(share, site, amounts, times)
        self.bounds.promise(job.hour_budgets, job.hours, times)
        return why

    def beyond(self, jobs: Iterable[WaitingJob], stops: Stops) -> Reason | None:
        """Return why the share's bounds do not allow all jobs at these stops; None: they do."""
        needs = self.needs(jobs, stops)
        if needs and self.bounds is not None:
            # Cpu-hours are checked for the gang as a whole: checked one by one, its first members could use up what is
            # left, and the others could never start.
            hours = sum(job.hours for job, *_ in needs)
            if (spent := self.bounds.out_of_hours(needs[0][0].hour_budgets, hours)) is not None:
                return spent
        reasons = [self.give(*each) for each in needs]
        for each in needs:
            self.give(*each, times=-1)
        why = next(filter(None, reasons), None)
        return None if why is None else self.as_now(why)

    def as_now(self, reason: Reason) -> Reason:
        """Return the reason with the share's current usage."""
        return reason if self.bounds is None else self.bounds.as_now(reason)

    def needs(self, jobs: Iterable[WaitingJob], stops: Stops) -> list[Taken]:
        sites = ((job, stops[job.name], self.room.sites[stops[job.name].site]) for job in jobs)
        return [(job, site.name, site.need(stop.asked(job)).resources) for job, stop, site in sites]

    def gangs(self) -> list[tuple[GangMemory, list[GangMember]]]:
        """Return the gangs with their live members, in starting order; gangs without live members are forgotten."""
        by_gang: dict[str, list[GangMember]] = {}
        for member in self.known.members:
            by_gang.setdefault(member.gang, []).append(member)
        for token in {*self.known.gangs, *(row.gang for row in self.known.holds)} - by_gang.keys():
            self._forget(token)
        found = [(memory, members) for token, members in by_gang.items() if (memory := self._memory(token, members))]
        self.memories = [memory for memory, _ in found]
        return found

    def _forget(self, token: str) -> None:
        self.outcome.gone.add(token)
        for row in self.known.holds:
            if row.gang == token:
                self.outcome.drop(row)

    def _memory(self, token: str, members: Sequence[GangMember]) -> GangMemory | None:
        """Load a gang from its row, or create it from its members' terms; None: neither can be read.

        An unreadable row was written by another version or is damaged: the gang's holds are dropped, and the next tick
        starts over. If the terms in the members' rows are unreadable, the members that wait fail.
        """
        known, first = self.known.gangs.get(token), members[0]
        if known is not None:
            try:
                return GangMemory.from_row(known)
            except UNREADABLE as error:
                log.warning("Gang %s starts over because its row cannot be read: %r", token, error)
                self._forget(token)
                return None
        try:
            return GangMemory.new(token, first.dag_id, first.run_id, GangTerms.from_json(first.terms))
        except UNREADABLE as error:
            reason = because("gang_row_unreadable", text=repr(error))
            self.outcome.fail([each for each in members if each.is_ready], reason, self.now)
            return None

    def roster(self, memory: GangMemory) -> Roster:
        """Return which members of a gang are still to be queued; one query serves all gangs that gather."""
        if memory.row.token not in self.rosters:
            asked = [each for each in self.memories if each.gang.stage is Stage.GATHERING and each.terms.name]
            wanted = {
                each.row.token: ExpectedGang(each.row.dag_id, each.row.run_id, each.terms.tasks, each.terms.limits)
                for each in (*asked, memory)
            }
            self.rosters |= self.read_roster(self.session, wanted)
        return self.rosters[memory.row.token]

    def lost(self, holds: Sequence[HoldRow]) -> Reason | None:
        """Return why one of these holds is lost; None: all may be valid."""
        for row in holds:
            where = {"location": row.location, "site": row.site}
            if row.state in ("refused", "hold_lost"):
                return because("hold_lost", **where).with_also(*filter(None, (row.reason,)))
            if not self.is_there(row):
                return because("location_gone", **where)
            if row.state == "asked" and abs(self.now - row.created_at) > self.seconds_until_answered:
                return because("hold_unanswered", seconds=self.seconds_until_answered, **where)
        return None

    def is_there(self, row: HoldRow) -> bool:
        """Return whether the location of a hold may still exist."""
        site = self.room.sites.get(row.site)
        if site is None:
            return False
        return site.trouble is not None or any(each.name == row.location for each in site.locations)


@dataclass(slots=True)
class GangMemory:
    """A gang, its row and its terms.

    :param members: the tokens of the jobs of each partition
    """

    row: GangRow
    terms: GangTerms
    gang: Gang
    members: Members = field(default_factory=dict)

    @classmethod
    def new(cls, token: str, dag_id: str, run_id: str, terms: GangTerms) -> GangMemory:
        row = GangRow(token=token, dag_id=dag_id, run_id=run_id, name=terms.name, attempt=0, wake_at=None)
        found = cls(row, terms, Gang((), terms.partial, terms.attempts or AttemptSchedule()))
        found.write()
        return found

    @classmethod
    def from_row(cls, row: GangRow) -> GangMemory:
        """Restore a gang from its row.

        :raises Exception: one of :data:`UNREADABLE`: the row's JSON is invalid or of another shape
        """
        said = json.loads(row.memory)
        terms = GangTerms.from_json(said["terms"])
        gang = Gang(
            tuple(Partition(name, frozenset(after)) for name, after in said["partitions"]),
            terms.partial,
            AttemptSchedule.from_json(said["attempts"]),
            Stage(row.stage),
            row.attempt,
            row.wake_at,
            said["until"],
            None if said["trying"] is None else RoomAttempt(*said["trying"]),
            tuple(RoomAttempt(*each) for each in said["tried"]),
            tuple(RoomAttempt(*each) for each in said["held"]),
            Reason.of_json(said["why"]) if said.get("why") else None,
            said.get("look_at", 0.0),
            said.get("doubted", False),
        )
        return cls(row, terms, gang, {name: tuple(tokens) for name, tokens in said["members"].items()})

    def write(self) -> bool:
        """Update the row; returns whether anything in it changed."""
        gang = self.gang
        text = json.dumps(
            {
                "terms": self.terms.to_json(),
                "attempts": gang.attempts.to_json(),
                "partitions": [[each.name, sorted(each.after)] for each in gang.partitions],
                "until": gang.until,
                "trying": gang.trying,
                "tried": gang.tried,
                "held": gang.held,
                "why": None if gang.why is None else gang.why.to_json(),
                "look_at": gang.look_at,
                "doubted": gang.doubted,
                "members": self.members,
            }
        )
        values = {"stage": gang.stage.value, "attempt": gang.attempt, "wake_at": gang.wake_at, "memory": text}
        changed = {name: value for name, value in values.items() if getattr(self.row, name) != value}
        for name, value in changed.items():
            setattr(self.row, name, value)
        return bool(changed)

    @property
    def called(self) -> str:
        """The gang in messages: ``gang 'NAME'``, or ``it`` for an unnamed one."""
        return f"gang {self.terms.name!r}" if self.terms.name is not None else "it"

    @property
    def tokens(self) -> frozenset[str]:
        return frozenset(token for tokens in self.members.values() for token in tokens)
