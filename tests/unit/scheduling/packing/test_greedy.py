"""The policy ``greedy``: Seven Bridges' algorithm, to the last tie."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan
from tests.reasons import told
from tests.services.examples import part
from tests.services.packing import catalogue, check, contents, problems, seven_bridges


@part(0.5)
@given(problems())
def test_it_is_the_algorithm_job_by_job(problem: tuple[list[PlannedJob], list[Location], Catalogue]) -> None:
    jobs, locations, goods = problem
    result = plan(jobs, locations, goods)
    check(result, jobs, locations, goods)
    assert contents(result, locations) == seven_bridges(jobs, locations, goods)


@part(0.4)
@given(problems(), st.randoms(use_true_random=False))
def test_the_order_of_the_jobs_does_not_matter(
    problem: tuple[list[PlannedJob], list[Location], Catalogue], shuffler: random.Random
) -> None:
    jobs, locations, goods = problem
    shuffled = jobs.copy()
    shuffler.shuffle(shuffled)
    assert plan(shuffled, locations, goods) == plan(jobs, locations, goods)


def test_many_shapes_and_machines_at_once() -> None:
    """Enough of them that the shelf has several chunks."""
    chance = random.Random(3)
    goods = catalogue(small=(4, 16, 0.2), wide=(8, 16, 0.3), deep=(8, 64, 0.5), large=(16, 128, 1.2))
    jobs = [
        PlannedJob(
            f"j{i}", Resources(chance.choice([0.1, 0.5, 1, 1.5, 3, 7]), chance.randint(0, 60)), chance.randint(1, 4)
        )
        for i in range(120)
    ]
    locations = [
        Location(f"i{i}", kind.capacity, Resources(chance.choice([0, 1, 2.5]), chance.randint(0, 16)), kind.name)
        for i in range(200)
        for kind in [chance.choice(list(goods.types.values()))]
    ]
    result = plan(jobs, locations, goods, bound=False)
    assert contents(result, locations) == seven_bridges(jobs, locations, goods)


def test_the_dearest_job_goes_first_and_running_instances_before_new_ones() -> None:
    goods = catalogue(small=(2, 4, 0.1), large=(8, 16, 0.4))
    jobs = [PlannedJob("tiny", Resources(1, 1)), PlannedJob("huge", Resources(6, 12))]
    there = [Location("old", Resources(8, 16), Resources(0, 0), "large")]
    assert contents(plan(jobs, there, goods), there) == [("old", "large", {"huge": 1, "tiny": 1})]


def test_the_fullest_instance_is_tried_first_then_the_oldest() -> None:
    goods = catalogue(large=(8, 16, 0.4))
    there = [
        Location(name, Resources(8, 16), Resources(used, 0), "large") for name, used in [("a", 1), ("b", 3), ("c", 3)]
    ]
    assert contents(plan([PlannedJob("x", Resources(1, 1))], there, goods), there) == [("b", "large", {"x": 1})]


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ({"more_cpus": (4, 8, 0.1)}, "more_cpus"),
        ({"more_memory": (2, 9, 0.1)}, "more_memory"),
        ({"a_name": (2, 8, 0.1)}, "a_name"),
        ({"dearer": (16, 64, 0.2)}, "plain"),
    ],
)
def test_ties_between_types(others: dict[str, tuple[float, int, float]], chosen: str) -> None:
    result = plan([PlannedJob("x", Resources(1, 1))], (), catalogue(plain=(2, 8, 0.1), **others))
    assert [launch.instance_type for launch in result.launches] == [chosen]


def test_a_hint_is_the_only_type_also_of_running_instances() -> None:
    goods = catalogue(small=(2, 4, 0.1), large=(8, 16, 0.4))
    there = [Location("old", Resources(8, 16), Resources(0, 0), "large")]
    jobs = [PlannedJob("x", Resources(1, 1), instance_type="small")]
    assert contents(plan(jobs, there, goods), there) == [(None, "small", {"x": 1})]


def test_a_hint_that_is_too_small_is_an_error() -> None:
    goods = catalogue(small=(2, 4, 0.1), large=(8, 16, 0.4))
    result = plan([PlannedJob("x", Resources(4, 1), instance_type="small")], (), goods)
    assert [(refusal.job, told(refusal.reason)) for refusal in told(result.refusals)] == [
        (
            "x",
            "is too large for every machine that is a small; the closest is small: 4 cpus needed but 2 cpus available",
        )
    ]
    assert not result.placements


def test_fractions_fill_a_machine_to_the_brim() -> None:
    result = plan([PlannedJob("x", Resources(0.1, 1), 30)], (), catalogue(one=(1, 100, 0.1)))
    assert len(result.launches) == 3


def test_a_limited_type_gives_way_to_the_next_cheapest() -> None:
    goods = catalogue(small=(2, 4, 0.1), large=(8, 16, 0.4))
    result = plan([PlannedJob("x", Resources(2, 4), 6)], (), goods, InstanceLimits(types={"small": 2}))
    assert contents(result) == [(None, "small", {"x": 1}), (None, "small", {"x": 1}), (None, "large", {"x": 4})]


def test_empty_instances_are_released_and_others_are_not() -> None:
    goods = catalogue(small=(2, 4, 0.1))
    idle = Location("idle", Resources(2, 4), Resources(), "small")
    there = [idle, replace(idle, name="busy", used=Resources(1, 1)), Location("host", Resources(2, 4))]
    assert [release.location for release in plan([], there, goods).releases] == ["idle"]
    # A job goes to the busy one, which has less left.
    assert [release.location for release in plan([PlannedJob("x", Resources(1, 1))], there, goods).releases] == ["idle"]
