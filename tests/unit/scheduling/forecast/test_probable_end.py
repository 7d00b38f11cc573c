"""When runs have probably ended, where lengths are uncertain."""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.forecast import Forecast, WorkflowStep
from lading.scheduling.forecast.probable_end import ProbableEnds
from lading.scheduling.job import PlannedJob
from lading.scheduling.resources import Resources

NOW = 1000.0


def steps_alike(number: int, spread: float, seconds: float = 100.0, **more: object) -> dict[str, WorkflowStep]:
    jobs = [PlannedJob(f"{each}", Resources(1, 1), run="r") for each in range(number)]
    return {job.name: WorkflowStep(job, seconds, spread=spread, measured=5, **more) for job in jobs}  # type: ignore[arg-type]


def probable_end(forecast: Forecast, starts: dict[str, float], planned: float) -> float:
    return ProbableEnds(forecast, forecast.rests(NOW)).of_run("r", starts, planned)


@given(st.integers(1, 200), st.floats(0.05, 0.8))
def test_the_last_of_many_takes_as_long_as_half_of_all_last_ones(number: int, spread: float) -> None:
    starts = {f"{each}": NOW for each in range(number)}
    found = probable_end(Forecast(steps_alike(number, spread)), starts, NOW + 100.0)
    last = 100.0 * math.exp(spread * NormalDist().inv_cdf(0.5 ** (1 / number)))
    assert found == pytest.approx(NOW + last, rel=0.01)


@given(st.lists(st.floats(0.0, 500.0), min_size=1, max_size=30), st.floats(0.0, 1.2), st.floats(0.0, 200.0))
def test_it_is_not_before_the_planned_end_and_the_later_the_later_steps_begin(
    waits: list[float], spread: float, more: float
) -> None:
    forecast = Forecast(steps_alike(len(waits), spread))
    starts = {f"{number}": NOW + wait for number, wait in enumerate(waits)}
    planned = NOW + max(waits) + 100.0
    found = probable_end(forecast, starts, planned)
    assert found >= planned
    if not spread:
        assert found == planned
    starts["0"] += more
    later = probable_end(forecast, starts, max(planned, starts["0"] + 100.0))
    assert later >= found - 0.02 * (found - planned) - 1.0


def test_what_runs_and_what_nothing_is_known_of_ends_as_planned() -> None:
    starts = {f"{number}": NOW for number in range(10)}
    at_work = Forecast(steps_alike(10, 0.5, begun=NOW))
    assert probable_end(at_work, starts, NOW + 100.0) == NOW + 100.0
    job = PlannedJob("0", Resources(1, 1), run="r")
    assert probable_end(Forecast({"0": WorkflowStep(job, 900.0, spread=1.2)}), starts, NOW + 900.0) == NOW + 900.0


def test_there_is_an_end_where_seconds_are_not_told_apart_any_more() -> None:
    steps = steps_alike(2, 0.3, 1e16)
    planned = NOW + 4e18
    assert planned <= probable_end(Forecast(steps), {"0": planned - 1e16, "1": planned}, planned) < math.inf


def test_what_comes_behind_a_step_counts() -> None:
    steps = steps_alike(2, 0.5)
    steps["0"] = WorkflowStep(steps["0"].job, 100.0, spread=0.5, measured=5, rest=300.0)
    starts = dict.fromkeys(steps, NOW)
    assert probable_end(Forecast(steps), starts, NOW + 400.0) == pytest.approx(NOW + 400.0, abs=2.0)


def test_a_machine_is_there_until_the_last_of_its_steps_has_ended() -> None:
    """What comes behind them is of no matter to it."""
    steps = steps_alike(8, 0.5, rest=900.0)
    ends = ProbableEnds(Forecast(steps), Forecast(steps).rests(NOW))
    starts = dict.fromkeys(steps, NOW)
    few, all_of_them = (ends.of_machine(names, starts, NOW + 100.0) for names in (("0", "1"), steps))
    assert NOW + 100.0 < few < all_of_them < ends.of_run("r", starts, NOW + 1000.0)
    assert ends.of_machine((), starts, NOW + 100.0) == NOW + 100.0


def test_what_is_to_come_takes_as_long_as_on_average() -> None:
    """Half of log-normal lengths are below their median; their mean is above it."""
    steps = steps_alike(1, 0.5) | {
        "runs": WorkflowStep(PlannedJob("runs", Resources(1, 1)), 100.0, spread=0.5, measured=5, begun=NOW),
        "unknown": WorkflowStep(PlannedJob("unknown", Resources(1, 1)), 900.0, spread=1.2),
        "kinds": WorkflowStep(PlannedJob("kinds", Resources(1, 1)), 100.0, spread=2.0, measured=5),
    }
    means = {name: step.seconds for name, step in Forecast(steps).by_means().steps.items()}
    assert means["0"] == pytest.approx(100.0 * math.exp(0.125))
    assert (means["runs"], means["unknown"]) == (100.0, 900.0)
    assert means["kinds"] == pytest.approx(100.0 * math.exp(0.5))
