"""The tables of jobs and what they used, sites, locations, instances, and requests.

The others are beside their queries: :mod:`.capacity`, :mod:`.leases`, :mod:`.data` and :mod:`.gangs.tables`.
"""

from __future__ import annotations

import enum
import time
from functools import lru_cache
from typing import Any, ClassVar

from sqlalchemy import BigInteger, Boolean, Double, Index, Integer, MetaData, String, Table, Text, TypeDecorator, text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, validates

from lading.hooks.deployment import current
from lading.scheduling.matching.rules import NODES, soft
from lading.scheduling.reason_codes import CAUSES
from lading.scheduling.reasons import LONGEST_CODE, LONGEST_LIMIT, Reason
from lading.scheduling.resources import Layout, Resources
from lading.scheduling.text.printable import storable

LONGEST_NAME = 250
# As Airflow has it.
LONGEST_TEAM = 50

# As the database has them in which the store is: Airflow's, or one of its own.
conventions = current.deployment().table_conventions()
StringID = conventions.id_type
metadata = MetaData(schema=conventions.schema, naming_convention=conventions.naming)


class Base(DeclarativeBase):
    """What has a table of its own."""

    metadata = metadata
    __table__: ClassVar[Table]  # which a statement for many rows is made of


# Thousands of jobs that wait are read in each tick, and have few reasons.
_stored = lru_cache(4096)(Reason.of_json)


