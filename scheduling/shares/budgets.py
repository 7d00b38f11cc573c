"""Budgets: what jobs of a team, Dags, an owner or a tag may cost in a day, a week or a month. Pure.

Periods are those of the calendar, in the time zone of the budget: a day begins at midnight, a week on Monday, a month
on its first day.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Literal, NamedTuple, get_args
from zoneinfo import ZoneInfo

from lading.scheduling.job import Budget, HourBudget, by_hundredth
from lading.scheduling.reasons import Reason, because
from lading.scheduling.shares.who import Tenant, Who
from lading.scheduling.text.units import format_count, format_usd

Period = Literal["day", "week", "month"]
PERIODS: tuple[str, ...] = get_args(Period)
# From this part of a budget on its use is warned of.
NEAR = 0.8
# A job of which nothing is known counts as if it stayed for so long, as machines do (provisioning/budgets.py).
SECONDS_UNFORESEEN = 3600.0


class Unit(str, Enum):
    """What a budget is counted in."""

    USD = "USD"
    CPU_HOURS = "cpu-hours"

    def written(self, amount: float) -> str:
        """An amount without its unit, as people read it."""
        return format_usd(amount) if self is Unit.USD else format_count(amount)


@dataclass(frozen=True, slots=True)
class PeriodBudget:
    """One budget.

    :param name: unique
    :param who: whose jobs count
    :param most: what they may cost in a period
    :param unit: what that is counted in
    :param per: how long a period is
    :param zone: the time zone of the calendar
    """

    name: str
    who: Who
    most: float
    unit: Unit = Unit.USD
    per: Period = "month"
    zone: str = "UTC"

    def period(self, now: float) -> tuple[float, float]:
        """When the period of a moment begins, and when the next one does, epoch seconds."""
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
    """When a day begins, epoch seconds; where clocks are set forward then, its first moment."""
    return datetime.datetime.combine(day, datetime.time(), zone).timestamp()


class BudgetUse(NamedTuple):
    """How a budget stands.

    :param spent: in this period until now
    :param per_hour: what the jobs at work add in an hour
    :param since: when the period has begun, epoch seconds; ``until``: when the next one begins
    :param lifted_by: who has lifted it for this period; None: it is not lifted
    :param promised: the cpu-hours that jobs will still use which sites were given
    """

    budget: PeriodBudget
    spent: float
    per_hour: float
    since: float
    until: float
    lifted_by: str | None = None
    promised: float = 0.0

    @property
    def part(self) -> float:
        """What part of it is spent; it may be more than 1, for what runs goes on."""
        return self.spent / self.budget.most

    @property
    def is_near(self) -> bool:
        """Whether so much is spent that it is warned of."""
        return self.part >= NEAR

    @property
    def is_spent(self) -> bool:
        """Whether nothing more is launched."""
        return self.part >= 1 and self.lifted_by is None

    @property
    def for_starts(self) -> HourBudget | None:
        """The same as starts are bounded by it; None: they are not."""
        if self.budget.unit is not Unit.CPU_HOURS or self.lifted_by is not None:
            return None
        return HourBudget(self.budget.name, self.budget.most, self.spent, self.promised, self.until)

    @property
    def reason(self) -> Reason:
        """Why nothing more is launched."""
        code = "budget_spent" if self.budget.unit is Unit.USD else "budget_spent_cpu_hours"
        spent = by_hundredth(self.spent, self.budget.most)
        return because(code, budget=self.budget.name, spent=spent, most=self.budget.most, until=self.until)

    @property
    def for_launches(self) -> Budget | None:
        """The same as launches are bounded by it; None: they are not."""
        if self.budget.unit is not Unit.USD or self.lifted_by is not None:
            return None
        return Budget(self.budget.name, self.budget.most, self.spent, self.per_hour, self.until)


class BudgetTerms(NamedTuple):
    """What budgets allow the jobs of a tenant.

    :param launches: what launches for them are bounded by
    :param held: why none of those that wait may start; None: some may
    :param starts: what their starts are bounded by
    :param withdrawn: why those are withdrawn that sites were given and that have not started; None: they are not
    """

    launches: tuple[Budget, ...] = ()
    held: Reason | None = None
    starts: tuple[HourBudget, ...] = ()
    withdrawn: Reason | None = None

    @property
    def may_launch(self) -> bool:
        """Whether anything may be launched for them, also before they wait."""
        return self.held is None and all(each.spent < each.most for each in self.launches)


NO_BUDGETS = BudgetTerms()


def budget_terms(uses: Iterable[BudgetUse], tenant: Tenant) -> BudgetTerms:
    """What budgets allow the jobs of a tenant, who may have several."""
    its = [each for each in uses if each.budget.who.meets(tenant)]
    launches = tuple(each for each in (one.for_launches for one in its) if each is not None)
    starts = tuple(each for each in (one.for_starts for one in its) if each is not None)
    spent = next((each.reason for each in its if each.budget.unit is Unit.CPU_HOURS and each.is_spent), None)
    held = spent or next((hours_promised(each) for each in starts if 0 < each.most - each.spent <= each.promised), None)
    return BudgetTerms(launches, held, starts, spent)


def may_start(budget: HourBudget, more: float) -> bool:
    """Whether a budget has cpu-hours left for one more job: one may start in any case until all is spent.

    :param more: what it will use
    """
    left = budget.most - budget.spent
    return left > 0 and (budget.promised == 0 or budget.promised + more <= left)


def hours_promised(budget: HourBudget) -> Reason:
    """Why a job may not start for which a budget has nothing left, or not enough."""
    parts = {name: by_hundredth(getattr(budget, name), budget.most) for name in ("spent", "promised")}
    return because("budget_promised", budget=budget.name, most=budget.most, until=budget.until, **parts)


def foreseen_hours(cpus: float, seconds: float | None, ran: float | None = None) -> float:
    """The cpu-hours that a job will still use.

    :param cpus: on all of its nodes
    :param seconds: that it will run; None: that is not known, and it counts as if it stayed for an hour
    :param ran: seconds for which it has run; None: it has not begun
    """
    return cpus * (SECONDS_UNFORESEEN if seconds is None else max(0.0, seconds - (ran or 0.0))) / 3600
