"""Tries: single jobs, with the phases of their lives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import and_, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, instances, usd_until
from lading.executors.store.gangs.rows import held_for
from lading.plugin.ui.queries.models import TryPage, TryPhase, TrySummary
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.insight.phases import TITLES, Times, phases
from lading.scheduling.reasons import CAUSES

Boot = tuple[float, float | None]
MOST_TRIES = 500
# What the page shows of a job as the store has it.
AS_STORED = (TrySummary.model_fields.keys() & JobRow.__table__.columns.keys()) - {
    "task_id",
    "queue",
    "usd",
    "reason",
    "placed_because",
}
OF_EVERY_JOB = frozenset(("id", "cpus", "nodes", "memory", "gpus", "queued_at", "started_at", "ended_at"))


def tries(
    session: Session, sight: Sight, now: float, conditions: Sequence[Any], limit: int, after: str | None = None
) -> TryPage:
    """Jobs, youngest first.

    :param conditions: which
    :param after: the end of the page before, as it says it
    """
    query = select(JobRow, usd_until(now)).where(*conditions)
    if after is not None:
        at, _, token = after.partition(":")
        query = query.where(
            or_(JobRow.queued_at < float(at), and_(JobRow.queued_at == float(at), JobRow.token > token))
        )
    rows = session.execute(query.order_by(JobRow.queued_at.desc(), JobRow.token).limit(limit + 1)).all()
    shown, more = rows[:limit], len(rows) > limit
    boots, held = boots_of(session, [job for job, _ in shown]), held_for(session)
    last = shown[-1][0] if more else None
    return TryPage(
        now=now,
        jobs=[as_try(job, sight, usd, boots.get(job.location or ""), held.get(job.token)) for job, usd in shown],
        after=None if last is None else f"{last.queued_at!r}:{last.token}",
    )


def boots_of(session: Session, jobs: Sequence[JobRow]) -> dict[str, Boot]:
    """When the instances of these jobs were ordered and came up, by name."""
    return instances.boots(session, (job.location for job in jobs if job.location is not None))


def as_try(job: JobRow, sight: Sight, usd: float | None, boot: Boot | None, held: str | None = None) -> TrySummary:
    """A job, as far as it may be seen.

    :param usd: what it has cost, until now where it runs
    """
    found = TrySummary(
        id=job.token,
        hidden=False,
        task_id=job.task_id or job.kind,
        held=held,
        queue=job.queue or job.queue_hint,
        usd=usd,
        reason=None if job.reason is None else str(job.reason),
        placed_because=None if job.placed_because is None else str(job.placed_because),
        remedy=job.remedy,
        cause_title=None if (cause := CAUSES.get(job.cause or "")) is None else cause.title,
        phases=as_phases(job, boot),
        **{name: getattr(job, name) for name in AS_STORED},
    )
    return found if sight.sees(job.dag_id) else unnamed(found)


def unnamed(found: TrySummary) -> TrySummary:
    """What may be seen of a job of another Dag: that it is there, and how large it is."""
    nothing = {name: None for name in TrySummary.model_fields if name not in OF_EVERY_JOB}
    return found.model_copy(update={**nothing, "hidden": True, "map_index": -1, "try_number": 0, "phases": []})


def as_phases(job: JobRow, boot: Boot | None) -> list[TryPhase]:
    """The parts of a job's life.

    :param boot: when the instance was ordered that has it, and when that came up; None: it has none
    """
    times = Times(job.queued_at, job.placed_at, job.submitted_at, boot, job.started_at, job.ended_at)
    return [
        TryPhase(key=each.key, title=TITLES[each.key], since=each.since, until=each.until) for each in phases(times)
    ]
