"""What the application answers, as models: they are checked when they are made, and make its OpenAPI document.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None is what is not known, or what whoever
asks may not see.
"""

from __future__ import annotations

from pydantic import BaseModel, Field

from lading.executors.store.requests import RequestKind
from lading.scheduling.insight.right_size import Size

# PostgreSQL has no text with the character 0.
NAME = r"^[^\x00]*$"


class ErrorDetail(BaseModel):
    """Why something is not answered."""

    detail: str


class SiteState(BaseModel):
    """A site as its controller has it."""

    name: str
    kind: str
    state: str
    """``up``, ``paused``, or ``down`` where it does not answer or nothing of it takes jobs."""
    note: str | None
    contact_at: float | None
    nodes: int | None
    """Of its queue; None: it is no batch system, or does not say it."""
    idle_nodes: int | None
    limits: dict[str, str]
    waiting: int
    running: int
    cpus_used: float
    """Of those that are up."""
    cpus_batch: float
    """Of batch jobs of their own, on nodes that are not Lading's to count."""
    cpus_up: float | None
    """None: it is a batch system, with no allocation."""
    usd_per_hour: float | None


class Summary(BaseModel):
    """How things are."""

    now: float
    controller_lives: bool
    running: int
    waiting: int
    machines: int
    cpus_used: float
    """Of those that are up."""
    cpus_batch: float
    """Of batch jobs of their own, on nodes that are not Lading's to count."""
    cpus_up: float
    usd_per_hour: float | None
    sites: list[SiteState]
    may_act: bool = False
    """Whether who asks may ask something of sites."""


class RequestBody(BaseModel):
    """What somebody asks."""

    kind: RequestKind
    target: str = Field(min_length=1, max_length=320, pattern=NAME)
    """A site to be paused or resumed; site/instance to be drained or terminated; the id of a job to be woken."""


class OperatorRequest(BaseModel):
    """What somebody has asked, and what came of it."""

    id: int
    kind: RequestKind
    target: str
    by: str
    at: float
    done_at: float | None
    words: str | None


class Cost(BaseModel):
    """What the jobs of a Dag have cost within a time; of Dags that whoever asks may not see together."""

    dag_id: str | None
    hidden: bool
    jobs: int
    cpu_hours: float
    cpu_hours_measured: float
    """Of the jobs of which it is known what they used: most that run are not among them."""
    cpu_hours_used: float
    usd: float | None


class Costs(BaseModel):
    """What jobs have cost since a time: those that ended since, and those that run, by Dag, dearest first."""

    since: float
    cpu_hours: float
    usd: float | None
    dags: list[Cost]


class WaitingDag(BaseModel):
    """How many jobs of a Dag wait for one reason."""

    dag_id: str
    jobs: int


class HeldRoom(BaseModel):
    """Room that is held at a place for jobs that wait until all of their gang have some."""

    dag_id: str | None
    """None: whoever asks may not see it."""
    gang: str | None
    """None: likewise, or a job that waits for room alone."""
    place: str
    """Site/location."""
    jobs: int
    cpus: float


class WaitGroup(BaseModel):
    """The jobs that wait for the same: reasons of one code, site and limit."""

    key: str
    """The code."""
    kind: str
    """The class by which metrics count it."""
    title: str
    remedy: str
    actors: list[str]
    """Who can change it: ``author``, ``operator``."""
    site: str | None
    """None: it is about no certain one."""
    limit: str | None
    """The limit that is reached; None: none is, or whoever asks may not see its name."""
    jobs: int
    cpus: float
    oldest: float
    """When the first of them was queued."""
    words: list[str]
    """The commonest reasons, of Dags that whoever asks may see."""
    dags: list[WaitingDag]
    hidden: bool
    """Whether jobs of other Dags are among them."""
    held: list[HeldRoom]
    """Who of them holds what meanwhile, most cpus first."""


