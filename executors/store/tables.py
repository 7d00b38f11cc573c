"""The tables of jobs and their usage, sites, locations, instances, and requests.

Other tables are defined next to their queries, as in :mod:`.capacity`, :mod:`.leases`, :mod:`.data` and
:mod:`.gangs.tables`.
"""

from __future__ import annotations

import contextlib
import enum
import sys
import time
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Boolean, Double, Index, Integer, MetaData, String, Table, Text, TypeDecorator, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, validates

from lading.scheduling.matching.rules import NODES, soft
from lading.scheduling.model.reason_codes import CAUSES, Cause, Code
from lading.scheduling.model.reasons import LONGEST_CODE, LONGEST_LIMIT, Reason
from lading.scheduling.model.resources import Layout, Resources
from lading.scheduling.text.printable import storable

LONGEST_NAME = 250
# The same length as in Airflow.
LONGEST_TEAM = 50

# Airflow's convention, so that the same migrations create the same names in every database.
NAMING = {
    "ix": "idx_%(column_0_N_label)s",
    "uq": "%(table_name)s_%(column_0_N_name)s_uq",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "%(table_name)s_%(column_0_name)s_fkey",
    "pk": "%(table_name)s_pkey",
}
SNAKEMAKE_PLUGIN = "snakemake_executor_plugin_lading"


def table_conventions() -> tuple[Callable[[], String], str | None]:
    """Find out how tables are created in the database of this process's host.

    The classes of tables are complete once they are imported, so no caller can pass the host to them. Only Snakemake's
    processes load Lading's plugin for Snakemake, and they do so before they use the store. They do not import Airflow,
    even if it is installed.

    :returns: the type of columns that are compared with ids in the host's own tables, because MySQL compares only
        columns of equal collation; and the schema of the tables; None: that of the connection
    """
    if SNAKEMAKE_PLUGIN not in sys.modules:
        with contextlib.suppress(ModuleNotFoundError):  # a node, which has no database
            from airflow.models.base import StringID, _get_schema

            return StringID, _get_schema()
    return partial(String, LONGEST_NAME), None


StringID, schema = table_conventions()
metadata = MetaData(schema=schema, naming_convention=NAMING)


class Base(DeclarativeBase):
    metadata = metadata
    __table__: ClassVar[Table]  # for Core statements


# Each tick reads thousands of waiting jobs, which share few reasons.
_stored = lru_cache(4096)(Reason.of_json)


class ReasonText(TypeDecorator[Reason]):
    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Reason | None, dialect: Any) -> str | None:
        return None if value is None else value.to_json()

    def process_result_value(self, value: str | None, dialect: Any) -> Reason | None:
        return None if value is None else _stored(value)


def reason_values(reason: Reason | None) -> dict[str, Any]:
    code, limit = (None, None) if reason is None else (reason.code, reason.limit)
    return {"reason": reason, "reason_code": code, "reason_limit": limit}


def as_name(text: str | None) -> str | None:
    """Return an external name in a form that the name columns can store."""
    return None if text is None else storable(text)[:LONGEST_NAME]


