"""The store: Lading's tables in Airflow's database, and the queries on them.

It is the only thing that executors, controllers and commands share. All functions take the caller's session and never
commit, so that the caller decides what is atomic: a job row is written in the very transaction in which the
scheduler sets the task instance to QUEUED.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow.models.base import StringID, _get_schema, naming_convention
from sqlalchemy import (
    Boolean,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    and_,
    delete,
    func,
    insert,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Mapped, mapped_column, registry

from lading.scheduling.resources import Layout, Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

metadata = MetaData(schema=_get_schema(), naming_convention=naming_convention)
Base: Any = registry(metadata=metadata).generate_base()

# Databases limit how many values one statement may carry; SQLite's oldest limit is 999.
CHUNK = 500


class State(str, enum.Enum):
    """Where a job is on its way; the cause says why it ended or waits."""

    QUEUED = "queued"
    PLACED = "placed"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


LIVE = (State.QUEUED, State.PLACED, State.RUNNING)
ENDED = (State.SUCCEEDED, State.FAILED, State.CANCELLED)


class Job(Base):
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
    workload: Mapped[str] = mapped_column(Text)

    cpus: Mapped[float] = mapped_column(Double)
    memory: Mapped[int] = mapped_column(Integer)
    disk: Mapped[int] = mapped_column(Integer)
    gpus: Mapped[float] = mapped_column(Double)
    memory_limit: Mapped[int | None] = mapped_column(Integer)
    time_limit: Mapped[int | None] = mapped_column(Integer)
    site_hint: Mapped[str | None] = mapped_column(String(64))
    instance_type: Mapped[str | None] = mapped_column(String(64))
    queue_hint: Mapped[str | None] = mapped_column(String(250))
    # Native directives by key, as JSON.
    native_hint: Mapped[str | None] = mapped_column(Text)
    # How the processes of its batch job lie on nodes; None: it is one process.
    nodes: Mapped[int | None] = mapped_column(Integer)
    ppn: Mapped[int | None] = mapped_column(Integer)
    threads: Mapped[int | None] = mapped_column(Integer)
    priority: Mapped[int] = mapped_column(Integer)
    max_instances: Mapped[int | None] = mapped_column(Integer)
    run_max_instances: Mapped[int | None] = mapped_column(Integer)
    # What the resources depend on, as JSON, until they are known (see lading.executors.controller.estimation).
    appraisal: Mapped[str | None] = mapped_column(Text)

    state: Mapped[str] = mapped_column(String(12))
    cause: Mapped[str | None] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(Text)
    cancel: Mapped[str | None] = mapped_column(Text)
    unreported: Mapped[bool] = mapped_column(Boolean, default=False)
    news: Mapped[int] = mapped_column(Integer, default=0)
    site: Mapped[str | None] = mapped_column(String(64))
    location: Mapped[str | None] = mapped_column(String(250))
    # Of its batch job, or of that of the allocation in which it is; and the node as the batch system calls it.
    native_id: Mapped[str | None] = mapped_column(String(250))
    node: Mapped[str | None] = mapped_column(String(250))
    expires_at: Mapped[float | None] = mapped_column(Double)

    queued_at: Mapped[float] = mapped_column(Double)
    placed_at: Mapped[float | None] = mapped_column(Double)
    started_at: Mapped[float | None] = mapped_column(Double)
    ended_at: Mapped[float | None] = mapped_column(Double)
    exit_code: Mapped[int | None] = mapped_column(Integer)
    peak_memory: Mapped[int | None] = mapped_column(Integer)
    cpu_seconds: Mapped[float | None] = mapped_column(Double)
    # Whether its try was given back to its task (see the module free_tries); None: no.
    given_back: Mapped[bool | None] = mapped_column(Boolean)

    __table_args__ = (
        Index("lading_job_unreported", "owner", "unreported"),
        Index("lading_job_waiting", "state", "priority", "queued_at"),
        Index("lading_job_ended", "ended_at"),
        Index("lading_job_task", "dag_id", "run_id", "task_id"),
    )

    @property
    def resources(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)

    @property
    def layout(self) -> Layout | None:
        """How its processes lie on nodes; None: it has none."""
        return None if self.nodes is None else Layout(self.nodes, self.ppn or 1, self.threads or 1)


class Location(Base):
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
    note: Mapped[str | None] = mapped_column(Text)
    # Those of a batch site, as JSON: a list of what lading.hooks.site.AllocationSeen has.
    allocations: Mapped[str | None] = mapped_column(Text)
    seen_at: Mapped[float] = mapped_column(Double)

    @property
    def capacity(self) -> Resources:
        return Resources(self.cpus, self.memory, self.disk, self.gpus)


class Lease(Base):
    """Which controller acts. There is one row at most."""

    __tablename__ = "lading_lease"

    name: Mapped[str] = mapped_column(String(30), primary_key=True)
    holder: Mapped[str] = mapped_column(String(36))
    host: Mapped[str] = mapped_column(String(250))
    pid: Mapped[int] = mapped_column(Integer)
    managed: Mapped[bool] = mapped_column(Boolean)
    expires_at: Mapped[float] = mapped_column(Double)


@dataclass(frozen=True, slots=True)
class Change:
    """What the controller learnt about one job.

    :param token: the job
    :param values: column values to set
    :param report: whether the executor has to tell Airflow
    """

    token: str
    values: dict[str, Any]
    report: bool = False


def knows(session: Session, token: str) -> bool:
    """Whether there is a job of this token."""
    return session.scalar(select(Job.token).where(Job.token == token)) is not None


def live(session: Session, tokens: Iterable[str], site: str | None = None) -> set[str]:
    """Those of these jobs that have not ended.

    :param site: that has been given them; None: any, or none yet
    """
    query = select(Job.token).where(Job.state.in_(LIVE), *([] if site is None else [Job.site == site]))
    return {
        token for chunk in chunks(sorted({*tokens})) for token in session.scalars(query.where(Job.token.in_(chunk)))
    }


def add_job(session: Session, **columns: Any) -> None:
    """Add one job; a token that is there already is left as it is (the same try was queued twice)."""
    if not knows(session, columns["token"]):
        session.execute(insert(Job.__table__), columns)  # one of many: without the ORM


def any_queued(session: Session) -> bool:
    """Whether a job waits."""
    return session.scalar(select(Job.token).where(Job.state == State.QUEUED).limit(1)) is not None


def unreported(session: Session, owner: int | None, limit: int) -> Sequence[Job]:
    """Jobs of a scheduler whose news Airflow has not been told, at most ``limit``; those that have ended come first."""
    return session.scalars(
        select(Job)
        .where(Job.owner == owner, Job.unreported.is_(True))
        .order_by(Job.state.in_(LIVE), Job.ended_at, Job.queued_at)
        .limit(limit)
    ).all()


def mark_reported(session: Session, jobs: Iterable[Job]) -> None:
    """Remember that Airflow has been told; a job with more news since then stays unreported."""
    by_news: dict[int, list[str]] = {}
    for job in jobs:
        by_news.setdefault(job.news, []).append(job.token)
    for news, tokens in by_news.items():
        for chunk in chunks(tokens):
            session.execute(
                update(Job).where(Job.token.in_(chunk), Job.news == news).values(unreported=False),
                execution_options={"synchronize_session": False},
            )


def find(session: Session, tokens: Sequence[str]) -> dict[str, str]:
    """The state of each of these jobs that the store knows, by token."""
    found: dict[str, str] = {}
    for chunk in chunks(tokens):
        rows = session.execute(select(Job.token, Job.state).where(Job.token.in_(chunk)))
        found.update({row.token: row.state for row in rows})
    return found


def locations(session: Session, tokens: Sequence[str]) -> list[str]:
    """Where these jobs have been, as far as they have been anywhere."""
    return [
        location
        for chunk in chunks(tokens)
        for location in session.scalars(select(Job.location).where(Job.token.in_(chunk)))
        if location is not None
    ]


def adopt(session: Session, tokens: Sequence[str], owner: int | None) -> None:
    """Make a scheduler the owner of jobs; what has ended is reported (again) to the new owner."""
    for chunk in chunks(tokens):
        session.execute(
            update(Job).where(Job.token.in_(chunk)).values(owner=owner, unreported=Job.state.in_(ENDED)),
            execution_options={"synchronize_session": False},
        )


def adopt_from(session: Session, dead: int, owner: int | None) -> dict[str, str]:
    """Take over all jobs of a dead scheduler that are live or unreported; returns the state of each by token."""
    unfinished = or_(Job.state.in_(LIVE), Job.unreported.is_(True))
    rows = session.execute(select(Job.token, Job.state).where(Job.owner == dead, unfinished))
    known = {row.token: row.state for row in rows}
    taken: dict[str, str] = {}
    for chunk in chunks(list(known)):
        session.execute(
            update(Job).where(Job.token.in_(chunk), Job.owner == dead).values(owner=owner),
            execution_options={"synchronize_session": False},
        )
        # Another scheduler may have been faster with some of them.
        ours = session.scalars(select(Job.token).where(Job.token.in_(chunk), Job.owner == owner))
        taken.update((token, known[token]) for token in ours)
    return taken


def foreign_owners(session: Session, owner: int | None) -> Sequence[int | None]:
    """The other schedulers that own a job which is live or unreported."""
    return session.scalars(
        select(Job.owner)
        .where(or_(Job.owner != owner, Job.owner.is_(None)), or_(Job.state.in_(LIVE), Job.unreported.is_(True)))
        .distinct()
    ).all()


def explain_the_rest(session: Session, reason: str, before: float) -> None:
    """Give jobs a reason for their waiting that were queued before a time (seconds since the epoch) and have none."""
    session.execute(
        update(Job)
        .where(Job.state == State.QUEUED, Job.reason.is_(None), Job.queued_at < before)
        .values(reason=reason, unreported=True, news=Job.news + 1),
        execution_options={"synchronize_session": False},
    )


def explain(session: Session, reason: str, tokens: Sequence[str]) -> None:
    """Give jobs that wait a reason for it."""
    for chunk in chunks(tokens):
        session.execute(
            update(Job)
            .where(Job.token.in_(chunk), Job.state == State.QUEUED)
            .values(reason=reason, unreported=True, news=Job.news + 1),
            execution_options={"synchronize_session": False},
        )


def forget_reasons(session: Session, beginning: str) -> None:
    """Take back the reasons of waiting jobs that begin so."""
    session.execute(
        update(Job).where(Job.state == State.QUEUED, Job.reason.startswith(beginning)).values(reason=None),
        execution_options={"synchronize_session": False},
    )


def apply(session: Session, changes: Iterable[Change], site: str | None = None) -> list[Change]:
    """Record changes. An ended job stays as it is: events may be told twice.

    :param site: whose events they follow from: only its own jobs are changed; None: Lading's own decisions
    :returns: those that have changed something
    """
    applied = []
    if site is not None:
        changes = list(changes)
        own = live(session, [change.token for change in changes], site)
        changes = [change for change in changes if change.token in own]
    for change in changes:
        values = {**change.values, "unreported": True, "news": Job.news + 1} if change.report else change.values
        result = session.execute(
            update(Job).where(Job.token == change.token, Job.state.in_(LIVE)).values(**values),
            execution_options={"synchronize_session": False},
        )
        if result.rowcount:  # type: ignore[attr-defined]
            applied.append(change)
    return applied


def count_live(session: Session) -> dict[tuple[str | None, str], int]:
    """The number of jobs that have not ended, by site and state."""
    rows = session.execute(
        select(Job.site, Job.state, func.count()).where(Job.state.in_(LIVE)).group_by(Job.site, Job.state)
    )
    return {(site, state): count for site, state, count in rows}


def forget_ended(session: Session, before: float) -> int:
    """Delete jobs that ended before a time (seconds since the epoch) and have been reported; returns how many."""
    result = session.execute(
        delete(Job).where(Job.ended_at < before, Job.unreported.is_(False)),
        execution_options={"synchronize_session": False},
    )
    return result.rowcount  # type: ignore[attr-defined]


def save_locations(session: Session, site: str, locations: Iterable[Location]) -> None:
    """Replace what is known of a site's locations."""
    kept = list(locations)
    session.execute(delete(Location).where(Location.site == site, Location.name.not_in([row.name for row in kept])))
    for row in kept:
        session.merge(row)


