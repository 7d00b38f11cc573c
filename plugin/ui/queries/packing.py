"""What ran where within a window: rectangles of time and cpus on machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, State
from lading.executors.store.figures import queues
from lading.executors.store.lanes import machine
from lading.plugin.ui.queries.chart_models import Name, PackingChart, Rectangle
from lading.plugin.ui.queries.places import key, machines
from lading.plugin.ui.queries.sight import Sight

MOST_JOBS = 20_000
# What was changed is seen when its transaction has ended, which may be so much later, seconds.
OVERLAP = 10.0
COLUMNS = (
    JobRow.token, JobRow.kind, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.map_index, JobRow.try_number,
    JobRow.site, JobRow.location, JobRow.node, JobRow.cpus, JobRow.nodes, JobRow.lane, JobRow.state, JobRow.started_at,
    JobRow.ended_at,
)  # fmt: skip


def packing(
    session: Session, sight: Sight, since: float, until: float, now: float, cursor: float | None = None
) -> PackingChart:
    """What ran where.

    :param cursor: of an earlier answer: only what has changed since then; None: everything
    """
    changed = None if cursor is None else cursor - OVERLAP
    rows = jobs(session, since, until, changed)
    places: dict[str, int] = {}
    names: dict[Name, int] = {}
    rectangles = []
    for row in rows[:MOST_JOBS]:
        place = key(row.site or "", machine(row.site or "", row) or "")
        seen = sight.sees(row.dag_id)
        name = Name(row.dag_id, row.run_id, row.task_id or row.kind)
        rectangles.append(
            Rectangle(
                row.token,
                places.setdefault(place, len(places)),
                names.setdefault(name, len(names)) if seen else None,
                row.map_index if seen else -1,
                row.try_number if seen else 0,
                row.lane or 0.0,
                row.cpus,
                row.nodes or 1,
                row.started_at,
                row.ended_at,
                row.state if seen else None,
            )
        )
    # Not checked: its thousands of rectangles were made above, of what typed columns have.
    return PackingChart.model_construct(
        now=now,
        cursor=now,
        since=since,
        until=until,
        truncated=len(rows) > MOST_JOBS,
        places=list(places),
        names=list(names),
        jobs=rectangles,
        machines=machines(session, since, until, changed),
        queues=queues(session),
    )


def jobs(session: Session, since: float, until: float, changed: float | None) -> Sequence[Any]:
    """The jobs that ran within a window, youngest first, or what of them is new, latest first; one more than are
    shown, at most.
    """
    query = select(*COLUMNS).where(JobRow.site.is_not(None)).limit(MOST_JOBS + 1)
    if changed is None:
        query = query.where(JobRow.started_at < until, or_(JobRow.state == State.RUNNING, JobRow.ended_at > since))
        return session.execute(query.order_by(JobRow.started_at.desc(), JobRow.token)).all()
    # Few have changed. Another order, or conditions on other columns, might make the database look at all jobs instead.
    rows = session.execute(query.where(JobRow.changed_at > changed).order_by(JobRow.changed_at.desc()))
    return [row for row in rows if row.started_at is not None and row.started_at < until and is_within(row, since)]


def is_within(row: Any, since: float) -> bool:
    """Whether a job that has started ran after a time."""
    return row.state == State.RUNNING or (row.ended_at is not None and row.ended_at > since)
