"""Instances in the store: everything ordered, launched and released. An order is stored before the launch.

Purchased instances are billed by the second. When one has ended, its cost is shared among the jobs that ran on it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select, update

from lading.executors.store.jobs import chunks
from lading.executors.store.tables import InstanceRow, InstanceState, JobRow
from lading.scheduling.accounting import billing
from lading.scheduling.accounting.billing import Stay
from lading.scheduling.accounting.chargeback import only
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def living(session: Session, site: str | None = None) -> Sequence[InstanceRow]:
    """Return the instances of a site that have not ended, oldest first.

    :param site: None: of all sites
    """
    query = select(InstanceRow).where(InstanceRow.state != InstanceState.ENDED)
    query = query if site is None else query.where(InstanceRow.site == site)
    return session.scalars(query.order_by(InstanceRow.ordered_at, InstanceRow.token)).all()


def ended(session: Session) -> Sequence[InstanceRow]:
    """Return the ended instances that are still stored, latest first."""
    return session.scalars(
        select(InstanceRow)
        .where(InstanceRow.state == InstanceState.ENDED)
        .order_by(InstanceRow.ended_at.desc(), InstanceRow.token)
    ).all()


def count_living(session: Session) -> int:
    query = select(func.count()).select_from(InstanceRow).where(InstanceRow.state != InstanceState.ENDED)
    return session.scalar(query) or 0


def change(session: Session, site: str, values: Mapping[str, Mapping[str, Any]]) -> None:
    """Set columns of instances of a site that have not ended.

    :param values: the columns, by token
    """
    living = update(InstanceRow).where(InstanceRow.site == site, InstanceRow.state != InstanceState.ENDED)
    for token, columns in values.items():
        session.execute(
            living.where(InstanceRow.token == token).values(**columns), execution_options={"synchronize_session": False}
        )


def revive(session: Session, site: str, tokens: Sequence[str]) -> None:
    """Reopen instances of a site that were recorded as ended but still exist."""
    values = {"state": InstanceState.ORDERED, "ended_at": None, "cause": None, "reason": None, "idle_since": None}
    ended = update(InstanceRow).where(InstanceRow.site == site, InstanceRow.state == InstanceState.ENDED)
    for chunk in chunks(tokens):
        session.execute(
            ended.where(InstanceRow.token.in_(chunk)).values(**values), execution_options={"synchronize_session": False}
        )


def end_at_other_sites(session: Session, launching: Iterable[str], reason: Reason, now: float) -> None:
    """End the instances of sites that no longer launch anything, since no event will ever report these ends.

    :param launching: the sites that do launch machines
    """
    values = {"state": InstanceState.ENDED, "ended_at": now, "cause": "lost", "reason": reason}
    session.execute(
        update(InstanceRow)
        .where(InstanceRow.site.not_in(list(launching)), InstanceRow.state != InstanceState.ENDED)
        .values(**values),
        execution_options={"synchronize_session": False},
    )


def boots(session: Session, tokens: Iterable[str]) -> dict[str, tuple[float, float | None]]:
    """Return when those of the tokens that are instances were ordered, and when they came up; None: not yet."""
    wanted = set(tokens)
    query = select(InstanceRow.token, InstanceRow.ordered_at, InstanceRow.ready_at).where(InstanceRow.token.in_(wanted))
    return {token: (ordered, ready) for token, ordered, ready in session.execute(query)} if wanted else {}


def last_boots(session: Session, site: str, most: int = 40) -> list[tuple[str, float]]:
    """Return the instance type and boot time of a site's latest instances, in seconds from the order, by our own clock.

    Instances that were found instead of launched are left out, because their time of order is unknown.
    """
    # An outside clock may report the launch of a machine a few seconds too early.
    query = (
        select(InstanceRow.kind, InstanceRow.ready_at - InstanceRow.ordered_at)
        .where(InstanceRow.site == site, InstanceRow.ready_at >= InstanceRow.ordered_at)
        .where(InstanceRow.launched_at > InstanceRow.ordered_at - 5.0)
        .order_by(InstanceRow.ready_at.desc())
        .limit(most)
    )
    return [(kind, seconds) for kind, seconds in session.execute(query) if seconds is not None]


def known(session: Session, tokens: Iterable[str]) -> set[str]:
    return {
        token
        for chunk in chunks(sorted({*tokens}))
        for token in session.scalars(select(InstanceRow.token).where(InstanceRow.token.in_(chunk)))
    }


def forget_ended(session: Session, before: float) -> None:
    """Delete instances that ended before a time, in epoch seconds."""
    session.execute(delete(InstanceRow).where(InstanceRow.ended_at < before))


def accrued(instance: InstanceRow, until: float) -> float | None:
    """Return what an instance has cost up to a time, in USD; None: it has no price, or was never launched."""
    if instance.usd_per_hour is None or instance.launched_at is None:
        return None
    since = instance.launched_at if instance.usd_since is None else instance.usd_since
    return (instance.usd or 0.0) + billing.cost(instance.usd_per_hour, since, until)


def of_which(instance: InstanceRow, until: float) -> dict[str, float]:
    """Return the surcharges in an instance's cost up to a time, such as volumes or a public address, in USD by name."""
    if instance.surcharges is None or instance.launched_at is None:
        return {}
    if instance.ended_at is not None:
        until = max(instance.ended_at, instance.launched_at + billing.LEAST_SECONDS)
    parts = json.loads(instance.surcharges).items()
    return {name: billing.cost(rate, instance.launched_at, until) for name, rate in parts}


