"""Lanes: where on its machine a job is drawn, settled once when it starts so that no picture of it ever jumps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, or_, select, update

from lading.executors.store.jobs import chunks
from lading.executors.store.tables import Job, State
from lading.scheduling.resources import TOLERANCE

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

COLUMNS = (
    Job.token, Job.location, Job.node, Job.cpus, Job.lane, Job.started_at, Job.ended_at,
)  # fmt: skip


def settle(session: Session, site: str, tokens: Sequence[str]) -> None:
    """Give jobs of a site that have started their lanes: each the lowest that is free on its machine all the time.

    :param tokens: those that have started, and perhaps ended
    """
    new = [row for chunk in chunks(tokens) for row in session.execute(select(*COLUMNS).where(Job.token.in_(chunk)))]
    new = sorted((row for row in new if row.started_at is not None and row.lane is None), key=by_start)
    if not new:
        return
    there = session.execute(
        select(*COLUMNS).where(
            Job.site == site,
            Job.lane.is_not(None),
            or_(Job.state == State.RUNNING, Job.ended_at > new[0].started_at),
        )
    )
    taken: dict[str | None, list[tuple[float, float, float, float]]] = {}
    for row in there:
        taken.setdefault(machine(site, row), []).append(span(row, row.lane))
    found = []
    for row in new:
        others = taken.setdefault(machine(site, row), [])
        lane = lowest(row, others)
        others.append(span(row, lane))
        found.append({"its_token": row.token, "its_lane": lane})
    statement = update(Job.__table__).where(Job.token == bindparam("its_token")).values(lane=bindparam("its_lane"))
    session.connection().execute(statement, found)


def machine(site: str, row: Any) -> str | None:
    """What a job is on: of a batch system, which is one location, the node."""
    return row.node if row.location == site and row.node is not None else row.location


def by_start(row: Any) -> tuple[float, str]:
    return row.started_at, row.token


def span(row: Any, lane: float) -> tuple[float, float, float, float]:
    """What a job takes: from when to when, and from which cpu to which."""
    return row.started_at, row.ended_at if row.ended_at is not None else float("inf"), lane, lane + row.cpus


def lowest(row: Any, others: Iterable[tuple[float, float, float, float]]) -> float:
    """The lowest lane that no other job takes while this one runs."""
    begin, end, _, cpus = span(row, 0.0)
    lane = 0.0
    for low, high in sorted((low, high) for start, stop, low, high in others if start < end and stop > begin):
        if lane + cpus <= low + TOLERANCE:
            break
        lane = max(lane, high)
    return lane
