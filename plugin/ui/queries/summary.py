"""How things are: what runs, what waits, what is up, and what it costs now."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import case, func, or_, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import JobRow, LocationRow, SiteRow, State
from lading.executors.store.figures import (
    CPUS,
    Busy,
    Live,
    Up,
    busy,
    live_jobs,
    queues,
    total,
    usd_per_hour,
    what_is_up,
)
from lading.executors.store.tables import UsageRow
from lading.executors.store.usage import SECONDS_PER_DAY
from lading.plugin.ui.queries.models import Cost, Costs, SiteState, Summary
from lading.plugin.ui.queries.sight import Sight


def summary(session: Session, now: float) -> Summary:
    """How things are now."""
    live, up, rates = live_jobs(session), what_is_up(session), queues(session)
    at_work = busy(live)
    lease = store.lease(session)
    sites = [
        site_state(session, row, live, at_work.get(row.name, Busy()), up, rates.get(row.name))
        for row in site_rows(session)
    ]
    prices = [site.usd_per_hour for site in sites]
    return Summary(
        now=now,
        controller_lives=lease is not None and lease.left > 0,
        running=sum(each.jobs for each in live if each.state == State.RUNNING),
        waiting=sum(each.jobs for each in live if each.state != State.RUNNING),
        machines=len(up),
        cpus_used=sum(each.used for each in at_work.values()),
        cpus_batch=sum(each.batch for each in at_work.values()),
        cpus_up=sum(cpus for _, cpus, _ in up),
        usd_per_hour=total(prices),
        sites=sites,
    )


def site_rows(session: Session) -> Sequence[SiteRow]:
    """The sites in the order of the sites file."""
    return session.scalars(select(SiteRow).order_by(SiteRow.position)).all()


def site_state(
    session: Session, row: SiteRow, live: Sequence[Live], at_work: Busy, up: Sequence[Up], rate: float | None
) -> SiteState:
    """A site with what is on it and what it costs now: its machines, and the jobs of a batch system.

    :param rate: of a cpu in its queue, USD per hour; None: it has none, or no price
    """
    locations = session.scalars(select(LocationRow).where(LocationRow.site == row.name)).all()
    itself = next((each for each in locations if each.name == row.name), None)
    notes = [itself.note] if itself is not None else [each.note for each in locations]
    here = [(cpus, usd) for site, cpus, usd in up if site == row.name]
    its = [each for each in live if each.site == row.name]
    is_queue = not here and itself is not None and itself.kind != "local"
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
        waiting=sum(each.jobs for each in its if each.state != State.RUNNING),
        running=sum(each.jobs for each in its if each.state == State.RUNNING),
        cpus_used=at_work.used,
        cpus_batch=at_work.batch,
        cpus_up=None if is_queue else sum(cpus for cpus, _ in here),
        usd_per_hour=usd_per_hour([price for _, price in here], rate, at_work.batch),
    )


def costs(session: Session, sight: Sight, since: float, now: float) -> Costs:
    """What jobs have cost, by Dag: those that ended since a time, and those that run, each from its start until now.

    Of those that have been forgotten it is known on which day they ended, in UTC.
    """
    asked = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    # What a job used is known when it has ended: the others must not make the share of what was used smaller.
    measured = case((JobRow.cpu_seconds.is_not(None), asked))
    rows = session.execute(
        select(JobRow.dag_id, func.count(), *map(func.sum, (asked, measured, JobRow.cpu_seconds, store.usd_until(now))))
        .where(JobRow.started_at.is_not(None), or_(JobRow.ended_at >= since, JobRow.state == State.RUNNING))
        .group_by(JobRow.dag_id)
    ).all()
    sums = [UsageRow.jobs, UsageRow.cpu_seconds, UsageRow.cpu_seconds, UsageRow.cpu_seconds_used, UsageRow.usd]
    forgotten = session.execute(
        select(UsageRow.dag_id, *map(func.sum, sums))
        .where(UsageRow.day >= int(since // SECONDS_PER_DAY))
        .group_by(UsageRow.dag_id)
    ).all()
    by_dag: dict[tuple[str | None, bool], list[tuple[int, float, float, float, float | None]]] = {}
    everything: list[Any] = [*rows, *forgotten]
    for dag_id, jobs, *seconds, money in everything:
        key = (dag_id, False) if sight.sees(dag_id) else (None, True)
        of_all, of_measured, used = (float(each or 0) for each in seconds)
        by_dag.setdefault(key, []).append((int(jobs), of_all, of_measured, used, money))
    dags = [
        Cost(
            dag_id=dag_id,
            hidden=hidden,
            jobs=sum(each[0] for each in parts),
            cpu_hours=sum(each[1] for each in parts) / 3600,
            cpu_hours_measured=sum(each[2] for each in parts) / 3600,
            cpu_hours_used=sum(each[3] for each in parts) / 3600,
            usd=total([each[4] for each in parts]),
        )
        for (dag_id, hidden), parts in by_dag.items()
    ]
    dags.sort(key=lambda each: (-(each.usd or 0.0), -each.cpu_hours))
    return Costs(
        since=since, cpu_hours=sum(each.cpu_hours for each in dags), usd=total([each.usd for each in dags]), dags=dags
    )
