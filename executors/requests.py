"""Requests: what people ask of sites on the page, and the controller does.

The row that the API server has written is the intent: it stays open until what was asked has been seen to be so, so it
is asked of the site again where that was down, or where the controller was killed meanwhile.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, select

from lading.executors import store
from lading.executors.store import LIVE, Change, JobRow, SiteRow, State, instances, requests, share_rows
from lading.executors.store.gangs import rows as gangs
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.requests import OF_BUDGETS, OF_SITES, RequestKind
from lading.executors.store.tables import RequestRow
from lading.scheduling.reasons import Reason, because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

SECONDS_BETWEEN_LOOKS = 2.0
# What a site has not done within this is not asked of it any more.
SECONDS_UNTIL_OVERDUE = 600.0
GONE = "there is nothing of that name (any more)"

Release = Callable[[str, Mapping[str, Reason]], None]


class Requests:
    """Does what people ask.

    :param release: lets locations of a site go, by their names, each with the reason
    """

    def __init__(self, release: Release) -> None:
        self.release = release
        self.paused: Mapping[str, str] = {}
        """Who has paused sites, by site. Only what is asked here changes it."""
        self.is_read = False
        self.next_look = 0.0

    def step(self, session: Session) -> bool:
        """Do what is asked; returns whether that is about budgets."""
        if time.monotonic() < self.next_look:
            return False
        self.next_look = time.monotonic() + SECONDS_BETWEEN_LOOKS
        to_do = requests.to_do(session)
        overdue = requests.overdue(session, SECONDS_UNTIL_OVERDUE) if to_do else frozenset()
        for request in to_do:
            outcome = self._done(session, request)
            if outcome is None and request.id in overdue:
                outcome = f"its site has not done it within {SECONDS_UNTIL_OVERDUE:g} s; see the site's note"
            if outcome is not None:
                request.done_at, request.outcome = time.time(), outcome
                log.info("%s of %s, asked by %s: %s", request.kind, request.target, request.by, outcome)
        if to_do or not self.is_read:
            self.paused, self.is_read = requests.paused(session), True
        return any(request.kind in OF_BUDGETS for request in to_do)

    def _done(self, session: Session, request: RequestRow) -> str | None:
        """Do what is asked; returns what came of it, None as long as that is not seen."""
        if request.kind == RequestKind.WAKE:
            return "room is looked for now" if gangs.wake_with(session, request.target) else "it sleeps no more"
        if request.kind in OF_BUDGETS:
            if request.kind == RequestKind.LIFT:
                return share_rows.lift(session, request.target, request.by)
            return share_rows.restore(session, request.target)
        return self._paused(session, request) if request.kind in OF_SITES else self._let_go(session, request)

    def _paused(self, session: Session, request: RequestRow) -> str:
        """Pause a site, or resume it; returns what came of it."""
        site = session.get(SiteRow, request.target)
        if site is None:
            return GONE
        site.paused_by = request.by if request.kind == RequestKind.PAUSE else None
        session.flush()
        return "it is given no more jobs; those that it has go on" if site.paused_by else "it is given jobs again"

    def _let_go(self, session: Session, request: RequestRow) -> str | None:
        """Let an instance go; returns what came of it, None as long as that is not seen."""
        site, _, name = request.target.partition("/")
        instance = session.get(InstanceRow, name)
        if instance is None or instance.site != site:
            return GONE
        if instance.state == InstanceState.ENDED:
            return "it has ended"
        if instance.state == InstanceState.DRAINING and request.kind == RequestKind.DRAIN:
            return "it takes no more jobs, and ends when those there have ended"
        reason = because("released_by", by=request.by, kind=request.kind)
        if request.kind == RequestKind.TERMINATE:
            there = select(JobRow.token).where(of_instance(instance), JobRow.cancel.is_(None))
            ended = terminated(name, request.by)
            store.apply(session, [Change(token, {"cancel": ended}) for token in session.scalars(there)])
        self.release(site, {name: reason})
        return None


def of_instance(instance: InstanceRow) -> ColumnElement[bool]:
    """Whether a job is on an instance and has not ended."""
    return and_(JobRow.site == instance.site, JobRow.location == instance.token, JobRow.state.in_(LIVE))


def terminated(name: str, by: str) -> Reason:
    """Why a job has ended whose machine was terminated at a user's request."""
    return because("machine_terminated", machine=name, by=by)


def note_end(session: Session, instance: InstanceRow, by: str, at: float) -> int:
    """Store that an instance was ended for which no controller acts, and its jobs with it; returns how many they were.

    :param by: who has ended it
    :param at: up to when it is billed, epoch seconds
    """
    values = {"state": State.CANCELLED, "cause": "cancelled", "reason": terminated(instance.token, by), "ended_at": at}
    tokens = session.scalars(select(JobRow.token).where(of_instance(instance))).all()
    store.apply(session, [Change(token, values, report=True) for token in tokens])
    session.flush()
    end = {
        "state": InstanceState.ENDED,
        "ended_at": at,
        "reason": because("released_by", by=by, kind=RequestKind.TERMINATE.value),
    }
    instances.change(session, instance.site, {instance.token: end})
    session.expire_all()
    instances.settle(session, instance.site, [instance.token])
    return len(tokens)
