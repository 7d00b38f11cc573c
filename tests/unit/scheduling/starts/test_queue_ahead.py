"""When waiting jobs start, as shares and lengths predict it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.accounting.share_table import Kept, Share, Shares
from lading.scheduling.accounting.share_usage import Mean
from lading.scheduling.accounting.who import Who
from lading.scheduling.starts.queue_ahead import (
    DRAWS,
    Alike,
    DrawnStarts,
    ExpectedArrival,
    QueueAhead,
    Running,
    ShareLine,
)

LEVEL = (True, 0, 0)
A, B = ShareLine(LEVEL, "a"), ShareLine(LEVEL, "b")


def shares(**weights: float) -> Shares:
    return Shares(tuple(Share(name, Who(team=name), weight) for name, weight in weights.items()))


def starts(found: QueueAhead, line: ShareLine, jobs: int) -> list[float]:
    return [found.start(line, number)[0] for number in range(jobs)]


def test_jobs_of_one_line_start_as_those_before_them_finish() -> None:
    found = QueueAhead(
        {A: [Alike(3, 1, 100), Alike(2, 2, 50)]}, [Running("a", 1, 10), Running("a", 1, 30)], 2, Shares(), {}
    )
    assert starts(found, A, 5) == [10, 30, 110, 210, 260]
    assert [found.start(A, number)[1] for number in range(5)] == [0, 1, 2, 3, 4]


def test_shares_start_jobs_by_their_weights() -> None:
    """A share of twice the weight has two of three cpus, and starts two of three jobs of equal length."""
    found = QueueAhead({A: [Alike(60, 1, 90)], B: [Alike(60, 1, 90)]}, [], 3, shares(a=2, b=1), {})
    assert sum(at < 900 for at in starts(found, A, 60)) == 20
    assert sum(at < 900 for at in starts(found, B, 60)) == 10


def test_a_share_with_short_jobs_starts_more_of_them() -> None:
    found = QueueAhead({A: [Alike(60, 1, 10)], B: [Alike(60, 1, 100)]}, [], 2, shares(a=1, b=1), {})
    assert starts(found, A, 60)[-1] == 590
    assert starts(found, B, 6)[-1] == 500


def test_what_is_kept_for_a_share_is_given_to_it_first() -> None:
    table = Shares((Share("a", weight=100), Share("b", kept=(Kept("lab", {"cpus": 3}),))))
    lines = {A: [Alike(60, 1, 10)], B: [Alike(60, 1, 10)]}
    here = QueueAhead(lines, [], 4, table, {}, "lab")
    assert starts(here, B, 6) == [0, 0, 0, 10, 10, 10]
    elsewhere = QueueAhead(lines, [], 4, table, {}, "other")
    assert starts(elsewhere, B, 2)[0] >= 100


def test_a_share_that_has_used_much_lately_starts_later() -> None:
    lines = {A: [Alike(20, 1, 10)], B: [Alike(20, 1, 10)]}
    found = QueueAhead(lines, [], 4, shares(a=1, b=1), {"a": Mean(0.5, 1.0)})
    assert starts(found, B, 4) == [0, 0, 0, 10]
    assert starts(found, A, 2) == [0, 10]


def test_use_that_was_long_ago_counts_less() -> None:
    """With a half-life of a minute, two shares soon get equal parts, whatever one of them had before."""
    lines = {A: [Alike(400, 1, 10)], B: [Alike(400, 1, 10)]}
    table = Shares(shares(a=1, b=1).table, half_life=60.0)
    found = QueueAhead(lines, [], 4, table, {"a": Mean(1.0, 1.0)})
    begun = {line: [at for at in starts(found, line, 400) if at < 600] for line in (A, B)}
    assert sum(at < 60 for at in begun[A]) < 0.7 * sum(at < 60 for at in begun[B]), "b catches up first"
    assert sum(at >= 300 for at in begun[A]) == pytest.approx(sum(at >= 300 for at in begun[B]), rel=0.1)


def test_a_line_of_a_lower_level_starts_first() -> None:
    given = ShareLine((False, 0, 0), "b")
    found = QueueAhead({A: [Alike(2, 1, 10)], given: [Alike(2, 1, 10)]}, [], 1, shares(a=100, b=1), {})
    assert starts(found, given, 2) == [0, 10]
    assert starts(found, A, 2) == [20, 30]


def test_jobs_that_a_site_is_given_ahead_start_before_those_of_a_share_with_less() -> None:
    table = Shares((Share("a", weight=100), Share("b", kept=(Kept("lab", {"cpus": 2}),))))
    lines = {A: [Alike(60, 1, 10)], B: [Alike(60, 1, 10)]}
    found = QueueAhead(lines, [], 4, table, {}, "lab", given_ahead=4)
    assert starts(found, B, 3) == [0, 0, 20], "a is given four when only two of b are there, and they have not run yet"
    assert starts(QueueAhead(lines, [], 4, table, {}, "lab"), B, 3) == [0, 0, 10]


def test_jobs_run_for_as_long_together_as_their_lengths_vary() -> None:
    """On one cpu the sum of the lengths counts; on many, the longest ones do."""
    one, many = (
        [QueueAhead({A: [Alike(200, 1, 60, spread)]}, [], cpus, Shares(), {}) for spread in (0.0, 0.5)]
        for cpus in (1, 100)
    )
    assert one[1].start(A, 199)[0] == pytest.approx(one[0].start(A, 199)[0], rel=0.02)
    assert many[0].start(A, 100)[0] == 60
    assert many[1].start(A, 100)[0] < 30, "the shortest ends first"
    assert many[1].start(A, 199)[0] > 60


def test_jobs_beyond_those_that_are_simulated_start_at_the_same_rate() -> None:
    lines = {A: [Alike(1000, 1, 60)]}
    exact = QueueAhead(lines, [], 10, Shares(), {}).start(A, 999)
    at, before = QueueAhead(lines, [], 10, Shares(), {}, most_compared=400).start(A, 999)
    assert before == exact[1] == 999
    assert at == pytest.approx(exact[0], rel=0.1)


def test_an_overtaken_job_starts_no_earlier_than_the_last_simulated_one() -> None:
    given = ShareLine((False, 0, 0), "a")
    lines = {given: [Alike(1, 4, 10), Alike(5, 1, 20)], A: [Alike(100, 1, 20)]}
    found = QueueAhead(lines, [Running("a", 1, 200)], 4, Shares(), {}, most_compared=10)
    assert (found.last, found.count) == (20, 5), "the simulation ends before the first job starts"
    assert found.start(given, 0) == (20, 5)
    assert found.start(A, 0) == (pytest.approx(20 + 40 / 3.5), 6), "after all given jobs; 3.5 of 4 cpus are in use"
    assert found.start(A, 5) == (pytest.approx(20 + 140 / 3.5), 11)


OF_MANY = [ShareLine(LEVEL, name) for name in "abcdefghij"]
KEEPING = Shares((Share("a", weight=100), Share("b", kept=(Kept(None, {"cpus": 5}),))))
URGENT, LATER = ShareLine((True, -1, 0), "a"), ShareLine((True, 1, 0), "a")


@pytest.mark.parametrize(
    ("lines", "table"),
    [
        ({line: [Alike(1, 1, 60)] * 400 for line in OF_MANY}, Shares()),
        ({line: [Alike(1, 1, 20 + 7 * number)] * 400 for number, line in enumerate(OF_MANY)}, Shares()),
        ({line: [Alike(1, 1, 60)] * (80 * number + 80) for number, line in enumerate(OF_MANY)}, Shares()),
        ({A: [Alike(1, 1, 60)] * 1500, B: [Alike(1, 2, 30)] * 1500}, shares(a=3, b=1)),
        ({A: [Alike(1, 1, 60)] * 1500, B: [Alike(1, 1, 60)] * 1500}, KEEPING),
        ({URGENT: [Alike(1, 1, 60)] * 1000, A: [Alike(1, 1, 60)] * 1000, LATER: [Alike(1, 1, 60)] * 1000}, Shares()),
    ],
    ids=["equal shares", "other lengths", "other numbers", "other weights", "kept", "priorities"],
)
@pytest.mark.parametrize("given_ahead", [0.0, 10.0])
def test_all_jobs_ahead_count_beyond_those_that_are_simulated(
    lines: dict[ShareLine, list[Alike]], table: Shares, given_ahead: float
) -> None:
    exact = QueueAhead(lines, [], 10, table, {}, None, given_ahead)
    part = QueueAhead(lines, [], 10, table, {}, None, given_ahead, most_compared=1000)
    assert part.count < sum(map(len, lines.values())) / 2
    for line, jobs in lines.items():
        for number in range(0, len(jobs), 40):
            (at, before), expected = part.start(line, number), exact.start(line, number)
            assert at == pytest.approx(expected[0], rel=0.25, abs=60), (line, number)
            assert before == pytest.approx(expected[1], rel=0.25, abs=10), (line, number)


class CountedSize(float):
    """Counts how often it is compared."""

    compared = 0

    def __truediv__(self, other: float) -> CountedSize:
        return CountedSize(float(self) / other)

    def __le__(self, other: float) -> bool:
        CountedSize.compared += 1
        return float(self) <= other

    def __gt__(self, other: float) -> bool:
        CountedSize.compared += 1
        return float(self) > other


@pytest.mark.parametrize("jobs", [100, 1000])
def test_the_end_of_a_job_takes_no_more_steps_if_more_jobs_wait(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hundred jobs of 1 cpu end one by one; every fourth end starts a job of 4 cpus."""
    monkeypatch.setattr(CountedSize, "compared", 0)
    given = ShareLine((False, 0, 0), "a")
    lines = {given: [Alike(jobs, CountedSize(4), 1e6)], A: [Alike(1, 1, 1e6)]}
    running = [Running("a", 1, at) for at in range(1, 201)]
    found = QueueAhead(lines, running, 200, Shares(), {})
    begun = [at for at in starts(found, given, jobs) if at <= 200]
    assert begun[:3] == [4, 8, 12]
    assert len(begun) == 50
    assert CountedSize.compared < 10 * (len(running) + jobs)


