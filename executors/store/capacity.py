"""Capacity in the store: what machines of a site had, from when to when, and what those really have that it buys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Double, Integer, String, delete, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.tables import Base, Capacity
from lading.scheduling.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

MOST_TYPE, MOST_IMAGE = 64, 250


def save(session: Session, site: str, machines: Iterable[Capacity], now: float) -> None:
    """Note what the machines of a site have now; what is as it was goes on.

    :param machines: all that it has, each as a row that is not in the session
    """
    wanted = {each.name: each for each in machines}
    for row in session.scalars(select(Capacity).where(Capacity.site == site, Capacity.until.is_(None))):
        if (new := wanted.get(row.name)) is not None and is_same(row, new):
            del wanted[row.name]
        else:
            row.until = now
    session.add_all(wanted.values())


def is_same(one: Capacity, other: Capacity) -> bool:
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


class SizeRow(Base):
    """What jobs have of machines that a site buys, as one of the type has said that booted last from the image."""

    __tablename__ = "lading_size"

    site: Mapped[str] = mapped_column(String(64), primary_key=True)
    instance_type: Mapped[str] = mapped_column(String(MOST_TYPE), primary_key=True)
    image: Mapped[str] = mapped_column(String(MOST_IMAGE), primary_key=True)
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    seen_at: Mapped[float] = mapped_column(Double)


def sizes(session: Session, site: str) -> dict[tuple[str, str], Resources]:
    """What jobs have of the machines that a site buys, by instance type and image."""
    rows = session.scalars(select(SizeRow).where(SizeRow.site == site))
    return {(row.instance_type, row.image): Resources(row.cpus, row.memory, row.disk, row.gpus) for row in rows}


def keep_sizes(session: Session, site: str, found: Mapping[tuple[str, str], Resources], now: float) -> None:
    """Keep what was seen of machines; names that are too long for the table are seen anew after each start."""
    for (instance_type, image), size in found.items():
        if len(instance_type) <= MOST_TYPE and len(image) <= MOST_IMAGE:
            amounts = {"cpus": size.cpus, "memory": size.memory, "disk": size.disk, "gpus": size.gpus}
            session.merge(SizeRow(site=site, instance_type=instance_type, image=image, seen_at=now, **amounts))
