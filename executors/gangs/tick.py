"""The gangs of a tick: what the row of each keeps of its pass, and what all of them share."""

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
from lading.scheduling.gangs.gang import Gang, Partition, RoomAttempt, Stage
from lading.scheduling.gangs.room import GangRoom, Stops, Ways, Where
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.job import PlannedJob
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.placing.bounded import once_per_need
from lading.scheduling.reasons import Reason, because
from lading.scheduling.resources import Resources
from lading.scheduling.shares.bounds import ShareBounds
from lading.scheduling.shares.table import ShareAmounts

log = logging.getLogger(__name__)

# What is raised over JSON that is none, or of another shape.
UNREADABLE = (ValueError, TypeError, LookupError, AttributeError)

# A site that has not answered for so long counts as one that refuses, seconds.
SECONDS_UNTIL_ANSWERED = 60.0

# Why the files of a job (by site, location, what is stored of them, and whose it is) are not there, and whether they
# never will be; None: they are.
Files: TypeAlias = Callable[["Session", str, str, str, WaitingJob], "tuple[Reason, bool] | None"]
ReadRoster: TypeAlias = Callable[["Session", Mapping[str, ExpectedGang]], Mapping[str, Roster]]

Members = Mapping[str, tuple[str, ...]]
# A job, the name of a site, and what it takes there.
Taken: TypeAlias = tuple[WaitingJob, str, Resources]


@dataclass(slots=True)
class Tick:
    """What all gangs of a tick share."""

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
    """By site, what jobs take there of what is left for their shares."""
    shortages: dict[object, Reason | None] = field(default_factory=dict)
    """Why gangs of these shapes can never have room; None: they may."""

    def __post_init__(self) -> None:
        jobs = {each.token: each.job for each in self.known.members}
        for row in self.known.holds:
            if row.state in ("asked", "held") and row.job in jobs:
                self.give(jobs[row.job], row.site, row.resources)

    def give(self, job: WaitingJob, site: str, resources: Resources, times: int = 1) -> Reason | None:
        """Count for the share of a job what it takes at a site; with ``times = -1`` that is taken back.

        :returns: why the share may not have that, if it may not
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
        """Why jobs may not all have room where these stops say; None: they may."""
        needs = self.needs(jobs, stops)
        if needs and self.bounds is not None:
            # All of them count as one, or a gang that needs more than what is left could never have the rest of it.
            hours = sum(job.hours for job, *_ in needs)
            if (spent := self.bounds.out_of_hours(needs[0][0].hour_budgets, hours)) is not None:
                return spent
        reasons = [self.give(*each) for each in needs]
        for each in needs:
            self.give(*each, times=-1)
        why = next(filter(None, reasons), None)
        return None if why is None else self.as_now(why)

    def as_now(self, reason: Reason) -> Reason:
        """Why a share may not have something, with what it has now."""
        return reason if self.bounds is None else self.bounds.as_now(reason)

    def needs(self, jobs: Iterable[WaitingJob], stops: Stops) -> list[Taken]:
        """What jobs take where these stops say."""
        sites = ((job, stops[job.name], self.room.sites[stops[job.name].site]) for job in jobs)
        return [(job, site.name, site.need(stop.asked(job)).resources) for job, stop, site in sites]

    def gangs(self) -> list[tuple[GangMemory, list[GangMember]]]:
        """The gangs with their live members, in the order in which they should start; those without are forgotten."""
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
        """What is known of a gang; None: nothing that can be read.

        A row that cannot be read is another version's, or damaged: what is held is given back, and the next tick begins
        anew. Where the jobs' own rows do not say what they are to be, those that wait end.
        """
        known, first = self.known.gangs.get(token), members[0]
        if known is not None:
            try:
                return GangMemory.from_row(known)
            except UNREADABLE as error:
                log.warning("Gang %s begins anew, for its row cannot be read: %r", token, error)
                self._forget(token)
                return None
        try:
            return GangMemory.new(token, first.dag_id, first.run_id, GangTerms.from_json(first.terms))
        except UNREADABLE as error:
            reason = because("gang_row_unreadable", text=repr(error))
            self.outcome.fail([each for each in members if each.is_ready], reason, self.now)
            return None

    def roster(self, memory: GangMemory) -> Roster:
        """Which members of a gang Airflow is still to bring; asked once for all that gather."""
        if memory.row.token not in self.rosters:
            asked = [each for each in self.memories if each.gang.stage is Stage.GATHERING and each.terms.name]
            wanted = {
                each.row.token: ExpectedGang(each.row.dag_id, each.row.run_id, each.terms.tasks, each.terms.limits)
                for each in (*asked, memory)
            }
            self.rosters |= self.read_roster(self.session, wanted)
        return self.rosters[memory.row.token]

    def lost(self, holds: Sequence[HoldRow]) -> Reason | None:
        """Why some of these holds are none; None: all of them may be."""
        for row in holds:
            where = {"location": row.location, "site": row.site}
            if row.state in ("refused", "hold_lost"):
                return because("hold_lost", **where).with_also(*filter(None, (row.reason,)))
            if not self.is_there(row):
                return because("location_gone", **where)
            if row.state == "asked" and abs(self.now - row.created_at) > SECONDS_UNTIL_ANSWERED:
                return because("hold_unanswered", seconds=SECONDS_UNTIL_ANSWERED, **where)
        return None

    def is_there(self, row: HoldRow) -> bool:
        """Whether the location of a hold may still be there."""
        site = self.room.sites.get(row.site)
        if site is None:
            return False
        return site.trouble is not None or any(each.name == row.location for each in site.locations)


@dataclass(slots=True)
class GangMemory:
    """A gang and its row.

    :param members: of each partition of the pass: the tokens of its jobs
    """

    row: GangRow
    terms: GangTerms
    gang: Gang
    members: Members = field(default_factory=dict)

    @classmethod
    def new(cls, token: str, dag_id: str, run_id: str, terms: GangTerms) -> GangMemory:
        """A gang of which nothing is known yet."""
        row = GangRow(token=token, dag_id=dag_id, run_id=run_id, name=terms.name, attempt=0, wake_at=None)
        found = cls(row, terms, Gang((), terms.partial, terms.attempts or AttemptSchedule()))
        found.write()
        return found

    @classmethod
    def from_row(cls, row: GangRow) -> GangMemory:
        """As a row has it."""
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
        """Bring the row up to date; returns whether it is another."""
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
        """What it is called, as text."""
        return f"gang {self.terms.name!r}" if self.terms.name is not None else "it"

    @property
    def tokens(self) -> frozenset[str]:
        """The jobs of the pass."""
        return frozenset(token for tokens in self.members.values() for token in tokens)
