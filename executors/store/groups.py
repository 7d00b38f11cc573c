"""Groups in the store: which jobs of those with ``max_jobs`` may start, and why the others wait.

Those with ``max_instances`` are looked at apart from the others as well: where they may go, and why they wait, is
decided with all that is placed (:mod:`lading.scheduling.placing.placement`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, or_, select, update

from lading.executors import store
from lading.executors.store import Job, State, explained
from lading.scheduling.matching.groups import Group, admitted

if TYPE_CHECKING:
    from sqlalchemy import Row
    from sqlalchemy.orm import Session

LIMITS = (Job.max_jobs, Job.run_max_jobs, Job.max_instances, Job.run_max_instances, Job.max_usd)
LIMITED = or_(*(limit.is_not(None) for limit in LIMITS))
UNLIMITED = and_(*(limit.is_(None) for limit in LIMITS))
OF_MACHINES = or_(Job.max_instances.is_not(None), Job.run_max_instances.is_not(None))
# What these jobs ask for is known, and they start alone.
CAN_BE_PLACED = (Job.state == State.QUEUED, Job.appraisal.is_(None), Job.cancel.is_(None), Job.gang.is_(None))
AT_WORK = (State.PLACED, State.RUNNING)
COLUMNS = (
    Job.token, Job.cpus, Job.memory, Job.disk, Job.gpus, Job.site_hint, Job.queued_at, Job.reason, Job.priority,
    Job.instance_type, Job.queue_hint, Job.native_hint, Job.nodes, Job.dag_id, Job.memory_limit, Job.time_limit,
    Job.arch, Job.os, Job.features, Job.capacity_type, Job.run_id, Job.task_id, Job.max_instances,
    Job.run_max_instances, Job.targets, Job.queue, Job.soft, Job.max_usd, Job.map_index,
    Job.input_values,
)  # fmt: skip
# The order in which jobs should start.
ORDER = (Job.priority.desc(), Job.queued_at, Job.token)


def in_order(*conditions: Any) -> Any:
    """The query for jobs that can be placed, in the order in which they should start."""
    return select(*COLUMNS).where(*CAN_BE_PLACED, *conditions).order_by(*ORDER)


def waiting_groups(session: Session) -> list[Group]:
    """The groups with a limit of which jobs wait."""
    rows = session.execute(
        select(Job.dag_id, Job.run_id, Job.task_id, Job.max_jobs, Job.run_max_jobs)
        .where(*CAN_BE_PLACED, LIMITED)
        .distinct()
    )
    return [
        Group((str(dag_id), str(run_id)), str(task_id), most, of_run) for dag_id, run_id, task_id, most, of_run in rows
    ]


def at_work(session: Session, runs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], dict[str, int]]:
    """How many jobs with a limit are placed or running, by run and task."""
    counts: dict[tuple[str, str], dict[str, int]] = {}
    for chunk in store.chunks([run_id for _, run_id in runs]):
        rows = session.execute(
            select(Job.dag_id, Job.run_id, Job.task_id, func.count())
            .where(Job.run_id.in_(chunk), Job.state.in_(AT_WORK), LIMITED)
            .group_by(Job.dag_id, Job.run_id, Job.task_id)
        )
        for dag_id, run_id, task_id, count in rows:
            counts.setdefault((str(dag_id), str(run_id)), {})[str(task_id)] = count
    return counts


def costs(session: Session, now: float) -> dict[tuple[str, str], tuple[float, float]]:
    """What the runs with a budget of which jobs wait have cost until now, USD, and what those at work cost per hour."""
    queued = select(Job.dag_id, Job.run_id).where(*CAN_BE_PLACED, Job.max_usd.is_not(None)).distinct()
    runs = {(str(dag_id), str(run_id)) for dag_id, run_id in session.execute(queued)}
    rate = store.cpu_hour() * Job.cpus * func.coalesce(Job.nodes, 1)
    at_work = case((Job.state.in_(AT_WORK), rate))
    found = dict.fromkeys(runs, (0.0, 0.0))
    for chunk in store.chunks(sorted(run_id for _, run_id in runs)):
        query = select(Job.dag_id, Job.run_id, func.sum(store.usd_until(now)), func.sum(at_work)).where(
            Job.run_id.in_(chunk)
        )
        for dag_id, run_id, spent, per_hour in session.execute(query.group_by(Job.dag_id, Job.run_id)):
            if (dag_id, run_id) in runs:
                found[dag_id, run_id] = float(spent or 0.0), float(per_hour or 0.0)
    return found


def may_start(session: Session, most: int) -> list[Row[Any]]:
    """The waiting jobs of groups with a limit that may start now.

    :param most: how many of one group are looked at, and of all groups whose jobs are not counted
    """
    groups = waiting_groups(session)
    live = at_work(session, sorted({group.run for group in groups}))
    found: dict[str, tuple[Row[Any], Group]] = {}
    uncounted = sum(group.room(live) is None for group in groups)
    for group in groups:
        room = group.room(live)
        if room != 0:
            # How many of these have a place is not known here; all such groups together share ``most``.
            number = max(1, most // uncounted) if room is None else min(room, most)
            rows = session.execute(in_order(*of_group(group)).limit(number))
            found |= {row.token: (row, group) for row in rows}
    order = sorted(found.values(), key=lambda each: (-each[0].priority, each[0].queued_at, each[0].token))
    return [found[token][0] for token in admitted([(row.token, group) for row, group in order], live)]


def explain(session: Session, before: float) -> None:
    """Tell the jobs that their group's limit keeps from starting.

    :param before: those that were queued before, seconds since the epoch
    """
    groups = waiting_groups(session)
    live = at_work(session, sorted({group.run for group in groups}))
    for group in groups:
        if group.room(live) == 0:
            reason = group.reason(live)
            session.execute(
                update(Job)
                .where(
                    *of_group(group),
                    *CAN_BE_PLACED,
                    Job.queued_at < before,
                    or_(Job.reason.is_(None), Job.reason != reason),
                )
                .ordered_values(*explained(reason)),
                execution_options={"synchronize_session": False},
            )


def of_group(group: Group) -> tuple[Any, ...]:
    """The conditions for the jobs of a group."""
    dag_id, run_id = group.run
    return (
        Job.dag_id == dag_id,
        Job.run_id == run_id,
        Job.task_id == group.task,
        same(Job.max_jobs, group.max_jobs),
        same(Job.run_max_jobs, group.run_max_jobs),
        LIMITED,
    )


def same(column: Any, value: int | None) -> Any:
    return column.is_(None) if value is None else column == value
