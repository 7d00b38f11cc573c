"""The lease of the controller that acts: of several one has it, and another takes it when it runs out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import Boolean, Double, Integer, String, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.tables import Base

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


class Lease(Base):
    """Which controller acts. There is one row at most."""

    __tablename__ = "lading_lease"

    name: Mapped[str] = mapped_column(String(30), primary_key=True)
    holder: Mapped[str] = mapped_column(String(36))
    host: Mapped[str] = mapped_column(String(250))
    pid: Mapped[int] = mapped_column(Integer)
    managed: Mapped[bool] = mapped_column(Boolean)
    expires_at: Mapped[float] = mapped_column(Double)


def take_lease(
    session: Session, holder: str, host: str, pid: int, managed: bool, now: float, seconds: float, dead: str | None
) -> bool:
    """Become or stay the controller that acts.

    :param dead: a holder that is known not to live any more, whose lease need not run out first
    :returns: whether the lease is held now
    """
    values = {"holder": holder, "host": host, "pid": pid, "managed": managed, "expires_at": now + seconds}
    free = or_(Lease.holder == holder, Lease.expires_at < now)
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
    """Who acts, if anybody."""
    return session.scalars(select(Lease)).first()


def drop_lease(session: Session, holder: str) -> None:
    """Let another controller act at once."""
    session.execute(delete(Lease).where(Lease.holder == holder))
