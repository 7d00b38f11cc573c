"""What shares have used lately, and how budgets stand: two tables, and the queries on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sqlalchemy import Double, String, and_, case, delete, func, or_, select
from sqlalchemy.orm import Mapped, mapped_column

from lading.executors.store.jobs import cpu_hour
from lading.executors.store.tables import LONGEST_NAME, Base, JobRow, State, UsageRow
from lading.scheduling.shares.budgets import BudgetUse, PeriodBudget, Unit
from lading.scheduling.shares.usage import Mean
from lading.scheduling.shares.who import Tenant
from lading.scheduling.text.printable import shortened

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

SECONDS_PER_DAY = 86400
# At work, and of the others those that may have cost something.
AT_WORK = (State.PLACED, State.RUNNING)
TENANT = (JobRow.team, JobRow.dag_id, JobRow.dag_owner, JobRow.dag_tags)


class ShareUseRow(Base):
    """What a share has used lately (see :class:`lading.scheduling.shares.usage.Mean`)."""

    __tablename__ = "lading_share"

    name: Mapped[str] = mapped_column(String(LONGEST_NAME), primary_key=True)
    used: Mapped[float] = mapped_column(Double)
    weight: Mapped[float] = mapped_column(Double)
    # Seconds since the epoch.
    at: Mapped[float] = mapped_column(Double)


class BudgetRow(Base):
    """How a budget stands. Times are seconds since the epoch."""

    __tablename__ = "lading_budget"

    name: Mapped[str] = mapped_column(String(LONGEST_NAME), primary_key=True)
    # As the sites file has it: whose jobs count, how much in which period, in USD or cpu-hours.
    who: Mapped[str] = mapped_column(String(LONGEST_NAME))
    most: Mapped[float] = mapped_column(Double)
    unit: Mapped[str] = mapped_column(String(12))
    per: Mapped[str] = mapped_column(String(12))
    # In this period, and what those at work add in an hour.
    spent: Mapped[float] = mapped_column(Double)
    per_hour: Mapped[float] = mapped_column(Double)
    since: Mapped[float] = mapped_column(Double)
    until: Mapped[float] = mapped_column(Double)
    at: Mapped[float] = mapped_column(Double)
    # The period of which was warned, and that for which it was lifted, each by when it begins; None: of none.
    warned: Mapped[float | None] = mapped_column(Double)
    lifted: Mapped[float | None] = mapped_column(Double)
    lifted_by: Mapped[str | None] = mapped_column(String(LONGEST_NAME))

    @property
    def is_lifted(self) -> bool:
        """Whether it is lifted for the period that it stands in."""
        return self.lifted is not None and self.lifted == self.since


def means(session: Session) -> tuple[dict[str, Mean], float | None]:
    """What shares have used lately, and when that was stored; None: nothing is."""
    rows = session.scalars(select(ShareUseRow)).all()
    return {row.name: Mean(row.used, row.weight) for row in rows}, max((row.at for row in rows), default=None)


def save_means(session: Session, means: Mapping[str, Mean], at: float) -> None:
    """Store what shares have used lately, in the place of what was stored before."""
    known = {row.name: row for row in session.scalars(select(ShareUseRow))}
    for name in known.keys() - means.keys():
        session.delete(known[name])
    for name, mean in means.items():
        row = known.get(name)
        if row is None:
            session.add(ShareUseRow(name=name, used=mean.used, weight=mean.weight, at=at))
        else:
            row.used, row.weight, row.at = mean.used, mean.weight, at
    session.flush()


def spending(
    session: Session, budgets: Iterable[PeriodBudget], now: float, tags: Callable[[str], str | None]
) -> list[BudgetUse]:
    """How budgets stand: what their jobs have cost in this period.

    What a job has cost that began before the period counts by the part of its time that is in it. Jobs that were
    forgotten count by the day on which they ended.

    :param now: epoch seconds
    :param tags: says which tags a Dag has now, as JSON
    """
    budgets = list(budgets)
    periods = {budget.name: budget.period(now) for budget in budgets}
    lifted = {row.name: row for row in session.scalars(select(BudgetRow))}
    found = []
    by_start: dict[float, list[tuple[Tenant, float, float, float, float]]] = {}
    for since in {since for since, _ in periods.values()}:
        by_start[since] = [*_of_jobs(session, since, now), *_of_forgotten(session, since, tags)]
    for budget in budgets:
        since, until = periods[budget.name]
        its = [costs for tenant, *costs in by_start[since] if budget.who.meets(tenant)]
        usd, usd_rate, hours, cpus = (sum(each) for each in zip(*its, strict=True)) if its else (0.0,) * 4
        spent, rate = (usd, usd_rate) if budget.unit is Unit.USD else (hours, cpus)
        row = lifted.get(budget.name)
        by = row.lifted_by if row is not None and row.lifted == since else None
        found.append(BudgetUse(budget, spent, rate, since, until, by))
    return found


def _of_jobs(session: Session, since: float, now: float) -> Iterable[tuple[Tenant, float, float, float, float]]:
    """What jobs have cost since a time, by whose they are: USD, USD per hour, cpu-hours, and cpus of those at work."""
    cpus = JobRow.cpus * func.coalesce(JobRow.nodes, 1)
    end = func.coalesce(JobRow.ended_at, now)
    begun = case((JobRow.started_at < since, since), else_=JobRow.started_at)
    seconds = case((end > begun, end - begun), else_=0.0)
    whole = case((end > JobRow.started_at, end - JobRow.started_at), else_=1.0)
    at_work = JobRow.state.in_(AT_WORK)
    usd = case((JobRow.state == State.RUNNING, cpu_hour() * cpus * seconds / 3600), else_=JobRow.usd * seconds / whole)
    query = select(
        *TENANT,
        func.sum(usd),
        func.sum(case((at_work, cpu_hour() * cpus))),
        func.sum(case((JobRow.started_at.is_not(None), cpus * seconds / 3600))),
        func.sum(case((at_work, cpus))),
    ).where(or_(at_work, and_(JobRow.started_at.is_not(None), JobRow.ended_at >= since)))
    for team, dag_id, owner, tags, *costs in session.execute(query.group_by(*TENANT)):
        spent, rate, hours, used = (float(each or 0.0) for each in costs)
        yield Tenant.from_columns(team, dag_id, owner, tags), spent, rate, hours, used


def _of_forgotten(
    session: Session, since: float, tags: Callable[[str], str | None]
) -> Iterable[tuple[Tenant, float, float, float, float]]:
    """The same of jobs that were deleted; their Dags have the tags that they have now."""
    query = select(
        UsageRow.team, UsageRow.dag_id, UsageRow.dag_owner, func.sum(UsageRow.usd), func.sum(UsageRow.cpu_seconds)
    ).where(UsageRow.day >= int(since // SECONDS_PER_DAY))
    rows = session.execute(query.group_by(UsageRow.team, UsageRow.dag_id, UsageRow.dag_owner)).all()
    for team, dag_id, owner, usd, seconds in rows:
        tenant = Tenant.from_columns(team, dag_id, owner, tags(dag_id))
        yield tenant, float(usd or 0.0), 0.0, float(seconds or 0.0) / 3600, 0.0


def save_spending(session: Session, found: Sequence[BudgetUse], at: float) -> list[BudgetUse]:
    """Store how budgets stand; those that are none any more are forgotten.

    :returns: those of which is to be warned now: so much is spent, and in this period nothing was said of it
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
        }
        row = known.get(budget.name)
        if row is None:
            row = BudgetRow(name=budget.name, **values)
            session.add(row)
        else:
            for name, value in values.items():
                setattr(row, name, value)
        if each.is_near and row.warned != each.since:
            row.warned = each.since
            near.append(each)
    session.flush()
    return near


def budgets(session: Session) -> Sequence[BudgetRow]:
    """How budgets stood when the controller looked last, by name."""
    return session.scalars(select(BudgetRow).order_by(BudgetRow.name)).all()


def lift(session: Session, name: str, by: str) -> str:
    """Lift a budget for its period; returns what came of it."""
    row = session.get(BudgetRow, name)
    if row is None:
        return "there is no such budget (any more)"
    row.lifted, row.lifted_by = row.since, by[:LONGEST_NAME]
    session.flush()
    return "it is lifted until its next period"


def restore(session: Session, name: str) -> str:
    """Let a budget hold again that was lifted; returns what came of it."""
    row = session.get(BudgetRow, name)
    if row is None:
        return "there is no such budget (any more)"
    row.lifted = row.lifted_by = None
    session.flush()
    return "it holds again"


def named(session: Session, name: str) -> BudgetRow:
    """A budget.

    :raises LookupError: there is none of this name
    """
    row = session.get(BudgetRow, name)
    if row is None:
        valid = ", ".join(each.name for each in budgets(session)) or "none; [[budgets]] of the sites file has them"
        raise LookupError(f"there is no budget {shortened(name)}; valid: {valid}")
    return row
