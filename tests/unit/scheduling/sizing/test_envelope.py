"""The envelope of what tries need, over the size of their inputs."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.sizing.envelope import Point, fit, upper_hull

GIB = 2**30
POINTS = st.lists(
    st.builds(Point, st.none() | st.floats(0, 1e13), st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=60
)


def points(*values: tuple[float | None, float]) -> list[Point]:
    return [Point(size, value, 60) for size, value in values]


@given(POINTS)
def test_what_was_used_would_have_been_enough_for_all_but_a_few(tries: list[Point]) -> None:
    envelope = fit(tries, len(tries))
    assert envelope is not None
    short = [each for each in tries if envelope.at(each.size) < each.value * (1 - 1e-9)]
    assert not short, "fewer than eighty tries leave none out"


@given(POINTS, st.floats(1, 1e6), st.none() | st.floats(0, 1e13))
def test_no_job_gets_less_than_what_was_too_little_for_such_inputs(
    tries: list[Point], bound: float, size: float | None
) -> None:
    envelope = fit(tries, len(tries), bounds=[Point(size, bound, 60)])
    assert envelope is not None
    assert envelope.at(None) > bound
    if not envelope.slope or size is not None:
        assert envelope.at(size) > bound


def test_a_job_that_had_too_little_gets_more_where_the_line_begins_below_zero() -> None:
    steep = [Point(GIB * number, 1000.0 * number - 900, 60) for number in range(1, 9)]
    envelope = fit(steep, len(steep), bounds=[Point(GIB, 150.0, 60)])
    assert envelope is not None
    assert envelope.slope
    assert envelope.base < 0
    assert envelope.at(GIB) > 150


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1e6)), min_size=1, max_size=50))
def test_no_point_is_above_the_hull(corners: list[tuple[float, float]]) -> None:
    hull = upper_hull(corners)
    assert set(hull) <= set(corners)
    assert [x for x, _ in hull] == sorted({x for x, _ in hull})
    for x, y in corners:
        (left, low), (right, high) = next(
            (pair for pair in itertools.pairwise(hull) if pair[0][0] <= x <= pair[1][0]), (hull[0], hull[0])
        )
        edge = max(low, high) if right == left else low + (high - low) * (x - left) / (right - left)
        assert y <= edge * (1 + 1e-6) + 1e-6 or x in (hull[0][0], hull[-1][0])


def test_nothing_is_known_without_tries_and_little_with_failures_alone() -> None:
    assert fit([], 0) is None
    envelope = fit([], 2, bounds=points((None, 512), (None, 1024)))
    assert envelope is not None
    assert (envelope.at(None), envelope.at(GIB)) == (2048, 2048)


def test_the_margin_shrinks_with_the_number_of_tries_and_with_their_spread() -> None:
    alike = [fit(points(*[(None, 1000.0)] * number), number) for number in (1, 2, 4, 16)]
    amounts = [each.constant for each in alike if each is not None]
    assert amounts == sorted(amounts, reverse=True)
    assert amounts[0] == pytest.approx(1152)
    assert amounts[-1] < 1005
    chance = random.Random(1)
    spread = fit(points(*[(None, 1000 - chance.expovariate(0.01)) for _ in range(16)]), 16)
    assert spread is not None
    assert spread.constant > 1040


def test_a_line_is_taken_where_inputs_explain_the_need_and_is_not_believed_far_beyond_them() -> None:
    line = fit(points(*[(size * GIB, 500 + 2000 * size) for size in (1, 2, 3, 5, 8, 10)]), 6)
    assert line is not None
    assert line.at(2 * GIB) == pytest.approx(4500, rel=0.02)
    assert line.at(10 * GIB) == pytest.approx(20500, rel=0.02)
    assert line.at(None) >= 20500
    assert line.at(1000 * GIB) == line.at(20 * GIB)
    few = fit(points((GIB, 1000), (2 * GIB, 2000), (3 * GIB, 3000)), 3)
    assert few is not None
    assert not few.slope, "three tries make no line"
    unrelated = fit(points(*[(size * GIB, 1000.0) for size in range(1, 9)]), 8)
    assert unrelated is not None
    assert not unrelated.slope


def test_one_outlier_of_a_hundred_is_left_to_a_second_try() -> None:
    tries = points(*[(None, 1000.0 + number % 7) for number in range(99)], (None, 9000.0))
    envelope = fit(tries, 100)
    assert envelope is not None
    assert envelope.at(None) < 1100
    again = envelope.after(1050)
    assert 9000 < again < 9500, "which gets the largest that was seen, and some more"
    assert envelope.after(again) == pytest.approx(2 * again), "and then twice as much"
