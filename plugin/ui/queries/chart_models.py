"""What the packing chart is drawn of, as models: machines, and jobs on them; units are those of the other models."""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel


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
    """None: nothing is counted: it has no price, was never there, or nobody launched it."""
    ordered_at: float | None = None
    ready_at: float | None = None
    reason: str | None = None
    unreachable_since: float | None = None
    """None: it answers, or is gone."""
    spans: list[Span]


class Rectangle(NamedTuple):
    """A job in the packing chart: time by cpus."""

    id: str
    place: int
    """Of its machine in ``places``."""
    name: int | None
    """Of its Dag, run and task in ``names``; None: whoever asks may not see them."""
    map_index: int
    try_number: int
    lane: float
    cpus: float
    nodes: int
    """On each of which it has ``cpus``; where it is drawn is one of them."""
    started_at: float
    ended_at: float | None
    state: str | None
    """None: as the name."""


class Name(NamedTuple):
    """Of which Dag, run and task a job is; what belongs to none has its kind as the task."""

    dag_id: str | None
    run_id: str | None
    task_id: str


class PackingChart(BaseModel):
    """What ran where within a window: all of it, or what is new since a cursor."""

    now: float
    cursor: float
    since: float
    until: float
    truncated: bool
    """Whether only the youngest of the jobs are here."""
    places: list[str]
    names: list[Name]
    jobs: list[Rectangle]
    machines: list[ChartMachine]
    queues: dict[str, float | None]
    """What an hour of a cpu costs in the queue of a batch system, USD by site; None: it has no price."""
