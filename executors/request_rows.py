"""Users' requests in the store, and their outcomes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING

from sqlalchemy import delete, or_, select

from lading.executors.accounting import share_rows
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.leases import DatabaseNow
from lading.executors.store.tables import JobRow, RequestRow, SiteRow, State, UnseenRow
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class RequestKind(str, Enum):
    """What a user can request."""

    PAUSE = "pause"
    """Give a site no more jobs."""
    RESUME = "resume"
    DRAIN = "drain"
    """Give an instance no more jobs, and release it once its jobs have finished."""
    TERMINATE = "terminate"
    """Terminate an instance together with its jobs."""
    WAKE = "wake"
    """Try a sleeping job and its gang now instead of at their next attempt."""
    LIFT = "lift"
    """Suspend a budget until its next period."""
    RESTORE = "restore"
    """Enforce a lifted budget again."""


OF_BUDGETS = (RequestKind.LIFT, RequestKind.RESTORE)
OF_SITES = (RequestKind.PAUSE, RequestKind.RESUME)

# An idle controller asks this every second, so the statement is built only once.
ANY_NEWS = select(
    or_(select(UnseenRow.id).exists(), select(RequestRow.id).where(RequestRow.done_at.is_(None)).exists())
)


def ask(session: Session, kind: RequestKind, target: str, by: str) -> RequestRow:
    """Store a user's request, dated by the database's clock because the clocks of the processes involved may differ.

    :param target: a site, site/instance, the token of a job, or the name of a budget
    :raises LookupError: the target does not exist or is in the wrong state
    """
    if not target.isprintable():  # PostgreSQL rejects NUL, and every database rejects lone surrogates
        raise LookupError(f"{shortened(target)} is not a valid name; use printable characters only")
    site, _, instance = target.partition("/")
    if kind in OF_SITES and session.get(SiteRow, target) is None:
        raise LookupError(
            f"there is no site {target[:100]!r}; valid: {', '.join(session.scalars(select(SiteRow.name)))}"
        )
    if kind in OF_BUDGETS:
        share_rows.named(session, target)
    elif kind is RequestKind.WAKE:
        if session.scalar(select(JobRow.token).where(JobRow.token == target, JobRow.state == State.ATTEMPTED)) is None:
            raise LookupError(
                f"job {target[:100]!r} is not sleeping; valid: the id of a job that sleeps until its next attempt"
            )
    elif kind not in OF_SITES and living(session, site, instance) is None:
        raise LookupError(f"{target[:100]!r} is not a live instance; valid: site/instance, as in the list of instances")
    request = RequestRow(kind=kind.value, target=target, by=by[:250], at=DatabaseNow())
    session.add(request)
    session.flush()
    return request


def living(session: Session, site: str, name: str) -> InstanceRow | None:
    """Return the instance of this name if it has not ended."""
    found = session.get(InstanceRow, name)
    return found if found is not None and found.site == site and found.state != InstanceState.ENDED else None


def to_do(session: Session) -> Sequence[RequestRow]:
    """Return the open requests, oldest first."""
    return session.scalars(select(RequestRow).where(RequestRow.done_at.is_(None)).order_by(RequestRow.id)).all()


def any_news(session: Session) -> bool:
    """Return whether there is an open request, or a job that the acting controller has not read yet."""
    return bool(session.scalar(ANY_NEWS))


def overdue(session: Session, seconds: float) -> frozenset[int]:
    query = select(RequestRow.id).where(RequestRow.done_at.is_(None), RequestRow.at < DatabaseNow() - seconds)
    return frozenset(session.scalars(query))


def latest(session: Session, since: float, limit: int) -> Sequence[RequestRow]:
    """Return all open requests and the last ones made since a time, latest first.

    :param limit: the most requests made since then
    """
    made = select(RequestRow).where(RequestRow.at >= since).order_by(RequestRow.id.desc()).limit(limit)
    found = {row.id: row for row in (*to_do(session), *session.scalars(made))}
    return [found[number] for number in sorted(found, reverse=True)]


def paused(session: Session) -> dict[str, str]:
    """Return who paused each paused site."""
    rows = session.execute(select(SiteRow.name, SiteRow.paused_by).where(SiteRow.paused_by.is_not(None)))
    return {name: str(by) for name, by in rows}


def forget(session: Session, before: float) -> None:
    """Delete requests completed before a time, in epoch seconds."""
    session.execute(delete(RequestRow).where(RequestRow.done_at < before))