class WaitGroups(BaseModel):
    """Why jobs wait, largest group first."""

    now: float
    jobs: int
    groups: list[WaitGroup]


class TryPhase(BaseModel):
    """A part of a try's life."""

    key: str
    title: str
    since: float
    until: float | None


class TrySummary(BaseModel):
    """One try of a task, or another job."""

    id: str
    hidden: bool
    dag_id: str | None
    run_id: str | None
    task_id: str | None
    map_index: int
    try_number: int
    state: str | None
    cause: str | None
    cause_title: str | None
    """What that means, in short."""
    reason: str | None
    reason_code: str | None
    remedy: str | None
    """What would change that it waits, or that it has failed."""
    site: str | None
    location: str | None
    node: str | None
    native_id: str | None
    held: str | None = None
    """Where room is held for it until it starts with its gang, as site/location."""
    placed_because: str | None
    """Why it is not at a site that comes before its own; None: none does."""
    queue: str | None
    cpus: float
    nodes: int | None
    memory: int
    gpus: float
    memory_limit: int | None
    time_limit: int | None
    peak_memory: int | None
    cpu_seconds: float | None
    exit_code: int | None
    usd: float | None
    """Of one that runs until now; None: it has no price."""
    queued_at: float
    started_at: float | None
    ended_at: float | None
    phases: list[TryPhase]


class TryPage(BaseModel):
    """Jobs, youngest first, in pages."""

    now: float
    jobs: list[TrySummary]
    after: str | None
    """What asks for the next page; None: this is the last."""


class Totals(BaseModel):
    """What a number of jobs took together."""

    jobs: int
    live: int
    """Those that have not ended."""
    failed: int
    began_at: float | None
    ended_at: float | None
    """Of the last that has ended."""
    wait_seconds: float
    """Until they started, or ended, or until now."""
    cpu_hours: float
    """That they asked for, while they ran, or have run until now."""
    cpu_hours_measured: float
    """The same of those of which it is known what they used."""
    cpu_hours_used: float
    memory_used: float | None
    """Peak by request, of those of which the peak is known; None: of none."""
    time_used: float | None
    """Time by limit, of those that had a limit and have ended; None: there are none."""
    usd: float | None
    """Of those that run until now; None: none has a price."""


class RunTotals(Totals):
    """The same of a run."""

    run_id: str


class RunPage(BaseModel):
    """The runs of a Dag, youngest first."""

    now: float
    runs: list[RunTotals]


class RunSummary(BaseModel):
    """A run: what it took, how it was packed, and the longest waits."""

    now: float
    totals: Totals
    states: dict[str, int]
    most_at_once: int
    bound_seconds: float | None
    """No way to run these jobs takes less: the longest of them, and all of them on the cpus that were there."""
    seconds: float | None
    usd_idle: float | None
    """Its part of what machines cost that were bought, while no job used them, known when these have ended; it is not
    in ``totals``. None: the run has no price.
    """
    waits: list[TrySummary]


class InputSizes(BaseModel):
    """What would have sufficed for tries whose inputs had less than so many bytes, and a quarter of it at least."""

    bytes: int
    tries: int
    memory: Size
    cpus: Size
    time: Size


class TaskAdvice(BaseModel):
    """What a task could ask for, from its last tries."""

    task_id: str
    tries: int
    short: int
    """How many of them had too little memory or time."""
    cpus_asked: float | None
    """None: the jobs themselves have been forgotten."""
    memory_asked: int | None
    memory: Size
    cpus: Size
    time: Size
    waited: float | None
    """Within so many seconds 95 of a hundred of them began."""
    by_input: list[InputSizes]
    """Where the size of inputs explains what tries needed."""
    saved_cpu_hours: float
    saved_gib_hours: float
    line: str | None
    """To paste into the Dag; None: there are too few tries."""


class Advice(BaseModel):
    """What the tasks of a Dag could ask for."""

    fewest: int
    """With fewer tries nothing is advised."""
    tasks: list[TaskAdvice]
