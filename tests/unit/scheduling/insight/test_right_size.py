from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.operators import resources
from lading.scheduling.hints.hints import Hints
from lading.scheduling.insight.right_size import FEWEST_TRIES, Seen, Use, line, quantile, right_size, size

VALUES = st.lists(st.floats(0, 1e6), min_size=1, max_size=60)


@given(VALUES, st.sampled_from([0.5, 0.95, 0.99]))
def test_without_bounds_it_is_the_ordinary_quantile(values: list[float], share: float) -> None:
    position = math.ceil(share * len(values) - 1e-6)
    assert quantile([Seen(value) for value in values], share) == sorted(values)[position - 1]


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=60), st.data())
def test_what_is_only_a_bound_never_makes_it_less(values: list[tuple[float, bool]], data: st.DataObject) -> None:
    seen = [Seen(*value) for value in values]
    index = data.draw(st.integers(0, len(seen) - 1))
    known = [Seen(each.value) if number == index else each for number, each in enumerate(seen)]
    bound = [Seen(each.value, True) if number == index else each for number, each in enumerate(seen)]
    more, less = quantile(bound, 0.9), quantile(known, 0.9)
    assert more is None or (less is not None and more >= less)


def test_tries_that_ran_out_count_as_more_than_they_had() -> None:
    fine = [Use(1, 1000, 60, peak_memory=100 + number) for number in range(90)]
    short = [Use(1, 500, 60, peak_memory=480, cause="out_of_memory") for _ in range(10)]
    assert right_size(fine).memory.nearly_all == 256, "188 MiB, a fifth more, in whole 64 MiB"
    found = right_size([*fine, *short])
    assert found.short == 10
    assert found.memory.most is None, "nobody has seen how much a tenth of them would have needed"


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
    assert (found.cpus.nearly_all, found.memory.nearly_all, found.time.nearly_all) == (1.5, 1920, 4320)
    assert found.saved_cpu_hours == pytest.approx(20 * 2.5)
    assert found.saved_gib_hours == pytest.approx(20 * (8192 - 1920) / 1024)
    assert found.line == 'executor_config=resources(cpus=1.5, memory="1920 MiB", time="1 h 12 min")'


@given(
    st.lists(st.floats(0, 1e6), min_size=20, max_size=30),
    st.lists(st.floats(0, 500), min_size=20, max_size=30),
    st.lists(st.floats(0, 1e7), min_size=20, max_size=30),
)
def test_the_line_is_one_that_lading_takes(memory: list[float], cpus: list[float], time: list[float]) -> None:
    sizes = [
        size([Seen(each) for each in values], step, 1.2) for values, step in ((memory, 64), (cpus, 0.25), (time, 60))
    ]
    written = line(*sizes)
    assert written is not None
    config = eval(written.removeprefix("executor_config="), {"resources": resources})
    hints = Hints.of(config)
    assert (hints.memory, hints.cpus, hints.time) == tuple(each.nearly_all for each in sizes)
