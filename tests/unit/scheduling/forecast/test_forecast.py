"""What is still to come: the longest rests, and the order in which steps are planned."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist, fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast import forecast
from lading.scheduling.forecast.forecast import CycleError, Forecast, RoomWait, WorkflowStep
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources
from lading.scheduling.model.unfinished import MOMENT, MOST_SPREAD, censored_shift


def step(name: str, seconds: float, *parents: str, begun: float | None = None, spread: float = 0.0) -> WorkflowStep:
    return WorkflowStep(PlannedJob(name, Resources(1, 1)), seconds, parents, begun, spread=spread)


def forecast_of(*steps: WorkflowStep) -> Forecast:
    return Forecast({each.job.name: each for each in steps})


def test_the_longest_rest_counts() -> None:
    found = forecast_of(
        step("a", 10, begun=100.0), step("b", 5, "a"), step("c", 20, "a"), step("d", 1, "b", "c", "ended")
    )
    assert found.rests(104.0) == {"a": 6 + 21, "b": 6, "c": 21, "d": 1}
    # What is free of all that does not run yet, and of these the longest rest first.
    assert list(found.by_rest(found.rests(104.0))) == ["c", "b", "d"]


def test_what_waits_has_room_before_what_may_come_late() -> None:
    running, waiting = step("run", 10, begun=100.0), step("z", 900, spread=1.2)
    to_come = replace(step("b", 900, "run"), measured=1)
    unknown = step("a", 5000, "run", spread=1.2)
    found = forecast_of(running, waiting, to_come, unknown)
    assert list(found.by_rest(found.rests(104.0))) == ["z", "b", "a"], "as long as the other, and now; then unknown"
    hinted = forecast_of(running, waiting, to_come, replace(unknown, ahead=True))
    assert list(hinted.by_rest(hinted.rests(104.0))) == ["a", "z", "b"]
    urgent = replace(unknown, job=replace(unknown.job, priority=5))
    assert next(iter(forecast_of(running, waiting, urgent).by_rest({"run": 10, "z": 900, "a": 1}))) == "a"


def test_shares_go_in_turn_and_what_is_to_come_comes_after_what_waits() -> None:
    steps = step("long", 90), step("short", 1), step("other", 5), step("child", 500, "short")
    forecast = forecast_of(*steps)
    turns = {"short": (0, 1.0), "other": (0, 2.0), "long": (0, 3.0)}
    in_turn = replace(forecast, turns=turns)
    assert [*in_turn.by_rest(in_turn.rests(0.0))] == ["short", "other", "long", "child"]
    by_level = replace(forecast, turns={**turns, "long": (7, 3.0)})
    assert [*by_level.by_rest(by_level.rests(0.0))] == ["long", "short", "other", "child"]
    assert in_turn == forecast, "other turns are no reason to plan anew"


def test_what_runs_for_longer_than_expected_goes_on_the_longer() -> None:
    known, unknown = step("a", 10, begun=0.0), step("a", 10, begun=0.0, spread=1.2)
    assert [known.left(now) for now in (4.0, 10.0)] == [6, 1]
    assert known.left(10.5) < 2 < known.left(20.0) < known.left(100.0)
    assert unknown.left(0.0) == 10, "as long as it was expected to take"
    assert known.left(9.0) == 1
    assert unknown.left(9.0) > 6, "that it has not ended says the more, the less was known"
    assert unknown.left(9.0) < unknown.left(10.0) < unknown.left(100.0)


@given(st.floats(0.1, 1e5), st.floats(0.0, 3.0), st.lists(st.floats(1.0, 100.0), min_size=2, max_size=2))
def test_what_is_overdue_is_expected_to_go_on_however_certain_its_length_was(
    seconds: float, spread: float, times: list[float]
) -> None:
    its = step("a", seconds, begun=0.0, spread=spread)
    sooner, later = (its.left(seconds * each) for each in sorted(times))
    assert 0 < 0.7 * sooner <= later, "the longer it is overdue, the longer it goes on, or hardly less"
    most = math.expm1(NormalDist().inv_cdf(0.75) * MOST_SPREAD)
    assert later <= 1.001 * (MOMENT + most * seconds * max(times)), "by no more than a part of what it has run"
    certain = step("a", seconds, begun=0.0).left(seconds * max(times))
    assert certain <= later, "and the longer, the less is known"
    twice = step("a", seconds, begun=0.0, spread=spread).left(2 * seconds)
    assert twice >= 0.4 * seconds, "where it has taken twice as long, its end is not expected at once"


def of_task(name: str, seconds: float, begun: float | None = None, measured: int = 0) -> WorkflowStep:
    return replace(step(name, seconds, begun=begun), alike="task", measured=measured)


def test_what_is_at_work_for_longer_than_expected_says_how_long_those_like_it_take() -> None:
    """None of the task has ended, so what the site knows of others was wrong."""
    forecast = forecast_of(of_task("a", 1.0, 0.0), of_task("b", 1.0, 50.0), of_task("c", 1.0), step("other", 1.0))
    found = forecast.by_those_at_work(60.0)
    longest = 60 + forecast.steps["a"].left(60.0)
    assert found.steps["c"].seconds == pytest.approx(longest), "as long as the one that takes the longest"
    assert {name: found.steps[name] for name in ("a", "b", "other")} == {
        name: forecast.steps[name] for name in ("a", "b", "other")
    }
    just_begun = forecast_of(of_task("a", 1.0, 0.0), of_task("b", 1.0, 59.5)).by_those_at_work(60.0)
    assert just_begun.steps["b"].seconds == pytest.approx(longest)


def test_one_that_takes_longer_than_many_that_have_ended_says_little() -> None:
    forecast = forecast_of(of_task("a", 10.0, 0.0, 99), of_task("b", 10.0, None, 99))
    found = forecast.by_those_at_work(100.0).steps["b"].seconds
    assert 10 < found < 10.5
    nothing_else = forecast_of(of_task("a", 10.0, 95.0), of_task("b", 10.0))
    assert nothing_else.by_those_at_work(100.0) is nothing_else, "none is overdue"


@given(st.lists(st.floats(0.0, 1e4), min_size=1, max_size=8), st.integers(0, 9), st.floats(0.1, 1e3))
def test_what_is_expected_of_others_is_between_what_was_and_what_the_longest_takes(
    begun: list[float], measured: int, seconds: float
) -> None:
    steps = [of_task(f"r{number}", seconds, each, measured) for number, each in enumerate(begun)]
    forecast = forecast_of(*steps, of_task("next", seconds, None, measured))
    found = forecast.by_those_at_work(1e4).steps["next"].seconds
    longest = max(1e4 - each + its.left(1e4) for each, its in zip(begun, steps, strict=True))
    assert seconds <= found <= 1.001 * max(seconds, longest)
    more = forecast_of(*(replace(each, measured=measured + 1) for each in forecast.steps.values()))
    assert more.by_those_at_work(1e4).steps["next"].seconds <= 1.001 * found, "the less, the more have ended"


@pytest.mark.parametrize("ended", [2, 5, 10, 25, 40])
@pytest.mark.parametrize("spread", [0.1, 0.3, 0.6])
def test_the_first_that_end_are_the_shortest(ended: int, spread: float) -> None:
    """Of fifty jobs that began together some have ended; the median of all is known though most still run."""
    lengths = [100 * math.exp(NormalDist(0, spread).inv_cdf((number + 0.5) / 50)) for number in range(50)]
    logarithms = [math.log(each) for each in lengths[:ended]]
    now = lengths[ended - 1] + 0.01
    expected = math.exp(fmean(logarithms))
    steps = [
        replace(of_task(f"r{number}", expected, 0.0 if number < 50 else None, ended), spread=spread)
        for number in range(ended, 60)
    ]
    found = forecast_of(*steps).by_those_at_work(now).steps["r55"].seconds
    assert found == pytest.approx(100, rel=0.1)
    assert abs(found - 100) < abs(expected - 100), "nearer than the mean of those that have ended"


def test_of_a_task_with_many_histories_few_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size of its jobs has a history of its own, and there may be as many as jobs."""
    searches = []

    def counted(passed: Sequence[float], measured: float, spread: float) -> float:
        searches.append(measured)
        return censored_shift(passed, measured, spread)

    monkeypatch.setattr(forecast, "censored_shift", counted)
    steps = [replace(of_task(f"r{number}", 10.0, 0.0, 1 + number), spread=0.3) for number in range(200)]
    found = forecast_of(*steps).by_those_at_work(20.0)
    assert len(searches) == forecast.MOST_SHIFTS
    assert all(each.seconds > 10 for each in found.steps.values())


