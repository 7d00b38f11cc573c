"""What running jobs say about the lengths of others."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.unfinished import censored_shift


@given(st.lists(st.floats(-5.0, 5.0), max_size=20), st.integers(1, 50), st.floats(0.04, 1.0), st.floats(0.0, 1.0))
def test_what_runs_on_makes_the_mean_no_less_and_less_than_the_longest_might(
    passed: list[float], measured: int, spread: float, more: float
) -> None:
    found = censored_shift(passed, measured, spread)
    assert 0 <= found <= len(passed) / measured * (max([0.0, *passed]) + 2 * spread)
    assert censored_shift([each + more for each in passed], measured, spread) >= found - 1e-2 * max(1.0, found)
    assert censored_shift(passed, measured + 1, spread) <= found + 1e-2 * max(1.0, found)
