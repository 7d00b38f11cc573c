"""Instances in the store: what was ordered, launched and released, each with its token; an order is a row at first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select, update

from lading.executors.store.jobs import chunks
from lading.executors.store.tables import Instance, InstanceState

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def living(session: Session, site: str) -> Sequence[Instance]:
    """Those of a site that have not ended, oldest first."""
    query = select(Instance).where(Instance.site == site, Instance.state != InstanceState.ENDED)
    return session.scalars(query.order_by(Instance.ordered_at, Instance.token)).all()


def count_living(session: Session) -> int:
    """How many have not ended, at all sites."""
    query = select(func.count()).select_from(Instance).where(Instance.state != InstanceState.ENDED)
    return session.scalar(query) or 0


def change(session: Session, site: str, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Set columns of instances of a site that have not ended.

    :param values: by token
    """
    living = update(Instance).where(Instance.site == site, Instance.state != InstanceState.ENDED)
    for token, columns in values.items():
        session.execute(
            living.where(Instance.token == token).values(**columns), execution_options={"synchronize_session": False}
        )


def revive(session: Session, site: str, tokens: Sequence[str]) -> None:
    """Take back the end of instances of a site: they are there all the same."""
    values = {"state": InstanceState.ORDERED, "ended_at": None, "cause": None, "reason": None, "idle_since": None}
    ended = update(Instance).where(Instance.site == site, Instance.state == InstanceState.ENDED)
    for chunk in chunks(tokens):
        session.execute(
            ended.where(Instance.token.in_(chunk)).values(**values), execution_options={"synchronize_session": False}
        )


def give_up(session: Session, launching: Iterable[str], reason: str, now: float) -> None:
    """End those of sites at which nothing is launched (any more): nobody hears of them again.

    :param launching: the other sites
    """
    values = {"state": InstanceState.ENDED, "ended_at": now, "cause": "lost", "reason": reason}
    session.execute(
        update(Instance)
        .where(Instance.site.not_in(list(launching)), Instance.state != InstanceState.ENDED)
        .values(**values),
        execution_options={"synchronize_session": False},
    )


def boots(session: Session, tokens: Iterable[str]) -> dict[str, tuple[float, float | None]]:
    """When those of these tokens that are instances were ordered, and when they came up; None: they have not."""
    wanted = set(tokens)
    query = select(Instance.token, Instance.ordered_at, Instance.ready_at).where(Instance.token.in_(wanted))
    return {token: (ordered, ready) for token, ordered, ready in session.execute(query)} if wanted else {}


def known(session: Session, tokens: Iterable[str]) -> set[str]:
    """Those of these tokens that are instances."""
    return {
        token
        for chunk in chunks(sorted({*tokens}))
        for token in session.scalars(select(Instance.token).where(Instance.token.in_(chunk)))
    }


def forget_ended(session: Session, before: float) -> None:
    """Delete those that ended before a time, seconds since the epoch."""
    session.execute(delete(Instance).where(Instance.ended_at < before))