class State(str, enum.Enum):
    """The state of a job; its cause says why it failed or waits."""

    QUEUED = "queued"
    ATTEMPTED = "attempted"
    """No room was found; it sleeps until its next attempt."""
    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = (State.QUEUED, State.ATTEMPTED, State.PLACED, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class JobRow(Base):
    """One try of one workload. Times are seconds since the epoch; memory and disk are in MiB.

    The ids have Airflow's own column type, because MySQL can only compare columns of the same collation.
    """

    __tablename__ = "lading_job"

    token: Mapped[str] = mapped_column(String(36), primary_key=True)
    kind: Mapped[str] = mapped_column(String(30))
    subject: Mapped[str] = mapped_column(String(36))
    dag_id: Mapped[str | None] = mapped_column(StringID())
    task_id: Mapped[str | None] = mapped_column(StringID())
    run_id: Mapped[str | None] = mapped_column(StringID())
    map_index: Mapped[int] = mapped_column(Integer, default=-1)
    try_number: Mapped[int] = mapped_column(Integer, default=0)
    owner: Mapped[int | None] = mapped_column(Integer)
    # Airflow's team, the owners of the Dag separated by ", ", and its tags as JSON; NULL: none, or stored by an older
    # version.
    team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    dag_owner: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    dag_tags: Mapped[str | None] = mapped_column(Text)
    # The team of the executor that reports it to Airflow; NULL: the executor for all teams, which Dags of any team can
    # use.
    executor_team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    workload: Mapped[str] = mapped_column(Text)

    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    memory_limit: Mapped[int | None] = mapped_column(Integer)
    time_limit: Mapped[int | None] = mapped_column(Integer)
    # Which of cpus and memory Lading chooses from what earlier tries used, as JSON (see
    # lading.scheduling.sizing.auto); NULL: neither.
    chosen: Mapped[str | None] = mapped_column(Text)
    site_hint: Mapped[str | None] = mapped_column(String(64))
    instance_type: Mapped[str | None] = mapped_column(String(64))
    arch: Mapped[str | None] = mapped_column(String(32))
    os: Mapped[str | None] = mapped_column(String(32))
    # Sorted and separated by commas.
    features: Mapped[str | None] = mapped_column(Text)
    capacity_type: Mapped[str | None] = mapped_column(String(12))
    queue_hint: Mapped[str | None] = mapped_column(String(250))
    # Native directives by key, as JSON.
    native_hint: Mapped[str | None] = mapped_column(Text)
    # The places it can use and how one is chosen, as JSON (see lading.scheduling.matching.stops).
    targets: Mapped[str | None] = mapped_column(Text)
    # Requirements that rules can relax, as JSON (see lading.scheduling.matching.rules); NULL: none.
    soft: Mapped[str | None] = mapped_column(Text)
    # How the processes of its batch job are laid out on nodes; NULL: a single process. If a range of nodes was
    # requested, this is the maximum until the number granted is known.
    nodes: Mapped[int | None] = mapped_column(Integer)
    ppn: Mapped[int | None] = mapped_column(Integer)
    threads: Mapped[int | None] = mapped_column(Integer)
    priority: Mapped[int] = mapped_column(Integer)
    # How many machines its task and its run can use at once, and how many of their jobs can be placed or running.
    max_instances: Mapped[int | None] = mapped_column(Integer)
    run_max_instances: Mapped[int | None] = mapped_column(Integer)
    max_jobs: Mapped[int | None] = mapped_column(Integer)
    run_max_jobs: Mapped[int | None] = mapped_column(Integer)
    max_usd: Mapped[float | None] = mapped_column(Double)
    # What the resources depend on, as JSON, until they have been computed (see lading.executors.sizing.sizing).
    sizing: Mapped[str | None] = mapped_column(Text)
    # The lease holder that examines it, and how many died or hung while doing so (see lading.executors.store.strikes).
    examined_by: Mapped[str | None] = mapped_column(String(36))
    strikes: Mapped[int | None] = mapped_column(Integer)
    # The token of its gang, and the gang terms from its hints, as JSON; NULL: it starts alone.
    gang: Mapped[str | None] = mapped_column(String(36))
    gang_terms: Mapped[str | None] = mapped_column(Text)
    # Its input files as JSON, with the bytes of each address (0: unknown), if a policy uses them; its container.
    inputs: Mapped[str | None] = mapped_column(Text)
    container: Mapped[str | None] = mapped_column(Text)
    # The values of its inputs as JSON, if a plugin uses them (see lading.executors.sizing.inputs).
    input_values: Mapped[str | None] = mapped_column(Text)
    # The files staged for it as JSON, with the staged path of each address (null: not staged yet).
    stage: Mapped[str | None] = mapped_column(Text)
    # The bytes of its inputs, if a hint uses them; if there are none, minus the number of elements in its lists.
    input_size: Mapped[int | None] = mapped_column(BigInteger)

    state: Mapped[str] = mapped_column(String(12))
    cause: Mapped[str | None] = mapped_column(String(20))
    # Why it waits, or how it ended: a code with parameters. The code and the limit reached are separate columns for
    # queries.
    reason: Mapped[Reason | None] = mapped_column(ReasonText)
    reason_code: Mapped[str | None] = mapped_column(String(LONGEST_CODE))
    reason_limit: Mapped[str | None] = mapped_column(String(LONGEST_LIMIT))
    # Why it is being cancelled; NULL: it is not.
    cancel: Mapped[Reason | None] = mapped_column(ReasonText)
    unreported: Mapped[bool] = mapped_column(Boolean, default=False)
    news: Mapped[int] = mapped_column(Integer, default=0)
    site: Mapped[str | None] = mapped_column(String(64))
    location: Mapped[str | None] = mapped_column(String(250))
    # The queue of a batch site that its target names; NULL: the queue of its hints, or of the site.
    queue: Mapped[str | None] = mapped_column(String(250))
    # The rule that relaxed its request; NULL: no rule was applied.
    rule: Mapped[str | None] = mapped_column(String(64))
    # What the rule and the site changed in its request, as it was before: columns as JSON; NULL: they changed nothing.
    asked: Mapped[str | None] = mapped_column(Text)
    # The id of its batch job, or of the allocation it runs in, and the batch system's name of the node.
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    # Why it was not given to a site that comes before its own; NULL: it was given to the first.
    placed_because: Mapped[Reason | None] = mapped_column(ReasonText)
    expires_at: Mapped[float | None] = mapped_column(Double)
    # The cpus of its location below those it has; NULL: it has not started, or its location is not a machine.
    lane: Mapped[float | None] = mapped_column(Double)

    queued_at: Mapped[float] = mapped_column(Double)
    placed_at: Mapped[float | None] = mapped_column(Double)
    # When its own batch job was first reported.
    submitted_at: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    peak_memory: Mapped[int | None] = mapped_column(Integer)
    cpu_seconds: Mapped[float | None] = mapped_column(Double)
    # Whether its try was given back to its task (see the module free_tries); NULL: no.
    given_back: Mapped[bool | None] = mapped_column(Boolean)
    # Its cost; NULL: it has not ended, or its site has no price.
    usd: Mapped[float | None] = mapped_column(Double)
    # While it waits: the start predicted by its batch system and by the plan of its site; NULL: no prediction.
    native_start: Mapped[float | None] = mapped_column(Double)
    planned_start: Mapped[float | None] = mapped_column(Double)
    # When an expected start was first shown, its interval, and its source (lading.scheduling.starts.expected_starts).
    said_at: Mapped[float | None] = mapped_column(Double)
    said_since: Mapped[float | None] = mapped_column(Double)
    said_until: Mapped[float | None] = mapped_column(Double)
    said_source: Mapped[str | None] = mapped_column(String(12))
    # When it last changed, apart from being reported to Airflow and its reason while queued; NULL: stored by an older
    # version. Those updates leave this column alone because it is indexed, and PostgreSQL would add a new entry to
    # every index of the row.
    changed_at: Mapped[float | None] = mapped_column(Double, default=time.time, onupdate=time.time)

    __table_args__ = (
        Index("lading_job_unreported", "owner", "unreported"),
        Index("lading_job_waiting", "state", "priority", "queued_at"),
        # PostgreSQL adds no index entry for a waiting job.
        Index("lading_job_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("lading_job_task", "dag_id", "run_id", "task_id"),
        # Finds the jobs started at a site since a time. The last column is no longer needed.
        Index("lading_job_started", "started_at", "site", "dag_id", postgresql_where=text("started_at IS NOT NULL")),
        Index("lading_job_changed", "changed_at"),
        Index("lading_job_gang", "gang", "state", postgresql_where=text("gang IS NOT NULL")),
        Index("lading_job_history", "dag_id", "task_id", "ended_at"),
        # With these the page finds the latest of millions of jobs (see lading.plugin.ui.queries.explorer). No index
        # contains a column that changes with every step of a job, which would slow down ticks.
        Index("lading_job_queued", "queued_at", "token"),
        Index("lading_job_dag", "dag_id", "queued_at"),
        Index("lading_job_cause", "cause", "ended_at", postgresql_where=text("cause IS NOT NULL")),
        *(
            Index(
                f"lading_job_{name}",
                column,
                postgresql_ops={column: "varchar_pattern_ops"},
                postgresql_where=text(f"{column} IS NOT NULL"),
            )
            for name, column in (("place", "location"), ("native", "native_id"), ("node", "node"))
        ),
    )

    @property
    def meaning(self) -> Cause | Code | None:
        """What its waiting or failure means, with what to do about it and who can do it; None: nothing is known to
        help."""
        if self.state == State.SUCCEEDED or (self.state == State.RUNNING and self.reason is None):
            return None
        if self.reason is not None and (self.state in LIVE or self.reason.meaning.kind != "other"):
            return self.reason.meaning
        return CAUSES.get(self.cause or "")

    @property
    def remedy(self) -> str | None:
        """What to do about its waiting or failure; None: nothing is known to help."""
        return None if self.meaning is None else self.meaning.remedy

    @validates("reason")
    def _with_code(self, _: str, reason: Reason | None) -> Reason | None:
        """Set the columns that follow from a reason together with it."""
        found = reason_values(reason)
        self.reason_code, self.reason_limit = found["reason_code"], found["reason_limit"]
        return reason

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)

    @property
    def layout(self) -> Layout | None:
        """How its processes are laid out on nodes; None: it has no layout."""
        if self.nodes is None:
            return None
        least = soft(self.soft).least.get(NODES)
        return Layout(self.nodes, self.ppn or 1, self.threads or 1, None if least is None else int(least))


class UnseenRow(Base):
    """A notice for the acting controller that another process queued or changed a waiting job.

    The controller rereads the job and deletes the row (see :mod:`lading.executors.store.queued`).
    """

    __tablename__ = "lading_unseen"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    token: Mapped[str] = mapped_column(String(36))


class UsageRow(Base):
    """What the tries of a task that ended on one day at one site used.

    Jobs are added when their own rows are deleted. Rows without a Dag keep the machine time not charged to any job (see
    :mod:`lading.executors.accounting.task_usage`).
    """

    __tablename__ = "lading_usage"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    task_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # Days since the epoch, in UTC.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # What kind of row this is, see lading.executors.accounting.task_usage.OF_JOBS.
    size_class: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # Empty: unknown.
    site: Mapped[str] = mapped_column(String(64), primary_key=True, default="")
    jobs: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    # What the jobs requested while they ran, and what they used.
    cpu_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds_used: Mapped[float] = mapped_column(Double)
    # The total cost (NULL: unknown for all jobs), the part of it that was used, and the jobs' shares of idle and boot
    # time.
    usd: Mapped[float | None] = mapped_column(Double)
    usd_used: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    usd_boot: Mapped[float | None] = mapped_column(Double)
    # The requested time that was not used, as far as it was measured.
    cpu_seconds_unused: Mapped[float] = mapped_column(Double, default=0.0)
    cpu_seconds_idle: Mapped[float] = mapped_column(Double, default=0.0)
    cpu_seconds_boot: Mapped[float] = mapped_column(Double, default=0.0)
    # Of the latest job; NULL: none, or unknown.
    team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    dag_owner: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    # Counts and a sample as JSON, see lading.scheduling.sizing.usage.
    usage: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index("lading_usage_day", "day"),)


