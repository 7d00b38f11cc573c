"""Lanes: the vertical position of a job in the picture of its machine, fixed when it starts so that it never jumps."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import bindparam, or_, select, update

from lading.executors.store.jobs import chunks
from lading.executors.store.tables import JobRow, LocationRow, State
from lading.scheduling.model.resources import TOLERANCE

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

COLUMNS = (
    JobRow.token, JobRow.location, JobRow.node, JobRow.cpus, JobRow.lane, JobRow.started_at, JobRow.ended_at,
)  # fmt: skip

# Start and end of a job in time, lowest and highest cpu of its lane.
Span = tuple[float, float, float, float]


def settle(session: Session, site: str, tokens: Sequence[str]) -> None:
    """Give started jobs of a site their lanes, each free on its machine for the whole time.

    :param tokens: jobs that have started, and may have ended
    """
    new = [row for chunk in chunks(tokens) for row in session.execute(select(*COLUMNS).where(JobRow.token.in_(chunk)))]
    new = sorted((row for row in new if row.started_at is not None and row.lane is None), key=by_start)
    if not new:
        return
    there = session.execute(
        select(*COLUMNS).where(
            JobRow.site == site,
            JobRow.lane.is_not(None),
            JobRow.started_at.is_not(None),  # Airflow may have refused the task of a job that already had a lane
            or_(JobRow.state == State.RUNNING, JobRow.ended_at > new[0].started_at),
        )
    )
    known = select(LocationRow.name, LocationRow.cpus).where(LocationRow.site == site)
    rooms = {row.name: row.cpus for row in session.execute(known)}
    taken: dict[str | None, list[Span]] = {}
    for row in there:
        taken.setdefault(machine(site, row), []).append(span(row, row.lane))
    lanes = []
    for row in new:
        others = taken.setdefault(place := machine(site, row), [])
        lane = lowest(row, others, rooms.get(place or ""))
        others.append(span(row, lane))
        lanes.append({"its_token": row.token, "its_lane": lane})
    # The start itself has just set `changed_at`. No index contains the lane, so PostgreSQL can leave the indexes alone.
    values = {"lane": bindparam("its_lane"), "changed_at": JobRow.changed_at}
    statement = update(JobRow.__table__).where(JobRow.token == bindparam("its_token")).values(**values)
    session.connection().execute(statement, lanes)


def machine(site: str, row: Any) -> str | None:
    """Return the machine that runs a job; in a batch system, which is one location, that is the node."""
    return machine_named(site, row.location, row.node)


def machine_named(site: str, location: str | None, node: str | None) -> str | None:
    return node if location == site and node is not None else location


def by_start(row: Any) -> tuple[float, str]:
    return row.started_at, row.token


def span(row: Any, lane: float) -> Span:
    return row.started_at, row.ended_at if row.ended_at is not None else float("inf"), lane, lane + row.cpus


def lowest(row: Any, others: Iterable[Span], room: float | None) -> float:
    """Return a lane that no other job uses while this one runs.

    If the cpus of its machine are known, the lane is a multiple of the job's cpus in the smallest gap that fits, as in
    the buddy system for memory (Knowlton, A fast storage allocator, 1965), so that free cpus stay contiguous. Otherwise
    it is the lowest.

    :param room: the cpus of its machine; None: unknown
    """
    begin, end, _, cpus = span(row, 0.0)
    taken = sorted((low, high) for start, stop, low, high in others if start < end and stop > begin)
    free = list(gaps(taken))
    if room is not None and cpus > 0:
        within = [(low, min(high, room)) for low, high in free]
        whole = [(high - low, lane) for low, high in within if (lane := aligned(low, cpus)) + cpus <= high + TOLERANCE]
        if whole:
            return min(whole)[1]
    return next(low for low, high in free if low + cpus <= high + TOLERANCE)


def gaps(taken: Iterable[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the free ranges between and above those taken, lowest first."""
    low = 0.0
    for begin, end in taken:
        if begin > low + TOLERANCE:
            yield low, begin
        low = max(low, end)
    yield low, math.inf


def aligned(low: float, cpus: float) -> float:
    """Return the first multiple of `cpus` that is not below `low`."""
    return math.ceil(low / cpus - TOLERANCE) * cpus
