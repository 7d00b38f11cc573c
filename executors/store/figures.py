"""Figures for the page and the metrics: what runs, waits and is up now, and its cost per hour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import case, func, literal, select, union_all

from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.jobs import QUEUED
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import LIVE, Capacity, JobRow, LocationRow, State
from lading.scheduling.model.reasons import Reason

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

CPUS = JobRow.cpus * func.coalesce(JobRow.nodes, 1)
UP = (InstanceState.UP, InstanceState.DRAINING)
# The site that a job was given to, or before that the one that it names.
SITE = func.coalesce(JobRow.site, JobRow.site_hint)


class PresentMachine(NamedTuple):
    """A machine that is up or boots; allocations in a queue are none.

    :param name: of a launched one, its token
    :param memory: MiB
    :param usd_per_hour: None: unknown
    :param is_up: False: it boots
    """

    site: str
    name: str
    cpus: float
    memory: int
    usd_per_hour: float | None
    is_up: bool


# Whether an instance is up or boots; one that is only ordered, or in a queue, is not present yet.
_IS_UP = InstanceRow.state.in_(UP)
IS_PRESENT = _IS_UP | ((InstanceRow.state == InstanceState.BOOTING) & InstanceRow.launched_at.is_not(None))


def present_machines(session: Session) -> list[PresentMachine]:
    fixed = select(
        Capacity.site, Capacity.name, Capacity.cpus, Capacity.memory, Capacity.usd_per_hour, literal(1)
    ).where(Capacity.until.is_(None))
    amounts = InstanceRow.cpus, InstanceRow.memory, InstanceRow.usd_per_hour
    launched = select(InstanceRow.site, InstanceRow.token, *amounts, case((_IS_UP, 1), else_=0)).where(IS_PRESENT)
    return [
        PresentMachine(site, name, cpus, int(memory or 0), usd, bool(up))
        for site, name, cpus, memory, usd, up in session.execute(union_all(fixed, launched))
    ]


def prices(machines: Iterable[PresentMachine]) -> dict[str, list[float | None]]:
    """Return the USD per hour of each of these machines, by site."""
    by_site: dict[str, list[float | None]] = {}
    for machine in machines:
        by_site.setdefault(machine.site, []).append(machine.usd_per_hour)
    return by_site


class LiveJobs(NamedTuple):
    """A count of unfinished jobs.

    :param site: of a waiting job, the site it names; None: it names none
    :param is_batch: whether each is a batch job of its own, on a node that Lading does not count
    """

    site: str | None
    state: str
    is_batch: bool
    jobs: int
    cpus: float


class LiveKey(NamedTuple):
    site: str | None
    state: str
    team: str | None
    reason: Reason | None = None


def count_live(session: Session, queued: QueuedJobs) -> Counter[LiveKey]:
    """Count the unfinished jobs; those in the queue come from `queued` instead of the database."""
    columns = JobRow.site, JobRow.state, JobRow.team, JobRow.reason
    at_sites = [state for state in LIVE if state != State.QUEUED]
    rows = session.execute(select(*columns, func.count()).where(JobRow.state.in_(at_sites)).group_by(*columns))
    found = Counter({LiveKey(site, state, team, reason): count for site, state, team, reason, count in rows})
    for (reason, team), count in queued.counts.items():
        found[LiveKey(None, State.QUEUED, team, reason)] += count
    return found


def live_jobs(session: Session, machines: Iterable[PresentMachine], states: Collection[State] = LIVE) -> list[LiveJobs]:
    """Count the jobs in these states and their cpus by site and state, apart for batch jobs of their own.

    :param machines: all, see :func:`present_machines`
    """
    site = SITE.label("its_site")
    # A queue is a location with the name of its site, but so may be a machine.
    as_site = (JobRow.location == JobRow.site).label("as_site")
    query = select(site, JobRow.state, as_site, func.count(), func.sum(CPUS)).where(JobRow.state.in_(states))
    rows = session.execute(query.group_by(site, JobRow.state, as_site))
    machine_sites = named_as_site(machines)
    return [
        LiveJobs(name, state, bool(is_as_site) and name not in machine_sites, jobs, float(cpus))
        for name, state, is_as_site, jobs, cpus in rows
    ]


def named_as_site(machines: Iterable[PresentMachine]) -> set[str]:
    """Return the sites that have a machine with the name of the site."""
    return {machine.site for machine in machines if machine.name == machine.site}


class CpusInUse(NamedTuple):
    """The cpus of running jobs: on machines that are up, and in batch jobs of their own."""

    used: float = 0.0
    batch: float = 0.0


def busy(live: Iterable[LiveJobs]) -> dict[str, CpusInUse]:
    by_site: dict[str, CpusInUse] = {}
    for jobs in live:
        if jobs.state == State.RUNNING and jobs.site is not None:
            used, batch = by_site.get(jobs.site, CpusInUse())
            by_site[jobs.site] = (
                CpusInUse(used, batch + jobs.cpus) if jobs.is_batch else CpusInUse(used + jobs.cpus, batch)
            )
    return by_site


def waiting(session: Session) -> Sequence[Any]:
    """Count the waiting jobs by reason, Dag and site.

    The rows have these three columns, the number of jobs, their cpus, the time the first was queued, and the code and
    limit of the reason.
    """
    columns = JobRow.reason, JobRow.dag_id, JobRow.site
    said = JobRow.reason_code, JobRow.reason_limit
    return session.execute(
        select(*columns, func.count(), func.sum(CPUS), func.min(QUEUED), *said)
        .where(JobRow.state.in_((State.QUEUED, State.ATTEMPTED, State.PLACED)))
        .group_by(*columns, *said)
    ).all()


class MemoryInUse(NamedTuple):
    """The memory of the machines of a site that are up, MiB.

    :param promised: to the jobs that run there
    :param used: the sum of the peaks of those jobs that have run long enough to be measured (a minute)
    """

    promised: int = 0
    up: int = 0
    used: int = 0


def memory_in_use(session: Session, up: Iterable[PresentMachine]) -> dict[str, MemoryInUse]:
    columns = JobRow.site, JobRow.location
    sums = func.sum(JobRow.memory), func.sum(JobRow.peak_memory)
    running = select(*columns, *sums).where(JobRow.state == State.RUNNING).group_by(*columns)
    # Batch jobs are on nodes that are not Lading's to count.
    of_jobs = {(site, name): (int(promised), int(used or 0)) for site, name, promised, used in session.execute(running)}
    by_site: dict[str, MemoryInUse] = {}
    for machine in up:
        before = by_site.get(machine.site, MemoryInUse())
        promised, used = of_jobs.get((machine.site, machine.name), (0, 0))
        by_site[machine.site] = MemoryInUse(before.promised + promised, before.up + machine.memory, before.used + used)
    return by_site


class TeamFigures(NamedTuple):
    """What one of Airflow's teams uses now.

    :param team: None: the jobs without a team
    :param cpus: of its running jobs
    """

    team: str | None
    running: int
    waiting: int
    cpus: float


def teams(session: Session, states: Collection[State] = LIVE) -> list[TeamFigures]:
    """Return the figures of each team that has jobs in these states, sorted by name, jobs without a team last."""
    columns = JobRow.team, JobRow.state
    found: dict[str | None, TeamFigures] = {}
    for team, state, jobs, cpus in session.execute(
        select(*columns, func.count(), func.sum(CPUS)).where(JobRow.state.in_(states)).group_by(*columns)
    ):
        before = found.get(team, TeamFigures(team, 0, 0, 0.0))
        if state == State.RUNNING:
            found[team] = before._replace(running=jobs, cpus=float(cpus))
        else:
            found[team] = before._replace(waiting=before.waiting + jobs)
    return [found[team] for team in sorted(found, key=lambda team: (team is None, team or ""))]


def queues(session: Session, machines: Iterable[PresentMachine]) -> dict[str, float | None]:
    """Return the cost of a cpu-hour at each site that has a location with its own name, as queues have.

    :param machines: all, see :func:`present_machines`
    """
    rows = session.execute(
        select(LocationRow.site, LocationRow.usd_per_cpu_hour, LocationRow.kind).where(
            LocationRow.name == LocationRow.site
        )
    )
    machine_sites = named_as_site(machines)
    return {site: rate for site, rate, kind in rows if kind != "local" and site not in machine_sites}


def usd_per_hour(prices: Sequence[float | None], rate: float | None, batch: float) -> float | None:
    """Return the cost of a site per hour: its machines, and the batch jobs in its queue.

    :param prices: of everything that is up or boots at the site, in USD per hour
    :param rate: the price of a cpu-hour in its queue; None: there is no queue, or no price
    :param batch: cpus of its batch jobs, see :class:`CpusInUse`
    """
    in_queue = rate is not None and (batch > 0 or not prices)
    return total([*prices, rate * batch] if in_queue and rate is not None else prices)


class SiteFigures(NamedTuple):
    """What a site has and costs now.

    :param used: see :class:`CpusInUse`
    :param up: cpus of the machines that are up
    :param usd_per_hour: None: unknown
    """

    used: float
    batch: float
    up: float
    usd_per_hour: float | None


def site_figures(session: Session, *, any_run: bool = True) -> dict[str, SiteFigures]:
    """Return the figures of each site.

    :param any_run: whether any job can be running
    """
    machines = present_machines(session)
    in_use = busy(live_jobs(session, machines, [State.RUNNING])) if any_run else {}
    costs, rates = prices(machines), queues(session, machines)
    found = {}
    for site in {*in_use, *rates, *costs}:
        used, batch = in_use.get(site, CpusInUse())
        up = sum(each.cpus for each in machines if each.is_up and each.site == site)
        found[site] = SiteFigures(used, batch, up, usd_per_hour(costs.get(site, []), rates.get(site), batch))
    return found


def total(amounts: Sequence[float | None]) -> float | None:
    """Sum up the amounts that are known; None: there is none."""
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None
