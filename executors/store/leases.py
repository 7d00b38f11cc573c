"""The lease of the controller that acts: of several one has it, and another takes it when it runs out.

Controllers of several machines share it, so it is dated and judged by the one clock that all of them share: that of the
database.
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
    """What the database's clock says, seconds since the epoch, at any moment of a transaction."""

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
    """Which controller acts. There is one row at most.

    :ivar expires_at: by the database's clock
    :ivar left: seconds for which it still held when it was read; below 0: it has run out
    """

    __tablename__ = "lading_lease"

    name: Mapped[str] = mapped_column(String(30), primary_key=True)
    holder: Mapped[str] = mapped_column(String(36))
    host: Mapped[str] = mapped_column(String(250))
    pid: Mapped[int] = mapped_column(Integer)
    managed: Mapped[bool] = mapped_column(Boolean)
    expires_at: Mapped[float] = mapped_column(Double)
    # Seconds by which the database's clock is ahead of its holder's, as that measured it last; None: it has not.
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
    """Become or stay the controller that acts.

    :param seconds: for which it is held from now on
    :param dead: a holder that is known not to live any more, whose lease need not run out first
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
    """The lease of the controller that acts; None: none does."""
    return session.scalars(select(Lease).execution_options(populate_existing=True)).first()


def drop_lease(session: Session, holder: str) -> None:
    """Let another controller act at once."""
    session.execute(delete(Lease).where(Lease.holder == holder))


# The same in a query: by so much the times at which jobs were queued, which the database dates, are later than all
# others, which the controller dates.
AHEAD = func.coalesce(select(func.max(Lease.database_ahead)).scalar_subquery(), 0.0)


def database_ahead(session: Session) -> float:
    """Seconds by which the database's clock is ahead of that of the controller that acts, as far as that is known."""
    return float(session.scalar(select(AHEAD)) or 0.0)


def controller_now(session: Session) -> float:
    """What time it is by the clock of the controller that acts, which dates what happens to jobs: of several hosts'
    clocks none is right. Without a controller it is that of this host.
    """
    found = session.execute(select(DatabaseNow(), Lease.database_ahead)).first()
    return time.time() if found is None or found[1] is None else float(found[0] - found[1])
