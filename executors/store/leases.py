"""The lease of the acting controller: one of several controllers holds it, and another takes it once it expires.

The controllers may run on several hosts, so the lease is dated by the one clock they share: the database's.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Boolean, Double, Integer, String, and_, delete, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Mapped, column_property, mapped_column
from sqlalchemy.sql.functions import FunctionElement

from lading.executors.store.tables import Base

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class DatabaseNow(FunctionElement[float]):
    """The time of the database's clock when it is evaluated, in epoch seconds; it advances within a transaction."""

    type = Double()
    name = "lading_now"
    inherit_cache = True


@compiles(DatabaseNow)
def _of_sqlite(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(DatabaseNow, "postgresql")
def _of_postgresql(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


@compiles(DatabaseNow, "mysql", "mariadb")
def _of_mysql(element: DatabaseNow, compiler: Any, **options: Any) -> str:
    return "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1000000e0)"


class Lease(Base):
    """The record of which controller acts; there is at most one row.

    :ivar expires_at: by the database's clock
    :ivar left: seconds until it expires, at the time of reading; negative if it has expired
    """

    __tablename__ = "lading_lease"

    name: Mapped[str] = mapped_column(String(30), primary_key=True)
    holder: Mapped[str] = mapped_column(String(36))
    host: Mapped[str] = mapped_column(String(250))
    pid: Mapped[int] = mapped_column(Integer)
    managed: Mapped[bool] = mapped_column(Boolean)
    expires_at: Mapped[float] = mapped_column(Double)
    # Seconds by which the database's clock is ahead of the holder's, as last measured; None: not yet measured.
    database_ahead: Mapped[float | None] = mapped_column(Double)
    left: Mapped[float] = column_property(expires_at - DatabaseNow())


def take_lease(
    session: Session,
    holder: str,
    host: str,
    pid: int,
    managed: bool,
    seconds: float,
    dead: str | None,
    database_ahead: float = 0.0,
) -> bool:
    """Become or stay the acting controller.

    :param seconds: how long the lease lasts from now on
    :param dead: a holder that is known to be dead, so its lease does not have to expire first
    :param database_ahead: seconds by which the database's clock is ahead of the holder's
    :returns: whether the lease is held now
    """
    values: dict[str, Any] = {"holder": holder, "host": host, "pid": pid, "managed": managed}
    values |= {"expires_at": DatabaseNow() + seconds, "database_ahead": database_ahead}
    free = or_(Lease.holder == holder, Lease.expires_at < DatabaseNow())
    if dead is not None:
        free = or_(free, Lease.holder == dead)
    taken = session.execute(
        update(Lease).where(and_(Lease.name == "controller", free)).values(**values),
        execution_options={"synchronize_session": False},
    )
    if taken.rowcount:  # type: ignore[attr-defined]
        return True
    if session.scalar(select(Lease.name)) is not None:
        return False
    try:
        with session.begin_nested():
            session.execute(insert(Lease).values(name="controller", **values))
    except IntegrityError:
        return False
    return True


def lease(session: Session) -> Lease | None:
    """Return the lease of the acting controller; None: no controller acts."""
    return session.scalars(select(Lease).execution_options(populate_existing=True)).first()


def lease_and_time(session: Session) -> tuple[Lease | None, float]:
    """Return the lease as :func:`lease` does, and the time of the database's clock, in epoch seconds."""
    found = lease(session)
    if found is None:
        return None, session.execute(select(DatabaseNow())).scalar_one()
    return found, found.expires_at - found.left


def drop_lease(session: Session, holder: str) -> None:
    session.execute(delete(Lease).where(Lease.holder == holder))


# Database_ahead as an SQL expression: the time of queueing is by the database's clock, all other times by the
# controller's.
AHEAD = func.coalesce(select(func.max(Lease.database_ahead)).scalar_subquery(), 0.0)


def database_ahead(session: Session) -> float:
    """Return by how many seconds the database's clock is ahead of the acting controller's; 0 if unknown."""
    return float(session.scalar(select(AHEAD)) or 0.0)


def controller_now(session: Session) -> float:
    """Return the time by the acting controller's clock, which dates what happens to jobs; hosts' clocks may differ.

    Without a controller, this is the time of this host.
    """
    found = session.execute(select(DatabaseNow(), Lease.database_ahead)).first()
    return time.time() if found is None or found[1] is None else float(found[0] - found[1])
