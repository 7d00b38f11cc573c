"""Figures: what runs, waits and is up now, and what it costs by the hour; the page and the metrics tell the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select

from lading.executors.store.instances import Instance, InstanceState
from lading.executors.store.tables import LIVE, Capacity, Job, Location, State

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

CPUS = Job.cpus * func.coalesce(Job.nodes, 1)
UP = (InstanceState.UP, InstanceState.DRAINING)
# Site, cpus, and USD per hour, of something that is up.
Up = tuple[str, float, float | None]


def live_jobs(session: Session) -> Sequence[Any]:
    """How many jobs have not ended, and their cpus, by site (a job that waits has that which it names) and state."""
    site = func.coalesce(Job.site, Job.site_hint).label("its_site")
    query = select(site, Job.state, func.count(), func.sum(CPUS)).where(Job.state.in_(LIVE)).group_by(site, Job.state)
    return session.execute(query).all()


def waiting(session: Session) -> Sequence[Any]:
    """How many jobs wait, their cpus and when the first of them was queued, by reason and Dag."""
    return session.execute(
        select(Job.reason, Job.dag_id, func.count(), func.sum(CPUS), func.min(Job.queued_at))
        .where(Job.state.in_((State.QUEUED, State.ATTEMPTED, State.PLACED)))
        .group_by(Job.reason, Job.dag_id)
    ).all()


def what_is_up(session: Session) -> list[Up]:
    """The machines and instances that are up."""
    fixed = select(Capacity.site, Capacity.cpus, Capacity.usd_per_hour).where(Capacity.until.is_(None))
    launched = select(Instance.site, Instance.cpus, Instance.usd_per_hour).where(Instance.state.in_(UP))
    return [(site, cpus, usd) for query in (fixed, launched) for site, cpus, usd in session.execute(query)]


def queues(session: Session) -> dict[str, float | None]:
    """What an hour of a cpu costs at the sites that have a location of their own name, as queues have, by site."""
    rows = session.execute(
        select(Location.site, Location.usd_per_cpu_hour, Location.kind).where(Location.name == Location.site)
    )
    return {site: rate for site, rate, kind in rows if kind != "local"}


def usd_per_hour(prices: Sequence[float | None], rate: float | None, used: float) -> float | None:
    """What a site costs now: its machines, or where none is up the jobs in its queue.

    :param prices: of all that is up there
    :param rate: of a cpu in its queue; None: it has none, or no price
    :param used: cpus of its jobs
    """
    return rate * used if rate is not None and not prices else total(prices)


def total(amounts: Sequence[float | None]) -> float | None:
    """The sum of what is known; None: nothing is."""
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None
