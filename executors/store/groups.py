"""Groups in the store: which jobs of those with ``max_jobs`` may start, and why the others wait.

Those with ``max_instances`` are looked at apart from the others as well: where they may go, and why they wait, is
decided with all that is placed (:mod:`lading.scheduling.placing.placement`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, case, func, or_, select, update

from lading.executors import store
from lading.executors.store import JobRow, State, explained
from lading.scheduling.matching.groups import JobGroup, admitted
from lading.scheduling.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

LIMITS = (JobRow.max_jobs, JobRow.run_max_jobs, JobRow.max_instances, JobRow.run_max_instances, JobRow.max_usd)
LIMITED = or_(*(limit.is_not(None) for limit in LIMITS))
UNLIMITED = and_(*(limit.is_(None) for limit in LIMITS))
OF_MACHINES = or_(JobRow.max_instances.is_not(None), JobRow.run_max_instances.is_not(None))
# What these jobs ask for is known, and they start alone.
CAN_BE_PLACED = (
    JobRow.state == State.QUEUED,
    JobRow.sizing.is_(None),
    JobRow.cancel.is_(None),
    JobRow.gang.is_(None),
)
AT_WORK = (State.PLACED, State.RUNNING)


class QueueColumns(NamedTuple):
    """The columns of a job as the queue reads them.

    Ten thousand jobs are read in a tick: a field of this is found in a tenth of the time that one of SQLAlchemy's rows
    takes.
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
    changed_at: float | None


COLUMNS = tuple(getattr(JobRow, name) for name in QueueColumns._fields)
# The order in which jobs should start.
ORDER = (JobRow.priority.desc(), JobRow.queued_at, JobRow.token)


def in_order(*conditions: Any) -> Any:
    """The query for jobs that can be placed, in the order in which they should start."""
    return select(*COLUMNS).where(*CAN_BE_PLACED, *conditions).order_by(*ORDER)


def read(session: Session, query: Any) -> list[QueueColumns]:
    """What a query for :data:`COLUMNS` finds."""
    return list(map(QueueColumns._make, session.execute(query)))


def waiting_groups(session: Session) -> list[JobGroup]:
    """The groups with a limit of which jobs wait."""
    rows = session.execute(
        select(JobRow.dag_id, JobRow.run_id, JobRow.task_id, JobRow.max_jobs, JobRow.run_max_jobs)
        .where(*CAN_BE_PLACED, LIMITED)
        .distinct()
    )
    return [
        JobGroup((str(dag_id), str(run_id)), str(task_id), most, of_run)
        for dag_id, run_id, task_id, most, of_run in rows
    ]


def at_work(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """How many jobs with a limit are placed or running, by run and task."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for chunk in store.chunks([run_id for _, run_id in runs]):
        rows = session.execute(
            select(JobRow.dag_id, JobRow.run_id, JobRow.task_id, func.count())
            .where(JobRow.run_id.in_(chunk), JobRow.state.in_(AT_WORK), LIMITED)
            .group_by(JobRow.dag_id, JobRow.run_id, JobRow.task_id)
        )
        for dag_id, run_id, task_id, count in rows:
            counts.setdefault((str(dag_id), str(run_id)), {})[str(task_id)] = count
    return counts


def costs(session: Session, now: float) -> dict[tuple[str, str], tuple[float, float]]:
    """What the runs with a budget of which jobs wait have cost until now, USD, and what those at work cost per hour."""
    queued = select(JobRow.dag_id, JobRow.run_id).where(*CAN_BE_PLACED, JobRow.max_usd.is_not(None)).distinct()
    runs = {(str(dag_id), str(run_id)) for dag_id, run_id in session.execute(queued)}
    rate = store.cpu_hour() * JobRow.cpus * func.coalesce(JobRow.nodes, 1)
    at_work = case((JobRow.state.in_(AT_WORK), rate))
    usd_by_run = dict.fromkeys(runs, (0.0, 0.0))
    for chunk in store.chunks(sorted(run_id for _, run_id in runs)):
        query = select(JobRow.dag_id, JobRow.run_id, func.sum(store.usd_until(now)), func.sum(at_work)).where(
            JobRow.run_id.in_(chunk)
        )
        for dag_id, run_id, spent, per_hour in session.execute(query.group_by(JobRow.dag_id, JobRow.run_id)):
            if (dag_id, run_id) in runs:
                usd_by_run[dag_id, run_id] = float(spent or 0.0), float(per_hour or 0.0)
    return usd_by_run


def may_start(session: Session, most: int, rests: Mapping[str, float]) -> list[QueueColumns]:
    """The waiting jobs of groups with a limit that may start now.

    :param most: how many of one group are looked at, and of all groups whose jobs are not counted
    :param rests: of their runs, by token, seconds: by which groups of one priority go; the jobs of one by arrival
    """
    groups = waiting_groups(session)
    live = at_work(session, sorted({group.run for group in groups}))
    candidates: dict[str, tuple[QueueColumns, JobGroup]] = {}
    uncounted = sum(group.room(live) is None for group in groups)
    for group in groups:
        room = group.room(live)
        if room != 0:
            # How many of these have a place is not known here; all such groups together share ``most``.
            number = max(1, most // uncounted) if room is None else min(room, most)
            rows = read(session, in_order(*of_group(group)).limit(number))
            candidates |= {row.token: (row, group) for row in rows}

    def rank(candidate: tuple[QueueColumns, JobGroup]) -> tuple[int, float, float, str]:
        row, _ = candidate
        return -row.priority, -rests.get(row.token, 0.0), row.queued_at, row.token

    order = sorted(candidates.values(), key=rank)
    return [candidates[token][0] for token in admitted([(row.token, group) for row, group in order], live)]


def explain(session: Session, before: float) -> None:
    """Store that reason for the jobs that their group's limit keeps from starting.

    :param before: those that were queued before, seconds since the epoch
    """
    groups = waiting_groups(session)
    live = at_work(session, sorted({group.run for group in groups}))
    for group in groups:
        if group.room(live) == 0:
            reason = group.reason(live)
            session.execute(
                update(JobRow)
                .where(
                    *of_group(group),
                    *CAN_BE_PLACED,
                    JobRow.queued_at < before,
                    or_(JobRow.reason.is_(None), JobRow.reason != reason),
                )
                .ordered_values(*explained(reason)),
                execution_options={"synchronize_session": False},
            )


def of_group(group: JobGroup) -> tuple[Any, ...]:
    """The conditions for the jobs of a group."""
    dag_id, run_id = group.run
    return (
        JobRow.dag_id == dag_id,
        JobRow.run_id == run_id,
        JobRow.task_id == group.task,
        equals_or_null(JobRow.max_jobs, group.max_jobs),
        equals_or_null(JobRow.run_max_jobs, group.run_max_jobs),
        LIMITED,
    )


def equals_or_null(column: Any, value: int | str | None) -> Any:
    """The condition that a column has a value, or none."""
    return column.is_(None) if value is None else column == value
