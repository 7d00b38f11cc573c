"""What the tries of tasks used, from the jobs in the store and from the sums kept of deleted jobs."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import delete, func, select

from lading.executors.accounting import bill_days, bills
from lading.executors.store.jobs import QUEUED, chunks
from lading.executors.store.tables import InstanceRow, JobRow, State, UsageRow
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.scheduling.accounting.bill import BillParts
from lading.scheduling.accounting.periods import SECONDS_PER_DAY
from lading.scheduling.sizing.auto import from_text
from lading.scheduling.sizing.usage import Usage, Use

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# For how many days usage is kept after the jobs have been deleted.
DAYS_KEPT = 366
# How many jobs are deleted at a time, so that no tick takes long.
MOST_FORGOTTEN = 2000
# How many of a task's latest tries count; older ones would be of code that no longer exists.
MOST_TRIES = 1000
# The size class of rows that keep jobs; rows for bills have lower values, those of development versions higher ones.
OF_JOBS = -1
# With these causes, usage up to the end of a try does not show what it would have used.
SILENT = ("lost", "preempted", "node_failure", "submit_rejected")
COLUMNS = (
    JobRow.token, JobRow.kind, JobRow.dag_id, JobRow.task_id, JobRow.state, JobRow.cause, JobRow.cpus, JobRow.nodes,
    JobRow.memory, JobRow.memory_limit, JobRow.peak_memory, JobRow.cpu_seconds, JobRow.usd, QUEUED.label("queued_at"),
    JobRow.started_at, JobRow.ended_at, JobRow.input_size, JobRow.team, JobRow.dag_owner, JobRow.site, JobRow.location,
)  # fmt: skip
# A job script has its own request, so its use says nothing about what its task should request.
IS_OF_TASK = JobRow.kind != JOB_SCRIPT
# The columns that show what a try used. Thousands of rows are read at a time, so each column costs time.
OF_USE = (
    JobRow.cause, JobRow.cpus, JobRow.nodes, JobRow.memory, JobRow.memory_limit, JobRow.peak_memory, JobRow.cpu_seconds,
    QUEUED.label("queued_at"), JobRow.started_at, JobRow.ended_at, JobRow.input_size,
)  # fmt: skip


def complete_since(session: Session) -> float:
    """Return since when the records of jobs and machines are complete, epoch seconds; 0: none has been deleted."""
    last = session.scalar(select(func.max(UsageRow.day)))
    return 0.0 if last is None else (last + 1) * float(SECONDS_PER_DAY)


def forget_ended(session: Session, before: float) -> int:
    """Delete at most :data:`MOST_FORGOTTEN` jobs that ended before a time and have been reported.

    Their usage, and the machine time not charged to any job, are kept in the same transaction.

    :param before: seconds since the epoch
    :returns: the number of deleted jobs
    """
    old = select(*COLUMNS).where(JobRow.ended_at < before, JobRow.unreported.is_(False))
    rows = session.execute(old.order_by(JobRow.ended_at).limit(MOST_FORGOTTEN)).all()
    keep_days(session, before, time.time())
    keep(session, rows)
    for chunk in chunks([row.token for row in rows]):
        session.execute(delete(JobRow).where(JobRow.token.in_(chunk)), execution_options={"synchronize_session": False})
    if len(rows) < MOST_FORGOTTEN:
        first = int(before // SECONDS_PER_DAY) - DAYS_KEPT
        session.execute(delete(UsageRow).where(UsageRow.day < first))
        bill_days.forget(session, first)
    return len(rows)


def keep(session: Session, rows: Iterable[Any]) -> None:
    """Add jobs that are about to be deleted to the sums; a job without a task is counted under its kind."""
    alike: dict[tuple[str, str, int, int, str], list[Any]] = {}
    rows = sorted(rows, key=lambda row: float(row.ended_at))
    rest = bills.share_with_forgotten(session, rows)
    for row in rows:
        day = int(row.ended_at // SECONDS_PER_DAY)
        key = (row.dag_id or "", row.task_id or row.kind, day, OF_JOBS, row.site or "")
        alike.setdefault(key, []).append(row)
    for key, jobs in alike.items():
        kept = row_of(session, *key)
        count(kept, jobs)
        dag_id, task_id, _, number, site = key
        for day, parts in (rest[job.token] for job in jobs if job.token in rest):
            of_day = row_of(session, dag_id, task_id, day, number, site)
            if not of_day.jobs:  # none of its jobs ended on that day, or they are added later
                of_day.team, of_day.dag_owner = kept.team, kept.dag_owner
            add_rest(of_day, [parts])
    session.flush()


def row_of(session: Session, dag_id: str, task_id: str, day: int, number: int, site: str) -> UsageRow:
    """Return the row of a key, creating it if necessary.

    :param number: :data:`OF_JOBS`, or another kind of row
    """
    row = session.get(UsageRow, (dag_id, task_id, day, number, site))
    if row is None:
        row = UsageRow(
            dag_id=dag_id, task_id=task_id, day=day, size_class=number, site=site, jobs=0, failed=0, cpu_seconds=0.0,
            cpu_seconds_used=0.0, cpu_seconds_unused=0.0, cpu_seconds_idle=0.0, cpu_seconds_boot=0.0,
            usage=Usage().dump(),
        )  # fmt: skip
        session.add(row)
    return row


def keep_days(session: Session, before: float, now: float) -> None:
    """Keep the unused time of machines that Lading did not launch, for each day whose jobs are about to be deleted.

    :param before: the jobs that ended before this time are about to be deleted; epoch seconds
    """
    last = min(int(before // SECONDS_PER_DAY), int(now // SECONDS_PER_DAY) - 1)
    kept = bills.kept_until(session)
    first = int(kept // SECONDS_PER_DAY) if kept else last  # nothing is known of earlier days
    for day in range(max(first, last - DAYS_KEPT), last + 1):
        since = day * float(SECONDS_PER_DAY)
        parts = bills.unused_at_hand(session, since, since + SECONDS_PER_DAY)
        for key, each in parts:
            add_rest(row_of(session, "", "", day, bills.AT_HAND, key.site or ""), [each])
        if not parts:
            row_of(session, "", "", day, bills.AT_HAND, "")  # marks the day as kept
    session.flush()


def keep_launched(session: Session, before: float) -> None:
    """Keep the uncharged cost of launched machines that ended before a time and are about to be deleted.

    The part that is already kept with their deleted jobs is left out.
    """
    ended = select(InstanceRow).where(InstanceRow.ended_at < before)
    for row in session.scalars(ended).all():
        left = bills.scaled(bills.rest(row, (), row.ended_at), 1 - (row.part_shared or 0.0))
        if row.ended_at is not None and left.cpu_seconds + (left.usd or 0.0) > 0:
            day = int(row.ended_at // SECONDS_PER_DAY)
            add_rest(row_of(session, "", "", day, bills.LAUNCHED, row.site), [left])
    session.flush()


def add_rest(row: UsageRow, parts: Sequence[BillParts]) -> None:
    """Add machine time that was not charged to any job to a row."""
    for each in parts:
        row.cpu_seconds_idle += each.idle
        row.cpu_seconds_boot += each.boot
        if each.is_priced:
            row.usd_idle = (row.usd_idle or 0.0) + each.usd_idle
            row.usd_boot = (row.usd_boot or 0.0) + each.usd_boot


def count(row: UsageRow, jobs: Sequence[Any]) -> None:
    usage = Usage.load(row.usage)
    for job in jobs:
        if job.task_id is not None and job.kind != JOB_SCRIPT and (use := as_use(job)) is not None:
            usage.add(use)
    prices = [job.usd for job in jobs if job.usd is not None]
    row.jobs += len(jobs)
    row.failed += sum(job.state == State.FAILED for job in jobs)
    row.cpu_seconds += sum(seconds(job) * job.cpus * (job.nodes or 1) for job in jobs)
    row.cpu_seconds_used += sum(job.cpu_seconds or 0.0 for job in jobs)
    row.cpu_seconds_unused += sum((1 - part_used(job)) * seconds(job) * job.cpus * (job.nodes or 1) for job in jobs)
    if prices:
        row.usd = (row.usd or 0.0) + sum(prices)
        row.usd_used = (row.usd_used or 0.0) + sum((job.usd or 0.0) * part_used(job) for job in jobs)
    row.usage = usage.dump()
    last = max(jobs, key=lambda job: job.ended_at)
    row.team, row.dag_owner = last.team, last.dag_owner


def as_use(job: Any) -> Use | None:
    """Return what a task's job used; None: unknown, as for batch jobs on several nodes.

    :param job: a row with the columns :data:`OF_USE`
    """
    if job.started_at is None or job.cause in SILENT or (job.nodes or 1) > 1:
        return None
    waited = max(job.started_at - job.queued_at, 0.0)
    # Without a memory limit, the agent only samples memory every few seconds, see lading.executors.agent.limits.
    return Use(
        job.cpus, job.memory, seconds(job), job.peak_memory, job.cpu_seconds, job.cause, waited, job.input_size,
        is_sampled=job.memory_limit is None,
    )  # fmt: skip


def seconds(job: Any) -> float:
    """Return how long an ended job ran; at least 0, because clocks differ."""
    return max(job.ended_at - job.started_at, 0.0) if job.started_at is not None else 0.0


def part_used(job: Any) -> float:
    """Return the fraction of its cpus that a job used, 0 to 1; 1 if that is unknown."""
    asked = seconds(job) * job.cpus * (job.nodes or 1)
    return min(1.0, job.cpu_seconds / asked) if job.cpu_seconds is not None and asked > 0 else 1.0


@dataclass(frozen=True, slots=True)
class FreedAmounts:
    """How much less jobs request because Lading sizes them; negative: they request more.

    :param cpus: of the jobs at work; ``gib``: the same for memory
    :param cpu_hours: of the jobs that ended within a day; ``gib_hours``: the same for memory
    """

    cpus: float
    gib: float
    cpu_hours: float
    gib_hours: float


def freed(session: Session, now: float) -> FreedAmounts:
    """Return what sizing frees now, and freed within the last day."""
    sums = [0.0, 0.0, 0.0, 0.0]
    ran = func.sum(JobRow.ended_at - JobRow.started_at) / 3600
    at_work = (JobRow.state.in_((State.PLACED, State.RUNNING)),)
    ended = (JobRow.ended_at >= now - SECONDS_PER_DAY, JobRow.started_at.is_not(None))
    alike = JobRow.chosen, JobRow.cpus, JobRow.memory
    for first, weight, which in ((0, func.count(), at_work), (2, ran, ended)):
        found = select(*alike, weight).where(JobRow.chosen.is_not(None), *which).group_by(*alike)
        for text, cpus, memory, amount in session.execute(found):
            for number, (name, has, unit) in enumerate((("cpus", cpus, 1), ("memory", memory, 1024))):
                if (choice := from_text(text).get(name)) is not None:
                    sums[first + number] += (choice.until_known - has) / unit * float(amount or 0.0)
    return FreedAmounts(*sums)


def of_task(session: Session, dag_id: str, task_id: str) -> Usage:
    """Return what the last tries of a task used, at all sites."""
    return of_tasks(session, dag_id, [task_id])[task_id]


def of_tasks(session: Session, dag_id: str, task_ids: Collection[str]) -> dict[str, Usage]:
    """Return what the last tries of some tasks of a Dag used, with two queries per chunk of tasks."""
    usages = {task_id: Usage() for task_id in task_ids}
    for chunk in chunks(list(usages)):
        mine = (JobRow.dag_id == dag_id, JobRow.task_id.in_(chunk), JobRow.ended_at.is_not(None), IS_OF_TASK)
        number = func.row_number().over(partition_by=JobRow.task_id, order_by=JobRow.ended_at.desc()).label("number")
        numbered = select(JobRow.task_id, *OF_USE, number).where(*mine).subquery()
        newest = select(numbered).where(numbered.c.number <= MOST_TRIES).order_by(numbered.c.number.desc())
        for job in session.execute(newest):
            if (use := as_use(job)) is not None:
                usages[job.task_id].add(use)
        of_row = (UsageRow.task_id, UsageRow.day, UsageRow.site, UsageRow.size_class, UsageRow.usage)
        latest = (UsageRow.day.desc(), UsageRow.site, UsageRow.size_class)
        so_far = func.sum(UsageRow.jobs).over(partition_by=UsageRow.task_id, order_by=latest) - UsageRow.jobs
        kept = select(*of_row, so_far.label("younger")).where(UsageRow.dag_id == dag_id, UsageRow.task_id.in_(chunk))
        rows = kept.subquery()
        # A row that exceeds the limit counts as a whole, because it cannot be divided.
        needed = select(rows).where(rows.c.younger < MOST_TRIES)
        for row in session.execute(needed.order_by(rows.c.day.desc(), rows.c.site, rows.c.size_class)):
            if usages[row.task_id].tries < MOST_TRIES:
                usages[row.task_id].add_older(Usage.load(row.usage))
    return usages
