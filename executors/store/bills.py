"""Bills: what jobs and machines have cost within a time, by site, Dag and task, in the parts of a bill.

A job counts when it has ended, with what it was charged; a machine that was launched when it has ended, with what of it
no job was charged; a machine that is at hand all the time. So the sums of a time in which machines came and went are
what these have cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, case, func, or_, select

from lading.executors.store import capacity
from lading.executors.store.figures import CPUS
from lading.executors.store.instances import accrued
from lading.executors.store.jobs import chunks, usd_until
from lading.executors.store.tables import Capacity, InstanceRow, InstanceState, JobRow, State, UsageRow
from lading.scheduling import billing
from lading.scheduling.insight.bill import BillParts
from lading.scheduling.insight.periods import SECONDS_PER_DAY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

RAN = JobRow.ended_at - JobRow.started_at
# Clocks differ, and none ran for less than nothing.
ASKED = case((JobRow.started_at.is_(None), 0.0), (RAN < 0, 0.0), else_=CPUS * RAN)
# What belongs to no task has its kind.
TASK = func.coalesce(JobRow.task_id, JobRow.kind)
# What is not known to have been used, as of jobs whose machine has gone, counts as used.
USED = case((JobRow.cpu_seconds < ASKED, JobRow.cpu_seconds), else_=ASKED)


class BillKey(NamedTuple):
    """Whose a part of a bill is.

    :param dag_id: None: of no Dag, as what no job has used of a machine
    :param site: None: that is not known any more
    """

    site: str | None
    dag_id: str | None
    task_id: str | None


def bill(session: Session, since: float, until: float) -> dict[BillKey, BillParts]:
    """What was billed within a time: of what has ended, and of machines at hand until now at most.

    :param since: epoch seconds; so for ``until``; the beginnings of days in UTC, for what is kept for long is by day
    """
    found: dict[BillKey, BillParts] = {}
    for parts in (
        of_jobs(session, since, until),
        of_forgotten(session, since, until),
        of_launched(session, since, until),
        of_machines_at_hand(session, since, until),
    ):
        for key, amounts in parts:
            found.setdefault(key, BillParts()).add(amounts)
    return found


def of_jobs(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """The jobs that have ended."""
    share_used = case((ASKED > 0, USED / func.nullif(ASKED, 0)), else_=1.0)
    sums = (
        func.count(),
        func.sum(case((JobRow.state == State.FAILED, 1), else_=0)),
        func.sum(ASKED),
        func.sum(USED),
        func.sum(JobRow.usd),
        func.sum(JobRow.usd * share_used),
    )
    by = (JobRow.site, JobRow.dag_id, TASK)
    ended = (JobRow.ended_at >= since, JobRow.ended_at < until, JobRow.started_at.is_not(None))
    rows: Any = session.execute(select(*by, *sums).where(*ended).group_by(*by))
    return [
        (
            BillKey(site, dag_id, task_id),
            BillParts(
                jobs=jobs,
                failed=int(failed or 0),
                used=float(used or 0.0),
                unused=float(asked or 0.0) - float(used or 0.0),
                usd_used=float(usd_used or 0.0),
                usd_unused=float(usd or 0.0) - float(usd_used or 0.0),
                is_priced=usd is not None,
            ),
        )
        for site, dag_id, task_id, jobs, failed, asked, used, usd, usd_used in rows
    ]


def of_forgotten(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """The jobs of which only sums by day are kept."""
    sums = (UsageRow.jobs, UsageRow.failed, UsageRow.cpu_seconds, UsageRow.cpu_seconds_used, UsageRow.usd)
    by = (UsageRow.dag_id, UsageRow.task_id)
    days = (UsageRow.day >= int(since // SECONDS_PER_DAY), UsageRow.day < -int(-until // SECONDS_PER_DAY))
    rows: Any = session.execute(select(*by, *map(func.sum, sums)).where(*days).group_by(*by))
    found = []
    for dag_id, task_id, jobs, failed, asked, used, usd in rows:
        share = min(1.0, float(used) / float(asked)) if asked else 1.0
        amounts = BillParts(
            jobs=int(jobs),
            failed=int(failed),
            used=share * float(asked),
            unused=(1 - share) * float(asked),
            usd_used=share * float(usd or 0.0),
            usd_unused=(1 - share) * float(usd or 0.0),
            is_priced=usd is not None,
        )
        found.append((BillKey(None, dag_id, task_id), amounts))
    return found


def of_launched(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """What no job was charged of machines and allocations that have ended."""
    ended = (InstanceRow.state == InstanceState.ENDED, InstanceRow.ended_at >= since, InstanceRow.ended_at < until)
    rows = session.scalars(select(InstanceRow).where(*ended)).all()
    charged = charges(session, [row.token for row in rows])
    return [(BillKey(row.site, None, None), rest(row, *charged.get(row.token, (0.0, 0.0)))) for row in rows]


def charges(session: Session, tokens: Sequence[str]) -> dict[str, tuple[float, float]]:
    """What all jobs on machines were charged, USD, and the cpu-seconds that they had there, by the machine's name."""
    found = {}
    for chunk in chunks(tokens):
        query = select(JobRow.location, func.sum(JobRow.usd), func.sum(ASKED)).where(JobRow.location.in_(chunk))
        for name, usd, seconds in session.execute(query.group_by(JobRow.location)):
            found[str(name)] = float(usd or 0.0), float(seconds or 0.0)
    return found


