"""How long jobs will run: what history says, and where it is from."""

from __future__ import annotations

import math

import pytest

from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.prediction import ASSUMED, ASSUMED_OF_TASK, SPREAD_OF_TASKS, History, Prediction, predicted
from lading.scheduling.model.resources import Resources

SIZED = ((("align", "large"), "align of this size"), ("align", "align"))


def test_the_narrowest_level_of_which_enough_is_known_is_asked() -> None:
    history = History()
    assert history.predict(SIZED, None).seconds == ASSUMED
    for seconds in (50.0, 60.0, 70.0, 60.0, 60.0):
        history.add((), seconds, None)
    assert history.predict(SIZED, None).source == "5 jobs of the site"
    for seconds in (500.0, 600.0, 700.0, 600.0, 600.0):
        history.add(SIZED[1:], seconds, None)
    found = history.predict(SIZED, None)
    assert found.source == "5 jobs of align"
    assert 500 < found.seconds < 700


def test_for_an_unknown_task_of_a_run_each_known_task_counts_once_however_many_jobs_it_has() -> None:
    history = History()
    nothing = history.predict(SIZED, None, enough=1)
    assert (nothing.seconds, nothing.spread) == (pytest.approx(ASSUMED_OF_TASK), pytest.approx(SPREAD_OF_TASKS))
    for i in range(50):
        history.add((("many", "many"),), 10.0 * (1 + i % 3), None)
    history.add((("one", "one"),), 1000.0, None)
    found = history.predict(SIZED, None, enough=1)
    many = math.exp(math.fsum(math.log(10.0 * (1 + i % 3)) for i in range(50)) / 50)
    assert found.seconds == pytest.approx((ASSUMED_OF_TASK * many * 1000.0) ** (1 / 3))
    assert (found.number, found.source) == (0, "2 tasks of the site")
    assert found.spread > 1
    assert history.predict(SIZED, 20.0, enough=1).seconds == 20.0, "its limit"


def test_a_limit_is_the_estimate_until_enough_jobs_have_finished() -> None:
    history = History()
    history.add((("other", "other"),), 5.0, None)
    for limit in (60.0, 36_000.0):
        found = history.predict(SIZED, limit)
        assert (found.seconds, found.source) == (limit, "its limit, because too few jobs have finished")


def test_a_limit_bounds_and_is_no_estimate() -> None:
    """Jobs that all have a day and take minutes: minutes are expected, and never more than the limit."""
    history = History()
    for i in range(40):
        history.add((), 600.0 * (1 + i % 3), 86_400.0)
    assert history.predict((), 86_400.0).seconds < 2_000
    short = history.predict((), 300.0)
    assert short.seconds <= 300


def test_limits_that_say_how_long_jobs_run_are_used() -> None:
    """Each job uses half of its limit, whatever that is: so will the next one."""
    history = History()
    for i in range(40):
        history.add((), 50.0 * 2 ** (i % 8), 100.0 * 2 ** (i % 8))
    found = history.predict((), 3_000.0)
    assert found.seconds == pytest.approx(1_500)
    assert found.spread < 0.1
    assert found.source == "50 % of its limit, the average of 40 jobs of the site"


def test_estimates_that_err_have_the_spread_of_their_errors() -> None:
    history = History()
    for i in range(300):
        stated = 100.0 * 3 ** (i % 7)
        history.add((), stated * math.exp((-0.5, 0.5)[i // 7 % 2]), stated)
    assert history.predict((), 900.0).spread == pytest.approx(0.5, abs=0.05)


def test_a_job_by_itself() -> None:
    job = PlannedJob("a", Resources(1, 1))
    assert predicted(job).spread > 1
    assert predicted(PlannedJob("a", Resources(1, 1), time=60.0)) == Prediction(60.0, source="its limit")
    assert predicted(PlannedJob("a", Resources(1, 1), time=60.0, expected=Prediction(5.0))).seconds == 5
