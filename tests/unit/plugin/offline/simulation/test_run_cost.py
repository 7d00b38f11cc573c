"""What a run will cost, by its tasks and their dependencies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.plugin.offline.simulation.run_cost import MOST_REPLANNED, Bill, RunTask, begins, least_price, on_machines
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from tests.reasons import told

SMALL = InstanceType("small", Resources(2, 8000), (Offering(1.0), Offering(0.5, "spot")))
LARGE = InstanceType("large", Resources(8, 32_000), (Offering(4.4),), features=frozenset({"fast"}))
MARKET = MachineMarket(Catalogue({"small": SMALL, "large": LARGE}), idle_seconds=0.0, boot_seconds=0.0)


def step(name: str, jobs: int = 1, seconds: float = 3600.0, **asks: object) -> RunTask:
    return RunTask(name, jobs, PlannedJob(name, Resources(2, 4000), **asks), Prediction(seconds))  # type: ignore[arg-type]


def test_a_task_begins_when_those_before_it_have_ended() -> None:
    upstream = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c", "unknown"], "unknown": ["a"]}
    found = begins(upstream, {"a": 10.0, "b": 5.0, "c": 20.0})
    assert found == {"a": 0.0, "b": 10.0, "c": 10.0, "unknown": 10.0, "d": 30.0}


def test_times_that_scatter_are_longer_on_average_than_their_median_but_never_than_their_limit() -> None:
    assert RunTask("a", 1, PlannedJob("a", Resources(1, 1)), Prediction(100.0, 1.0)).seconds == pytest.approx(
        164.87, abs=0.01
    )
    assert RunTask("a", 1, PlannedJob("a", Resources(1, 1)), Prediction(100.0, 1.0, most=120.0)).seconds == 120.0


def test_the_least_price_is_that_of_its_part_of_a_machine_that_is_for_it() -> None:
    assert least_price(PlannedJob("a", Resources(1, 1000)), MARKET.catalogue) == 0.25
    assert least_price(
        PlannedJob("a", Resources(1, 6000), capacity_type="on-demand"), MARKET.catalogue
    ) == pytest.approx(0.75)
    assert least_price(PlannedJob("a", Resources(1, 1000), features=frozenset({"fast"})), MARKET.catalogue) == 4.4 / 8
    assert least_price(PlannedJob("a", Resources(64, 1000)), MARKET.catalogue) == 0.0


def test_machines_are_shared_among_steps_and_what_has_no_place_is_said() -> None:
    steps = [step("one"), step("three", 3), step("dear", capacity_type="on-demand"), step("none", jobs=0)]
    found = on_machines(steps, dict.fromkeys(("one", "three", "dear", "none"), 0.0), MARKET)
    assert found.usd == pytest.approx(4 * 0.5 + 1.0)
    assert found.of_steps == {
        "one": pytest.approx(0.5),
        "three": pytest.approx(1.5),
        "dear": pytest.approx(1.0),
        "none": 0,
    }
    huge = RunTask("huge", 1, PlannedJob("huge", Resources(64, 1000)), Prediction(60.0))
    refused = on_machines([huge], {"huge": 0.0}, MARKET)
    assert (refused.usd, refused.of_steps, list(told(refused.refused))) == (0.0, {}, ["huge"])
    assert on_machines([], {}, MARKET) == Bill(0.0, {}, {})


def test_many_jobs_cost_what_their_plan_says() -> None:
    market = MachineMarket(MARKET.catalogue, policy=FORECAST, boot_seconds=60.0)
    upstream = {"one": [], "two": ["one"], "huge": []}
    huge = RunTask("huge", 1, PlannedJob("huge", Resources(999, 1)), Prediction(10.0))

    def bill(jobs: int) -> Bill:
        steps = [step("one", jobs, 3600.0), step("two", 1, 600.0), huge]
        return on_machines(steps, {"one": 0.0, "two": 3600.0, "huge": 0.0}, market, upstream)

    few, many = bill(MOST_REPLANNED - 2), bill(MOST_REPLANNED)
    assert many.usd == pytest.approx(few.usd * MOST_REPLANNED / (MOST_REPLANNED - 2), rel=0.01)
    assert many.of_steps == pytest.approx(few.of_steps, rel=0.02)
    assert few.refused == many.refused
    assert many.refused.keys() == {"huge"}
    dense = [step("one", 2_000), step("two", 2_000)]  # each job of the second task waits for all of the first one
    assert on_machines(dense, {"one": 0.0, "two": 3600.0}, market, upstream).usd >= 4_000 * 0.5


def test_by_a_forecast_a_chain_has_one_machine() -> None:
    market = MachineMarket(MARKET.catalogue, policy=FORECAST, boot_seconds=60.0)
    steps = [step("one", 2, 100.0), step("three", 1, 100.0)]
    upstream = {"one": [], "between": ["one"], "three": ["between"]}
    by_greedy = on_machines(steps, {"one": 0.0, "three": 100.0}, replace(market, policy="greedy"))
    found = on_machines(steps, {"one": 0.0, "three": 100.0}, market, upstream)
    assert 0 < found.usd <= by_greedy.usd
    assert found.of_steps.keys() == {"one", "three"}
    huge = RunTask("huge", 1, PlannedJob("huge", Resources(999, 1)), Prediction(10.0))
    assert on_machines([huge], {"huge": 0.0}, market).refused.keys() == {"huge"}
