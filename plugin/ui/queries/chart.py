"""The packing chart: what ran where within a window, as rectangles of time and cpus on machines, launched or not.

Times are seconds since the epoch, memory MiB, money USD. None is what is not known, or what the user may not see.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import Capacity, JobRow, LocationRow, State, capacity
from lading.executors.store.figures import queues
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.lanes import machine_named
from lading.hooks.site import LocationState, join
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.matching.market import readable_kind

MOST_JOBS = 20_000
# Of a second: no pixel is less, and the digits of a clock are a third of what a browser loads.
DIGITS = 2
# Tokens are UUIDs: so many of their characters are 48 bits of chance, and all of them half of what a browser loads.
ID = 13
# What was changed is seen when its transaction has ended, which may be so much later, seconds.
OVERLAP = 10.0
COLUMNS = (
    JobRow.token, JobRow.kind, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.map_index, JobRow.try_number,
    JobRow.site, JobRow.location, JobRow.node, JobRow.cpus, JobRow.nodes, JobRow.lane, JobRow.state, JobRow.started_at,
    JobRow.ended_at, JobRow.memory, JobRow.peak_memory,
)  # fmt: skip


class JobColumns(BaseModel):
    """The jobs of the packing chart, time by cpus: a list for each column, which are as long and in the same order."""

    id: list[str]
    """The beginning of its token, which tells it from the others."""
    place: list[int]
    """Of its machine in ``places``."""
    name: list[int | None]
    """Of its Dag, run and task in ``names``; None: the user may not see them."""
    map_index: list[int]
    try_number: list[int]
    lane: list[float]
    cpus: list[float]
    memory: list[int]
    peak: list[int | None]
    """The most memory that it has used, of all its nodes or until now; None: it is not measured."""
    nodes: list[int]
    """On each of which it has ``cpus`` and ``memory``; where it is drawn is one of them."""
    started: list[float]
    """Seconds after ``origin``; likewise when it has ended; None: it runs."""
    ended: list[float | None]
    state: list[int | None]
    """In ``states``; None: as the name."""


class Name(NamedTuple):
    """Of which Dag, run and task a job is; what belongs to none has its kind as the task."""

    dag_id: str | None
    run_id: str | None
    task_id: str


class Span(NamedTuple):
    """What a machine had, from when to when; None: until now."""

    since: float
    until: float | None
    cpus: float


class ChartMachine(BaseModel):
    """A machine, an allocation, or a node on which jobs of a batch system were."""

    key: str
    site: str
    name: str
    sort: str
    """``machine``, ``instance`` or ``node``."""
    state: str
    """Of an instance as in the store; else ``up`` or ``gone``."""
    native_id: str | None = None
    node: str | None = None
    instance_type: str | None = None
    """Of a machine that was bought; likewise where, and whether on demand or spot."""
    zone: str | None = None
    capacity_type: str | None = None
    cpus: float | None
    """None: a node, of which it is not known what it has."""
    memory: int | None
    usd_per_hour: float | None
    usd: float
    """What it had cost at ``usd_since``; from then on it costs ``usd_per_hour``."""
    usd_since: float | None = None
    """None: nothing is counted: it has no price, was never there, or Lading did not launch it."""
    ordered_at: float | None = None
    ready_at: float | None = None
    reason: str | None = None
    unreachable_since: float | None = None
    """None: it answers, or is gone."""
    spans: list[Span]


class PackingChart(BaseModel):
    """What ran where within a window: all of it, or what is new since a cursor."""

    now: float
    cursor: float
    since: float
    until: float
    truncated: bool
    """Whether only the youngest of the jobs are here."""
    origin: float
    """What the times of jobs are counted from: they are thousands."""
    places: list[str]
    names: list[Name]
    states: list[str]
    jobs: JobColumns
    machines: list[ChartMachine]
    queues: dict[str, float | None]
    """What an hour of a cpu costs in the queue of a batch system, USD by site; None: it has no price."""


# What the page shows of an instance as the store has it.
AS_STORED = (ChartMachine.model_fields.keys() & InstanceRow.__table__.columns.keys()) - {"usd", "usd_since", "reason"}


def packing(
    session: Session, sight: Sight, since: float, until: float, now: float, cursor: float | None = None
) -> PackingChart:
    """What ran where.

    :param cursor: of an earlier answer: only what has changed since then; None: everything
    """
    changed = None if cursor is None else cursor - OVERLAP
    rows = jobs_within(session, since, until, changed)
    origin = float(int(since))
    places, names, jobs = columns_of(rows[:MOST_JOBS], sight, origin)
    # Not checked: its thousands of jobs are made of what typed columns have.
    return PackingChart.model_construct(
        now=now,
        cursor=now,
        since=since,
        until=until,
        truncated=len(rows) > MOST_JOBS,
        origin=origin,
        places=places,
        names=names,
        states=[state.value for state in State],
        jobs=jobs,
        machines=machines(session, since, until, changed),
        queues=queues(session),
    )


def columns_of(rows: Sequence[Any], sight: Sight, origin: float) -> tuple[list[str], list[Name], JobColumns]:
    """The places and the names of jobs, and the jobs, which say them by their positions."""
    places: dict[tuple[Any, ...], int] = {}
    names: dict[tuple[Any, ...], int] = {}
    seen: dict[str | None, bool] = {}
    numbers = {state: number for number, state in enumerate(State)}
    jobs = JobColumns(**{name: [] for name in JobColumns.model_fields})
    # Looked up once: there are thousands of rows.
    add_id, add_place, add_name, add_index, add_try = (
        jobs.id.append, jobs.place.append, jobs.name.append, jobs.map_index.append, jobs.try_number.append,
    )  # fmt: skip
    add_lane, add_cpus, add_memory, add_peak, add_nodes, add_start, add_end, add_state = (
        jobs.lane.append, jobs.cpus.append, jobs.memory.append, jobs.peak.append, jobs.nodes.append,
        jobs.started.append, jobs.ended.append, jobs.state.append,
    )  # fmt: skip
    # A row as a tuple: by their names the columns of thousands take twice as long.
    for (
        token, kind, dag_id, run_id, task_id, map_index, try_number, site, location, node, cpus, nodes, lane, state,
        started_at, ended_at, memory, peak,
    ) in rows:  # fmt: skip
        if (is_seen := seen.get(dag_id)) is None:
            is_seen = seen[dag_id] = sight.sees(dag_id)
        add_id(token[:ID])
        add_place(places.setdefault((site, location, node), len(places)))
        add_name(names.setdefault((dag_id, run_id, task_id or kind), len(names)) if is_seen else None)
        add_index(map_index if is_seen else -1)
        add_try(try_number if is_seen else 0)
        add_lane(lane or 0.0)
        add_cpus(cpus)
        add_memory(memory)
        add_peak(peak)
        add_nodes(nodes or 1)
        add_start(round(started_at - origin, DIGITS))
        add_end(None if ended_at is None else round(ended_at - origin, DIGITS))
        add_state(numbers[state] if is_seen else None)
    keys = [machine_key(site or "", machine_named(site or "", location, node) or "") for site, location, node in places]
    return keys, [Name(*name) for name in names], jobs


def jobs_within(session: Session, since: float, until: float, changed: float | None) -> Sequence[Any]:
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


def machines(session: Session, since: float, until: float, changed: float | None = None) -> list[ChartMachine]:
    """Those of which a part lies in a window, oldest first within each site.

    :param changed: only those that have changed after this
    """
    machines = [*machines_at_hand(session, since, until, changed), *machines_launched(session, since, until, changed)]
    silent = {
        machine_key(row.site, row.name): row
        for row in session.scalars(select(LocationRow).where(LocationRow.state == LocationState.UNREACHABLE))
    }
    for machine in machines:
        if (row := silent.get(machine.key)) is not None and machine.state != "gone":
            machine.unreachable_since, machine.reason = row.seen_at, join(machine.reason, row.note)
    return sorted(machines, key=lambda each: (each.site, each.spans[0].since, each.name))


def machines_at_hand(session: Session, since: float, until: float, changed: float | None) -> list[ChartMachine]:
    """Machines that Lading has not launched: of each all that it was within the window."""
    by_name: dict[tuple[str, str], list[Capacity]] = {}
    query = select(Capacity).where(*capacity.between(since, until)).order_by(Capacity.since)
    others: set[tuple[str, str]] = set()
    if changed is not None:
        others = {(row.site, row.name) for row in session.execute(changed_contact(changed))}
    for row in session.scalars(query):
        by_name.setdefault((row.site, row.name), []).append(row)
    machines = []
    for (site, name), rows in by_name.items():
        last = rows[-1]
        if changed is None or max(last.since, last.until or 0.0) > changed or (site, name) in others:
            machines.append(
                ChartMachine(
                    key=machine_key(site, name),
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
    return machines


def machines_launched(session: Session, since: float, until: float, changed: float | None) -> list[ChartMachine]:
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
            key=machine_key(row.site, row.token),
            name=row.token,
            sort="instance",
            # The kind of what was not bought may have text that the author of some Dag has written.
            instance_type=None if row.capacity_type is None else readable_kind(row.kind),
            usd=row.usd or 0.0,
            reason=None if row.reason is None else str(row.reason),
            usd_since=None if row.usd_per_hour is None else row.launched_at if row.usd_since is None else row.usd_since,
            spans=[Span(row.ready_at or row.ordered_at, row.ended_at, row.cpus)],
            **{name: getattr(row, name) for name in AS_STORED},
        )
        for row in session.scalars(query)
    ]


def changed_contact(since: float) -> Select[str, str]:
    """The locations that do not answer, the reasons for which may differ each time, or have changed their state."""
    return select(LocationRow.site, LocationRow.name).where(
        or_(LocationRow.state == LocationState.UNREACHABLE, LocationRow.seen_at > since)
    )


def machine_key(site: str, name: str) -> str:
    """The name of a machine among those of all sites."""
    return f"{site}/{name}"