class ReasonText(TypeDecorator[Reason]):
    """A reason as JSON."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: Reason | None, dialect: Any) -> str | None:
        return None if value is None else value.to_json()

    def process_result_value(self, value: str | None, dialect: Any) -> Reason | None:
        return None if value is None else _stored(value)


def reason_values(reason: Reason | None) -> dict[str, Any]:
    """The columns that a reason has."""
    code, limit = (None, None) if reason is None else (reason.code, reason.limit)
    return {"reason": reason, "reason_code": code, "reason_limit": limit}


def as_name(text: str | None) -> str | None:
    """A name as others have it, as the columns for it take it."""
    return None if text is None else storable(text)[:LONGEST_NAME]


class State(str, enum.Enum):
    """Where a job is on its way; the cause says why it ended or waits."""

    QUEUED = "queued"
    ATTEMPTED = "attempted"
    """No room was found for it; it sleeps until its next attempt."""
    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = (State.QUEUED, State.ATTEMPTED, State.PLACED, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class JobRow(Base):
    """One try of one workload. Times are seconds since the epoch, memory and disk are MiB.

    The ids have Airflow's own type: MySQL compares only columns of the same collation.
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
    # Whose it is: Airflow's team, the owners of its Dag with ", " between them, and the tags of its Dag as JSON; None:
    # it has none, or was stored by an older version.
    team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    dag_owner: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    dag_tags: Mapped[str | None] = mapped_column(Text)
    # Of the executor that reports it to Airflow; None: of the one for all teams, which Dags of any team may use.
    executor_team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    workload: Mapped[str] = mapped_column(Text)

    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    memory_limit: Mapped[int | None] = mapped_column(Integer)
    time_limit: Mapped[int | None] = mapped_column(Integer)
    # Which of cpus and memory Lading chooses by what earlier tries have used, as JSON (see
    # lading.scheduling.insight.auto); None: none.
    chosen: Mapped[str | None] = mapped_column(Text)
    site_hint: Mapped[str | None] = mapped_column(String(64))
    instance_type: Mapped[str | None] = mapped_column(String(64))
    arch: Mapped[str | None] = mapped_column(String(32))
    os: Mapped[str | None] = mapped_column(String(32))
    # In alphabetical order, with commas between them.
    features: Mapped[str | None] = mapped_column(Text)
    capacity_type: Mapped[str | None] = mapped_column(String(12))
    queue_hint: Mapped[str | None] = mapped_column(String(250))
    # Native directives by key, as JSON.
    native_hint: Mapped[str | None] = mapped_column(Text)
    # The places of which it may use any, and how one is chosen, as JSON (see lading.scheduling.matching.stops).
    targets: Mapped[str | None] = mapped_column(Text)
    # What it asks for and can do without, as JSON (see lading.scheduling.matching.rules); None: nothing.
    soft: Mapped[str | None] = mapped_column(Text)
    # How the processes of its batch job lie on nodes; None: it is one process. Of a range of nodes the most, until
    # it is known how many it has got.
    nodes: Mapped[int | None] = mapped_column(Integer)
    ppn: Mapped[int | None] = mapped_column(Integer)
    threads: Mapped[int | None] = mapped_column(Integer)
    priority: Mapped[int] = mapped_column(Integer)
    # How many machines its task, and its run, may use at once, and how many jobs of them may be at work.
    max_instances: Mapped[int | None] = mapped_column(Integer)
    run_max_instances: Mapped[int | None] = mapped_column(Integer)
    max_jobs: Mapped[int | None] = mapped_column(Integer)
    run_max_jobs: Mapped[int | None] = mapped_column(Integer)
    max_usd: Mapped[float | None] = mapped_column(Double)
    # What the resources depend on, as JSON, until they are known (see lading.executors.sizing.sizing).
    sizing: Mapped[str | None] = mapped_column(Text)
    # The lease holder that examines it, and how many have died or hung over it (see lading.executors.store.strikes).
    examined_by: Mapped[str | None] = mapped_column(String(36))
    strikes: Mapped[int | None] = mapped_column(Integer)
    # The token of the gang with which it starts, and what its hints say of that, as JSON; None: it starts alone.
    gang: Mapped[str | None] = mapped_column(String(36))
    gang_terms: Mapped[str | None] = mapped_column(Text)
    # Its input files, as JSON, each address with its bytes (0: not known), where a policy asks for them; its container.
    inputs: Mapped[str | None] = mapped_column(Text)
    container: Mapped[str | None] = mapped_column(Text)
    # The values of its inputs, as JSON, where a plugin asks for them (see lading.executors.sizing.inputs).
    input_values: Mapped[str | None] = mapped_column(Text)
    # The files that are brought to where it runs, as JSON, each address with where it lies there (null: not yet).
    stage: Mapped[str | None] = mapped_column(Text)
    # Bytes of its inputs, where a hint has asked for them; below 0: they have none, but so many elements in lists.
    input_size: Mapped[int | None] = mapped_column(BigInteger)

    state: Mapped[str] = mapped_column(String(12))
    cause: Mapped[str | None] = mapped_column(String(20))
    # Why it waits, or how it has ended: a code with parameters; the code, and the limit that is reached, for queries.
    reason: Mapped[Reason | None] = mapped_column(ReasonText)
    reason_code: Mapped[str | None] = mapped_column(String(LONGEST_CODE))
    reason_limit: Mapped[str | None] = mapped_column(String(LONGEST_LIMIT))
    # Why it is to be ended; None: it is not.
    cancel: Mapped[Reason | None] = mapped_column(ReasonText)
    unreported: Mapped[bool] = mapped_column(Boolean, default=False)
    news: Mapped[int] = mapped_column(Integer, default=0)
    site: Mapped[str | None] = mapped_column(String(64))
    location: Mapped[str | None] = mapped_column(String(250))
    # The queue of a batch site that its target names; None: that of its hints, or of the site.
    queue: Mapped[str | None] = mapped_column(String(250))
    # The rule by which it has got less than it wished, or something else, and the columns that have changed with it, as
    # JSON; None: by none.
    rule: Mapped[str | None] = mapped_column(String(64))
    asked: Mapped[str | None] = mapped_column(Text)
    # Of its batch job, or of that of the allocation in which it is; and the node as the batch system calls it.
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    # Why it was not given to a site that comes before its own; None: it was.
    placed_because: Mapped[Reason | None] = mapped_column(ReasonText)
    expires_at: Mapped[float | None] = mapped_column(Double)
    # The cpus of its location below those that it has; None: it has not started, or its location is no machine.
    lane: Mapped[float | None] = mapped_column(Double)

    queued_at: Mapped[float] = mapped_column(Double)
    placed_at: Mapped[float | None] = mapped_column(Double)
    # When its own batch job first reported.
    submitted_at: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    peak_memory: Mapped[int | None] = mapped_column(Integer)
    cpu_seconds: Mapped[float | None] = mapped_column(Double)
    # Whether its try was given back to its task (see the module free_tries); None: no.
    given_back: Mapped[bool | None] = mapped_column(Boolean)
    # What it has cost; None: it has not ended, or its site has no price.
    usd: Mapped[float | None] = mapped_column(Double)
    # While it waits: when its batch system, and the plan of its site, have it start; None: they do not say it.
    native_start: Mapped[float | None] = mapped_column(Double)
    planned_start: Mapped[float | None] = mapped_column(Double)
    # When a start was said to be expected first, from when to when, and by what (see lading.scheduling.insight.starts).
    said_at: Mapped[float | None] = mapped_column(Double)
    said_since: Mapped[float | None] = mapped_column(Double)
    said_until: Mapped[float | None] = mapped_column(Double)
    said_source: Mapped[str | None] = mapped_column(String(12))
    # When anything of it was changed but whether it was reported to Airflow and why it waits in the queue; None: it was
    # stored by an older version. It has an index: PostgreSQL would enter a waiting job anew into all of them.
    changed_at: Mapped[float | None] = mapped_column(Double, default=time.time, onupdate=time.time)

    __table_args__ = (
        Index("lading_job_unreported", "owner", "unreported"),
        Index("lading_job_waiting", "state", "priority", "queued_at"),
        # Of a job that waits PostgreSQL enters nothing where it has nothing.
        Index("lading_job_ended", "ended_at", postgresql_where=text("ended_at IS NOT NULL")),
        Index("lading_job_task", "dag_id", "run_id", "task_id"),
        # By it the jobs are found that have begun at a site since a time. Nothing needs its last column any more.
        Index("lading_job_started", "started_at", "site", "dag_id", postgresql_where=text("started_at IS NOT NULL")),
        Index("lading_job_changed", "changed_at"),
        Index("lading_job_gang", "gang", "state", postgresql_where=text("gang IS NOT NULL")),
        Index("lading_job_history", "dag_id", "task_id", "ended_at"),
        # By these the page finds the youngest of millions (see lading.plugin.ui.queries.explorer). What changes with
        # each step of a job is in none of them: ticks would pay for it.
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
    def remedy(self) -> str | None:
        """What to do about it if it waits or has failed; None: nothing is known to be."""
        if self.state == State.SUCCEEDED or (self.state == State.RUNNING and self.reason is None):
            return None
        if self.reason is not None and (self.state in LIVE or self.reason.meaning.kind != "other"):
            return self.reason.meaning.remedy
        cause = CAUSES.get(self.cause or "")
        return None if cause is None else cause.remedy

    @validates("reason")
    def _with_code(self, _: str, reason: Reason | None) -> Reason | None:
        """The columns that follow from a reason are set with it."""
        found = reason_values(reason)
        self.reason_code, self.reason_limit = found["reason_code"], found["reason_limit"]
        return reason

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)

    @property
    def layout(self) -> Layout | None:
        """How its processes lie on nodes; None: it has none."""
        if self.nodes is None:
            return None
        least = soft(self.soft).least.get(NODES)
        return Layout(self.nodes, self.ppn or 1, self.threads or 1, None if least is None else int(least))