class RequestRow(Base):
    """A user's request to the controller, written by the API server. Times are seconds since the epoch."""

    __tablename__ = "lading_request"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    # See lading.executors.request_rows.
    kind: Mapped[str] = mapped_column(String(12))
    # A site, site/location, the token of a job, or the name of a budget.
    target: Mapped[str] = mapped_column(String(320))
    by: Mapped[str] = mapped_column(String(250))
    at: Mapped[float] = mapped_column(Double)
    # NULL: open.
    done_at: Mapped[float | None] = mapped_column(Double)
    # NULL: not known yet.
    outcome: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (Index("lading_request_done", "done_at"),)


class SiteRow(Base):
    """A site as seen by its controller: its limits, and whether it answers. Times are epoch seconds."""

    __tablename__ = "lading_site"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(30))
    # Its position in the sites file.
    position: Mapped[int] = mapped_column(Integer)
    # The limits set in its table, by option, as JSON.
    limits: Mapped[str] = mapped_column(Text)
    # The setting in its table; NULL: it launches no machines, or was stored by an older version.
    idle_seconds: Mapped[float | None] = mapped_column(Double)
    # When it last answered; NULL: never.
    contact_at: Mapped[float | None] = mapped_column(Double)
    # Why it does not answer, as text; NULL: it does.
    trouble: Mapped[str | None] = mapped_column(Text)
    # Who paused it; NULL: it is not paused.
    paused_by: Mapped[str | None] = mapped_column(String(250))
    # The queues that do not admit its account, as JSON: why, by queue; NULL: none.
    barred: Mapped[str | None] = mapped_column(Text)


