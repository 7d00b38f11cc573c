"""The packing chart: what ran where within a window, as rectangles of time and cpus on machines.

Times are seconds since the epoch, memory MiB, money USD. None means unknown, or hidden from the user.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import Select, or_, select
from sqlalchemy.orm import Session

from lading.executors.store import Capacity, JobRow, LocationRow, State, capacity
from lading.executors.store.figures import present_machines, queues
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.lanes import machine_named
from lading.hooks.site import LocationState, join
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.matching.market import readable_kind

MOST_JOBS = 20_000
COLUMNS = (
    JobRow.token, JobRow.kind, JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.map_index, JobRow.try_number,
    JobRow.site, JobRow.location, JobRow.node, JobRow.cpus, JobRow.nodes, JobRow.lane, JobRow.state, JobRow.started_at,
    JobRow.ended_at, JobRow.memory, JobRow.peak_memory,
)  # fmt: skip


class JobColumns(BaseModel):
    """The jobs of the packing chart as columns: lists of equal length and order."""

    id: list[str]
    """The beginning of the token, long enough to be unique."""
    place: list[int]
    """Index of its machine in ``places``."""
    name: list[int | None]
    """Index of its Dag, run and task in ``names``; None: hidden from the user."""
    map_index: list[int]
    try_number: list[int]
    lane: list[float]
    cpus: list[float]
    memory: list[int]
    peak: list[int | None]
    """Peak memory so far, MiB; None: not measured."""
    nodes: list[int]
    """Number of nodes. The job has ``cpus`` and ``memory`` on each, and is drawn on one of them."""
    started: list[float]
    """Seconds after ``origin``, like ``ended``, which is None while the job runs."""
    ended: list[float | None]
    state: list[int | None]
    """Index in ``states``; None: hidden from the user."""


class Name(NamedTuple):
    """The Dag, run and task of a job; a job without a Dag has its kind as the task."""

    dag_id: str | None
    run_id: str | None
    task_id: str


class Span(NamedTuple):
    """The cpus of a machine in an interval; ``until`` is None for the present one."""

    since: float
    until: float | None
    cpus: float


class ChartMachine(BaseModel):
    """A machine, an allocation, or a node that ran jobs of a batch system."""

    key: str
    site: str
    name: str
    sort: str
    """``machine``, ``instance`` or ``node``."""
    state: str
    """For an instance, its state in the store; otherwise ``up`` or ``gone``."""
    native_id: str | None = None
    node: str | None = None
    instance_type: str | None = None
    """Only for EC2 instances, like ``zone`` and ``capacity_type`` (on demand or spot)."""
    zone: str | None = None
    capacity_type: str | None = None
    cpus: float | None
    """None: a batch system's node, whose size is unknown."""
    memory: int | None
    usd_per_hour: float | None
    usd: float
    """Cost until ``usd_since``; from then on it costs ``usd_per_hour``."""
    usd_since: float | None = None
    """None: its cost is not counted, because it has no price, never started, or was not launched by Lading."""
    ordered_at: float | None = None
    ready_at: float | None = None
    reason: str | None = None
    unreachable_since: float | None = None
    """None: it is reachable, or gone."""
    spans: list[Span]


class PackingChart(BaseModel):
    """What ran where within a window: everything, or the changes since a cursor."""

    now: float
    cursor: float
    since: float
    until: float
    truncated: bool
    """Whether there are too many jobs: only the newest are included."""
    origin: float
    """The times of jobs are relative to this, to shorten thousands of numbers."""
    places: list[str]
    names: list[Name]
    states: list[str]
    jobs: JobColumns
    machines: list[ChartMachine]
    queues: dict[str, float | None]
    """USD per cpu-hour in the queues of batch systems, by site; None: no price."""


# Columns of an instance that the page shows unchanged.
AS_STORED = (ChartMachine.model_fields.keys() & InstanceRow.__table__.columns.keys()) - {"usd", "usd_since", "reason"}


