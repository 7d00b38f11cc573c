"""The acting controller's copy of the queue: the waiting jobs, read once from the store and then kept up to date.

Every other process that queues or changes a waiting job adds a row with its token to
:class:`~lading.executors.store.tables.UnseenRow`, in the same transaction. In each tick the controller reads those jobs
and deletes the rows, so it does not matter when a transaction commits. A controller reads the whole queue after it
takes the lease, and deletes no more rows once it has lost it.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import delete, func, select

from lading.executors.store.jobs import chunks, explain
from lading.executors.store.leases import Lease
from lading.executors.store.tables import JobRow, State, UnseenRow
from lading.scheduling.matching.groups import JobGroup
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Everything that decides which sites and locations can run a job, and how much of them it takes.
shape = attrgetter(
    "cpus", "memory", "disk", "gpus", "memory_limit", "time_limit", "site_hint", "instance_type", "arch", "os",
    "features", "capacity_type", "queue_hint", "native_hint", "targets", "soft", "nodes",
)  # fmt: skip
MORE = (
    JobRow.max_jobs, JobRow.run_max_jobs, JobRow.chosen, JobRow.input_size, JobRow.gang,
    JobRow.sizing.is_not(None).label("is_unsized"), JobRow.cancel.is_not(None).label("is_cancelled"),
)  # fmt: skip


class QueueColumns(NamedTuple):
    """The columns of a job that the queue needs for every decision.

    Attribute access is about ten times faster than on SQLAlchemy's rows.
    """

    token: str
    cpus: float
    memory: int
    disk: int
    gpus: float
    site_hint: str | None
    queued_at: float
    reason: Reason | None
    priority: int
    instance_type: str | None
    queue_hint: str | None
    native_hint: str | None
    nodes: int | None
    dag_id: str | None
    team: str | None
    memory_limit: int | None
    time_limit: int | None
    arch: str | None
    os: str | None
    features: str | None
    capacity_type: str | None
    run_id: str | None
    task_id: str | None
    max_instances: int | None
    run_max_instances: int | None
    targets: str | None
    queue: str | None
    soft: str | None
    max_usd: float | None
    map_index: int
    input_values: str | None
    dag_owner: str | None
    dag_tags: str | None
    kind: str | None


COLUMNS = tuple(getattr(JobRow, name) for name in QueueColumns._fields)


class MoreColumns(NamedTuple):
    max_jobs: int | None
    run_max_jobs: int | None
    chosen: str | None
    input_size: int | None
    gang: str | None
    is_unsized: bool
    is_cancelled: bool


class Rank(NamedTuple):
    level: int
    queued_at: float
    token: str


@dataclass(eq=False, slots=True)
class Lane:
    """Waiting jobs that are considered together, in the order in which they should start.

    :param key: what the jobs have in common
    :ivar said: the reason that all of them have; None: unknown
    """

    key: Any
    ranks: list[Rank] = field(default_factory=list)
    said: Reason | None = None

    def add(self, rank: Rank) -> None:
        self.said = None
        if self.ranks and rank < self.ranks[-1]:
            bisect.insort(self.ranks, rank)
        else:
            self.ranks.append(rank)

    def remove(self, rank: Rank) -> None:
        del self.ranks[bisect.bisect_left(self.ranks, rank)]


class LaneKey(NamedTuple):
    team: str | None
    dag_id: str | None
    dag_owner: str | None
    dag_tags: str | None
    priority: int
    shape: tuple[Any, ...]


@dataclass(slots=True)
class QueueEntry:
    """A job in the queue.

    :param place: the lane it belongs to; None: it cannot be placed yet, or it starts with a gang
    """

    row: QueueColumns
    more: MoreColumns
    place: Lane | None

    @property
    def rank(self) -> Rank:
        return Rank(-self.row.priority, self.row.queued_at, self.row.token)

    @property
    def task(self) -> tuple[str, str]:
        return str(self.row.dag_id), str(self.row.task_id)


class QueuedJobs:
    """The waiting jobs.

    :param holder: the holder of the lease; None: rows are only read, never deleted
    :ivar jobs: all waiting jobs, by token
    :ivar lanes: those that can be placed, except for jobs of groups with a limit, which are in ``groups``
    :ivar unsized: those whose request is not final yet; ``ganged``: those that start with others
    :ivar chosen: by task, those for which Lading chooses an amount; ``new_chosen``: tasks with new ones among them
    :ivar counts: how many jobs there are, by reason and team
    """

    def __init__(self, holder: str | None = None) -> None:
        self.holder = holder
        self.forget()

    def forget(self) -> None:
        """Discard everything; the next read reads the whole queue."""
        self.is_read = False
        self.jobs: dict[str, QueueEntry] = {}
        self.lanes: dict[LaneKey, Lane] = {}
        self.groups: dict[JobGroup, Lane] = {}
        self.unsized: dict[str, None] = {}
        self.ganged: set[str] = set()
        self.chosen: dict[tuple[str, str], dict[str, None]] = {}
        self.new_chosen: set[tuple[str, str]] = set()
        self.unexplained: dict[str, None] = {}
        self.counts: Counter[tuple[Reason | None, str | None]] = Counter()
        self._stale: set[str] = set()
        self._texts: dict[Any, Any] = {}

    @property
    def is_outdated(self) -> bool:
        """Whether the controller itself has changed jobs since the last read, or has discarded them."""
        return not self.is_read or bool(self._stale)

    def note(self, tokens: Iterable[str]) -> None:
        """Reread these jobs next time, because the controller itself has changed them."""
        self._stale.update(tokens)

    def read(self, session: Session) -> QueuedJobs:
        """Read what has changed; return self."""
        # The remaining changes wait for the next tick.
        unseen = session.execute(select(UnseenRow.id, UnseenRow.token).limit(10_000)).all()
        waiting = select(*COLUMNS, *MORE).where(JobRow.state == State.QUEUED)
        if not self.is_read:
            in_turn = waiting.order_by(JobRow.priority.desc(), JobRow.queued_at, JobRow.token)
            for row in session.execute(in_turn, execution_options={"yield_per": 5_000}):
                self._put(row)
            self.is_read = True
        else:
            tokens = self._stale | {row.token for row in unseen}
            for chunk in chunks(sorted(tokens)):
                for row in session.execute(waiting.where(JobRow.token.in_(chunk))):
                    self._put(row)
                    tokens.remove(row.token)
            for token in tokens:
                self._drop(token)
        self._stale = set()
        if unseen and self.holder is not None:
            leads = select(Lease.name).where(Lease.holder == self.holder).exists()
            for ids in chunks([row.id for row in unseen]):
                gone = delete(UnseenRow).where(UnseenRow.id.in_(ids), leads)
                session.execute(gone, execution_options={"synchronize_session": False})
        return self

    def missed(self, session: Session) -> set[str]:
        """Return jobs that were queued or changed without notice; they are reread next time."""
        self.read(session)
        waiting = JobRow.state == State.QUEUED
        there, told = (
            select(func.count()).select_from(what).scalar_subquery()
            for what in (select(JobRow.token).where(waiting).subquery(), UnseenRow)
        )
        # One statement, so that a job is counted if and only if its notice is.
        number, unseen = session.execute(select(there, told)).one()
        if unseen or number == len(self.jobs):
            return set()
        found = {*session.scalars(select(JobRow.token).where(waiting))} ^ self.jobs.keys()
        self.note(found)
        return found

    def _put(self, row: Any) -> None:
        columns = QueueColumns._make(row[: len(QueueColumns._fields)])
        more = MoreColumns._make(row[len(QueueColumns._fields) :])
        known = self.jobs.get(columns.token)
        if known is not None and (known.row, known.more) == (columns, more):
            return
        self._drop(columns.token)
        shared = QueueColumns._make(map(self._shared, columns))
        columns = shared._replace(token=columns.token, input_values=columns.input_values)
        job = QueueEntry(columns, more if more.input_size is not None else self._shared(more), None)
        self.jobs[columns.token] = job
        self.counts[columns.reason, columns.team] += 1
        if more.gang is not None:
            self.ganged.add(columns.token)
        if columns.reason is None:
            self.unexplained[columns.token] = None
        if more.is_unsized:
            self.unsized[columns.token] = None
        elif not more.is_cancelled and more.gang is None:
            job.place = self._place(columns, more.max_jobs, more.run_max_jobs)
            job.place.add(job.rank)
            if more.chosen is not None:
                self.chosen.setdefault(job.task, {})[columns.token] = None
                self.new_chosen.add(job.task)

    def _shared(self, value: Any) -> Any:
        """Return one shared object for equal texts or tuples, to save memory."""
        return self._texts.setdefault(value, value) if isinstance(value, (str, MoreColumns)) else value

    def _place(self, row: QueueColumns, max_jobs: int | None, run_max_jobs: int | None) -> Lane:
        limits = max_jobs, run_max_jobs, row.max_instances, row.run_max_instances, row.max_usd
        if any(limit is not None for limit in limits):
            group = JobGroup((str(row.dag_id), str(row.run_id)), str(row.task_id), max_jobs, run_max_jobs)
            return self.groups.setdefault(group, Lane(group))
        key = LaneKey(row.team, row.dag_id, row.dag_owner, row.dag_tags, row.priority, shape(row))
        return self.lanes.setdefault(key, Lane(key))

    def _drop(self, token: str) -> None:
        job = self.jobs.pop(token, None)
        if job is None:
            return
        if not self.jobs:
            self._texts.clear()
        self._count(job.row, -1)
        self.ganged.discard(token)
        for some in (self.unsized, self.unexplained):
            some.pop(token, None)
        if (there := job.place) is not None:
            there.remove(job.rank)
            if not there.ranks:
                (self.groups if isinstance(there.key, JobGroup) else self.lanes).pop(there.key)
        if (alike := self.chosen.get(job.task)) is not None:
            alike.pop(token, None)
            if not alike:
                del self.chosen[job.task]

    def _count(self, row: QueueColumns, number: int) -> None:
        self.counts[row.reason, row.team] += number
        if not self.counts[row.reason, row.team]:
            del self.counts[row.reason, row.team]

    def rows(self, tokens: Iterable[str]) -> list[QueueColumns]:
        """Return those of the jobs that can be placed."""
        found = (self.jobs.get(token) for token in tokens)
        return [job.row for job in found if job is not None and job.place is not None]

    def first(self, alike: Iterable[Lane], most: int | None = None) -> list[QueueColumns]:
        """Return the first jobs of some lanes, in the order in which they should start."""
        return self.rows(rank.token for rank in islice(in_order(alike), most))

    def unlimited(self) -> list[QueueColumns]:
        """Return the jobs that can be placed, without those of groups with a limit."""
        return self.first(self.lanes.values())

    def others(self, alike: Lane, reason: Reason, before: float) -> list[str]:
        """Return the jobs of a lane that were queued before a time and do not have this reason."""
        if alike.said == reason:
            return []
        old = [self.jobs[rank.token] for rank in alike.ranks if rank.queued_at < before]
        if len(old) == len(alike.ranks):
            alike.said = reason
        return [job.row.token for job in old if job.row.reason != reason]

    def without_reason(self, before: float, *, are_unsized: bool) -> list[str]:
        """Return the first jobs without a reason that were queued before a time.

        :param are_unsized: whether to return those whose request is not final; otherwise all that do not belong to a
            gang
        """
        found = (
            token
            for token in self.unexplained
            if (job := self.jobs[token]).row.queued_at < before
            and (job.more.is_unsized if are_unsized else job.more.gang is None)
        )
        # The remaining jobs wait for the next tick.
        return [*islice(found, 5_000)]

    def explain(self, session: Session, reason: Reason, tokens: Sequence[str]) -> None:
        explain(session, reason, tokens)
        for token in tokens:
            if (job := self.jobs.get(token)) is not None:
                self._count(job.row, -1)
                job.row = job.row._replace(reason=reason)
                self._count(job.row, 1)
                self.unexplained.pop(token, None)
                if job.place is not None:
                    job.place.said = None


def in_order(alike: Iterable[Lane]) -> Iterator[Rank]:
    lists = [each.ranks for each in alike]
    return iter(lists[0]) if len(lists) == 1 else heapq.merge(*lists)


def by(alike: Iterable[Lane], key: Callable[[LaneKey], Hashable]) -> dict[Any, list[Lane]]:
    """Group lanes by what they have in common."""
    found: dict[Any, list[Lane]] = {}
    for each in alike:
        found.setdefault(key(each.key), []).append(each)
    return found
