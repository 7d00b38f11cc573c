"""The capacity of machines over time, and the measured sizes of the machines that a site launches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from sqlalchemy import ColumnElement, Double, Integer, String, delete, or_, select, update
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.tables import Base, Capacity
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

MOST_TYPE, MOST_IMAGE = 64, 250


def save(session: Session, site: str, machines: Iterable[Capacity], now: float) -> None:
    """Record what the machines of a site have now; the row of an unchanged machine stays open.

    :param machines: all machines of the site, as rows that are not in the session
    """
    wanted = {each.name: each for each in machines}
    for row in session.scalars(select(Capacity).where(Capacity.site == site, Capacity.until.is_(None))):
        if (new := wanted.get(row.name)) is not None and is_same(row, new):
            del wanted[row.name]
        else:
            row.until = now
    session.add_all(wanted.values())


def is_same(one: Capacity, other: Capacity) -> bool:
    names = ("cpus", "memory", "gpus", "usd_per_hour")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def end_other_sites(session: Session, sites: Iterable[str], now: float) -> None:
    session.execute(
        update(Capacity).where(Capacity.site.not_in(list(sites)), Capacity.until.is_(None)).values(until=now),
        execution_options={"synchronize_session": False},
    )


def forget(session: Session, before: float) -> None:
    """Delete rows that ended before a time, in epoch seconds."""
    session.execute(delete(Capacity).where(Capacity.until < before))


def between(since: float, until: float) -> list[ColumnElement[bool]]:
    """Return the conditions for rows that overlap a time span."""
    return [Capacity.since < until, or_(Capacity.until.is_(None), Capacity.until > since)]


class SizeRow(Base):
    """The resources for jobs on an instance type, as reported by the last machine that booted it from the image."""

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
    """Return the resources for jobs on the machines a site launches, by instance type and image."""
    rows = session.scalars(select(SizeRow).where(SizeRow.site == site))
    return {(row.instance_type, row.image): Resources(row.cpus, row.memory, row.disk, row.gpus) for row in rows}


def keep_sizes(session: Session, site: str, found: Mapping[tuple[str, str], Resources], now: float) -> None:
    """Store measured sizes. Names too long for the table are skipped, and so measured again after each restart."""
    for (instance_type, image), size in found.items():
        if len(instance_type) <= MOST_TYPE and len(image) <= MOST_IMAGE:
            amounts = {"cpus": size.cpus, "memory": size.memory, "disk": size.disk, "gpus": size.gpus}
            session.merge(SizeRow(site=site, instance_type=instance_type, image=image, seen_at=now, **amounts))
