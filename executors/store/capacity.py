"""Capacity in the store: what the machines of a site had, from when to when."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, delete, or_, select, update

from lading.executors.store.tables import Capacity

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def save(session: Session, site: str, machines: Iterable[Capacity], now: float) -> None:
    """Note what the machines of a site have now; what is as it was goes on.

    :param machines: all that it has, each as a row that is not in the session
    """
    wanted = {each.name: each for each in machines}
    for row in session.scalars(select(Capacity).where(Capacity.site == site, Capacity.until.is_(None))):
        if (new := wanted.get(row.name)) is not None and same(row, new):
            del wanted[row.name]
        else:
            row.until = now
    session.add_all(wanted.values())


def same(one: Capacity, other: Capacity) -> bool:
    """Whether two rows say the same of a machine."""
    names = ("cpus", "memory", "gpus", "usd_per_hour")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def end_other_sites(session: Session, sites: Iterable[str], now: float) -> None:
    """End what sites had that are none any more."""
    session.execute(
        update(Capacity).where(Capacity.site.not_in(list(sites)), Capacity.until.is_(None)).values(until=now),
        execution_options={"synchronize_session": False},
    )


def forget(session: Session, before: float) -> None:
    """Delete what ended before a time, seconds since the epoch."""
    session.execute(delete(Capacity).where(Capacity.until < before))


def between(since: float, until: float) -> list[ColumnElement[bool]]:
    """The conditions for rows of which a part lies in a window."""
    return [Capacity.since < until, or_(Capacity.until.is_(None), Capacity.until > since)]
