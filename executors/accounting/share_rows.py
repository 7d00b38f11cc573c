"""The present and recent use of shares, and the state of budgets: three tables, and the queries on them."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import Boolean, Double, Integer, String, Text, case, delete, func, insert, or_, select
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.jobs import chunks, cpu_hour
from lading.executors.store.tables import LONGEST_NAME, Base, JobRow, State, UsageRow
from lading.scheduling.accounting.bill import SpendingOutlook, hours_of_work
from lading.scheduling.accounting.budgets import BudgetUse, PeriodBudget, Unit
from lading.scheduling.accounting.periods import SECONDS_PER_DAY
from lading.scheduling.accounting.share_table import HALF_LIFE, Kept, Share, Shares
from lading.scheduling.accounting.share_usage import Mean, ShareStanding
from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

AT_WORK = (State.PLACED, State.RUNNING)
TENANT = (JobRow.team, JobRow.dag_id, JobRow.dag_owner, JobRow.dag_tags)


class ShareUseRow(Base):
    """The recent use of a share (see :class:`lading.scheduling.accounting.share_usage.Mean`)."""

    __tablename__ = "lading_share"

    name: Mapped[str] = mapped_column(String(LONGEST_NAME), primary_key=True)
    used: Mapped[float] = mapped_column(Double)
    weight: Mapped[float] = mapped_column(Double)
    # In epoch seconds.
    at: Mapped[float] = mapped_column(Double)
    # Seconds after which past use counts half; NULL: stored by a version before 2026-11-30.
    half_life: Mapped[float | None] = mapped_column(Double)


class ShareStandingRow(Base):
    """What a share of the sites file had when the controller last counted. Parts are of all there is, 0 to 1."""

    __tablename__ = "lading_share_standing"

    name: Mapped[str] = mapped_column(String(LONGEST_NAME), primary_key=True)
    # Its place in the table: the first share that is for a job counts.
    position: Mapped[int] = mapped_column(Integer)
    # As the sites file has it: whose jobs it is for, as text and as JSON.
    who: Mapped[str] = mapped_column(String(LONGEST_NAME))
    whose: Mapped[str] = mapped_column(Text)
    weight: Mapped[float] = mapped_column(Double)
    # Its part by weight, and the part it has now; None: recent use does not count.
    entitled: Mapped[float] = mapped_column(Double)
    used: Mapped[float] = mapped_column(Double)
    lately: Mapped[float | None] = mapped_column(Double)
    # JSON: a list of :class:`lading.scheduling.accounting.share_usage.Guarantee`.
    kept: Mapped[str] = mapped_column(Text)
    lends: Mapped[bool] = mapped_column(Boolean)
    borrows: Mapped[bool] = mapped_column(Boolean)
    # Seconds since the epoch.
    at: Mapped[float] = mapped_column(Double)


class BudgetRow(Base):
    """The state of a budget. Times are epoch seconds."""

    __tablename__ = "lading_budget"

    name: Mapped[str] = mapped_column(String(LONGEST_NAME), primary_key=True)
    # As declared in the sites file: whose jobs count, the amount and its unit (USD or cpu-hours), and the period.
    who: Mapped[str] = mapped_column(String(LONGEST_NAME))
    most: Mapped[float] = mapped_column(Double)
    unit: Mapped[str] = mapped_column(String(12))
    per: Mapped[str] = mapped_column(String(12))
    # The amount spent in this period, and what the jobs at work add per hour.
    spent: Mapped[float] = mapped_column(Double)
    per_hour: Mapped[float] = mapped_column(Double)
    since: Mapped[float] = mapped_column(Double)
    until: Mapped[float] = mapped_column(Double)
    at: Mapped[float] = mapped_column(Double)
    # The periods for which a warning was given and for which it was lifted, each by its start; NULL: none.
    warned: Mapped[float | None] = mapped_column(Double)
    lifted: Mapped[float | None] = mapped_column(Double)
    lifted_by: Mapped[str | None] = mapped_column(String(LONGEST_NAME))
    # Hours that its running and waiting jobs last; NULL: stored by a version before 2026-11-30.
    hours_of_work: Mapped[float | None] = mapped_column(Double)

    @property
    def outlook(self) -> SpendingOutlook:
        """What is spent from now on."""
        return SpendingOutlook.mean(self.spent, self.since, self.at, self.per_hour, self.hours_of_work or 0.0)

    @property
    def spent_at(self) -> float | None:
        """When it is expected to be used up, epoch seconds; None: not in this period."""
        at = self.outlook.reaches(self.most)
        return at if at is not None and at < self.until else None

    @property
    def is_lifted(self) -> bool:
        """Whether it is lifted for the current period."""
        return self.lifted is not None and self.lifted == self.since


def means(session: Session) -> tuple[dict[str, Mean], float | None]:
    """Return the recent use of shares, and when it was stored; None: nothing is stored."""
    rows = session.scalars(select(ShareUseRow)).all()
    return {row.name: Mean(row.used, row.weight) for row in rows}, max((row.at for row in rows), default=None)


def excess(session: Session, tokens: Sequence[str]) -> list[Any]:
    """Return those of the ended jobs that used more cpu time than requested.

    The rows have the columns that identify the tenant, and the excess in cpu-seconds.
    """
    cpus = JobRow.cpus * func.coalesce(JobRow.nodes, 1)
    beyond = JobRow.cpu_seconds - cpus * (JobRow.ended_at - JobRow.started_at)
    query = select(*TENANT, beyond.label("seconds")).where(beyond > 0)
    return [row for chunk in chunks(tokens) for row in session.execute(query.where(JobRow.token.in_(chunk)))]


def save_means(session: Session, means: Mapping[str, Mean], at: float, half_life: float = HALF_LIFE) -> None:
    """Store the recent use of shares, replacing what was stored before.

    :param half_life: seconds after which past use counts half
    """
    known = {row.name: row for row in session.scalars(select(ShareUseRow))}
    for name in known.keys() - means.keys():
        session.delete(known[name])
    for name, mean in means.items():
        row = known.get(name)
        if row is None:
            session.add(ShareUseRow(name=name, used=mean.used, weight=mean.weight, at=at, half_life=half_life))
        else:
            row.used, row.weight, row.at, row.half_life = mean.used, mean.weight, at, half_life
    session.flush()


def save_standings(session: Session, standings: Iterable[ShareStanding], at: float) -> None:
    """Store what each share has now, replacing what was stored before.

    :param at: epoch seconds
    """
    session.execute(delete(ShareStandingRow))
    rows = [
        {
            "name": each.share.name,
            "position": position,
            "who": str(each.share.who)[:LONGEST_NAME],
            "whose": json.dumps(asdict(each.share.who)),
            "weight": each.share.weight,
            "entitled": each.entitled,
            "used": each.used,
            "lately": each.lately,
            "kept": json.dumps([guarantee._asdict() for guarantee in each.guarantees]),
            "lends": each.share.lends,
            "borrows": each.share.borrows,
            "at": at,
        }
        for position, each in enumerate(standings)
    ]
    if rows:
        session.execute(insert(ShareStandingRow), rows)


def standings(session: Session) -> Sequence[ShareStandingRow]:
    """What each share had when the controller last counted, by name."""
    return session.scalars(select(ShareStandingRow).order_by(ShareStandingRow.name)).all()


def stored_shares(session: Session) -> tuple[Shares, dict[str, Mean]]:
    """Return the shares that the controller applies, and what each of them has used lately."""
    rows = session.scalars(select(ShareStandingRow).order_by(ShareStandingRow.position)).all()
    table = tuple(
        Share(
            row.name,
            Who(**json.loads(row.whose)),
            row.weight,
            tuple(Kept(each["site"], {each["what"]: each["kept"]}) for each in json.loads(row.kept)),
            row.lends,
            row.borrows,
        )
        for row in rows
    )
    uses = session.scalars(select(ShareUseRow)).all() if table else []
    half_life = next((row.half_life for row in uses if row.half_life is not None), HALF_LIFE)
    return Shares(table, half_life), {row.name: Mean(row.used, row.weight) for row in uses}


class TenantCosts(NamedTuple):
    """The cost of a tenant's jobs.

    :param usd_per_hour: of its jobs at work; ``cpus``: of these, too
    """

    tenant: Tenant
    usd: float = 0.0
    usd_per_hour: float = 0.0
    cpu_hours: float = 0.0
    cpus: float = 0.0


class WorkLeft(NamedTuple):
    """The work of a tenant's jobs.

    :param cpus: of those that run
    :param cpu_hours: what those that run or wait are still expected to use
    """

    tenant: Tenant
    cpus: float
    cpu_hours: float


class EndedCosts:
    """The cost of ended jobs by day; only days that may have changed are summed up again."""

    def __init__(self) -> None:
        self._days: dict[tuple[float, int], list[TenantCosts]] = {}
        self._checked_at: float | None = None

    def read(self, session: Session, since: Collection[float], now: float) -> dict[float, list[TenantCosts]]:
        """Return the costs in each period, by its start.

        :param since: the starts of the periods, in epoch seconds
        """
        if not since:
            return {}
        known, self._days = self._days, {}
        stale = self._changed(session, min(since), now)
        found: dict[float, list[TenantCosts]] = {}
        for begin in since:
            costs = found[begin] = []
            for day in range(int(begin // SECONDS_PER_DAY), int(now // SECONDS_PER_DAY) + 1):
                key = begin, day
                if key in known and day > stale.forgotten and day not in stale.days:
                    self._days[key] = known[key]
                else:
                    first, last = max(begin, float(day * SECONDS_PER_DAY)), float((day + 1) * SECONDS_PER_DAY)
                    of_day = JobRow.ended_at >= first, JobRow.ended_at < last, JobRow.state.not_in(AT_WORK)
                    self._days[key] = list(_costs(session, begin, now, *of_day))
                costs += self._days[key]
        self._checked_at = now
        return found

    def _changed(self, session: Session, since: float, now: float) -> StaleDays:
        if self._checked_at is None:
            return StaleDays(frozenset(), -1)
        # The hosts' clocks differ by less than a minute, and no transaction takes longer.
        changed = JobRow.changed_at >= self._checked_at - 60.0, JobRow.ended_at >= since
        days = {int(at // SECONDS_PER_DAY) for at in session.scalars(select(JobRow.ended_at).where(*changed)) if at}
        # The day of the oldest stored job would be wrong: it may have been reported only after younger jobs were
        # deleted.
        of_jobs = UsageRow.jobs > 0, UsageRow.day >= int(since // SECONDS_PER_DAY)
        forgotten = session.scalar(select(func.max(UsageRow.day)).where(*of_jobs))
        return StaleDays(frozenset(days | {int(now // SECONDS_PER_DAY)}), -1 if forgotten is None else forgotten)


class StaleDays(NamedTuple):
    """The days that have to be summed up again.

    :param forgotten: the last day with deleted jobs; it and all days before it are summed up again
    """

    days: frozenset[int]
    forgotten: int


def spending(
    session: Session,
    budgets: Iterable[PeriodBudget],
    now: float,
    tags: Callable[[str], str | None],
    ended: EndedCosts | None = None,
    work: Sequence[WorkLeft] = (),
) -> list[BudgetUse]:
    """Return the state of budgets: what their jobs have cost in the current period.

    A job that started before the period counts with the part of its running time within the period. A deleted job
    counts on the day on which it ended.

    :param now: epoch seconds
    :param tags: returns the current tags of a Dag, as JSON
    :param ended: the sums of earlier days from the last call; None: sum up all days
    :param work: what is left to running and waiting jobs
    """
    budgets = list(budgets)
    periods = {budget.name: budget.period(now) for budget in budgets}
    lifted = {row.name: row for row in session.scalars(select(BudgetRow))}
    found = []
    of_ended = (ended or EndedCosts()).read(session, {since for since, _ in periods.values()}, now)
    by_start = {
        since: [
            *costs,
            *_costs(session, since, now, JobRow.state.in_(AT_WORK)),
            *_of_forgotten(session, since, tags),
        ]
        for since, costs in of_ended.items()
    }
    for budget in budgets:
        since, until = periods[budget.name]
        its = [costs for costs in by_start[since] if budget.who.meets(costs.tenant)]
        if budget.unit is Unit.USD:
            spent, rate = sum(each.usd for each in its), sum(each.usd_per_hour for each in its)
        else:
            spent, rate = sum(each.cpu_hours for each in its), sum(each.cpus for each in its)
        row = lifted.get(budget.name)
        by = row.lifted_by if row is not None and row.lifted == since else None
        left = [each for each in work if budget.who.meets(each.tenant)]
        hours = hours_of_work(sum(each.cpu_hours for each in left), sum(each.cpus for each in left))
        found.append(BudgetUse(budget, spent, rate, since, until, by, hours_of_work=hours))
    return found


def _costs(session: Session, since: float, now: float, *which: Any) -> Iterable[TenantCosts]:
    cpus = JobRow.cpus * func.coalesce(JobRow.nodes, 1)
    end = func.coalesce(JobRow.ended_at, now)
    begun = case((JobRow.started_at < since, since), else_=JobRow.started_at)
    seconds = case((end > begun, end - begun), else_=0.0)
    whole = case((end > JobRow.started_at, end - JobRow.started_at), else_=1.0)
    # Unlike memory, cpus can be used beyond the request, so a job is charged for the larger of the two.
    asked, used = cpus * seconds, func.coalesce(JobRow.cpu_seconds, 0.0) * seconds / whole
    at_work = JobRow.state.in_(AT_WORK)
    usd = case((JobRow.state == State.RUNNING, cpu_hour() * cpus * seconds / 3600), else_=JobRow.usd * seconds / whole)
    query = select(
        *TENANT,
        func.sum(usd),
        func.sum(case((at_work, cpu_hour() * cpus))),
        func.sum(case((JobRow.started_at.is_not(None), case((used > asked, used), else_=asked) / 3600))),
        func.sum(case((at_work, cpus))),
    ).where(*which, or_(at_work, JobRow.started_at.is_not(None)))
    for team, dag_id, owner, tags, *costs in session.execute(query.group_by(*TENANT)):
        yield TenantCosts(Tenant.from_columns(team, dag_id, owner, tags), *(float(each or 0.0) for each in costs))


def _of_forgotten(session: Session, since: float, tags: Callable[[str], str | None]) -> Iterable[TenantCosts]:
    """Yield the cost of deleted jobs by tenant, with the current tags of their Dags."""
    asked, used = UsageRow.cpu_seconds, UsageRow.cpu_seconds_used
    cpu_seconds = func.sum(case((used > asked, used), else_=asked))
    query = select(UsageRow.team, UsageRow.dag_id, UsageRow.dag_owner, func.sum(UsageRow.usd), cpu_seconds).where(
        UsageRow.day >= int(since // SECONDS_PER_DAY)
    )
    rows = session.execute(query.group_by(UsageRow.team, UsageRow.dag_id, UsageRow.dag_owner)).all()
    for team, dag_id, owner, usd, seconds in rows:
        tenant = Tenant.from_columns(team, dag_id or None, owner, tags(dag_id) if dag_id else None)
        yield TenantCosts(tenant, usd=float(usd or 0.0), cpu_hours=float(seconds or 0.0) / 3600)


def save_spending(session: Session, found: Sequence[BudgetUse], at: float) -> list[BudgetUse]:
    """Store the state of budgets, and delete those no longer declared.

    :returns: the budgets for which a warning is due: they are nearly spent, and there was no warning in this period for
        the present amount
    """
    names = [each.budget.name for each in found]
    session.execute(delete(BudgetRow).where(BudgetRow.name.not_in(names)))
    known = {row.name: row for row in session.scalars(select(BudgetRow))}
    near = []
    for each in found:
        budget = each.budget
        values: dict[str, Any] = {
            "who": str(budget.who)[:LONGEST_NAME],
            "most": budget.most,
            "unit": budget.unit.value,
            "per": budget.per,
            "spent": each.spent,
            "per_hour": each.per_hour,
            "since": each.since,
            "until": each.until,
            "at": at,
            "hours_of_work": each.hours_of_work,
        }
        row = known.get(budget.name)
        if row is None:
            row = BudgetRow(name=budget.name, **values)
            session.add(row)
        else:
            if (row.most, row.unit) != (budget.most, budget.unit.value):
                row.warned = None  # the warning was about another amount
            for name, value in values.items():
                setattr(row, name, value)
        if each.is_near and row.warned != each.since:
            row.warned = each.since
            near.append(each)
    session.flush()
    return near


def budgets(session: Session) -> Sequence[BudgetRow]:
    """Return the budgets by name, as last stored by the controller."""
    return session.scalars(select(BudgetRow).order_by(BudgetRow.name)).all()


def lift(session: Session, name: str, by: str) -> str:
    """Lift a budget until its next period; return the outcome as text."""
    row = session.get(BudgetRow, name)
    if row is None:
        return "the budget no longer exists"
    row.lifted, row.lifted_by = row.since, by[:LONGEST_NAME]
    session.flush()
    return "it is lifted until its next period"


def restore(session: Session, name: str) -> str:
    """Enforce a lifted budget again; return the outcome as text."""
    row = session.get(BudgetRow, name)
    if row is None:
        return "the budget no longer exists"
    row.lifted = row.lifted_by = None
    session.flush()
    return "it is enforced again"


def named(session: Session, name: str) -> BudgetRow:
    """Return a budget.

    :raises LookupError: there is no budget of this name
    """
    row = session.get(BudgetRow, name)
    if row is None:
        valid = (
            ", ".join(each.name for each in budgets(session)) or "none; declare them in [[budgets]] of the sites file"
        )
        raise LookupError(f"there is no budget {shortened(name)}; valid: {valid}")
    return row
