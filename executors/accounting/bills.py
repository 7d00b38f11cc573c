"""Bills: the cost of jobs and machines within a time span, by site, Dag, task, team and owner.

A job is billed when it ends, with its own charge. A machine that Lading launched is billed when it ends: the part of
its cost not charged to any job is shared among the jobs that ran on it, in proportion to their charges. A machine that
Lading did not launch is billed continuously. So the bill of a machine adds up to its cost.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import and_, case, func, or_, select
from sqlalchemy.orm.attributes import flag_modified

from lading.executors.store import capacity
from lading.executors.store.figures import CPUS
from lading.executors.store.instances import accrued
from lading.executors.store.jobs import chunks, usd_until
from lading.executors.store.tables import Capacity, InstanceRow, InstanceState, JobRow, State, UsageRow
from lading.scheduling.accounting import billing
from lading.scheduling.accounting.bill import BillParts
from lading.scheduling.accounting.periods import SECONDS_PER_DAY

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

RAN = JobRow.ended_at - JobRow.started_at
# Clocks differ; a negative running time counts as zero.
ASKED = case((JobRow.started_at.is_(None), 0.0), (RAN < 0, 0.0), else_=CPUS * RAN)
# A job without a task is listed under its kind.
TASK = func.coalesce(JobRow.task_id, JobRow.kind)
# If the CPU time of a job is unknown, for example because its machine has gone, all that it requested counts as used.
USED = case((JobRow.cpu_seconds < ASKED, JobRow.cpu_seconds), else_=ASKED)


# Stored in place of an input size class: unused time of machines at hand, and of launched machines without
# jobs.
AT_HAND, LAUNCHED = -2, -3
# With the bare columns, SQLite would scan all jobs in the order of an index that covers some of the columns.
BY = (
    func.coalesce(JobRow.site, ""),
    func.coalesce(JobRow.dag_id, ""),
    TASK,
    func.coalesce(JobRow.team, ""),
    func.coalesce(JobRow.dag_owner, ""),
    func.coalesce(JobRow.run_id, ""),
)


class BillKey(NamedTuple):
    """What a part of a bill belongs to.

    :param site: None: unknown by now
    :param dag_id: None: no Dag
    :param task_id: the kind of a job without a task; None: machine time not charged to any job
    :param team: Airflow's team of the Dag
    :param owner: the owners of the Dag, separated by ", "
    :param run_id: None: no run, or jobs whose rows have been deleted
    """

    site: str | None
    dag_id: str | None = None
    task_id: str | None = None
    team: str | None = None
    owner: str | None = None
    run_id: str | None = None


def as_key(values: Iterable[str | None]) -> BillKey:
    return BillKey(*(value or None for value in values))


class MachineCharge(NamedTuple):
    """What jobs with one key were charged on a machine, in USD, and the cpu-seconds they requested there."""

    key: BillKey
    usd: float
    cpu_seconds: float


def bill(session: Session, since: float, until: float) -> dict[BillKey, BillParts]:
    """Return what was billed within a time span: jobs and machines that ended in it, and other machines up to now.

    :param since: epoch seconds; it and ``until`` have to be the beginnings of days in UTC, because old data is kept by
        day
    :param until: epoch seconds
    """
    found: dict[BillKey, BillParts] = {}
    for parts in (
        of_jobs(session, JobRow.ended_at >= since, JobRow.ended_at < until),
        of_forgotten(session, since, until),
        of_launched(session, since, until),
        of_machines_at_hand(session, since, until),
    ):
        for key, amounts in parts:
            found.setdefault(key, BillParts()).add(amounts)
    return found


def bill_of_runs(session: Session, dag_id: str, run_ids: Sequence[str]) -> dict[str, BillParts]:
    """Return what was billed to runs of a Dag for their jobs and machines that have ended."""
    found = {run_id: BillParts() for run_id in run_ids}
    for chunk in chunks(run_ids):
        mine = (JobRow.dag_id == dag_id, JobRow.run_id.in_(chunk))
        for key, parts in of_jobs(session, *mine, JobRow.ended_at.is_not(None)):
            found[key.run_id or ""].add(parts)
        places = session.scalars(select(JobRow.location).where(*mine).distinct())
        for some in chunks(sorted(place for place in places if place is not None)):
            ended = (InstanceRow.token.in_(some), InstanceRow.state == InstanceState.ENDED)
            for key, parts in shares_of(session, session.scalars(select(InstanceRow).where(*ended)).all()):
                if key.dag_id == dag_id and key.run_id is not None and key.run_id in chunk:
                    found[key.run_id].add(parts)
    return found


def of_jobs(session: Session, *which: Any) -> list[tuple[BillKey, BillParts]]:
    """Return the charges of ended jobs.

    :param which: conditions that select the jobs
    """
    share_used = case((ASKED > 0, USED / func.nullif(ASKED, 0)), else_=1.0)
    sums = (
        func.count(),
        func.sum(case((JobRow.state == State.FAILED, 1), else_=0)),
        func.sum(ASKED),
        func.sum(USED),
        func.sum(JobRow.usd),
        func.sum(JobRow.usd * share_used),
    )
    rows: Any = session.execute(select(*BY, *sums).where(*which, JobRow.started_at.is_not(None)).group_by(*BY))
    return [
        (
            as_key(key),
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
        for *key, jobs, failed, asked, used, usd, usd_used in rows
    ]


def of_forgotten(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """Return what is kept by day of deleted jobs and of machines."""
    sums = (
        UsageRow.jobs, UsageRow.failed, UsageRow.cpu_seconds, UsageRow.cpu_seconds_unused, UsageRow.cpu_seconds_idle,
        UsageRow.cpu_seconds_boot, UsageRow.usd, UsageRow.usd_used, UsageRow.usd_idle, UsageRow.usd_boot,
    )  # fmt: skip
    by = (UsageRow.site, UsageRow.dag_id, UsageRow.task_id, UsageRow.team, UsageRow.dag_owner)
    days = (UsageRow.day >= int(since // SECONDS_PER_DAY), UsageRow.day < -int(-until // SECONDS_PER_DAY))
    rows: Any = session.execute(select(*by, *map(func.sum, sums)).where(*days).group_by(*by))
    found = []
    for site, dag_id, task_id, team, owner, jobs, failed, asked, unused, idle, boot, *usd in rows:
        whole, usd_used, usd_idle, usd_boot = (float(each or 0.0) for each in usd)
        parts = BillParts(
            jobs=int(jobs),
            failed=int(failed),
            used=float(asked) - float(unused),
            unused=float(unused),
            idle=float(idle),
            boot=float(boot),
            usd_used=usd_used,
            usd_unused=whole - usd_used,
            usd_idle=usd_idle,
            usd_boot=usd_boot,
            is_priced=any(each is not None for each in usd),
        )
        found.append((as_key((site, dag_id, task_id, team, owner)), parts))
    return found


def of_launched(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """Return the uncharged cost of launched machines that ended within a time span, shared among their jobs."""
    ended = (InstanceRow.state == InstanceState.ENDED, InstanceRow.ended_at >= since, InstanceRow.ended_at < until)
    return shares_of(session, session.scalars(select(InstanceRow).where(*ended)).all())


def shares_of(session: Session, rows: Sequence[InstanceRow]) -> list[tuple[BillKey, BillParts]]:
    """Return the uncharged cost of ended machines, shared among the jobs on them."""
    charged = charges(session, [row.token for row in rows])
    return [part for row in rows for part in shared(row, charged.get(row.token, ()))]


def shared(row: InstanceRow, charged: Sequence[MachineCharge]) -> list[tuple[BillKey, BillParts]]:
    """Share the uncharged cost of an ended machine among its jobs, without the part already kept with deleted jobs.

    :param charged: the charges of its jobs that are still in the store
    """
    left = scaled(rest(row, charged, row.ended_at), 1 - (row.part_shared or 0.0))
    if not charged:
        return [(BillKey(row.site), left)]
    weights = part_of_each(charged)
    return [(each.key, scaled(left, weight)) for each, weight in zip(charged, weights, strict=True)]


def part_of_each(charged: Sequence[MachineCharge]) -> list[float]:
    """Return the fraction of each charge in the total: of the money, or of the cpu-seconds if no money was charged."""
    by_usd = sum(each.usd for each in charged) > 0
    weights = [each.usd if by_usd else each.cpu_seconds for each in charged]
    whole = sum(weights)
    return [weight / whole if whole > 0 else 1 / len(weights) for weight in weights]


def scaled(parts: BillParts, factor: float) -> BillParts:
    """Return a fraction of the uncharged cost of a machine."""
    return BillParts(
        idle=factor * parts.idle,
        boot=factor * parts.boot,
        usd_idle=factor * parts.usd_idle,
        usd_boot=factor * parts.usd_boot,
        is_priced=parts.is_priced,
    )


def charges(session: Session, tokens: Sequence[str], now: float | None = None) -> dict[str, list[MachineCharge]]:
    """Return what the jobs on each machine were charged, by the machine's name.

    :param now: count running jobs up to this time; None: leave them out
    """
    ran = ASKED if now is None else CPUS * (func.coalesce(JobRow.ended_at, now) - JobRow.started_at)
    usd = JobRow.usd if now is None else usd_until(now)
    found: dict[str, list[MachineCharge]] = {}
    for chunk in chunks(tokens):
        there = [JobRow.location.in_(chunk), JobRow.started_at.is_not(None)]
        if now is None:
            there.append(JobRow.ended_at.is_not(None))
        query: Any = select(JobRow.location, *BY, func.sum(usd), func.sum(ran)).where(*there)
        for name, *key, money, seconds in session.execute(query.group_by(JobRow.location, *BY)):
            found.setdefault(name, []).append(MachineCharge(as_key(key), float(money or 0.0), float(seconds or 0.0)))
    return found


def rest(row: InstanceRow, charged: Iterable[MachineCharge], until: float | None) -> BillParts:
    """Return the part of a machine's cost that was not charged to any job up to a time.

    :param charged: the charges of its jobs that are still in the store
    :param until: when the machine ended, or now
    """
    is_bought = row.capacity_type is not None
    # Waiting in the queue of a batch system costs nothing.
    if until is None or (began := row.launched_at if is_bought else row.ready_at) is None:
        return BillParts()
    usd = (row.usd_gone or 0.0) + sum(each.usd for each in charged)
    seconds = (row.cpu_seconds_gone or 0.0) + sum(each.cpu_seconds for each in charged)
    boots = max(0.0, min(until if row.ready_at is None else row.ready_at, until) - began)
    rate = row.usd_per_hour or 0.0
    if is_bought:
        whole = row.usd if row.state == InstanceState.ENDED and row.usd_since is not None else accrued(row, until)
    else:
        whole = None if row.usd_per_hour is None else billing.cost(rate, began, until)
    left, free = max(0.0, (whole or 0.0) - usd), max(0.0, row.cpus * (until - began) - seconds)
    usd_boot, boot = min(left, billing.cost(rate, began, began + boots)), min(free, row.cpus * boots)
    return BillParts(
        idle=free - boot, boot=boot, usd_idle=left - usd_boot, usd_boot=usd_boot, is_priced=whole is not None
    )


def share_with_forgotten(session: Session, jobs: Sequence[Any]) -> dict[str, tuple[int, BillParts]]:
    """Give jobs that are about to be deleted their shares of uncharged machine cost, and record these on the machines.

    :param jobs: rows with the columns :data:`lading.executors.accounting.task_usage.COLUMNS`
    :returns: by token, the share of a job and the day on which its machine ended, to whose bill it belongs
    """
    there: dict[str, list[Any]] = {}
    for job in jobs:
        if job.location is not None and job.started_at is not None:
            there.setdefault(job.location, []).append(job)
    found: dict[str, tuple[int, BillParts]] = {}
    for chunk in chunks(sorted(there)):
        rows = session.scalars(select(InstanceRow).where(InstanceRow.token.in_(chunk))).all()
        charged = charges(session, [row.token for row in rows])
        for row in rows:
            leaving = [
                MachineCharge(BillKey(job.site), job.usd or 0.0, max(0.0, job.ended_at - job.started_at) * cpus_of(job))
                for job in there[row.token]
            ]
            known = charged.get(row.token, [])
            if row.state == InstanceState.ENDED and row.ended_at is not None and known:
                parted = row.part_shared or 0.0
                left = scaled(rest(row, known, row.ended_at), 1 - parted)
                by_usd = sum(each.usd for each in known) > 0
                whole = sum(each.usd if by_usd else each.cpu_seconds for each in known)
                for job, each in zip(there[row.token], leaving, strict=True):
                    weight = (each.usd if by_usd else each.cpu_seconds) / whole if whole > 0 else 0.0
                    found[job.token] = int(row.ended_at // SECONDS_PER_DAY), scaled(left, weight)
                    row.part_shared = (row.part_shared or 0.0) + (1 - parted) * weight
            row.usd_gone = (row.usd_gone or 0.0) + sum(each.usd for each in leaving)
            row.cpu_seconds_gone = (row.cpu_seconds_gone or 0.0) + sum(each.cpu_seconds for each in leaving)
            # Keep `changed_at`, as the bill of that day does not change.
            flag_modified(row, "changed_at")
    return found


def cpus_of(job: Any) -> float:
    return float(job.cpus * (job.nodes or 1))


def of_machines_at_hand(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """Return the unused time of machines that Lading did not launch, from the last day already kept on."""
    return unused_at_hand(session, max(since, kept_until(session)), until)


def kept_until(session: Session) -> float:
    """Return the end of the last day whose unused time of machines at hand is kept, in epoch seconds."""
    query = select(func.max(UsageRow.day)).where(UsageRow.dag_id == "", UsageRow.size_class == AT_HAND)
    day = session.scalar(query)
    return 0.0 if day is None else (day + 1) * float(SECONDS_PER_DAY)


def unused_at_hand(session: Session, since: float, until: float) -> list[tuple[BillKey, BillParts]]:
    """Return the unused time of machines that Lading did not launch, by site."""
    rows = session.scalars(select(Capacity).where(*capacity.between(since, until))).all() if since < until else []
    up: dict[str, list[float]] = {}
    priced = set()
    for row in rows:
        seconds = min(row.until or until, until) - max(row.since, since)
        sums = up.setdefault(row.site, [0.0, 0.0])
        sums[0] += row.cpus * seconds
        sums[1] += (row.usd_per_hour or 0.0) * seconds / 3600
        if row.usd_per_hour is not None:
            priced.add(row.site)
    if not up:
        return []
    used = used_within(session, sorted(up), {(row.site, row.name) for row in rows}, since, until)
    return [
        (
            BillKey(site),
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
    """Return the cpu-seconds requested by jobs on machines at hand within a time span, and their charges, by site.

    :param there: the site and name of each machine
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
    """Return the cost so far of running jobs and of launched machines that have not ended, which no bill contains yet.

    Charges of jobs that have already ended on such a machine are left out, because they are billed.
    """
    seconds = CPUS * (now - JobRow.started_at)
    query: Any = select(*BY, func.count(), func.sum(seconds), func.sum(usd_until(now)))
    found: dict[BillKey, BillParts] = {}
    for *key, jobs, asked, usd in session.execute(query.where(JobRow.state == State.RUNNING).group_by(*BY)):
        found[as_key(key)] = BillParts(
            jobs=jobs, used=float(asked or 0.0), usd_used=float(usd or 0.0), is_priced=usd is not None
        )
    living = session.scalars(select(InstanceRow).where(InstanceRow.state != InstanceState.ENDED)).all()
    charged = charges(session, [row.token for row in living], now)
    for row in living:
        found.setdefault(BillKey(row.site), BillParts()).add(rest(row, charged.get(row.token, ()), now))
    return found


def oldest(session: Session) -> float | None:
    """Return when the first job in the store ended, in epoch seconds; None: there is none."""
    day: Any = session.scalar(select(func.min(UsageRow.day)).where(UsageRow.jobs > 0))
    ended = session.scalar(select(func.min(JobRow.ended_at)))
    known = [each for each in (None if day is None else day * float(SECONDS_PER_DAY), ended) if each is not None]
    return min(known, default=None)