def forget_other_sites(session: Session, sites: Iterable[str]) -> None:
    """Delete the locations of sites that are none any more."""
    session.execute(delete(Location).where(Location.site.not_in(list(sites))))


def take_lease(
    session: Session, holder: str, host: str, pid: int, managed: bool, now: float, seconds: float, dead: str | None
) -> bool:
    """Become or stay the controller that acts.

    :param dead: a holder that is known not to live any more, whose lease need not run out first
    :returns: whether the lease is held now
    """
    values = {"holder": holder, "host": host, "pid": pid, "managed": managed, "expires_at": now + seconds}
    free = or_(Lease.holder == holder, Lease.expires_at < now)
    if dead is not None:
        free = or_(free, Lease.holder == dead)
    taken = session.execute(
        update(Lease).where(and_(Lease.name == "controller", free)).values(**values),
        execution_options={"synchronize_session": False},
    )
    if taken.rowcount:  # type: ignore[attr-defined]
        return True
    if session.scalar(select(Lease.name)) is not None:
        return False
    try:
        with session.begin_nested():
            session.execute(insert(Lease).values(name="controller", **values))
    except IntegrityError:
        return False
    return True


def lease(session: Session) -> Lease | None:
    """Who acts, if anybody."""
    return session.scalars(select(Lease)).first()


def drop_lease(session: Session, holder: str) -> None:
    """Let another controller act at once."""
    session.execute(delete(Lease).where(Lease.holder == holder))


def chunks(tokens: Sequence[str]) -> Iterable[Sequence[str]]:
    """The tokens in portions that every database takes in one statement."""
    return (tokens[start : start + CHUNK] for start in range(0, len(tokens), CHUNK))
