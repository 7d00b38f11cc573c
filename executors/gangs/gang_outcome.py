"""The decisions of a tick about gangs: what is recorded first, and what is requested from sites afterwards."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

from lading.executors.decisions import Decision, placement, refused, relaxed
from lading.executors.store import Change, State
from lading.executors.store.gangs.rows import GangChanges, GangMember
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.hooks.spool.hold import Hold
from lading.scheduling.gangs.room import MemberPlace
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.stops import Stop
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reasons import Reason


@dataclass(slots=True)
class GangOutcome:
    """What a tick has decided about gangs, and the views of the sites after that.

    :param sites: the views for all other jobs, in which held room is taken
    :param wanted: by site, the members that it should launch capacity for
    :param changes: of jobs
    :param placed: by site and location, the tokens of the members that start there
    :param reasons: the tokens of waiting members, by reason
    :param cancels: by site and location, the members to cancel there, with their reasons
    :param asked: by site and location, the holds to request or renew
    :param dropped: by site and location, the tokens of holds to drop
    :param saved: the rows of gangs that have changed
    :param gone: the tokens of gangs that are over
    :param new_holds: holds requested for the first time
    :param gone_holds: the tokens of holds that are over
    :param again: the tokens of holds to renew
    :param active: the members of gangs that search for room, soon will, or have started; instances launched for them
        are kept
    """

    sites: Sequence[SiteView] = ()
    wanted: dict[str, list[WaitingJob]] = field(default_factory=dict)
    changes: list[Change] = field(default_factory=list)
    placed: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    reasons: dict[Reason, list[str]] = field(default_factory=dict)
    cancels: dict[str, dict[str, dict[str, Reason]]] = field(default_factory=dict)
    asked: dict[str, dict[str, list[Hold]]] = field(default_factory=dict)
    dropped: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    saved: list[GangRow] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)
    new_holds: list[HoldRow] = field(default_factory=list)
    gone_holds: set[str] = field(default_factory=set)
    again: list[str] = field(default_factory=list)
    active: frozenset[str] = frozenset()

    def added_to(self, decision: Decision) -> Decision:
        """Return the decision about all other jobs, extended by this one."""
        decision = decision.with_changes(self.changes)
        for site, locations in self.placed.items():
            for location, tokens in locations.items():
                decision = decision.with_repeats(site, location, tokens)
        for site, asked in self.cancels.items():
            for location, reasons in asked.items():
                decision = decision.with_cancels(site, location, reasons)
        return replace(
            decision.with_reasons(self.reasons),
            holds=self.asked,
            drops=self.dropped,
            gangs=GangChanges(self.saved, self.gone, self.new_holds, self.gone_holds, self.again),
        )

    def forget(self, gang: str, members: Iterable[GangMember], holds: Iterable[HoldRow]) -> None:
        """Discard all decisions about a gang whose turn has failed; its holds stay unchanged.

        :param holds: the holds of all gangs
        """
        tokens = {each.token for each in members}
        theirs = {row.token for row in (*self.new_holds, *holds) if row.gang == gang}
        self.changes = [each for each in self.changes if each.token not in tokens]
        self.saved = [row for row in self.saved if row.token != gang]
        self.new_holds = [row for row in self.new_holds if row.gang != gang]
        self.gone_holds -= theirs
        self.again = [token for token in self.again if token not in theirs]
        self.reasons = {reason: [each for each in some if each not in tokens] for reason, some in self.reasons.items()}
        for placed in self.placed.values():
            placed |= {where: [each for each in some if each not in tokens] for where, some in placed.items()}
        for cancels in self.cancels.values():
            cancels |= {
                where: {token: reason for token, reason in some.items() if token not in tokens}
                for where, some in cancels.items()
            }
        for asked in self.asked.values():
            asked |= {where: [each for each in some if each.token not in theirs] for where, some in asked.items()}
        for dropped in self.dropped.values():
            dropped |= {where: [each for each in some if each not in theirs] for where, some in dropped.items()}
        for site, wanted in self.wanted.items():
            self.wanted[site] = [job for job in wanted if job.name not in tokens]

    # -- adding decisions

    def hold(self, gang: str, partition: str, places: Mapping[str, MemberPlace], now: float) -> list[HoldRow]:
        made = [
            HoldRow(
                token=str(uuid.uuid4()),
                gang=gang,
                job=job,
                partition=partition,
                site=place.stop.site,
                location=place.location,
                state="asked",
                created_at=now,
                asked_at=now,
                **asdict(place.resources),
            )
            for job, place in places.items()
        ]
        self.new_holds += made
        self.ask(made)
        return made

    def ask(self, holds: Iterable[HoldRow]) -> None:
        """Request holds from sites; a hold that exists is prolonged."""
        for row in holds:
            here = self.asked.setdefault(row.site, {}).setdefault(row.location, [])
            here.append(Hold(row.token, row.job, row.resources))

    def renew(self, row: HoldRow) -> None:
        self.again.append(row.token)
        self.ask([row])

    def drop(self, row: HoldRow) -> None:
        self.gone_holds.add(row.token)
        if row.state in ("asked", "held"):
            self.dropped.setdefault(row.site, {}).setdefault(row.location, []).append(row.token)

    def start(self, job: WaitingJob, row: HoldRow, stop: Stop, now: float) -> None:
        """Start a member in the room held for it.

        :param stop: the site of that room, and what the job requests there
        """
        self.gone_holds.add(row.token)
        change = placement(job.name, row.site, row.location, None, now, stop)
        self.changes.append(change if stop.rule is None else relaxed(change, job, stop))
        self.placed.setdefault(row.site, {}).setdefault(row.location, []).append(job.name)

    def sleep(self, members: Iterable[GangMember], reason: Reason) -> None:
        values = {"state": State.ATTEMPTED, "reason": reason}
        self.changes += [Change(each.token, values, report=True) for each in members]

    def wake(self, members: Iterable[GangMember]) -> None:
        self.changes += [
            Change(each.token, {"state": State.QUEUED, "reason": None}, only_if={"state": State.ATTEMPTED})
            for each in members
            if each.state == State.ATTEMPTED
        ]

    def move(self, members: Iterable[GangMember], gang: str, terms: str) -> None:
        """Move members to another gang.

        :param terms: of that gang, as JSON
        """
        self.changes += [Change(each.token, {"gang": gang, "gang_terms": terms}) for each in members]

    def fail(self, members: Iterable[GangMember], reason: Reason, now: float) -> None:
        self.changes += [refused(each.token, reason, now) for each in members]

    def cancel(self, member: GangMember, reason: Reason, now: float) -> None:
        if member.state == State.RUNNING:
            self.changes.append(Change(member.token, {"cancel": reason}))
        else:  # fail it here, because a cancellation before the start would not be reported to Airflow
            values = {"state": State.FAILED, "cause": "cancelled", "reason": reason, "ended_at": now}
            self.changes.append(Change(member.token, values, report=True))
        if member.site is not None and member.location is not None:
            self.cancels.setdefault(member.site, {}).setdefault(member.location, {})[member.token] = reason