def test_comparisons_of_sizes_are_limited() -> None:
    """The first job needs two cpus and one is free, so each start compares the sizes of the small jobs behind it."""
    given = ShareLine((False, 0, 0), "a")
    lines = {given: [Alike(1, 2, 10), *(Alike(1, 1 - number / 1000, 10) for number in range(100))]}
    running = [Running("a", 1, 1000)]
    assert QueueAhead(lines, running, 2, Shares(), {}).count == 101
    assert QueueAhead(lines, running, 2, Shares(), {}, most_compared=100 + 99 + 98).count == 3


def test_a_smaller_job_overtakes_for_a_minute() -> None:
    """Three cpus are free, and a job needs four. After a minute, they are kept free for it."""
    lines = {A: [Alike(1, 4, 10)], B: [Alike(1, 1, 10), Alike(10, 1, 40)]}
    found = QueueAhead(lines, [Running("a", 1, 200)], 4, shares(a=100, b=1), {}, given_ahead=4)
    assert found.start(A, 0)[0] == 200
    assert [at for at in starts(found, B, 11) if at < 200] == [0, 0, 0, 10, 40, 40, 50]


def test_draws_vary_as_lengths_do_and_are_the_same_each_time() -> None:
    running = [Running("a", 1, 10, 0.0, 10.0, 0.5, "task", 0.1)]
    lines = {A: [Alike(40, 1, 10, 0.5, "task", 0.1)]}
    first, again = (DrawnStarts(QueueAhead(lines, running, 1, Shares(), {}), [], 0.0) for _ in range(2))
    found = first.seconds(A, 20)
    assert found == again.seconds(A, 20)
    assert len(found) == DRAWS
    assert 0.6 * 200 < min(found) < 200 < max(found) < 1.6 * 200
    queue = QueueAhead({A: [Alike(40, 1, 10)]}, [Running("a", 1, 10)], 1, Shares(), {})
    assert DrawnStarts(queue, [], 0.0).seconds(A, 20) == [queue.start(A, 20)[0]] * DRAWS


