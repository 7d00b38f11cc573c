"""When a job that waits will start."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.starts.expected_starts import (
    FEWEST_WAITS,
    Backlog,
    FinishedJob,
    KnownWaits,
    Rate,
    StartSource,
    end_interval,
    expected_start,
    likely_interval,
    rate_at_full_load,
)

NOW = 1_800_000_000.0
TIMES = st.none() | st.floats(-5000, 1e6).map(lambda seconds: NOW + seconds)
WAITS = st.lists(st.floats(0, 1e6), max_size=40)


@given(age=st.floats(0, 1e6), planned=TIMES, native=TIMES, waits=st.lists(WAITS, max_size=3))
def test_an_interval_ends_after_it_begins_and_is_not_past(
    age: float, planned: float | None, native: float | None, waits: list[list[float]]
) -> None:
    past = [KnownWaits(each, f"level {number}") for number, each in enumerate(waits)]
    queued_at = NOW - age
    found = expected_start(NOW, queued_at, planned, native, past)
    if planned is not None:
        assert found is not None
        assert found.source is StartSource.FORECAST, "what Lading itself will do goes first"
    if found is not None:
        assert NOW - 1e-3 <= found.since <= found.until
        assert found.text
    elif native is not None:
        assert native < NOW, "what has passed says nothing"
    else:
        age = NOW - queued_at  # the difference of two dates is rounded
        assert all(sum(wait >= age for wait in each) <= FEWEST_WAITS for each in waits)


def test_the_end_of_a_run_is_a_range_around_the_likely_end() -> None:
    since, until = end_interval(NOW, NOW + 3600)
    assert (until - NOW) / (since - NOW) == pytest.approx(3), "the latest is three times as far away as the earliest"
    assert since < NOW + 3600 < until
    assert end_interval(NOW, NOW - 5) == (NOW, NOW + 30), "what should have ended already can still last"


def test_what_is_most_like_it_says_it_if_it_is_known_well_enough() -> None:
    few, many = KnownWaits([60.0] * 4, "task align"), KnownWaits([100.0 * each for each in range(1, 21)], "site hpc")
    found = expected_start(NOW, NOW, past=[few, many])
    assert found is not None
    assert (found.since, found.until, found.text) == (
        NOW + 300,
        NOW + 1800,
        "the waits of 20 earlier tries of site hpc",
    )
    waited = expected_start(NOW, NOW - 1000, past=[few, many])
    assert waited is not None
    assert (waited.since, waited.until) == (NOW - 1000 + 1100, NOW - 1000 + 1900), "shorter waits do not count any more"
    assert waited.text == "the waits of 11 of 20 earlier tries of site hpc: those that waited for 16 min 40 s or longer"
    assert expected_start(NOW, NOW - 5000, past=[few, many]) is None


def test_what_a_batch_system_expects_has_a_margin() -> None:
    found = expected_start(NOW, NOW - 10, native=NOW + 600)
    assert found is not None
    assert (found.since, found.until, found.source) == (NOW + 150, NOW + 960, StartSource.BATCH_SYSTEM)
    assert expected_start(NOW, NOW - 10, native=NOW - 600) is None


def test_of_a_long_queue_of_unknown_speed_earlier_waits_say_nothing() -> None:
    past = [KnownWaits([60.0] * 20, "task align")]
    assert expected_start(NOW, NOW, past=past, backlog=Backlog(2500, None, "at site hpc")) is None
    shared = expected_start(NOW, NOW, past=past, backlog=Backlog(2500, None, "at site hpc", is_shared=True))
    near = expected_start(NOW, NOW, past=past, backlog=Backlog(2, None, "at site hpc"))
    assert shared is not None
    assert shared == near
    assert shared.source is StartSource.PAST_WAITS
    known = expected_start(NOW, NOW, past=past, backlog=Backlog(2500, 76 / 3600, "at site hpc"))
    assert known is not None
    assert (known.source, known.text) == (
        StartSource.BACKLOG,
        "2,500 jobs ahead of it at site hpc; about one start every 47 s",
    )
    texts = {
        0: "no job ahead of it at site hpc",
        1: "1 job ahead of it at site hpc",
        2: "2 jobs ahead of it at site hpc; about one start every 47 s",
    }
    for jobs, text in texts.items():
        found = expected_start(NOW, NOW, backlog=Backlog(jobs, 76 / 3600, "at site hpc"))
        assert found is not None
        assert found.text == text
    assert known.since <= NOW + 33 * 3600 <= known.until
    assert abs(known.until - NOW - 3 * (known.since - NOW)) < 1


@given(st.lists(st.floats(0, 1e5), min_size=1, max_size=20))
def test_an_interval_contains_most_of_the_draws(draws: list[float]) -> None:
    first, last = likely_interval(draws)
    assert last <= 3 * first + 1e-6 or last - first <= 60 + 1e-6

    def inside(since: float, until: float) -> int:
        return sum(since - 1e-6 <= each <= until + 1e-6 for each in draws)

    assert inside(first, last) >= max(inside(each, max(3 * each, each + 60)) for each in draws)


@pytest.mark.parametrize(("seconds", "at"), [(500, 300), (150, 150), (20, 100)])
def test_an_interval_is_around_most_of_the_draws(seconds: float, at: float) -> None:
    backlog = Backlog(20, 0.1, "site hpc finishes", seconds=seconds, draws=(100, 110, 300, 900, 4000))
    found = expected_start(NOW, NOW, backlog=backlog)
    assert found is not None
    assert (found.since - NOW, found.until - NOW) == (pytest.approx(100), pytest.approx(300))
    assert found.at - NOW == pytest.approx(at), "the most likely start is within"


@pytest.mark.parametrize(
    ("seconds", "basis"),
    [
        (56, "the start allows for jobs queued later and for varying lengths"),
        (1200, "about one start every 2 min 30 s"),
        (5600, "the start allows for jobs queued later and for varying lengths"),
    ],
)
def test_the_pace_of_the_jobs_ahead_is_said_only_if_it_gives_the_start(seconds: float, basis: str) -> None:
    draws = [900, 1100, 1300, 2000, 2700]
    found = expected_start(NOW, NOW, backlog=Backlog(7, 0.1, "at site cloud", seconds=seconds, draws=draws))
    assert found is not None
    assert found.text == f"7 jobs ahead of it at site cloud; {basis}"
    assert (found.at == NOW + seconds) is ("every" in found.text)


@given(left=st.floats(0, 1e6))
def test_the_latest_start_by_a_plan_is_three_times_as_far_as_the_earliest_or_a_minute_later(left: float) -> None:
    found = expected_start(NOW, NOW, planned=NOW + left)
    assert found is not None
    first, last = found.since - NOW, found.until - NOW
    assert first <= left <= last
    assert last <= 3 * first + 1e-3 or last - first <= 60 + 1e-3


def test_what_a_plan_starts_together_is_no_rate() -> None:
    waits, since = [(NOW - 100.0, NOW)], NOW - 3600
    assert rate_at_full_load(waits, [], since) is None, "nothing has ended"
    assert rate_at_full_load(waits, [FinishedJob(NOW - 200, 2, 30)] * 9, since) is None, (
        "they ended while nothing waited"
    )
    assert rate_at_full_load([*waits, (NOW - 150, NOW - 50)], [FinishedJob(NOW - 1, 2, 30)] * 15, since) == Rate(
        0.1, 30, 6
    )