def rest(row: InstanceRow, usd: float, seconds: float) -> BillParts:
    """What of a machine that has ended no job was charged.

    :param usd: what jobs were charged
    :param seconds: cpu-seconds that they had
    """
    if row.ended_at is None or (began := row.launched_at if row.capacity_type is not None else row.ready_at) is None:
        return BillParts()
    life = max(0.0, row.ended_at - began)
    # What waits in the queue of a batch system is not paid for.
    boots = max(0.0, min(row.ready_at or row.ended_at, row.ended_at) - began)
    whole = row.usd if row.capacity_type is not None else billing.cost(row.usd_per_hour or 0.0, began, row.ended_at)
    left = max(0.0, (whole or 0.0) - usd)
    usd_boot = min(left, billing.cost(row.usd_per_hour or 0.0, began, began + boots))
    free = max(0.0, row.cpus * life - seconds)
    boot = min(free, row.cpus * boots)
    is_priced = row.usd_per_hour is not None or row.usd is not None
    return BillParts(idle=free - boot, boot=boot, usd_idle=left - usd_boot, usd_boot=usd_boot, is_priced=is_priced)


def of_machines_at_hand(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """What no job has used of machines that Lading has not launched."""
    rows = session.scalars(select(Capacity).where(*capacity.between(since, until))).all()
    if not rows:
        return []
    up: dict[str, list[float]] = {}
    priced = set()
    for row in rows:
        seconds = min(row.until or until, until) - max(row.since, since)
        sums = up.setdefault(row.site, [0.0, 0.0])
        sums[0] += row.cpus * seconds
        sums[1] += (row.usd_per_hour or 0.0) * seconds / 3600
        if row.usd_per_hour is not None:
            priced.add(row.site)
    there = {(row.site, row.name) for row in rows}
    used = used_within(session, sorted(up), there, since, until)
    return [
        (
            BillKey(site, None, None),
            BillParts(
                idle=max(0.0, seconds - used.get(site, (0.0, 0.0))[0]),
                usd_idle=max(0.0, usd - used.get(site, (0.0, 0.0))[1]),
                is_priced=site in priced,
            ),
        )
        for site, (seconds, usd) in up.items()
    ]


def used_within(
    session: Session, sites: Sequence[str], there: set[tuple[str, str]], since: float, until: float
) -> dict[str, tuple[float, float]]:
    """The cpu-seconds that jobs had of machines at hand within a time, and what they were charged for that, by site.

    :param there: the machines, each with its site
    """
    end = case((JobRow.ended_at < until, JobRow.ended_at), else_=until)
    begin = case((JobRow.started_at > since, JobRow.started_at), else_=since)
    length = func.nullif(func.coalesce(JobRow.ended_at, until) - JobRow.started_at, 0)
    part = (end - begin) / length
    query = select(
        JobRow.site, JobRow.location, func.sum(CPUS * (end - begin)), func.sum(usd_until(until) * part)
    ).where(
        JobRow.site.in_(sites),
        JobRow.started_at < until,
        or_(JobRow.ended_at > since, and_(JobRow.state == State.RUNNING, JobRow.ended_at.is_(None))),
    )
    found: dict[str, tuple[float, float]] = {}
    for site, location, seconds, usd in session.execute(query.group_by(JobRow.site, JobRow.location)):
        if (site, location) in there:
            before = found.get(site, (0.0, 0.0))
            found[site] = before[0] + float(seconds or 0.0), before[1] + float(usd or 0.0)
    return found


def running(session: Session, now: float) -> dict[BillKey, BillParts]:
    """What jobs that run, and machines that were launched and are up, have cost so far: no bill has it yet.

    What jobs have been charged already that have ended on such a machine is not in what it has cost.
    """
    seconds = CPUS * (now - JobRow.started_at)
    by = (JobRow.site, JobRow.dag_id, TASK)
    query = select(*by, func.count(), func.sum(seconds), func.sum(usd_until(now)))
    found: dict[BillKey, BillParts] = {}
    for site, dag_id, task_id, jobs, asked, usd in session.execute(
        query.where(JobRow.state == State.RUNNING).group_by(*by)
    ):
        found[BillKey(site, dag_id, task_id)] = BillParts(
            jobs=jobs, used=float(asked or 0.0), usd_used=float(usd or 0.0), is_priced=usd is not None
        )
    living = session.scalars(select(InstanceRow).where(InstanceRow.state != InstanceState.ENDED)).all()
    charged = live_charges(session, [row.token for row in living], now)
    for row in living:
        began = row.launched_at if row.capacity_type is not None else row.ready_at
        if began is None:
            continue
        usd_there, seconds_there = charged.get(row.token, (0.0, 0.0))
        if row.capacity_type is not None:
            whole = accrued(row, now)
        else:
            whole = None if row.usd_per_hour is None else billing.cost(row.usd_per_hour, began, now)
        boots = max(0.0, (now if row.ready_at is None else row.ready_at) - began)
        left, free = max(0.0, (whole or 0.0) - usd_there), max(0.0, row.cpus * (now - began) - seconds_there)
        usd_boot = min(left, billing.cost(row.usd_per_hour or 0.0, began, began + boots))
        boot = min(free, row.cpus * boots)
        found.setdefault(BillKey(row.site, None, None), BillParts()).add(
            BillParts(
                idle=free - boot, boot=boot, usd_idle=left - usd_boot, usd_boot=usd_boot, is_priced=whole is not None
            )
        )
    return found


def live_charges(session: Session, tokens: Sequence[str], now: float) -> dict[str, tuple[float, float]]:
    """The same as :func:`charges` of machines that are up, where jobs run."""
    seconds = CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    found = {}
    for chunk in chunks(tokens):
        query = select(JobRow.location, func.sum(usd_until(now)), func.sum(seconds))
        there = (JobRow.location.in_(chunk), JobRow.started_at.is_not(None))
        for name, usd, amount in session.execute(query.where(*there).group_by(JobRow.location)):
            found[str(name)] = float(usd or 0.0), float(amount or 0.0)
    return found


def oldest(session: Session) -> float | None:
    """When the first of what is kept ended, epoch seconds; None: nothing is."""
    day: Any = session.scalar(select(func.min(UsageRow.day)))
    ended = session.scalar(select(func.min(JobRow.ended_at)))
    known = [each for each in (None if day is None else day * float(SECONDS_PER_DAY), ended) if each is not None]
    return min(known, default=None)