def test_draws_of_all_jobs_of_a_task_are_longer_or_shorter() -> None:
    unsure, sure = (
        DrawnStarts(QueueAhead({A: [Alike(100, 1, 5, 0.1, "task", doubt)]}, [], 1, Shares(), {}), [], 0.0)
        for doubt in (0.4, 0.0)
    )
    spans = [max(its) / min(its) for its in (unsure.seconds(A, 90), sure.seconds(A, 90))]
    assert spans[0] > 2
    assert spans[1] < 1.2


def test_jobs_of_another_share_that_are_likely_to_be_queued_are_expected_to_overtake() -> None:
    queue = QueueAhead({A: [Alike(100, 1, 10)]}, [], 2, shares(a=1, b=2), {})
    without, some = DrawnStarts(queue, [], 0.0), DrawnStarts(queue, [ExpectedArrival(B, Alike(20, 1, 10))], 200.0)
    assert without.seconds(A, 90) == [45 * 10] * DRAWS
    assert min(some.seconds(A, 90)) > 45 * 10
    behind = DrawnStarts(queue, [ExpectedArrival(A, Alike(20, 1, 10))], 200.0)
    assert behind.seconds(A, 90) == without.seconds(A, 90), "its own share starts jobs in the order of their queueing"


def test_late_starts_are_not_drawn() -> None:
    drawn = DrawnStarts(QueueAhead({A: [Alike(2000, 1, 60)]}, [], 10, Shares(), {}), [], 0.0)
    assert drawn.seconds(A, 90)
    assert not drawn.seconds(A, 1999)


