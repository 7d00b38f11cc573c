"""What shares have used lately, and what belongs to them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.share_table import OTHERS, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Mean, Standing, UseHistory, entitled
from lading.scheduling.accounting.who import Who

HALF = 100.0


@given(st.lists(st.tuples(st.floats(0, 1000), st.floats(0, 1)), max_size=20))
def test_a_mean_lies_between_the_parts(steps: list[tuple[float, float]]) -> None:
    mean = Mean()
    for seconds, part in steps:
        mean = mean.after(seconds, part, HALF)
    parts = [part for seconds, part in steps if seconds > 0] or [0.0]
    assert min([*parts, 0.0]) - 1e-9 <= mean.part <= max(parts) + 1e-9


def test_after_a_half_life_what_was_used_counts_half() -> None:
    mean = Mean().after(1e6, 1.0, HALF).after(HALF, 0.0, HALF)
    assert mean.part == pytest.approx(0.5)


def test_it_is_the_same_however_often_it_is_noted() -> None:
    often, seldom = UseHistory(HALF), UseHistory(HALF)
    for now in range(0, 301, 1):
        often.note({"a": 0.5 if now < 100 else 0.25}, now)
    for now, part in ((0, 0.5), (100, 0.25), (300, 0.25)):
        seldom.note({"a": part}, now)
    assert often.lately["a"] == pytest.approx(seldom.lately["a"])


def test_it_outlives_its_controller() -> None:
    before = UseHistory(HALF)
    before.note({"a": 0.8}, 0)
    before.note({"a": 0.8}, 500)
    after = UseHistory(HALF, before.means, before.at)
    after.note({"a": 0.1, "b": 0.1}, 500 + HALF)
    assert after.lately["a"] == pytest.approx(0.5 * before.means["a"].used / after.means["a"].weight)
    assert after.lately["b"] == 0


def test_the_dominant_share_is_the_largest_part() -> None:
    standing = Standing(ShareAmounts(10, 1000, 2), {"a": {"x": ShareAmounts(1, 500), "y": ShareAmounts(1, 0, 1)}})
    assert (standing.part_of("a"), standing.part_of("b")) == (0.5, 0.0)


def test_each_is_entitled_to_its_weight() -> None:
    shares = Shares((Share("a", Who(team="a"), 3), Share("b", Who(team="b"), 1)))
    assert entitled(shares, ["a"]) == {"a": 0.75, "b": 0.25}
    assert entitled(shares, [OTHERS])[OTHERS] == 0.2
    assert entitled(Shares(), ["dag1", "dag2"]) == {"dag1": 0.5, "dag2": 0.5}