def packing(
    session: Session, sight: Sight, since: float, until: float, now: float, cursor: float | None = None
) -> PackingChart:
    """Read what ran where.

    :param cursor: the cursor of an earlier answer, to get only the changes since then; None: everything
    """
    # A change becomes visible when its transaction commits, which can be some seconds later than its timestamp.
    changed = None if cursor is None else cursor - 10.0
    rows = jobs_within(session, since, until, changed)
    origin = float(int(since))
    places, names, jobs = columns_of(rows[:MOST_JOBS], sight, origin)
    # Not validated: thousands of jobs come from typed columns.
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
        queues=queues(session, present_machines(session)),
    )


def columns_of(rows: Sequence[Any], sight: Sight, origin: float) -> tuple[list[str], list[Name], JobColumns]:
    """Return places, names, and the jobs, which refer to both by index."""
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
    # Unpacked as a tuple: access by name would take twice as long for thousands of rows.
    for (
        token, kind, dag_id, run_id, task_id, map_index, try_number, site, location, node, cpus, nodes, lane, state,
        started_at, ended_at, memory, peak,
    ) in rows:  # fmt: skip
        if (is_seen := seen.get(dag_id)) is None:
            is_seen = seen[dag_id] = sight.sees(dag_id)
        # Tokens are UUIDs. Their first 13 characters have 48 random bits; whole tokens would be half of what
        # a browser loads.
        add_id(token[:13])
        add_place(places.setdefault((site, location, node), len(places)))
        add_name(names.setdefault((dag_id, run_id, task_id or kind), len(names)) if is_seen else None)
        add_index(map_index if is_seen else -1)
        add_try(try_number if is_seen else 0)
        add_lane(lane or 0.0)
        add_cpus(cpus)
        add_memory(memory)
        add_peak(peak)
        add_nodes(nodes or 1)
        # No pixel shows more, and the digits of times are a third of what a browser loads.
        add_start(round(started_at - origin, 2))
        add_end(None if ended_at is None else round(ended_at - origin, 2))
        add_state(numbers[state] if is_seen else None)
    keys = [machine_key(site or "", machine_named(site or "", location, node) or "") for site, location, node in places]
    return keys, [Name(*name) for name in names], jobs


def jobs_within(session: Session, since: float, until: float, changed: float | None) -> Sequence[Any]:
    """Return the jobs that ran within a window, newest first, or only those that changed, latest change first.

    At most one more than :data:`MOST_JOBS` is returned, which tells that some are left out.
    """
    query = select(*COLUMNS).where(JobRow.site.is_not(None)).limit(MOST_JOBS + 1)
    if changed is None:
        query = query.where(JobRow.started_at < until, or_(JobRow.state == State.RUNNING, JobRow.ended_at > since))
        return session.execute(query.order_by(JobRow.started_at.desc(), JobRow.token)).all()
    # Few have changed. With another order or other conditions the database might scan all jobs instead.
    rows = session.execute(query.where(JobRow.changed_at > changed).order_by(JobRow.changed_at.desc()))
    return [row for row in rows if row.started_at is not None and row.started_at < until and is_within(row, since)]


def is_within(row: Any, since: float) -> bool:
    """Whether a job that has started ran after a time."""
    return row.state == State.RUNNING or (row.ended_at is not None and row.ended_at > since)


def machines(session: Session, since: float, until: float, changed: float | None = None) -> list[ChartMachine]:
    """Return the machines that existed within a window, oldest first within each site.

    :param changed: return only machines that changed after this
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
    """Return the machines that Lading did not launch, each with its spans in the window."""
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
    """Return instances and allocations, except those that ended without ever being up."""
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
            # The kind of an allocation may contain text from the author of a Dag.
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
    """Select the locations that changed state, and all unreachable ones, whose reason can change at any time."""
    return select(LocationRow.site, LocationRow.name).where(
        or_(LocationRow.state == LocationState.UNREACHABLE, LocationRow.seen_at > since)
    )


def machine_key(site: str, name: str) -> str:
    """Return the name of a machine that is unique among all sites."""
    return f"{site}/{name}"
