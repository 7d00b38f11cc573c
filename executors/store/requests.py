"""Requests in the store: what people ask of sites on the page, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from sqlalchemy import delete, or_, select

from lading.executors.store import share_rows
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.leases import DatabaseNow
from lading.executors.store.tables import JobRow, RequestRow, SiteRow, State
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class RequestKind(str, Enum):
    """What can be asked."""

    PAUSE = "pause"
    """Of a site: it is given no more jobs."""
    RESUME = "resume"
    DRAIN = "drain"
    """Of an instance: it takes no more jobs, and ends when those there have ended."""
    TERMINATE = "terminate"
    """Of an instance: it ends, and the jobs there with it."""
    WAKE = "wake"
    """Of a job that sleeps until its next attempt, and of its gang: it is tried now."""
    LIFT = "lift"
    """Of a budget: it does not hold until its next period."""
    RESTORE = "restore"
    """Of a budget that was lifted: it holds again."""


OF_BUDGETS = (RequestKind.LIFT, RequestKind.RESTORE)
OF_SITES = (RequestKind.PAUSE, RequestKind.RESUME)


def ask(session: Session, kind: RequestKind, target: str, by: str) -> RequestRow:
    """Note what a user asks for, dated by the database's clock: the asking process and the controller may have others.

    :param target: a site, or site/instance, or the token of a job, or the name of a budget
    :raises LookupError: there is no such target
    """
    if not target.isprintable():  # PostgreSQL takes no NUL, and no database half of a surrogate pair
        raise LookupError(f"{shortened(target)} is no name; valid: characters that can be printed")
    site, _, instance = target.partition("/")
    if kind in OF_SITES and session.get(SiteRow, target) is None:
        raise LookupError(
            f"there is no site {target[:100]!r}; valid: {', '.join(session.scalars(select(SiteRow.name)))}"
        )
    if kind in OF_BUDGETS:
        share_rows.named(session, target)
    elif kind is RequestKind.WAKE:
        if session.scalar(select(JobRow.token).where(JobRow.token == target, JobRow.state == State.ATTEMPTED)) is None:
            raise LookupError(f"{target[:100]!r} is no job that sleeps until its next attempt; valid: the id of one")
    elif kind not in OF_SITES and living(session, site, instance) is None:
        raise LookupError(f"{target[:100]!r} is nothing that was launched and has not ended; valid: site/instance")
    request = RequestRow(kind=kind.value, target=target, by=by[:250], at=DatabaseNow())
    session.add(request)
    session.flush()
    return request


def living(session: Session, site: str, name: str) -> InstanceRow | None:
    """An instance that has not ended; None: there is none of this name."""
    found = session.get(InstanceRow, name)
    return found if found is not None and found.site == site and found.state != InstanceState.ENDED else None


def to_do(session: Session) -> Sequence[RequestRow]:
    """What is not done yet, in the order in which it was asked."""
    return session.scalars(select(RequestRow).where(RequestRow.done_at.is_(None)).order_by(RequestRow.id)).all()


def overdue(session: Session, seconds: float) -> frozenset[int]:
    """Of what is not done yet, what was asked longer ago than that."""
    query = select(RequestRow.id).where(RequestRow.done_at.is_(None), RequestRow.at < DatabaseNow() - seconds)
    return frozenset(session.scalars(query))


def latest(session: Session, since: float, limit: int) -> Sequence[RequestRow]:
    """What is not done yet, or was asked since a time, latest first."""
    query = select(RequestRow).where(or_(RequestRow.done_at.is_(None), RequestRow.at >= since))
    return session.scalars(query.order_by(RequestRow.id.desc()).limit(limit)).all()


def paused(session: Session) -> dict[str, str]:
    """Who has paused sites that are paused, by site."""
    rows = session.execute(select(SiteRow.name, SiteRow.paused_by).where(SiteRow.paused_by.is_not(None)))
    return {name: str(by) for name, by in rows}


def forget(session: Session, before: float) -> None:
    """Delete what was done before a time, seconds since the epoch."""
    session.execute(delete(RequestRow).where(RequestRow.done_at < before))