class UnseenRow(Base):
    """A job that was queued, or changed while it waits, by others than the controller that acts; it takes that into its
    queue and deletes the row (see :mod:`lading.executors.store.queued`)."""

    __tablename__ = "lading_unseen"

    id: Mapped[int] = mapped_column(BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True)
    token: Mapped[str] = mapped_column(String(36))


class UsageRow(Base):
    """What the tries of a task used that ended on one day at one site; jobs are counted here when their own rows are
    deleted, and with no Dag what no job was charged of machines (see :mod:`lading.executors.store.usage`)."""

    __tablename__ = "lading_usage"

    dag_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    task_id: Mapped[str] = mapped_column(StringID(), primary_key=True)
    # Since the epoch, in UTC.
    day: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # What the row keeps, see lading.executors.store.usage.OF_JOBS.
    size_class: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    # Empty: where is not known.
    site: Mapped[str] = mapped_column(String(64), primary_key=True, default="")
    jobs: Mapped[int] = mapped_column(Integer)
    failed: Mapped[int] = mapped_column(Integer)
    # That they asked for while they ran, and that they used.
    cpu_seconds: Mapped[float] = mapped_column(Double)
    cpu_seconds_used: Mapped[float] = mapped_column(Double)
    # None: of none is known what it has cost. What of it was used, and their part of what idled and booted besides.
    usd: Mapped[float | None] = mapped_column(Double)
    usd_used: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    usd_boot: Mapped[float | None] = mapped_column(Double)
    # Of what they asked for what they did not use, as far as that is known.
    cpu_seconds_unused: Mapped[float] = mapped_column(Double, default=0.0)
    cpu_seconds_idle: Mapped[float] = mapped_column(Double, default=0.0)
    cpu_seconds_boot: Mapped[float] = mapped_column(Double, default=0.0)
    # Of the last of them; None: it has none, or is not known.
    team: Mapped[str | None] = mapped_column(String(LONGEST_TEAM))
    dag_owner: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    # Counts and a sample as JSON, see lading.scheduling.insight.usage.
    usage: Mapped[str] = mapped_column(Text)

    __table_args__ = (Index("lading_usage_day", "day"),)


