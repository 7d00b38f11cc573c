"""What running jobs say about the lengths of others."""

from __future__ import annotations

import math
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.unfinished import censored_shift, even_quantile, seconds_left, typical_length


@given(st.lists(st.floats(-5.0, 5.0), max_size=20), st.integers(1, 50), st.floats(0.04, 1.0), st.floats(0.0, 1.0))
def test_what_runs_on_makes_the_mean_no_less_and_less_than_the_longest_might(
    passed: list[float], measured: int, spread: float, more: float
) -> None:
    found = censored_shift(passed, measured, spread)
    assert 0 <= found <= len(passed) / measured * (max([0.0, *passed]) + 2 * spread)
    assert censored_shift([each + more for each in passed], measured, spread) >= found - 1e-2 * max(1.0, found)
    assert censored_shift(passed, measured + 1, spread) <= found + 1e-2 * max(1.0, found)


@given(st.integers(0, 1000), st.integers(20, 200))
def test_quantiles_are_spread_evenly_from_wherever_they_are_counted(first: int, number: int) -> None:
    found = sorted(even_quantile(first + each) for each in range(number))
    assert all(0 <= each < 1 for each in found)
    assert max(abs(each - (at + 0.5) / number) for at, each in enumerate(found)) < 4 / number


def test_typical_lengths_have_the_mean_and_the_spread_that_they_stand_for() -> None:
    found = [typical_length(600.0, 0.5, number) for number in range(1000)]
    assert fmean(found) == pytest.approx(600, rel=0.01)
    assert fmean(math.log(each) for each in found) == pytest.approx(math.log(600) - 0.125, abs=0.01)
    assert typical_length(600.0, 0.0, 7) == 600


@given(st.just(0.0) | st.floats(0.001, 5000), st.floats(0.1, 1.0), st.floats(0.01, 0.5))
def test_what_finishes_earlier_has_less_left(passed: float, spread: float, part: float) -> None:
    first, middle, last = (seconds_left(passed, 600.0, spread, each) for each in (part, 0.5, 1 - part))
    assert 0 <= first <= middle <= last
    assert seconds_left(passed, 600.0, spread) == middle
