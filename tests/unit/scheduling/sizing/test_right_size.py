from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.operators import resources
from lading.scheduling.hints.expressions import ExpressionFacts
from lading.scheduling.hints.hints import Hints
from lading.scheduling.sizing import right_size as sizing
from lading.scheduling.sizing.right_size import FEWEST_TRIES, RightSize, line, measure, quantile, sizes
from lading.scheduling.sizing.usage import MOST_NEWEST, MOST_OUTERMOST, Usage, Use


def usage(uses: Iterable[Use]) -> Usage:
    found = Usage()
    for use in uses:
        found.add(use)
    return found


def right_size(uses: Iterable[Use]) -> RightSize:
    return sizing.right_size(usage(uses))


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=60), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_is_the_least_value_that_a_share_does_not_exceed(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found is not None
    assert sum(each <= found for each in values) >= share * len(values) - 1e-6
    assert sum(each < found for each in values) < share * len(values)


USES = st.lists(
    st.builds(
        Use, st.floats(0.1, 64), st.integers(1, 10**6), st.floats(0, 1e6), st.none() | st.integers(1, 10**6),
        st.none() | st.floats(0, 1e6), st.sampled_from([None, "out_of_memory", "time_limit", "error"]), st.floats(0, 9),
        st.none() | st.integers(-(10**9), 10**13), st.booleans(),
    ),
    max_size=100,
)  # fmt: skip


@given(USES, st.integers(0, 100))
def test_what_is_kept_and_added_up_later_says_the_same(uses: list[Use], cut: int) -> None:
    kept = usage(uses[cut:])
    kept.add_older(Usage.load(usage(uses[:cut]).dump()))
    at_once = usage(uses)
    assert (kept.tries, kept.short) == (at_once.tries, at_once.short)
    assert (kept.hours, kept.cpu_hours, kept.gib_hours) == pytest.approx(
        (at_once.hours, at_once.cpu_hours, at_once.gib_hours)
    )
    assert [use.peak_memory for use in kept.newest] == [use.peak_memory for use in at_once.newest]


@given(USES)
def test_the_summary_of_any_number_of_tries_is_small_and_has_the_largest(uses: list[Use]) -> None:
    kept = usage(uses * 3)
    assert len(kept.sample) <= MOST_NEWEST + MOST_OUTERMOST
    assert len(kept.dump()) <= 4096
    needs = [use.memory_bound or use.peak_memory or 0 for use in uses]
    assert max((use.memory_bound or use.peak_memory or 0 for use in kept.sample), default=0) == max(needs, default=0)
    again = Usage.load(kept.dump())
    assert (again.tries, len(again.newest), len(again.outermost)) == (
        kept.tries, len(kept.newest), len(kept.outermost)
    )  # fmt: skip


def test_the_sums_of_development_versions_still_count() -> None:
    text = '{"tries": 3, "short": 1, "hours": 2.0, "cpu_hours": 4.0, "gib_hours": 8.0, "seen": {"memory": {"320": 2}}}'
    known = Usage.load(text)
    assert (known.tries, known.cpu_hours, list(known.sample)) == (3, 4.0, [])


def test_tries_that_ran_out_count_as_more_than_they_had() -> None:
    fine = [Use(1, 1000, 60, peak_memory=100 + number) for number in range(60)]
    short = [Use(1, 500, 60, peak_memory=480, cause="out_of_memory") for _ in range(10)]
    assert 159 < (right_size(fine).memory.nearly_all or 0) < 172
    found = right_size([*fine, *short])
    assert found.short == 10
    assert found.memory.nearly_all == 2 * 500, "as a repetition gets: slightly more than they had may not be enough"
    larger = Use(1, 1000, 60, peak_memory=800)
    assert 800 < (right_size([*fine, *short, larger]).memory.nearly_all or 0) < 900, "a try has shown what is enough"
    by_input = [Use(1, 1000, 60, peak_memory=100 * number, input_size=number * 2**20) for number in range(1, 9)]
    fitted = sizing.advised_sizes(usage([*by_input, Use(1, 900, 60, cause="out_of_memory", input_size=8 * 2**20)]))
    assert (fitted.amount("memory", 8 * 2**20) or 0) >= 2 * 900, "where inputs explain the need, that of these inputs"
    assert (fitted.amount("memory", 2**20) or 0) < 500


def test_an_early_failure_does_not_pass_for_a_short_run() -> None:
    fine = [Use(1, 1000, 600) for _ in range(20)]
    failed = [Use(1, 1000, 1, cause="error") for _ in range(20)]
    assert right_size([*fine, *failed]).time == right_size(fine).time


@pytest.mark.parametrize(("number", "known"), [(FEWEST_TRIES - 1, False), (FEWEST_TRIES, True)])
def test_few_tries_are_no_ground_for_advice(number: int, known: bool) -> None:
    found = right_size([Use(4, 8192, 100, peak_memory=1000, cpu_seconds=150) for _ in range(number)])
    assert (found.line is not None, found.memory.nearly_all is not None) == (known, known)


def test_what_would_have_been_saved() -> None:
    found = right_size([Use(4, 8192, 3600, peak_memory=1600, cpu_seconds=5400) for _ in range(20)])
    assert (found.cpus.nearly_all, found.memory.nearly_all, found.time.nearly_all) == (1.5, 1624, 4380)
    assert found.saved_cpu_hours == pytest.approx(20 * 2.5)
    assert found.saved_gib_hours == pytest.approx(20 * (8192 - 1624) / 1024)
    assert found.line == 'executor_config=resources(cpus=1.5, memory="1624 MiB", time="1 h 13 min")'


def test_peaks_that_were_sampled_seldom_get_a_larger_margin() -> None:
    seldom = [Use(1, 8192, 3600, peak_memory=1600, is_sampled=True)] * 20
    assert (right_size(seldom).memory.nearly_all or 0) >= 1.04 * 1624


def test_a_short_try_whose_memory_was_sampled_seldom_tells_nothing_of_it() -> None:
    brief = [Use(1, 512, 0.2, peak_memory=2, is_sampled=True)] * 9
    assert sizes(usage(brief)).memory is None
    longer = sizes(usage([*brief, Use(1, 512, 5.0, peak_memory=60, is_sampled=True)])).memory
    assert longer is not None
    assert longer.at(None) > 60


def test_no_try_gets_less_than_what_short_tries_were_seen_to_use() -> None:
    short = [Use(1, 512, 1.2, peak_memory=32, is_sampled=True)] * 20
    found = sizes(usage([*short, *[Use(1, 512, 3.0, peak_memory=2, is_sampled=True)] * 2])).memory
    assert found is not None
    assert found.at(None) > 32


def test_where_inputs_explain_the_need_the_line_is_an_expression_that_suffices() -> None:
    uses = [
        Use(4, 65536, 600, peak_memory=600 + 2000 * size, input_size=size * 2**30) for size in (1, 2, 3, 4, 6, 8, 10)
    ]
    found = right_size(uses)
    assert found.line is not None
    assert found.line.startswith('executor_config=resources(memory="2 * input_size + ') or "input_size" in found.line
    config = eval(found.line.removeprefix("executor_config="), {"resources": resources})
    for use in uses:
        memory = Hints.from_config(config).evaluated(Facts(use.input_size or 0)).memory
        assert (use.peak_memory or 0) < (memory or 0) < 1.1 * (use.peak_memory or 0) + 100
    constant = right_size([Use(4, 65536, 600, peak_memory=use.peak_memory) for use in uses])
    assert found.saved_gib_hours > constant.saved_gib_hours > 0


def test_what_the_line_would_have_wasted_is_beside_what_was_wasted() -> None:
    uses = [Use(4, 8192, 3600, peak_memory=1600) for _ in range(20)]
    found = right_size(uses)
    assert found.wasted == pytest.approx(20 * (8192 - 1600) / 1024)
    assert found.wasted_by_line == pytest.approx(20 * (1624 - 1600) / 1024)
    # A try that ran out has wasted all that it had; with the line one that needs more than it says is repeated.
    failed = right_size([*uses, Use(4, 1024, 3600, peak_memory=1024, cause="out_of_memory")])
    assert failed.wasted == pytest.approx((found.wasted or 0) + 1)
    outlier = right_size([*uses * 6, Use(4, 8192, 3600, peak_memory=6000), *uses])
    assert outlier.memory.nearly_all is not None
    assert outlier.memory.nearly_all < 6000
    assert (outlier.wasted_by_line or 0) > outlier.memory.nearly_all / 1024
    unknown = right_size([Use(4, 8192, 3600)] * 5)
    assert (unknown.wasted, unknown.wasted_by_line) == (None, None)


def test_where_inputs_have_no_files_the_lengths_of_their_lists_explain_the_need() -> None:
    uses = [Use(4, 65536, 600, peak_memory=300 + 2 * length, input_size=-length) for length in (50, 100, 200, 400, 800)]
    for older in ([], [Use(4, 65536, 600, peak_memory=1500, input_size=2**30)]):  # its inputs were files once
        fitted = sizes(usage([*older, *uses * 14]))
        assert fitted.by_length
        assert 700 < (fitted.amount("memory", -200) or 0) < 780
        assert 1100 < (fitted.amount("memory", -400) or 0) < 1200
        assert fitted.amount("memory", None) == fitted.amount("memory", 2**30) >= 1900
        written = line(fitted)
        assert written is not None
        hints = Hints.from_config(eval(written.removeprefix("executor_config="), {"resources": resources}))
        for use in uses:
            memory = hints.evaluated(Facts(0, -(use.input_size or 0))).memory
            assert (use.peak_memory or 0) < (memory or 0) < 1.1 * (use.peak_memory or 0) + 100


class Facts(ExpressionFacts):
    attempt, map_index, runtime = 1, -1, 0.0

    def __init__(self, input_size: int, input_length: int = 0) -> None:
        self._input_size, self._input_length = input_size, input_length

    @property
    def input_size(self) -> int:
        return self._input_size

    @property
    def input_length(self) -> int:
        return self._input_length

    def value(self, name: str) -> object:
        raise AssertionError(name)

    def size(self, name: str) -> int:
        raise AssertionError(name)


@given(USES)
def test_the_line_is_one_that_lading_takes(uses: list[Use]) -> None:
    fitted = sizes(usage(uses))
    written = line(fitted)
    if written is None:
        assert not any((fitted.memory, fitted.cpus, fitted.time))
        return
    hints = Hints.from_config(eval(written.removeprefix("executor_config="), {"resources": resources}))
    assert (hints.cpus, hints.time) == (fitted.amount("cpus", None), fitted.amount("time", None))
    if "memory" in hints.expressions:
        for use in uses:
            size = measure(use.input_size, by_length=fitted.by_length) or 0
            asked = hints.evaluated(Facts(int(size), int(size))).memory or 0
            assert asked >= 0.99 * (fitted.memory.at(size) if fitted.memory else 0)
    else:
        assert hints.memory == fitted.amount("memory", None)