class RequestRow(Base):
    """What users request of the controller, written by the API server. Times are seconds since the epoch."""

    __tablename__ = "lading_request"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    # See lading.executors.store.requests.
    kind: Mapped[str] = mapped_column(String(12))
    # A site, or site/location.
    target: Mapped[str] = mapped_column(String(320))
    by: Mapped[str] = mapped_column(String(250))
    at: Mapped[float] = mapped_column(Double)
    # None: it is not done yet.
    done_at: Mapped[float | None] = mapped_column(Double)
    # None: it is not known yet.
    outcome: Mapped[str | None] = mapped_column(Text)

    __table_args__ = (Index("lading_request_done", "done_at"),)


class SiteRow(Base):
    """A site as its controller has it: not what there is, but whether it can be asked. Times are epoch seconds."""

    __tablename__ = "lading_site"

    name: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(30))
    # Its place in the sites file.
    position: Mapped[int] = mapped_column(Integer)
    # What its table limits, by option, as JSON.
    limits: Mapped[str] = mapped_column(Text)
    # When it was known last that it answers; None: it never has.
    contact_at: Mapped[float | None] = mapped_column(Double)
    # Why it does not answer, as text; None: it does.
    trouble: Mapped[str | None] = mapped_column(Text)
    # Who has paused it; None: it is not paused.
    paused_by: Mapped[str | None] = mapped_column(String(250))
    # Which of its queues do not admit its account, as JSON: why, by their names; None: none.
    barred: Mapped[str | None] = mapped_column(Text)


class LocationRow(Base):
    """A machine as its site's controller saw it last."""

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
    # Of a batch system: how many its queue has, and how many of them have no jobs; None: that is not known.
    nodes: Mapped[int | None] = mapped_column(Integer)
    idle_nodes: Mapped[int | None] = mapped_column(Integer)
    # The location in which it lies; None: in none. And whether what its jobs take is taken of that as well.
    wraps: Mapped[str | None] = mapped_column(String(250))
    stacked: Mapped[bool | None] = mapped_column(Boolean)
    # USD for an hour of one of its cpus; None: it has no price.
    usd_per_cpu_hour: Mapped[float | None] = mapped_column(Double)
    # See lading.hooks.site.LocationState; None: it was stored by an older version.
    state: Mapped[str | None] = mapped_column(String(12))
    # Of an allocation: its batch job, and where that runs.
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    note: Mapped[str | None] = mapped_column(Text)
    # Since when it has been seen in its state.
    seen_at: Mapped[float] = mapped_column(Double)

    @property
    def capacity(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)


