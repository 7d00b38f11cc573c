"""The present state: running jobs, machines that are up, and why jobs wait; each query with its model.

Times are seconds since the epoch, durations seconds, memory MiB, money USD. None means unknown or hidden.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pydantic import BaseModel
from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows
from lading.executors.starts.expected_starts import LIMITED, WAITING, Outlook, Why, site_of, why_of
from lading.executors.store import LIVE, Capacity, JobRow, LocationRow, SiteRow, State
from lading.executors.store.figures import (
    IS_PRESENT,
    CpusInUse,
    LiveJobs,
    MemoryInUse,
    PresentMachine,
    busy,
    live_jobs,
    memory_in_use,
    present_machines,
    prices,
    queues,
    teams,
    total,
    usd_per_hour,
    waiting,
)
from lading.executors.store.gangs.rows import held_by
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.site import LocationState
from lading.plugin.ui.queries.sight import Sight
from lading.plugin.ui.queries.starts import StartEstimate, as_estimate
from lading.scheduling.accounting.budgets import NEAR
from lading.scheduling.accounting.periods import SECONDS_PER_DAY
from lading.scheduling.accounting.share_table import OTHERS
from lading.scheduling.accounting.who import Tenant, dag_pattern
from lading.scheduling.model.reason_codes import CAUSES, Code, remedy_at
from lading.scheduling.model.reasons import NEW, Reason
from lading.scheduling.text.units import format_count

# Each group names at most this many reasons, Dags and places.
MOST_SENTENCES = 3
MOST_DAGS = 10
MOST_HELD = 5
# A site shows the notes of at most this many machines.
MOST_NOTES = 3
# Sums of amounts are compared with this tolerance.
TOLERANCE = 1e-6
# The number at the start of a limit; a unit may follow.
NUMBER = re.compile(r"\d+(\.\d+)?")
# Code, site and limit.
Key = tuple[str, str | None, str | None]


class WaitingDag(BaseModel):
    """The number of jobs of a Dag in a group."""

    dag_id: str
    jobs: int


class SiteLimit(BaseModel):
    """A limit that the sites file sets for a site."""

    name: str
    text: str
    """The limit as the sites file has it."""
    used: float | None
    """How much of the limit is in use, as the controller counts it; None: not a number, or counted elsewhere."""
    most: float | None
    coming: int = 0
    """How many of the machines or allocations in use are ordered or booting."""
    is_reached: bool = False
    """Whether all of it is in use, or what is left is too little for a job that waits."""


class SiteState(BaseModel):
    """A site as the controller sees it."""

    name: str
    kind: str
    state: str
    """``up``; ``paused``; ``degraded``: some of its machines are unreachable; ``down``: the site is unreachable, or
    none of its locations takes jobs."""
    host: str | None
    """The machine of a site of the kind ``local``; None: it is of another kind, or has not been seen."""
    full_because: str | None
    """The limits that are reached, or the cpus in use, and how many jobs wait, as text; None: it is not full."""
    note: str | None
    contact_at: float | None
    nodes: int | None
    """Nodes of its queue; None: not a batch system, or it does not report them."""
    idle_nodes: int | None
    limits: list[SiteLimit]
    machines: int
    """Machines that are up and can be reached; for a batch system, allocations."""
    machines_idle: int
    """Machines that are up, can be reached and have no job."""
    machines_silent: int
    """Unreachable machines."""
    waiting: int
    running: int
    cpus_used: float
    """Cpus of running jobs on machines that are up."""
    cpus_batch: float
    """Cpus of running batch jobs, which are on nodes that Lading does not count."""
    cpus_up: float | None
    """None: a batch system without allocations."""
    memory_promised: int
    """MiB that running jobs on machines that are up requested."""
    memory_used: int
    """MiB: the sum of the measured peaks of those jobs."""
    memory_up: int
    usd_per_hour: float | None
    """Of machines that are up or booting, and of batch jobs."""
    usd_ordered: float
    """USD per hour of ordered machines that have not been launched yet; limits already count them."""


class BudgetState(BaseModel):
    """How much of a budget was spent in its current period. Times are seconds since the epoch."""

    name: str
    who: str
    spent: float
    most: float
    unit: str
    """USD or cpu-hours."""
    per: str
    since: float
    """When the period began."""
    until: float
    """When the next period begins."""
    at: float
    """When the controller last summed up what was spent."""
    is_near: bool
    """Whether spending has reached the threshold for a warning."""
    lifted_by: str | None
    """The user who lifted it for this period."""
    spent_at: float | None
    """When the budget will be exhausted: at the present rate of its jobs for as long as those that run or wait last,
    then at its mean rate in this period; None: not in this period."""
    expected: float
    """What will have been spent by the end of the period at these rates."""
    per_hour: float
    """The present rate of its jobs."""
    hours: float
    """How long its running and waiting jobs last at that rate."""


class ShareGuarantee(BaseModel):
    """An amount reserved for a share."""

    site: str | None
    """The site where it is reserved; None: over all sites together."""
    what: str
    """``cpus``, ``memory`` (MiB), ``gpus``, ``machines`` or ``usd_per_hour``; ``kept`` and ``used`` are in its unit."""
    kept: float
    used: float


class ShareState(BaseModel):
    """The usage of a share of the sites file. Parts are fractions of the total of all sites, 0 to 1."""

    name: str
    who: str
    entitled: float
    """The part it is entitled to by its weight."""
    used: float
    """Its current dominant share: the largest of its parts of cpus, memory and GPUs."""
    lately: float | None
    """The mean dominant share, weighted towards recent use; None: recent use does not count."""
    guarantees: list[ShareGuarantee]
    dags: list[WaitingDag]
    """The Dags with the most unfinished jobs of the share that the user can see."""
    dags_total: int
    """The number of Dags with unfinished jobs of the share that the user can see."""
    hidden: bool
    """Whether hidden Dags have unfinished jobs of the share, too."""
    is_over: bool
    """Whether it uses more of any resource than is reserved for it."""
    lends: bool
    borrows: bool
    at: float
    """When the controller counted, seconds since the epoch."""


class TeamState(BaseModel):
    """The current jobs of an Airflow team."""

    name: str | None
    """None: the jobs without a team."""
    running: int
    waiting: int
    cpus_used: float


class Summary(BaseModel):
    """The present state of all sites, jobs and machines."""

    now: float
    controller_lives: bool
    running: int
    waiting: int
    machines: int
    """Machines that are up and can be reached."""
    cpus_used: float
    """Cpus of running jobs on machines that are up."""
    cpus_batch: float
    """Cpus of running batch jobs, which are on nodes that Lading does not count."""
    cpus_up: float
    usd_per_hour: float | None
    failed: int
    """Tries that failed within 24 hours."""
    failed_tasks: int | None = None
    """Tasks of those tries that Airflow will not retry; None: unknown."""
    sites: list[SiteState]
    teams: list[TeamState]
    """Teams that have jobs, and the jobs without a team; empty: no job has a team."""
    budgets: list[BudgetState] = []
    """Except budgets of Dags none of which the user can read."""
    shares: list[ShareState] = []
    """Except shares of Dags none of which the user can read."""
    may_act: bool = False
    """Whether the user is allowed to pause sites, drain machines and so on."""

    @property
    def waiting_for_any(self) -> int:
        """Waiting jobs that no site counts: they name none, and have not been given to one."""
        return self.waiting - sum(site.waiting for site in self.sites)


def summary(session: Session, sight: Sight, now: float) -> Summary:
    """Read the present state."""
    machines = present_machines(session)
    silent = unreachable_machines(session)
    up = [each for each in machines if each.is_up and (each.site, each.name) not in silent]
    live, rates, costs = live_jobs(session, machines), queues(session, machines), prices(machines)
    bought, idle, limited = machines_bought(session), machines_idle(session, silent), sites_at_limits(session)
    at_work = busy(live)
    memory = memory_in_use(session, up)
    lease, unseen = store.lease(session), budgets_out_of_sight(session, sight)
    sites = [
        site_state(
            session,
            row,
            live,
            at_work.get(row.name, CpusInUse()),
            memory.get(row.name, MemoryInUse()),
            up,
            rates.get(row.name),
            costs.get(row.name, []),
            bought.get(row.name, Bought()),
            idle[row.name],
            limited.get(row.name, Counter()),
        )
        for row in site_rows(session)
    ]
    return Summary(
        now=now,
        controller_lives=lease is not None and lease.left > 0,
        running=sum(each.jobs for each in live if each.state == State.RUNNING),
        waiting=sum(each.jobs for each in live if each.state != State.RUNNING),
        machines=len(up),
        cpus_used=sum(each.used for each in at_work.values()),
        cpus_batch=sum(each.batch for each in at_work.values()),
        cpus_up=sum(each.cpus for each in up),
        usd_per_hour=total([site.usd_per_hour for site in sites]),
        failed=count_failed(session, now - SECONDS_PER_DAY),
        sites=sites,
        budgets=[
            BudgetState(
                name=each.name,
                who=each.who,
                spent=each.spent,
                most=each.most,
                unit=each.unit,
                per=each.per,
                since=each.since,
                until=each.until,
                at=each.at,
                is_near=each.spent >= NEAR * each.most,
                lifted_by=each.lifted_by if each.is_lifted else None,
                **budget_outlook(each),
            )
            for each in share_rows.budgets(session)
            if each.name not in unseen
        ],
        shares=share_states(session, sight),
        teams=team_states(session),
    )


def team_states(session: Session) -> list[TeamState]:
    found = [
        TeamState(name=each.team, running=each.running, waiting=each.waiting, cpus_used=each.cpus)
        for each in teams(session)
    ]
    return found if any(each.name is not None for each in found) else []


def budgets_out_of_sight(session: Session, sight: Sight) -> set[str]:
    """Return the names of the budgets that only have Dags which the user cannot read."""
    return {each.name for each in share_rows.budgets(session) if not sight.sees_any(dag_pattern(each.who))}


def declared_shares(session: Session) -> Sequence[share_rows.ShareStandingRow]:
    """Return the shares if the sites file declares any; a single row for all other jobs does not count."""
    rows = share_rows.standings(session)
    return rows if any(row.name != OTHERS for row in rows) else []


def share_states(session: Session, sight: Sight) -> list[ShareState]:
    rows = [each for each in declared_shares(session) if sight.sees_any(dag_pattern(each.who))]
    if not rows:
        return []
    shares, _ = share_rows.stored_shares(session)
    columns = JobRow.team, JobRow.dag_id, JobRow.dag_owner, JobRow.dag_tags
    live = select(*columns, func.count()).where(JobRow.state.in_(LIVE)).group_by(*columns)
    dags: dict[str, Counter[str]] = {}
    for team, dag_id, owner, tags, jobs in session.execute(live):
        share = shares.share_of(Tenant.from_columns(team, dag_id, owner, tags))
        dags.setdefault(share, Counter())[dag_id or ""] += jobs
    return [share_state(each, dags.get(each.name, Counter()), sight) for each in rows]


def share_state(row: share_rows.ShareStandingRow, dags: Counter[str], sight: Sight) -> ShareState:
    """
    :param dags: the number of unfinished jobs of each Dag in the share
    """
    seen = [
        WaitingDag(dag_id=dag_id, jobs=jobs) for dag_id, jobs in dags.most_common() if dag_id and sight.sees(dag_id)
    ]
    guarantees = [ShareGuarantee(**each) for each in json.loads(row.kept)]
    return ShareState(
        name=row.name,
        who=row.who,
        entitled=row.entitled,
        used=row.used,
        lately=row.lately,
        guarantees=guarantees,
        dags=seen[:MOST_DAGS],
        dags_total=len(seen),
        hidden=not all(sight.sees(dag_id) for dag_id in dags),
        is_over=any(each.used > each.kept + TOLERANCE for each in guarantees),
        lends=row.lends,
        borrows=row.borrows,
        at=row.at,
    )


def budget_outlook(budget: share_rows.BudgetRow) -> dict[str, Any]:
    """Return when a budget will be exhausted and how much will be spent, as the fields of the model."""
    outlook = budget.outlook
    return {
        "spent_at": budget.spent_at,
        "expected": outlook.by(budget.until),
        "per_hour": outlook.present,
        "hours": outlook.hours,
    }


def count_failed(session: Session, since: float) -> int:
    return session.scalar(select(func.count()).select_from(JobRow).where(*failed_since(since))) or 0


def failed_since(since: float) -> tuple[Any, ...]:
    """Return the conditions for jobs that failed since a time."""
    # Failed jobs have a cause, and the index on it finds them.
    return (func.coalesce(JobRow.state, "") == State.FAILED, JobRow.cause.in_([*CAUSES]), JobRow.ended_at >= since)


def site_rows(session: Session) -> Sequence[SiteRow]:
    """Return the sites in the order of the sites file."""
    return session.scalars(select(SiteRow).order_by(SiteRow.position)).all()


def site_state(
    session: Session,
    row: SiteRow,
    live: Sequence[LiveJobs],
    at_work: CpusInUse,
    memory: MemoryInUse,
    up: Sequence[PresentMachine],
    rate: float | None,
    prices: Sequence[float | None],
    bought: Bought,
    idle: int,
    said: Counter[str],
) -> SiteState:
    """Describe a site: its machines, its jobs and its current cost.

    :param up: the machines that are up and can be reached
    :param rate: USD per cpu-hour in its queue; None: it has no queue, or no price
    :param prices: USD per hour of each machine that is up or boots
    :param idle: machines that are up and have no job
    :param said: its limits that waiting jobs give as their reason, with the number of these jobs
    """
    locations = session.scalars(select(LocationRow).where(LocationRow.site == row.name)).all()
    itself = next((each for each in locations if each.name == row.name), None)
    notes = [itself.note] if itself is not None else machine_notes(locations)
    here = [each.cpus for each in up if each.site == row.name]
    its = [each for each in live if each.site == row.name]
    is_queue = not here and itself is not None and itself.kind != "local"
    takes_jobs = any(each.state == "up" for each in locations)
    silent = sum(each.state == LocationState.UNREACHABLE for each in locations)
    state = "up" if not silent else "degraded"
    if row.trouble is not None or not takes_jobs:
        state = "down"
    elif row.paused_by is not None:
        state = "paused"
    limits = limits_of(row, live, bought, said)
    waiting = sum(each.jobs for each in its if each.state != State.RUNNING)
    cpus_up = None if is_queue else sum(here)
    return SiteState(
        name=row.name,
        kind=row.kind,
        state=state,
        host=next((each.name for each in locations if each.kind == "local"), None) if row.kind == "local" else None,
        full_because=full_because(limits, said, at_work.used, cpus_up, waiting),
        note="; ".join(filter(None, [row.paused_by and f"paused by {row.paused_by}", row.trouble, *notes])) or None,
        contact_at=row.contact_at,
        nodes=None if itself is None else itself.nodes,
        idle_nodes=None if itself is None else itself.idle_nodes,
        limits=limits,
        machines=len(here),
        machines_idle=idle,
        machines_silent=silent,
        waiting=waiting,
        running=sum(each.jobs for each in its if each.state == State.RUNNING),
        cpus_used=at_work.used,
        cpus_batch=at_work.batch,
        cpus_up=cpus_up,
        memory_promised=memory.promised,
        memory_used=memory.used,
        memory_up=memory.up,
        usd_per_hour=usd_per_hour(prices, rate, at_work.batch),
        usd_ordered=bought.usd_ordered,
    )


class Bought(NamedTuple):
    """Number and USD per hour of the machines and allocations of a site that were ordered and have not ended.

    :param coming: how many of them are ordered or booting
    :param usd_ordered: USD per hour of those that have not been launched yet
    """

    machines: int = 0
    usd_per_hour: float = 0.0
    coming: int = 0
    usd_ordered: float = 0.0


def machines_bought(session: Session) -> dict[str, Bought]:
    """Sum up by site what was ordered and has not ended; limits count it even before it is up."""
    price = func.coalesce(InstanceRow.usd_per_hour, 0.0)
    coming = InstanceRow.state.in_((InstanceState.ORDERED, InstanceState.BOOTING))
    counts = func.count(), func.sum(price), func.sum(case((coming, 1), else_=0))
    ordered = func.sum(case((IS_PRESENT, 0.0), else_=price))
    query = select(InstanceRow.site, *counts, ordered).where(InstanceRow.state != InstanceState.ENDED)
    rows = session.execute(query.group_by(InstanceRow.site))
    return {site: Bought(count, float(usd), int(number), float(left)) for site, count, usd, number, left in rows}


def unreachable_machines(session: Session) -> set[tuple[str, str]]:
    """Return the site and name of each unreachable machine."""
    silent = select(LocationRow.site, LocationRow.name).where(LocationRow.state == LocationState.UNREACHABLE)
    return {(site, name) for site, name in session.execute(silent)}


def machines_idle(session: Session, silent: Collection[tuple[str, str]]) -> Counter[str]:
    """Count by site the machines that are up, can be reached and have no job.

    :param silent: see :func:`unreachable_machines`
    """
    fixed = select(Capacity.site, Capacity.name).where(Capacity.until.is_(None))
    launched = select(InstanceRow.site, InstanceRow.token).where(InstanceRow.state == InstanceState.UP)
    up = {(site, name) for query in (fixed, launched) for site, name in session.execute(query)}
    up -= {*silent}
    at_work = select(JobRow.site, JobRow.location).where(JobRow.state.in_((State.PLACED, State.RUNNING))).distinct()
    return Counter(site for site, _ in up - {(site, name) for site, name in session.execute(at_work)})


# Reasons of jobs that wait because a limit of their site is reached, not one of a Dag, a share or a budget.
SITE_LIMITS = (
    "site_instances", "type_instances", "max_usd_per_hour", "quota", "max_allocations", "max_jobs", "max_submitted",
    "submit_limit",
)  # fmt: skip


def sites_at_limits(session: Session) -> dict[str, Counter[str]]:
    """Return by site the limits of the site for which jobs wait, and how many."""
    query = select(JobRow.reason, JobRow.site, func.count()).where(
        JobRow.state.in_((State.QUEUED, State.ATTEMPTED, State.PLACED)), JobRow.reason_code.in_(SITE_LIMITS)
    )
    found: dict[str, Counter[str]] = {}
    for reason, its, jobs in session.execute(query.group_by(JobRow.reason, JobRow.site)):
        site = its if reason is None else reason.site or its
        if site is not None and reason is not None:
            found.setdefault(site, Counter())[reason.limit or ""] += jobs
    return found


# What a limit counts.
COUNTED = {
    "max_allocations": "allocations", "max_instances": "machines", "max_usd_per_hour": "USD per hour",
    "max_jobs": "jobs in the queue", "max_submitted": "submitted jobs",
}  # fmt: skip


def full_because(
    limits: Sequence[SiteLimit], said: Counter[str], cpus_used: float, cpus_up: float | None, waiting: int
) -> str | None:
    """Say why a site is full: a limit is reached or all cpus are in use, while jobs wait; None: it is not full.

    :param said: see :func:`site_state`
    :param cpus_up: None: a batch system without allocations
    :param waiting: jobs that wait for the site
    """
    found = {}
    for name, used, most, coming in ((each.name, each.used, each.most, each.coming) for each in limits if waiting):
        if used is not None and most is not None and used >= most:
            text = f"{format_count(used)} of {format_count(most)} {COUNTED[name]}"
            found[name] = f"{text} ({coming} of them ordered or booting)" if coming else text
    if not found and waiting and cpus_up and cpus_used >= cpus_up - 0.01:
        found["cpus"] = f"{format_count(cpus_used)} of {format_count(cpus_up)} cpus"
    found |= {name: f"{name} allows no more" for name in sorted(said) if name not in found}
    if not found:
        return None
    jobs = max(waiting, said.total())
    return f"{', '.join(found.values())}; {jobs:,} {'job waits' if jobs == 1 else 'jobs wait'}"


def limits_of(row: SiteRow, live: Sequence[LiveJobs], bought: Bought, said: Counter[str]) -> list[SiteLimit]:
    """Return the limits of a site and how much of each is in use.

    :param said: see :func:`site_state`
    """
    queued = sum(each.jobs for each in live if each.site == row.name and each.is_batch)
    return [as_limit(name, text, bought, queued, said) for name, text in json.loads(row.limits).items()]


def reached_limits(session: Session) -> dict[str, list[str]]:
    """Return the names of the limits that each site has reached, by site."""
    live = live_jobs(session, present_machines(session))
    bought, said = machines_bought(session), sites_at_limits(session)
    return {
        row.name: [
            each.name
            for each in limits_of(row, live, bought.get(row.name, Bought()), said.get(row.name, Counter()))
            if each.is_reached
        ]
        for row in site_rows(session)
    }


def whole_remedy(remedy: str, code: str | None, site: str | None, reached: Mapping[str, Sequence[str]]) -> str:
    """Add the other limits that a site has reached to the remedy for one of them, because it does not help alone.

    :param code: of the reason to which the remedy belongs
    :param reached: see :func:`reached_limits`
    """
    named = [name for name in reached.get(site or "", ()) if name not in remedy] if code in SITE_LIMITS else []
    if not named:
        return remedy
    them = "it" if len(named) == 1 else "them"
    return f"{remedy} Raise {' and '.join(named)} too: the site has also reached {them}."


def remedies(session: Session, jobs: Sequence[JobRow]) -> dict[str, str]:
    """Return what to do about each job, by token."""
    at_limits = {job.token for job in jobs if job.state in WAITING and job.reason_code in SITE_LIMITS}
    reached = reached_limits(session) if at_limits else {}
    return {
        job.token: whole_remedy(remedy, job.reason_code, site_of(job), reached if job.token in at_limits else {})
        for job in jobs
        if (remedy := job.remedy) is not None
    }


def as_limit(name: str, text: str, bought: Bought, queued: int, said: Counter[str]) -> SiteLimit:
    """Add to a limit how much of it is in use, and whether it is reached.

    :param queued: unfinished jobs in the queue of a batch system
    :param said: see :func:`site_state`
    """
    uses = {
        "max_allocations": bought.machines, "max_instances": bought.machines, "max_usd_per_hour": bought.usd_per_hour,
        "max_jobs": queued, "max_submitted": queued + bought.machines,
    }  # fmt: skip
    found = NUMBER.match(text) if name in uses else None
    coming = bought.coming if found and name in ("max_allocations", "max_instances") else 0
    used, most = (uses[name], float(found[0])) if found else (None, None)
    is_reached = name in said or (used is not None and most is not None and used >= most)
    return SiteLimit(name=name, text=text, used=used, most=most, coming=coming, is_reached=is_reached)


def machine_notes(locations: Sequence[LocationRow]) -> list[str]:
    """Return the notes of the first few machines of a site, with their names."""
    noted = sorted((each.name, each.note) for each in locations if each.note)
    said = [f"{name}: {note}" for name, note in noted[:MOST_NOTES]]
    return said if len(noted) <= MOST_NOTES else [*said, f"{len(noted) - MOST_NOTES} more machines have notes"]


class HeldRoom(BaseModel):
    """Room held for jobs that wait until their whole gang has room."""

    dag_id: str | None
    """None: hidden from the user."""
    gang: str | None
    """None: hidden from the user, or a single job that holds room."""
    place: str
    """As ``site/location``."""
    jobs: int
    cpus: float


class WaitGroup(BaseModel):
    """Jobs that wait for the same thing: their reasons have one code, site and limit."""

    key: str
    """The code of the reason."""
    kind: str
    """The class by which metrics count it."""
    title: str
    remedy: str
    actors: list[str]
    """Who can fix it: ``author``, ``operator``."""
    site: str | None
    """None: the reason does not concern a particular site."""
    limit: str | None
    """The limit that was reached; None: no limit was reached, or its name is hidden from the user."""
    params: dict[str, str | int | float | bool | list[str | int | float | bool | None] | None]
    """Parameters of the most common reason, such as ``used`` and ``most`` of a limit; empty: it has none, or it is
    hidden from the user.
    """
    jobs: int
    share: float
    """Fraction of all waiting jobs, 0 to 1."""
    start: StartEstimate | None
    """When the last of the jobs is expected to start; None: there is no estimate for at least one of them."""
    cpus: float
    oldest: float
    """When the first of the jobs was queued."""
    sentences: list[str]
    """The most common reasons of Dags the user can see."""
    dags: list[WaitingDag]
    """The Dags with the most jobs in the group."""
    dags_total: int
    """The number of Dags in the group that the user can see."""
    hidden: bool
    """Whether the group also contains jobs of hidden Dags."""
    held: list[HeldRoom]
    """Room that jobs of the group hold while they wait, most cpus first."""


class DagStarts(WaitingDag):
    """When the jobs of a Dag in a group are expected to start."""

    first: StartEstimate | None
    """The first of them; None: there is no estimate."""
    last: StartEstimate | None
    """The last of them; None: there is no estimate for at least one of them."""


class WaitGroups(BaseModel):
    """Why jobs wait, largest group first."""

    now: float
    jobs: int
    groups: list[WaitGroup]


@dataclass(slots=True)
class WaitingGroup:
    """Jobs that wait for the same thing, while they are being summed up."""

    code: Code
    site: str | None
    limit: str | None
    jobs: int = 0
    cpus: float = 0.0
    oldest: float = float("inf")
    reasons: Counter[Reason] = field(default_factory=Counter)
    dags: Counter[str] = field(default_factory=Counter)
    hidden: bool = False
    held: list[HeldRoom] = field(default_factory=list)
    # Why its jobs wait. Limits that Dags set for their own jobs are only included for Dags the user can see.
    why: set[Why] = field(default_factory=set)

    def add(self, reason: Reason | None, dag_id: str | None, count: int, seen: bool) -> None:
        """Add jobs of one Dag and reason. The reason of a hidden Dag is left out because it could name its tasks."""
        if not seen:
            self.hidden = True
            return
        if reason is not None:
            self.reasons[reason] += count
        if dag_id:
            self.dags[dag_id] += count

    def model(self, waiting: int, outlook: Outlook, reached: Mapping[str, Sequence[str]]) -> WaitGroup:
        """
        :param waiting: the number of all waiting jobs
        :param reached: see :func:`reached_limits`
        """
        code, start = self.code, as_estimate(outlook.last_start(self.why, self.dags))
        if start is not None and self.hidden:  # the text could name a task of a hidden Dag
            start.text = ""
        sentences = Counter[str]()
        for reason, jobs in self.reasons.items():
            sentences[str(reason)] += jobs
        commonest = self.reasons.most_common(1)
        return WaitGroup(
            key=code.key,
            kind=code.kind,
            title=code.title,
            remedy=remedy_at(whole_remedy(code.remedy, code.key, self.site, reached), self.site),
            actors=[each.value for each in code.actors],
            site=self.site,
            limit=self.limit,
            params=plain(commonest[0][0]) if commonest else {},
            jobs=self.jobs,
            share=self.jobs / waiting if waiting else 0.0,
            start=start,
            cpus=self.cpus,
            oldest=self.oldest,
            sentences=[text for text, _ in sentences.most_common(MOST_SENTENCES)],
            dags=[WaitingDag(dag_id=dag_id, jobs=jobs) for dag_id, jobs in self.dags.most_common(MOST_DAGS)],
            dags_total=len(self.dags),
            hidden=self.hidden,
            held=sorted(self.held, key=lambda each: (-each.cpus, each.place))[:MOST_HELD],
        )


def key_of(reason: Reason | None, site: str | None, seen: bool) -> Key:
    """Return the key of the group that a reason belongs to.

    :param site: the site of the job
    :param seen: whether the user can see the Dag; if not, the limit is left out because its name could contain a task
    """
    found = reason or NEW
    return found.code, found.site or site, found.limit if seen else None


def waits(session: Session, sight: Sight, now: float) -> WaitGroups:
    """Group the waiting jobs by what they wait for."""
    groups = waiting_groups(session, sight)
    outlook = Outlook(session, now)
    for reason, dag_id, job_site, gang, site, location, count, cpus in held_by(session):
        seen = sight.sees(dag_id)
        held_in = groups.get(key_of(reason, job_site, seen))
        if held_in is not None:  # otherwise its jobs have started since they were counted
            names = (dag_id, gang) if seen else (None, None)
            held_in.held.append(
                HeldRoom(dag_id=names[0], gang=names[1], place=f"{site}/{location}", jobs=count, cpus=float(cpus))
            )
    reached = reached_limits(session)
    ordered = sorted(groups.values(), key=lambda each: (-each.jobs, each.code.key, each.site or "", each.limit or ""))
    jobs = sum(each.jobs for each in ordered)
    return WaitGroups(now=now, jobs=jobs, groups=[each.model(jobs, outlook, reached) for each in ordered])


def starts_by_dag(
    session: Session, sight: Sight, now: float, code: str, site: str | None, limit: str | None
) -> list[DagStarts]:
    """Return when the jobs of each Dag in a group are expected to start, for the Dags with the most jobs.

    :param code: of the reason, like the next two parameters as in :class:`WaitGroup`
    """
    group = waiting_groups(session, sight).get((code, site, limit))
    if group is None:
        return []
    dags = dict(group.dags.most_common(MOST_DAGS))
    found = Outlook(session, now).starts_by_dag(group.why, dags)
    return [
        DagStarts(dag_id=dag_id, jobs=jobs, first=as_estimate(found[dag_id][0]), last=as_estimate(found[dag_id][1]))
        for dag_id, jobs in dags.items()
    ]


def waiting_groups(session: Session, sight: Sight) -> dict[Key, WaitingGroup]:
    """Sum up the waiting jobs by what they wait for."""
    groups: dict[Key, WaitingGroup] = {}
    for row in waiting(session):
        reason, dag_id, site, count, cpus, oldest, *_ = row
        seen = sight.sees(dag_id)
        key = key_of(reason, site, seen)
        group = groups.setdefault(key, WaitingGroup((reason or NEW).meaning, *key[1:]))
        group.jobs += count
        group.cpus += float(cpus)
        group.oldest = min(group.oldest, oldest)
        if seen or row.reason_code not in LIMITED:
            group.why.add(why_of(reason, row))
        group.add(reason, dag_id, count, seen)
    return groups


def plain(reason: Reason) -> dict[str, Any]:
    """Return the parameters of a reason as JSON values."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in reason.params}
