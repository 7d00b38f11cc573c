"""Requests: users make them on the page or the command line, and the controller carries them out.

The row that the API server wrote is the intent. It stays open until its effect has been observed, so it is repeated if
the site was down or the controller was killed in the meantime.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, and_, select

from lading.executors import request_rows, store
from lading.executors.accounting import share_rows
from lading.executors.request_rows import OF_BUDGETS, OF_SITES, RequestKind
from lading.executors.store import LIVE, Change, JobRow, SiteRow, State, instances
from lading.executors.store.gangs import rows as gangs
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.tables import RequestRow
from lading.scheduling.model.reasons import Reason, because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

GONE = "nothing with this name exists now"

Release = Callable[[str, Mapping[str, Reason]], None]


class Requests:
    """Carries out users' requests.

    :param release: releases locations of a site, given the reason by location
    """

    def __init__(self, release: Release) -> None:
        self.release = release
        self.paused: Mapping[str, str] = {}
        """The users who have paused sites, by site. Only requests change it."""
        self.is_read = False
        self.next_look = 0.0

    def step(self, session: Session) -> bool:
        """Carry out the open requests; returns whether any is about budgets."""
        if time.monotonic() < self.next_look:
            return False
        self.next_look = time.monotonic() + 2.0
        to_do = request_rows.to_do(session)
        # A request whose effect has not been observed after ten minutes is given up.
        overdue = request_rows.overdue(session, 600.0) if to_do else frozenset()
        for request in to_do:
            outcome = self._carry_out(session, request)
            if outcome is None and request.id in overdue:
                outcome = "its site has not carried it out within 600 s; see the site's note"
            if outcome is not None:
                request.done_at, request.outcome = time.time(), outcome
                log.info("%s of %s, requested by %s: %s", request.kind, request.target, request.by, outcome)
        if to_do or not self.is_read:
            self.paused, self.is_read = request_rows.paused(session), True
        return any(request.kind in OF_BUDGETS for request in to_do)

    def _carry_out(self, session: Session, request: RequestRow) -> str | None:
        """Carry out a request; returns its outcome, or None while its effect has not been observed."""
        if request.kind == RequestKind.WAKE:
            return "it searches for room now" if gangs.wake_with(session, request.target) else "it no longer sleeps"
        if request.kind in OF_BUDGETS:
            if request.kind == RequestKind.LIFT:
                return share_rows.lift(session, request.target, request.by)
            return share_rows.restore(session, request.target)
        return self._pause(session, request) if request.kind in OF_SITES else self._release(session, request)

    def _pause(self, session: Session, request: RequestRow) -> str:
        """Pause or resume a site; returns the outcome."""
        site = session.get(SiteRow, request.target)
        if site is None:
            return GONE
        site.paused_by = request.by if request.kind == RequestKind.PAUSE else None
        session.flush()
        return "it gets no more jobs; its current jobs continue" if site.paused_by else "it gets jobs again"

    def _release(self, session: Session, request: RequestRow) -> str | None:
        """Drain or terminate an instance; returns the outcome, or None while it has not been observed."""
        site, _, name = request.target.partition("/")
        instance = session.get(InstanceRow, name)
        if instance is None or instance.site != site:
            return GONE
        if instance.state == InstanceState.ENDED:
            return "it has ended"
        if instance.state == InstanceState.DRAINING and request.kind == RequestKind.DRAIN:
            return "it takes no more jobs, and is released when its last one has finished"
        reason = because("released_by", by=request.by, kind=request.kind)
        if request.kind == RequestKind.TERMINATE:
            there = select(JobRow.token).where(of_instance(instance), JobRow.cancel.is_(None))
            ended = terminated(name, request.by)
            store.apply(session, [Change(token, {"cancel": ended}) for token in session.scalars(there)])
        self.release(site, {name: reason})
        return None


def of_instance(instance: InstanceRow) -> ColumnElement[bool]:
    """Return the condition that a job is on an instance and has not ended."""
    return and_(JobRow.site == instance.site, JobRow.location == instance.token, JobRow.state.in_(LIVE))


def terminated(name: str, by: str) -> Reason:
    return because("machine_terminated", machine=name, by=by)


def note_end(session: Session, instance: InstanceRow, by: str, at: float) -> int:
    """Record that a user terminated an instance, with its jobs, while no controller acts.

    :param by: the user
    :param at: until when it is billed, epoch seconds
    :returns: the number of jobs that were cancelled
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