class LocationRow(Base):
    """A location as last observed by the controller."""

    __tablename__ = "lading_location"

    site: Mapped[str] = mapped_column(String(64), primary_key=True)
    name: Mapped[str] = mapped_column(String(250), primary_key=True)
    kind: Mapped[str] = mapped_column(String(30))
    instance_type: Mapped[str | None] = mapped_column(String(64))
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    arch: Mapped[str | None] = mapped_column(String(32))
    os: Mapped[str | None] = mapped_column(String(32))
    features: Mapped[str | None] = mapped_column(Text)
    capacity_type: Mapped[str | None] = mapped_column(String(12))
    # For a batch system: the number of nodes in its queue, and of those without jobs; NULL: unknown.
    nodes: Mapped[int | None] = mapped_column(Integer)
    idle_nodes: Mapped[int | None] = mapped_column(Integer)
    # The location that contains it (NULL: none), and whether its jobs also take resources of that location.
    wraps: Mapped[str | None] = mapped_column(String(250))
    stacked: Mapped[bool | None] = mapped_column(Boolean)
    # The price of one of its cpus per hour, in USD; NULL: it has no price.
    usd_per_cpu_hour: Mapped[float | None] = mapped_column(Double)
    # See lading.hooks.site.LocationState; NULL: stored by an older version.
    state: Mapped[str | None] = mapped_column(String(12))
    # For an allocation: its batch job, and the node where that runs.
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    note: Mapped[str | None] = mapped_column(Text)
    # Since when it has been observed in its state.
    seen_at: Mapped[float] = mapped_column(Double)

    @property
    def capacity(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)