@pytest.mark.parametrize(
    ("room_wait", "starts", "waits"),
    [
        (None, 100.0, False),
        (RoomWait(30.0), 130.0, False),
        (RoomWait(30.0, since=90.0), 120.0, True),
        (RoomWait(30.0, since=-500.0), 100.0, False),
    ],
    ids=["there is room", "it will be asked for", "it was asked for", "it waits for longer than expected"],
)
def test_elsewhere_a_step_begins_when_there_is_room(room_wait: RoomWait | None, starts: float, waits: bool) -> None:
    first = step("a", 100.0, begun=0.0)
    behind = replace(step("b", 10.0, "a"), elsewhere=True, room_wait=room_wait)
    found = forecast_of(first, behind, step("c", 1.0, "b"))
    assert found.soonest(0.0) == {"a": 0.0, "b": starts, "c": starts + 10.0}
    assert behind.waits_for_room(100.0) == waits
    seconds = 30.0 if room_wait == RoomWait(30.0) else 0.0
    assert found.rests(0.0) == {"a": 100.0 + seconds + 11.0, "b": 11.0, "c": 1.0}, "what waits already is passed soon"


def test_tasks_that_wait_for_each_other_are_named() -> None:
    with pytest.raises(CycleError, match="2 tasks wait for each other, among them b, c"):
        _ = forecast_of(step("a", 1), step("b", 1, "c"), step("c", 1, "b")).order


def test_what_is_ready_waits_for_nothing_that_takes_time() -> None:
    nothing = PlannedJob("", Resources())
    steps = {
        "runs": WorkflowStep(nothing, 5.0, begun=1.0),
        "ready": WorkflowStep(nothing, 5.0, ("has ended",)),
        "end": WorkflowStep(nothing, 0.0, ("has ended",), elsewhere=True),
        "behind it": WorkflowStep(nothing, 5.0, ("end",)),
        "waits": WorkflowStep(nothing, 5.0, ("runs", "end")),
        "last": WorkflowStep(nothing, 5.0, ("waits",)),
    }
    forecast = Forecast(steps)
    assert forecast.ready() == {"ready", "end", "behind it"}
    assert forecast.without(["end"]).steps.keys() == {"runs", "ready"}
    assert forecast.without(["waits"]).steps.keys() == {"runs", "ready", "end", "behind it"}
