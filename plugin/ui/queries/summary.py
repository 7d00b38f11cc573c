"""How things are: what runs, what waits, what is up, and what it costs now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import Job, Location, SiteRow, State
from lading.executors.store.figures import CPUS, Up, live_jobs, total, usd_per_hour, what_is_up
from lading.executors.store.tables import UsageRow
from lading.executors.store.usage import SECONDS_PER_DAY
from lading.plugin.ui.models import Cost, Costs, SiteState, Summary
from lading.plugin.ui.queries.sight import Sight


def summary(session: Session, now: float) -> Summary:
    """How things are now."""
    work = {(site or "", state): (count, float(cpus)) for site, state, count, cpus in live_jobs(session)}
    up = what_is_up(session)
    lease = store.lease(session)
    sites = [site_state(session, row, work, up) for row in site_rows(session)]
    prices = [site.usd_per_hour for site in sites]
    return Summary(
        now=now,
        controller_lives=lease is not None and lease.expires_at > now,
        running=sum(count for (_, state), (count, _) in work.items() if state == State.RUNNING),
        waiting=sum(count for (_, state), (count, _) in work.items() if state != State.RUNNING),
        machines=len(up),
        cpus_used=sum(cpus for (_, state), (_, cpus) in work.items() if state == State.RUNNING),
        cpus_up=sum(cpus for _, cpus, _ in up),
        usd_per_hour=total(prices),
        sites=sites,
    )


def site_rows(session: Session) -> Sequence[SiteRow]:
    """The sites in the order of the sites file."""
    return session.scalars(select(SiteRow).order_by(SiteRow.position)).all()


def site_state(
    session: Session, row: SiteRow, work: dict[tuple[str, str], tuple[int, float]], up: Sequence[Up]
) -> SiteState:
    """A site with what is on it and what it costs now: its machines, or the jobs of a batch system."""
    locations = session.scalars(select(Location).where(Location.site == row.name)).all()
    itself = next((each for each in locations if each.name == row.name), None)
    notes = [itself.note] if itself is not None else [each.note for each in locations]
    here = [(cpus, usd) for site, cpus, usd in up if site == row.name]
    running, used = work.get((row.name, State.RUNNING), (0, 0.0))
    is_queue = not here and itself is not None and itself.kind != "local"
    rate = itself.usd_per_cpu_hour if is_queue and itself is not None else None
    takes_jobs = any(each.state == "up" for each in locations)
    return SiteState(
        name=row.name,
        kind=row.kind,
        state="down" if row.trouble is not None or not takes_jobs else "up" if row.paused_by is None else "paused",
        note="; ".join(filter(None, [row.paused_by and f"paused by {row.paused_by}", row.trouble, *notes])) or None,
        contact_at=row.contact_at,
        nodes=itself and itself.nodes,
        idle_nodes=itself and itself.idle_nodes,
        limits=json.loads(row.limits),
        waiting=sum(
            work.get((row.name, state), (0, 0.0))[0] for state in (State.QUEUED, State.ATTEMPTED, State.PLACED)
        ),
        running=running,
        cpus_used=used,
        cpus_up=None if is_queue else sum(cpus for cpus, _ in here),
        usd_per_hour=usd_per_hour([price for _, price in here], rate, used),
    )


def costs(session: Session, sight: Sight, since: float, now: float) -> Costs:
    """What jobs have cost, by Dag: those that ended since a time, and those that run, each from its start.

    Of those that have been forgotten it is known on which day they ended, in UTC.
    """
    seconds = func.coalesce(Job.ended_at, now) - Job.started_at
    rows = session.execute(
        select(Job.dag_id, func.count(), func.sum(CPUS * seconds), func.sum(Job.cpu_seconds), func.sum(Job.usd))
        .where(Job.started_at.is_not(None), or_(Job.ended_at >= since, Job.state == State.RUNNING))
        .group_by(Job.dag_id)
    ).all()
    sums = [UsageRow.jobs, UsageRow.cpu_seconds, UsageRow.cpu_seconds_used, UsageRow.usd]
    forgotten = session.execute(
        select(UsageRow.dag_id, *map(func.sum, sums))
        .where(UsageRow.day >= int(since // SECONDS_PER_DAY))
        .group_by(UsageRow.dag_id)
    ).all()
    by_dag: dict[tuple[str | None, bool], list[tuple[int, float, float, float | None]]] = {}
    everything: list[Any] = [*rows, *forgotten]
    for dag_id, jobs, asked, used, usd in everything:
        key = (dag_id, False) if sight.sees(dag_id) else (None, True)
        by_dag.setdefault(key, []).append((int(jobs), float(asked or 0), float(used or 0), usd))
    dags = [
        Cost(
            dag_id=dag_id,
            hidden=hidden,
            jobs=sum(each[0] for each in parts),
            cpu_hours=sum(each[1] for each in parts) / 3600,
            cpu_hours_used=sum(each[2] for each in parts) / 3600,
            usd=total([each[3] for each in parts]),
        )
        for (dag_id, hidden), parts in by_dag.items()
    ]
    dags.sort(key=lambda each: (-(each.usd or 0.0), -each.cpu_hours))
    return Costs(
        since=since, cpu_hours=sum(each.cpu_hours for each in dags), usd=total([each.usd for each in dags]), dags=dags
    )
