"""The periods of budgets, and when nothing more is launched."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.budgets import BudgetUse, Period, PeriodBudget, Unit
from lading.scheduling.accounting.who import Who

BERLIN = ZoneInfo("Europe/Berlin")


def moment(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("per", "zone", "now", "since", "until"),
    [
        ("day", "UTC", "2026-11-26T12:00", "2026-11-26T00:00", "2026-11-27T00:00"),
        ("week", "UTC", "2026-11-26T12:00", "2026-11-23T00:00", "2026-11-30T00:00"),
        ("month", "UTC", "2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
        ("month", "UTC", "2028-02-29T12:00", "2028-02-01T00:00", "2028-03-01T00:00"),
        # The day on which clocks are set back has 25 hours.
        ("day", "Europe/Berlin", "2026-10-25T12:00", "2026-10-25T00:00", "2026-10-26T00:00"),
    ],
)
def test_periods_are_those_of_the_calendar(per: Period, zone: str, now: str, since: str, until: str) -> None:
    budget = PeriodBudget("b", Who(), 1.0, Unit.USD, per, zone)
    assert budget.period(moment(now, zone)) == (moment(since, zone), moment(until, zone))


@given(st.sampled_from(["day", "week", "month"]), st.floats(1.5e9, 2.5e9), st.sampled_from(["UTC", "Europe/Berlin"]))
def test_each_moment_is_in_one_period(per: Period, now: float, zone: str) -> None:
    budget = PeriodBudget("b", Who(), 1.0, Unit.USD, per, zone)
    since, until = budget.period(now)
    assert since <= now < until
    assert budget.period(until)[0] == until
    assert budget.period(until - 1)[0] == since


def test_from_eighty_percent_on_it_is_near_and_at_a_hundred_it_is_spent_unless_lifted() -> None:
    budget = PeriodBudget("b", Who(team="b"), 10.0)
    for spent, near, is_spent in ((7.9, False, False), (8.0, True, False), (10.0, True, True), (12.0, True, True)):
        use = BudgetUse(budget, spent, 1.0, 0.0, 100.0)
        assert (use.is_near, use.is_spent) == (near, is_spent)
    lifted = BudgetUse(budget, 12.0, 1.0, 0.0, 100.0, "ann")
    assert (lifted.is_spent, lifted.for_launches) == (False, None)
    bounded = BudgetUse(budget, 4.0, 1.0, 0.0, 100.0).for_launches
    assert bounded is not None
    assert tuple(bounded) == ("b", 10.0, 4.0, 1.0, 100.0)


def test_the_reason_says_until_when() -> None:
    use = BudgetUse(PeriodBudget("team b", Who(team="b"), 10.0), 12.0, 0.0, 0.0, moment("2026-12-01T00:00"))
    assert str(use.reason) == (
        "waits: 12.00 of the 10.00 USD of budget team b are spent: no more machines are launched until 2026-12-01 "
        "00:00:00 UTC"
    )
    assert "can lift the budget" in use.reason.meaning.remedy


def test_what_still_runs_gives_those_that_wait_no_other_reason_each_time() -> None:
    budget = PeriodBudget("b", Who(team="b"), 1000.0, Unit.CPU_HOURS)
    first, later, much_later = (BudgetUse(budget, spent, 1.0, 0.0, 100.0).reason for spent in (1000.2, 1002.0, 1040.0))
    assert first == later != much_later
