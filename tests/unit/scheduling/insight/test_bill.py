"""Extrapolating what has been spent."""

from __future__ import annotations

import pytest

from lading.scheduling.insight.bill import SpendingRate


def test_an_amount_and_the_time_when_it_is_reached_agree() -> None:
    spending = SpendingRate(spent=10.0, per_hour=2.0, at=1000.0)
    assert spending.by(1000.0 + 3 * 3600) == pytest.approx(16.0)
    assert spending.reaches(16.0) == pytest.approx(1000.0 + 3 * 3600)
    assert spending.reaches(5.0) == 1000.0, "already spent"


def test_the_mean_rate_includes_today_and_at_least_an_hour() -> None:
    assert SpendingRate.mean(10.0, since=0.0, at=5 * 3600.0) == SpendingRate(10.0, 2.0, 5 * 3600.0)
    assert SpendingRate.mean(10.0, since=0.0, at=60.0).per_hour == 10.0


def test_without_a_rate_nothing_more_is_spent() -> None:
    spending = SpendingRate(spent=10.0, per_hour=0.0, at=1000.0)
    assert spending.by(9000.0) == 10.0
    assert (spending.reaches(10.0), spending.reaches(11.0)) == (1000.0, None)