def test_a_draw_in_which_a_job_does_not_start_counts_as_its_horizon() -> None:
    drawn = DrawnStarts(QueueAhead({A: [Alike(100, 1, 10, 0.1, "task", 0.9)]}, [], 1, Shares(), {}), [], 0.0)
    found = sorted(drawn.seconds(A, 80))
    assert len(found) == DRAWS
    missed = found.count(drawn.horizon)
    assert 0 < missed < DRAWS / 2
    assert found[-missed - 1] < drawn.horizon
    assert max(drawn.seconds(A, 10)) < drawn.horizon


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 20), st.integers(0, 8), st.floats(0, 1000)), max_size=8),
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.1, 4), st.floats(0, 1000)), min_size=1, max_size=5),
    st.floats(0, 2),
)  # fmt: skip
def test_jobs_of_a_line_start_in_order_whatever_is_known(
    waiting: list[tuple[str, int, int, float]], running: list[tuple[str, float, float]], ahead: float
) -> None:
    lines: dict[ShareLine, list[Alike]] = {}
    for share, jobs, cpus, seconds in waiting:
        lines.setdefault(ShareLine(LEVEL, share), []).append(Alike(jobs, cpus, seconds, 0.5))
    at_work = [Running(*each) for each in running]
    room = sum(each.cpus for each in at_work)
    found = QueueAhead(lines, at_work, room, shares(a=2, b=1), {"a": Mean(0.3, 1.0)}, given_ahead=ahead * room)
    for line, alike in lines.items():
        its = starts(found, line, sum(each.jobs for each in alike))
        assert all(at >= 0 for at in its)
        sizes = [each.cpus for each in alike for _ in range(each.jobs)]
        for size in {*sizes}:
            # A smaller job can overtake a larger one.
            its_size = [at for at, cpus in zip(its, sizes, strict=True) if cpus == size]
            assert its_size == sorted(its_size)


def test_thousands_of_jobs_that_a_site_has_do_not_end_the_simulation_before_it_begins() -> None:
    names = [f"s{number}" for number in range(5)]
    lines = {ShareLine((False, 0, 0), name): [Alike(30, 1, 10)] for name in names}
    found = QueueAhead(lines, [Running("s0", 1, 10)], 1, shares(**dict.fromkeys(names, 1)), {}, most_compared=100)
    assert found.start(ShareLine((False, 0, 0), "s4"), 29)[0] >= 1000