def shares(session: Session, charged: Mapping[str, float]) -> tuple[float, dict[str, float]]:
    """Return the shares of jobs in the unused time and the surcharges of their machines, in USD.

    The cost of time in which no job used a machine is shared in proportion to the jobs' charges there.

    :param charged: what the jobs were charged on each machine, in USD by its name
    :returns: their share of the unused time, and their shares of the surcharges by name
    """
    idle, parts = 0.0, Counter[str]()
    for chunk in chunks(sorted(charged)):
        for row in session.scalars(
            select(InstanceRow).where(InstanceRow.token.in_(chunk), InstanceRow.usd_idle.is_not(None))
        ):
            used = (row.usd or 0.0) - (row.usd_idle or 0.0)
            share = charged[row.token] / used if used > 0 else 0.0
            idle += share * (row.usd_idle or 0.0)
            for name, usd in of_which(row, row.ended_at or 0.0).items():
                parts[name] += share * usd  # type: ignore[assignment]
    return idle, dict(parts)


def tenants(session: Session, site: str) -> dict[str, tuple[str | None, str | None]]:
    """Return the team and the Dag that used each live instance of a site.

    Where jobs of several have run, it is :data:`lading.scheduling.accounting.chargeback.SHARED`.
    """
    query = (
        select(JobRow.location, JobRow.team, JobRow.dag_id)
        .join(InstanceRow, (InstanceRow.token == JobRow.location) & (InstanceRow.site == JobRow.site))
        .where(JobRow.site == site, InstanceRow.state != InstanceState.ENDED)
        .distinct()
    )
    found: dict[str, list[tuple[str | None, str | None]]] = {}
    for name, team, dag_id in session.execute(query):
        found.setdefault(str(name), []).append((team, dag_id or None))
    return {name: (only(team for team, _ in each), only(dag for _, dag in each)) for name, each in found.items()}


def at_new_price(instance: InstanceRow, usd_per_hour: float, since: float) -> dict[str, Any]:
    """Return the columns of an instance whose price changes at a time; what is already billed stays unchanged."""
    if instance.launched_at is None:
        return {"usd_per_hour": usd_per_hour}
    since = max(since, instance.launched_at if instance.usd_since is None else instance.usd_since)
    return {"usd": accrued(instance, since), "usd_since": since, "usd_per_hour": usd_per_hour}


def bill(session: Session, site: str, bills: Mapping[str, float]) -> None:
    """Store the final cost of ended instances of a site, in USD by token: the seller's bill overrides ours."""
    ended = update(InstanceRow).where(InstanceRow.site == site, InstanceRow.state == InstanceState.ENDED)
    for token, usd in bills.items():
        session.execute(
            ended.where(InstanceRow.token == token).values(usd=usd, usd_since=InstanceRow.ended_at),
            execution_options={"synchronize_session": False},
        )


def settle(session: Session, site: str, tokens: Collection[str]) -> None:
    """Bill the ended instances of a site: the cost of each, of each job on it, and of its unused time.

    Instances without a capacity type were not purchased, so they are left unchanged.
    """
    for chunk in chunks(sorted(tokens)):
        rows = session.scalars(
            select(InstanceRow).where(
                InstanceRow.site == site,
                InstanceRow.token.in_(chunk),
                InstanceRow.state == InstanceState.ENDED,
                InstanceRow.capacity_type.is_not(None),
            )
        ).all()
        for row in rows:
            _settle(session, row)
    session.flush()  # a caller may expire what it has read, which must not lose these changes


def _settle(session: Session, row: InstanceRow) -> None:
    if row.ended_at is None or (usd := accrued(row, row.ended_at)) is None or row.launched_at is None:
        return
    if row.usd_since is None or row.usd_since < row.ended_at:
        usd += billing.minimum(row.usd_per_hour or 0.0, row.launched_at, row.ended_at)
    columns = (JobRow.token, JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus, JobRow.started_at, JobRow.ended_at)
    there = (JobRow.site == row.site, JobRow.location == row.token, JobRow.started_at.is_not(None))
    stays = [
        Stay(
            job.token,
            billing.dominant_share(Resources(job.cpus, job.memory, job.disk, job.gpus), row.capacity),
            job.started_at,
            row.ended_at if job.ended_at is None else job.ended_at,
        )
        for job in session.execute(select(*columns).where(*there))
    ]
    charged, idle = billing.divided(usd, row.launched_at, row.ended_at, stays)
    row.usd, row.usd_since, row.usd_idle = usd, row.ended_at, idle
    for token, part in charged.items():
        session.execute(
            update(JobRow).where(JobRow.token == token).values(usd=part),
            execution_options={"synchronize_session": False},
        )