class Capacity(Base):
    """What a machine had that was not launched by Lading, from when to when: a row for each time that it was another.

    What was launched has rows of its own. Times are seconds since the epoch, memory is MiB.
    """

    __tablename__ = "lading_capacity"

    id: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=True)
    site: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(250))
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    # None: it has no price.
    usd_per_hour: Mapped[float | None] = mapped_column(Double)
    since: Mapped[float] = mapped_column(Double)
    # None: it is so now.
    until: Mapped[float | None] = mapped_column(Double)

    __table_args__ = (Index("lading_capacity_until", "until"),)


class InstanceState(str, enum.Enum):
    """What is known of an instance. One that has not ended counts as work: nothing is forgotten over it."""

    ORDERED = "ordered"
    """The site was asked for it, or is about to be; it has not been seen yet."""
    BOOTING = "booting"
    UP = "up"
    DRAINING = "draining"
    ENDED = "ended"


class InstanceRow(Base):
    """A machine, or an allocation, that was launched. Times are seconds since the epoch, memory and disk are MiB."""

    __tablename__ = "lading_instance"

    # The name of its location: what Lading has not launched may have any.
    token: Mapped[str] = mapped_column(String(250), primary_key=True)
    site: Mapped[str] = mapped_column(String(64))
    # Which jobs may use it; see lading.scheduling.provisioning.launch.
    kind: Mapped[str] = mapped_column(Text)
    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    # All that it costs; None: it has no price.
    usd_per_hour: Mapped[float | None] = mapped_column(Double)
    # What of that is not the machine itself, by name, as JSON; None: it is all, or not known.
    surcharges: Mapped[str | None] = mapped_column(Text)
    # Of a machine that was bought: where, and whether on demand or spot.
    zone: Mapped[str | None] = mapped_column(String(40))
    capacity_type: Mapped[str | None] = mapped_column(String(12))
    # What it had cost at ``usd_since``, and of that what no job used, known when it has ended.
    usd: Mapped[float | None] = mapped_column(Double)
    usd_since: Mapped[float | None] = mapped_column(Double)
    usd_idle: Mapped[float | None] = mapped_column(Double)
    # What jobs on it that were forgotten had been charged, and had asked for, and which part of what no job used is
    # kept with them; None: none was forgotten.
    usd_gone: Mapped[float | None] = mapped_column(Double)
    cpu_seconds_gone: Mapped[float | None] = mapped_column(Double)
    part_shared: Mapped[float | None] = mapped_column(Double)
    # That it has for jobs; 0: it stays until it is released.
    seconds: Mapped[float] = mapped_column(Double)
    state: Mapped[str] = mapped_column(String(12))
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    ordered_at: Mapped[float] = mapped_column(Double)
    launched_at: Mapped[float | None] = mapped_column(Double)
    ready_at: Mapped[float | None] = mapped_column(Double)
    # Since when it has no jobs, and nothing that waits has a place in it.
    idle_since: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    cause: Mapped[str | None] = mapped_column(String(20))
    # Why it was released, or has ended.
    reason: Mapped[Reason | None] = mapped_column(ReasonText)
    # None: it was stored by an older version.
    changed_at: Mapped[float | None] = mapped_column(Double, default=time.time, onupdate=time.time)

    __table_args__ = (
        Index("lading_instance_site", "site", "state"),
        Index("lading_instance_ended", "ended_at"),
    )

    @property
    def capacity(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)
