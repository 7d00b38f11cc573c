"""Machines: what there was within a window, launched or not, and what of it is new."""

from __future__ import annotations

from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import Capacity, LocationRow, capacity
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.site import LocationState, join
from lading.plugin.ui.queries.chart_models import ChartMachine, Span
from lading.scheduling.matching.market import kind_in_words

# What the page shows of an instance as the store has it.
AS_STORED = (ChartMachine.model_fields.keys() & InstanceRow.__table__.columns.keys()) - {"usd", "usd_since", "reason"}


def machines(session: Session, since: float, until: float, changed: float | None = None) -> list[ChartMachine]:
    """Those of which a part lies in a window, oldest first within each site.

    :param changed: only those that have changed after this
    """
    found = [*fixed(session, since, until, changed), *launched(session, since, until, changed)]
    silent = {
        key(row.site, row.name): row
        for row in session.scalars(select(LocationRow).where(LocationRow.state == LocationState.UNREACHABLE))
    }
    for each in found:
        if (row := silent.get(each.key)) is not None and each.state != "gone":
            each.unreachable_since, each.reason = row.seen_at, join(each.reason, row.note)
    return sorted(found, key=lambda each: (each.site, each.spans[0].since, each.name))


def fixed(session: Session, since: float, until: float, changed: float | None) -> list[ChartMachine]:
    """Machines that nobody launched: of each all that it was within the window."""
    by_name: dict[tuple[str, str], list[Capacity]] = {}
    query = select(Capacity).where(*capacity.between(since, until)).order_by(Capacity.since)
    others: set[tuple[str, str]] = set()
    if changed is not None:
        others = {(row.site, row.name) for row in session.execute(changed_contact(changed))}
    for row in session.scalars(query):
        by_name.setdefault((row.site, row.name), []).append(row)
    found = []
    for (site, name), rows in by_name.items():
        last = rows[-1]
        if changed is None or max(last.since, last.until or 0.0) > changed or (site, name) in others:
            found.append(
                ChartMachine(
                    key=key(site, name),
                    site=site,
                    name=name,
                    sort="machine",
                    state="up" if last.until is None else "gone",
                    cpus=last.cpus,
                    memory=last.memory,
                    usd_per_hour=last.usd_per_hour,
                    usd=0.0,
                    spans=[Span(row.since, row.until, row.cpus) for row in rows],
                )
            )
    return found


def launched(session: Session, since: float, until: float, changed: float | None) -> list[ChartMachine]:
    """Instances; one that never came up has no room, and is not shown when it has ended."""
    query = select(InstanceRow).where(
        InstanceRow.ordered_at < until,
        or_(
            InstanceRow.state != InstanceState.ENDED, (InstanceRow.ended_at > since) & InstanceRow.ready_at.is_not(None)
        ),
    )
    if changed is not None:
        here = changed_contact(changed).where(
            LocationRow.site == InstanceRow.site, LocationRow.name == InstanceRow.token
        )
        query = query.where(or_(InstanceRow.changed_at > changed, here.exists()))
    return [
        ChartMachine(
            key=key(row.site, row.token),
            name=row.token,
            sort="instance",
            # The kind of what was not bought may have words that the author of some Dag has written.
            instance_type=None if row.capacity_type is None else kind_in_words(row.kind),
            usd=row.usd or 0.0,
            reason=None if row.reason is None else str(row.reason),
            usd_since=None if row.usd_per_hour is None else row.launched_at if row.usd_since is None else row.usd_since,
            spans=[Span(row.ready_at or row.ordered_at, row.ended_at, row.cpus)],
            **{name: getattr(row, name) for name in AS_STORED},
        )
        for row in session.scalars(query)
    ]


def changed_contact(since: float) -> Select[str, str]:
    """The locations that do not answer, the words for which may be others each time, or have changed their state."""
    return select(LocationRow.site, LocationRow.name).where(
        or_(LocationRow.state == LocationState.UNREACHABLE, LocationRow.seen_at > since)
    )


def key(site: str, name: str) -> str:
    """The name of a machine among those of all sites."""
    return f"{site}/{name}"