class Capacity(Base):
    """The resources of a machine that Lading did not launch, over time: a new row for each change.

    Launched machines have rows of their own. Times are seconds since the epoch; memory is in MiB.
    """

    __tablename__ = "lading_capacity"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    site: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(250))
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    # NULL: it has no price.
    usd_per_hour: Mapped[float | None] = mapped_column(Double)
    since: Mapped[float] = mapped_column(Double)
    # NULL: current.
    until: Mapped[float | None] = mapped_column(Double)

    __table_args__ = (Index("lading_capacity_until", "until"),)


class InstanceState(str, enum.Enum):
    """The state of an instance. One that has not ended counts as work, so the controller keeps running."""

    ORDERED = "ordered"
    """Requested from the site, or about to be; not observed yet."""
    BOOTING = "booting"
    UP = "up"
    DRAINING = "draining"
    ENDED = "ended"


class InstanceRow(Base):
    """A machine or allocation that Lading launched. Times are seconds since the epoch; memory and disk are in MiB."""

    __tablename__ = "lading_instance"

    # The name of its location; locations that Lading did not launch can have any name.
    token: Mapped[str] = mapped_column(String(250), primary_key=True)
    site: Mapped[str] = mapped_column(String(64))
    # Which jobs can use it; see lading.scheduling.provisioning.launch.
    kind: Mapped[str] = mapped_column(Text)
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    # Its total price; NULL: it has no price.
    usd_per_hour: Mapped[float | None] = mapped_column(Double)
    # The surcharges in that price by name, as JSON; NULL: none, or unknown.
    surcharges: Mapped[str | None] = mapped_column(Text)
    # For a purchased machine: its zone, and whether it is on-demand or spot.
    zone: Mapped[str | None] = mapped_column(String(40))
    capacity_type: Mapped[str | None] = mapped_column(String(12))
    # Its cost up to ``usd_since``, and the part of it not charged to any job, which is known once it has ended.
    usd: Mapped[float | None] = mapped_column(Double)
    usd_since: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    # For jobs on it whose rows were deleted: their charges, their requested cpu-seconds, and the fraction of the unused
    # cost kept with them; NULL: no such jobs.
    usd_gone: Mapped[float | None] = mapped_column(Double)
    cpu_seconds_gone: Mapped[float | None] = mapped_column(Double)
    part_shared: Mapped[float | None] = mapped_column(Double)
    # How many seconds it is available for jobs; 0: until it is released.
    seconds: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(String(12))
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    ordered_at: Mapped[float] = mapped_column(Double)
    launched_at: Mapped[float | None] = mapped_column(Double)
    ready_at: Mapped[float | None] = mapped_column(Double)
    # Since when it has had no jobs, and no waiting job has been assigned to it.
    idle_since: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    cause: Mapped[str | None] = mapped_column(String(20))
    # Why it was released or ended.
    reason: Mapped[Reason | None] = mapped_column(ReasonText)
    # NULL: stored by an older version.
    changed_at: Mapped[float | None] = mapped_column(Double, default=time.time, onupdate=time.time)

    __table_args__ = (
        Index("lading_instance_site", "site", "state"),
        Index("lading_instance_ended", "ended_at"),
    )

    @property
    def capacity(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)
