"""Extrapolating what has been spent."""

from __future__ import annotations

import pytest

from lading.scheduling.accounting.bill import SpendingOutlook, hours_of_work


def test_an_amount_and_the_time_when_it_is_reached_agree() -> None:
    spending = SpendingOutlook(spent=10.0, per_hour=2.0, at=1000.0)
    assert spending.by(1000.0 + 3 * 3600) == pytest.approx(16.0)
    assert spending.reaches(16.0) == pytest.approx(1000.0 + 3 * 3600)
    assert spending.reaches(5.0) == 1000.0, "already spent"


def test_the_mean_rate_includes_today_and_at_least_an_hour() -> None:
    assert SpendingOutlook.mean(10.0, since=0.0, at=5 * 3600.0) == SpendingOutlook(10.0, 2.0, 5 * 3600.0)
    assert SpendingOutlook.mean(10.0, since=0.0, at=60.0).per_hour == 10.0


def test_without_a_rate_nothing_more_is_spent() -> None:
    spending = SpendingOutlook(spent=10.0, per_hour=0.0, at=1000.0)
    assert spending.by(9000.0) == 10.0
    assert (spending.reaches(10.0), spending.reaches(11.0)) == (1000.0, None)


def test_the_present_rate_counts_while_the_queue_lasts_and_then_the_mean() -> None:
    spending = SpendingOutlook(spent=10.0, per_hour=1.0, at=0.0, present=4.0, hours=hours_of_work(6.0, 2.0))
    assert spending.by(2 * 3600.0) == pytest.approx(10 + 2 * 4)
    assert spending.by(5 * 3600.0) == pytest.approx(10 + 3 * 4 + 2 * 1)
    assert spending.reaches(18.0) == pytest.approx(2 * 3600)
    assert spending.reaches(24.0) == pytest.approx(5 * 3600)
    assert SpendingOutlook(10.0, 0.0, 0.0, 4.0, 3.0).reaches(22.1) is None
    assert hours_of_work(6.0, 0.0) == 0.0
