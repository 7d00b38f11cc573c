"""Groups in the store: which jobs with ``max_jobs`` can start, and why the others wait.

Jobs with ``max_instances`` are read here too, but where they can go and why they wait is decided during placement
(:mod:`lading.scheduling.placing.placement`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import case, func, or_, select

from lading.executors import store
from lading.executors.store import JobRow, State
from lading.executors.store.queued import QueueColumns, QueuedJobs
from lading.scheduling.matching.groups import JobGroup, admitted

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

LIMITS = (JobRow.max_jobs, JobRow.run_max_jobs, JobRow.max_instances, JobRow.run_max_instances, JobRow.max_usd)
LIMITED = or_(*(limit.is_not(None) for limit in LIMITS))
OF_MACHINES = or_(JobRow.max_instances.is_not(None), JobRow.run_max_instances.is_not(None))
# The requests of these jobs are final, and they do not belong to a gang.
CAN_BE_PLACED = (
    JobRow.state == State.QUEUED,
    JobRow.sizing.is_(None),
    JobRow.cancel.is_(None),
    JobRow.gang.is_(None),
)
AT_WORK = (State.PLACED, State.RUNNING)
# The order in which jobs should start.
ORDER = (JobRow.priority.desc(), JobRow.queued_at, JobRow.token)


def at_work(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """Count the placed or running jobs with a limit, by run and task."""
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


def costs(session: Session, runs: Iterable[tuple[str, str]], now: float) -> dict[tuple[str, str], tuple[float, float]]:
    """Return what each run has cost so far, in USD, and what its placed and running jobs cost per hour."""
    runs = {*runs}
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


def may_start(session: Session, queued: QueuedJobs, most: int, rests: Mapping[str, float]) -> list[QueueColumns]:
    """Return the waiting jobs of groups with a limit that can start now.

    :param most: how many jobs of one group are considered, and of all groups without a limit on jobs together
    :param rests: the longest remaining path of each job's run, by token, in seconds; orders groups of equal priority,
        while jobs of one group go by arrival
    """
    groups = queued.groups.values()
    live = at_work(session, sorted({group.key.run for group in groups}))
    candidates: dict[str, tuple[QueueColumns, JobGroup]] = {}
    uncounted = sum(group.key.room(live) is None for group in groups)
    for group in groups:
        room = group.key.room(live)
        if room != 0:
            # How many of these fit is unknown here, so all such groups share ``most``.
            number = max(1, most // uncounted) if room is None else min(room, most)
            candidates |= {row.token: (row, group.key) for row in queued.first([group], number)}

    def rank(candidate: tuple[QueueColumns, JobGroup]) -> tuple[int, float, float, str]:
        row, _ = candidate
        return -row.priority, -rests.get(row.token, 0.0), row.queued_at, row.token

    order = sorted(candidates.values(), key=rank)
    return [candidates[token][0] for token in admitted([(row.token, group) for row, group in order], live)]


def explain(session: Session, queued: QueuedJobs, before: float) -> None:
    """Store why jobs wait that their group's limit keeps from starting.

    :param before: only for jobs queued before this time, in epoch seconds
    """
    live = at_work(session, sorted({group.run for group in queued.groups}))
    for group in queued.groups.values():
        if group.key.room(live) == 0:
            reason = group.key.reason(live)
            queued.explain(session, reason, queued.others(group, reason, before))


def equals_or_null(column: Any, value: int | str | None) -> Any:
    return column.is_(None) if value is None else column == value
