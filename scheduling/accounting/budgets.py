"""Budgets: what the jobs of a team, Dags, an owner or a tag can cost in a day, a week or a month. Pure.

Periods follow the calendar in the budget's time zone: a day begins at midnight, a week on Monday, a month on its first
day.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.model.job import Budget, HourBudget, by_hundredth
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.text.units import format_count, format_usd

Period = Literal["day", "week", "month"]
PERIODS: tuple[str, ...] = get_args(Period)
# A warning appears once this fraction of a budget is spent.
NEAR = 0.8


class Unit(str, Enum):
    USD = "USD"
    CPU_HOURS = "cpu-hours"

    def written(self, amount: float) -> str:
        """Format an amount for people, without its unit."""
        return format_usd(amount) if self is Unit.USD else format_count(amount)


@dataclass(frozen=True, slots=True)
class PeriodBudget:
    """One budget.

    :param name: unique
    :param who: whose jobs count
    :param most: what they can cost in a period
    :param unit: of ``most``
    :param per: length of the period
    :param zone: time zone of the calendar
    """

    name: str
    who: Who
    most: float
    unit: Unit = Unit.USD
    per: Period = "month"
    zone: str = "UTC"

    def period(self, now: float) -> tuple[float, float]:
        """Return when the period that contains ``now`` begins and ends, epoch seconds."""
        zone = ZoneInfo(self.zone)
        day = datetime.datetime.fromtimestamp(now, zone).date()
        if self.per == "week":
            day -= datetime.timedelta(days=day.weekday())
        elif self.per == "month":
            day = day.replace(day=1)
        days = {"day": 1, "week": 7, "month": 31}[self.per]
        following = day + datetime.timedelta(days=days)
        if self.per == "month":
            following = (day + datetime.timedelta(days=31)).replace(day=1)
        return _midnight(day, zone), _midnight(following, zone)


def _midnight(day: datetime.date, zone: ZoneInfo) -> float:
    """Return when a day begins, epoch seconds; if clocks skip midnight on that day, its first moment."""
    return datetime.datetime.combine(day, datetime.time(), zone).timestamp()


class BudgetUse(NamedTuple):
    """The use of a budget in its current period.

    :param spent: in this period until now
    :param per_hour: what the running jobs add per hour
    :param since: start of the period, epoch seconds; ``until``: its end
    :param lifted_by: who lifted the budget for this period; None: it is not lifted
    :param promised: the cpu-hours that jobs already given to sites will still use
    :param hours_of_work: how long the running and waiting jobs last at the present rate
    """

    budget: PeriodBudget
    spent: float
    per_hour: float
    since: float
    until: float
    lifted_by: str | None = None
    promised: float = 0.0
    hours_of_work: float = 0.0

    @property
    def part(self) -> float:
        """The fraction that is spent. It can exceed 1, because running jobs continue."""
        return self.spent / self.budget.most

    @property
    def is_near(self) -> bool:
        return self.part >= NEAR

    @property
    def is_spent(self) -> bool:
        """Whether the budget blocks new launches or starts."""
        return self.part >= 1 and self.lifted_by is None

    @property
    def for_starts(self) -> HourBudget | None:
        """The budget as a bound on starts; None if it does not bound them."""
        if self.budget.unit is not Unit.CPU_HOURS or self.lifted_by is not None:
            return None
        return HourBudget(self.budget.name, self.budget.most, self.spent, self.promised, self.until)

    @property
    def reason(self) -> Reason:
        code = "budget_spent" if self.budget.unit is Unit.USD else "budget_spent_cpu_hours"
        spent = by_hundredth(self.spent, self.budget.most)
        return because(code, budget=self.budget.name, spent=spent, most=self.budget.most, until=self.until)

    @property
    def for_launches(self) -> Budget | None:
        """The budget as a bound on launches; None if it does not bound them."""
        if self.budget.unit is not Unit.USD or self.lifted_by is not None:
            return None
        return Budget(self.budget.name, self.budget.most, self.spent, self.per_hour, self.until)


class BudgetTerms(NamedTuple):
    """What budgets allow the jobs of a tenant.

    :param launches: bounds on launches for them
    :param held: why none of the waiting jobs can start; None: some can
    :param starts: bounds on their starts
    :param withdrawn: why jobs that were given to sites but have not started are withdrawn; None: they are not
    """

    launches: tuple[Budget, ...] = ()
    held: Reason | None = None
    starts: tuple[HourBudget, ...] = ()
    withdrawn: Reason | None = None

    @property
    def may_launch(self) -> bool:
        """Whether machines can be launched for the jobs, including before they are queued."""
        return self.held is None and all(each.spent < each.most for each in self.launches)


NO_BUDGETS = BudgetTerms()


def budget_terms(uses: Iterable[BudgetUse], tenant: Tenant) -> BudgetTerms:
    its = [each for each in uses if each.budget.who.meets(tenant)]
    launches = tuple(each for each in (one.for_launches for one in its) if each is not None)
    starts = tuple(each for each in (one.for_starts for one in its) if each is not None)
    spent = next((each.reason for each in its if each.budget.unit is Unit.CPU_HOURS and each.is_spent), None)
    held = spent or next((hours_promised(each) for each in starts if 0 < each.most - each.spent <= each.promised), None)
    return BudgetTerms(launches, held, starts, spent)


def may_start(budget: HourBudget, more: float) -> bool:
    """Return whether a budget has cpu-hours left for one more job. Until all is spent, one job can always start.

    :param more: the cpu-hours it will use
    """
    left = budget.most - budget.spent
    return left > 0 and (budget.promised == 0 or budget.promised + more <= left)


def hours_promised(budget: HourBudget) -> Reason:
    """The reason why a job cannot start: the budget's remaining cpu-hours are spent or promised."""
    parts = {name: by_hundredth(getattr(budget, name), budget.most) for name in ("spent", "promised")}
    return because("budget_promised", budget=budget.name, most=budget.most, until=budget.until, **parts)


def foreseen_hours(cpus: float, seconds: float | None, ran: float | None = None) -> float:
    """Return the cpu-hours that a job will still use.

    :param cpus: on all of its nodes
    :param seconds: its predicted running time; None: unknown, taken as an hour, like that of machines
        (provisioning/budgets.py)
    :param ran: seconds for which it has run; None: it has not started
    """
    return cpus * (3600.0 if seconds is None else max(0.0, seconds - (ran or 0.0))) / 3600
