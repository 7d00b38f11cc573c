from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.operators import resources
from lading.scheduling.hints.hints import Hints
from lading.scheduling.insight import right_size as sizing
from lading.scheduling.insight.right_size import FEWEST_TRIES, RightSize, line, quantile, size
from lading.scheduling.insight.usage import (
    STEPS,
    Histogram,
    Usage,
    Use,
    bucket,
    largest_input,
    size_class,
    upper_edge,
)  # fmt: skip

VALUES = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60)
STEP = 2 ** (1 / STEPS)


def usage(uses: Iterable[Use]) -> Usage:
    found = Usage()
    for use in uses:
        found.add(use)
    return found


def right_size(uses: Iterable[Use]) -> RightSize:
    return sizing.right_size(usage(uses))


def histogram(values: Iterable[float]) -> Histogram:
    return Histogram(map(bucket, values))


@given(st.floats(0.001, 1e12))
def test_a_value_is_known_to_its_bucket(value: float) -> None:
    assert value <= upper_edge(bucket(value)) * (1 + 1e-6) <= value * STEP * (1 + 1e-5)


@given(VALUES, st.sampled_from([0.5, 0.95, 0.99]))
def test_without_bounds_it_is_the_ordinary_quantile(values: list[float], share: float) -> None:
    exact = sorted(values)[math.ceil(share * len(values) - 1e-6) - 1]
    found = quantile(histogram(values), Histogram(), share)
    assert found == upper_edge(bucket(exact))


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=60), st.data())
def test_what_is_only_a_bound_never_makes_it_less(values: list[tuple[float, bool]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(values) - 1))

    def found(is_bound: bool) -> float | None:
        seen = [(value, is_bound if number == index else other) for number, (value, other) in enumerate(values)]
        return quantile(*(histogram(value for value, other in seen if other is which) for which in (False, True)), 0.9)

    more, less = found(True), found(False)
    assert more is None or (less is not None and more >= less)


USES = st.lists(
    st.builds(
        Use, st.floats(0.1, 64), st.integers(1, 10**6), st.floats(0, 1e6), st.none() | st.integers(1, 10**6),
        st.none() | st.floats(0, 1e6), st.sampled_from([None, "out_of_memory", "time_limit", "error"]), st.floats(0, 9),
    ),
    max_size=30,
)  # fmt: skip


@given(USES, st.integers(0, 30))
def test_what_is_kept_and_added_up_later_says_the_same(uses: list[Use], cut: int) -> None:
    kept = Usage.load(usage(uses[:cut]).dump())
    kept.merge(usage(uses[cut:]))
    at_once = usage(uses)
    assert kept.seen == at_once.seen
    assert (kept.tries, kept.short) == (at_once.tries, at_once.short)
    assert (kept.hours, kept.cpu_hours, kept.gib_hours) == pytest.approx(
        (at_once.hours, at_once.cpu_hours, at_once.gib_hours)
    )


@given(st.integers(0, 2**60))
def test_classes_of_inputs_are_four_times_as_large_as_those_before(size: int) -> None:
    largest = largest_input(size_class(size))
    assert largest is not None
    assert size < largest <= max(4 * size, 1)
    assert largest_input(size_class(None)) is None


def test_tries_that_ran_out_count_as_more_than_they_had() -> None:
    fine = [Use(1, 1000, 60, peak_memory=100 + number) for number in range(90)]
    short = [Use(1, 500, 60, peak_memory=480, cause="out_of_memory") for _ in range(10)]
    assert right_size(fine).memory.nearly_all == 256, "188 MiB, a fifth more, in whole 64 MiB"
    found = right_size([*fine, *short])
    assert found.short == 10
    assert found.memory.most is None, "how much a tenth of them would have needed was never observed"


def test_an_early_failure_does_not_pass_for_a_short_run() -> None:
    fine = [Use(1, 1000, 600) for _ in range(30)]
    failed = [Use(1, 1000, 1, cause="error") for _ in range(30)]
    assert right_size([*fine, *failed]).time == right_size(fine).time


@pytest.mark.parametrize(("number", "known"), [(FEWEST_TRIES - 1, False), (FEWEST_TRIES, True)])
def test_few_tries_are_no_ground_for_advice(number: int, known: bool) -> None:
    found = right_size([Use(4, 8192, 100, peak_memory=1000, cpu_seconds=150) for _ in range(number)])
    assert (found.line is not None, found.memory.nearly_all is not None) == (known, known)


def test_what_would_have_been_saved() -> None:
    found = right_size([Use(4, 8192, 3600, peak_memory=1600, cpu_seconds=5400) for _ in range(20)])
    assert (found.cpus.nearly_all, found.memory.nearly_all, found.time.nearly_all) == (1.5, 1984, 4440)
    assert found.saved_cpu_hours == pytest.approx(20 * 2.5)
    assert found.saved_gib_hours == pytest.approx(20 * (8192 - 1984) / 1024)
    assert found.line == 'executor_config=resources(cpus=1.5, memory="1984 MiB", time="1 h 14 min")'


@given(
    st.lists(st.floats(0, 1e6), min_size=20, max_size=30),
    st.lists(st.floats(0, 500), min_size=20, max_size=30),
    st.lists(st.floats(0, 1e7), min_size=20, max_size=30),
)
def test_the_line_is_one_that_lading_takes(memory: list[float], cpus: list[float], time: list[float]) -> None:
    sizes = [
        size(histogram(values), Histogram(), step, 1.2) for values, step in ((memory, 64), (cpus, 0.25), (time, 60))
    ]
    written = line(*sizes)
    assert written is not None
    config = eval(written.removeprefix("executor_config="), {"resources": resources})
    hints = Hints.from_config(config)
    assert (hints.memory, hints.cpus, hints.time) == tuple(each.nearly_all for each in sizes)
