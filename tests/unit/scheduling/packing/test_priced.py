"""The policy ``priced``: never dearer than greedy, and near the bound."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.catalogue import Catalogue, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan
from tests.reasons import told
from tests.services.examples import part
from tests.services.packing import catalogue, catalogues, check, contents, optimum, problems, workloads

FAMILIES = [f"{family}{generation}.*" for family in "cmr" for generation in ("5", "5a", "6i", "6a", "7i")]
CPUS_AND_GIB = (
    *((1, 1), (1, 2), (1, 4), (1, 6), (1, 8), (2, 4), (2, 6), (2, 8), (2, 12), (2, 16)),
    *((4, 8), (4, 16), (4, 30), (6, 36), (8, 16), (8, 32), (8, 64), (12, 72), (16, 64), (16, 120)),
)


def pipeline(number: int, seed: int = 1) -> list[PlannedJob]:
    """So many jobs of twenty shapes, as bioinformatics pipelines have them."""
    chance = random.Random(seed)
    counts: defaultdict[tuple[int, int], int] = defaultdict(int)
    for _ in range(number):
        counts[chance.choice(CPUS_AND_GIB)] += 1
    return [PlannedJob(f"{c}-{m}", Resources(c, m * 1024), count, arch="x86_64") for (c, m), count in counts.items()]


@pytest.fixture(scope="module")
def general_purpose() -> Catalogue:
    return bundled().select(FAMILIES, ["*.metal*", "*.32xlarge", "*.48xlarge"])


@part(0.12)
@given(problems(), st.sampled_from(["fast", "best"]), st.sampled_from([0.0, 0.5]))
def test_it_obeys_the_rules_and_is_never_dearer_than_greedy(
    problem: tuple[list[PlannedJob], list[Location], Catalogue], effort: str, per_instance: float
) -> None:
    jobs, locations, goods = problem
    objective = Objective(per_instance, 2.0)
    greedy = plan(jobs, locations, goods, objective=objective)
    priced = plan(jobs, locations, goods, policy="priced", effort=effort, objective=objective)
    check(priced, jobs, locations, goods)
    assert priced.objective <= greedy.objective + 1e-9
    assert priced.objective == pytest.approx(priced.cost + 0.5 * per_instance * len(priced.launches))
    assert not told(priced.waits)


@part(0.1)
@given(problems(), st.integers(0, 6), st.integers(0, 3))
def test_limits_hold(problem: tuple[list[PlannedJob], list[Location], Catalogue], most: int, of_type: int) -> None:
    jobs, locations, goods = problem
    limits = InstanceLimits(instances=most, types={"large": of_type})
    greedy = plan(jobs, locations, goods, limits)
    for policy in ("greedy", "priced"):
        result = plan(jobs, locations, goods, limits, policy)
        check(result, jobs, locations, goods)
        kinds = [launch.instance_type for launch in result.launches]
        there = [location.instance_type for location in locations]
        assert not kinds or len(kinds) + len(there) <= most
        assert "large" not in kinds or (kinds + there).count("large") <= of_type
        assert result.objective <= greedy.objective + 1e-9
        assert sum(wait.count for wait in told(result.waits)) <= sum(wait.count for wait in told(greedy.waits))


@part(0.06)
@given(problems(), st.randoms(use_true_random=False))
def test_the_same_input_gives_the_same_plan_in_any_order(
    problem: tuple[list[PlannedJob], list[Location], Catalogue], shuffler: random.Random
) -> None:
    jobs, locations, goods = problem
    shuffled = jobs.copy()
    shuffler.shuffle(shuffled)
    first = plan(jobs, locations, goods, policy="priced")
    assert first == plan(jobs, locations, goods, policy="priced")
    assert first.cost == plan(shuffled, locations, goods, policy="priced").cost


def test_the_best_plan_is_the_same_in_any_order(general_purpose: Catalogue) -> None:
    jobs = pipeline(5)
    first = plan(jobs, (), general_purpose, policy="priced", effort="best")
    assert first == plan(jobs, (), general_purpose, policy="priced", effort="best")
    assert first.cost == plan(jobs[::-1], (), general_purpose, policy="priced", effort="best").cost


@part(0.1)
@given(catalogues.flatmap(lambda goods: st.tuples(st.just(goods), workloads(goods, size=5, count=2))))
def test_small_problems_are_solved_nearly_exactly(problem: tuple[Catalogue, list[PlannedJob]]) -> None:
    goods, jobs = problem
    least = optimum(jobs, goods)
    assert least - 1e-9 <= plan(jobs, (), goods, policy="priced", effort="best").cost <= 1.2 * least


def test_small_problems_on_average() -> None:
    """Over ten problems the excess over the optimum is less than half a percent; greedy's is over five."""
    chance = random.Random(9)
    excess = defaultdict(list)
    for _ in range(10):
        goods = catalogue(
            large=(16, 64, 1.0),
            **{f"t{i}": (c, c * chance.choice([2, 4, 8]), c * 0.06) for i, c in enumerate([2, 4, 8])},
        )
        jobs = [PlannedJob(f"j{i}", Resources(chance.choice([1, 2, 3, 5]), chance.randint(1, 20))) for i in range(9)]
        least = optimum(jobs, goods)
        for policy in ("greedy", "priced"):
            excess[policy].append(plan(jobs, (), goods, policy=policy, effort="best").cost / least - 1)
    assert sum(excess["priced"]) / 10 < 0.005
    assert sum(excess["greedy"]) / 10 > 0.05


@pytest.mark.parametrize(
    ("number", "effort", "most"),
    [
        (100, "best", 1.04),
        (10_000, "best", 1.003),
        (100, "fast", 1.06),
        (1_000, "fast", 1.01),
        (10_000, "fast", 1.003),
    ],
)
def test_near_the_bound(general_purpose: Catalogue, number: int, effort: str, most: float) -> None:
    """More sizes, other shapes and the whole catalogue: ``python -m benchmarks.packing``."""
    result = plan(pipeline(number), (), general_purpose, policy="priced", effort=effort)
    assert result.gap is not None
    assert 1 + result.gap <= most
    check(result, pipeline(number), (), general_purpose)


@pytest.mark.parametrize(("number", "most"), [(200, 1.02), (6_000, 1.015)])
def test_sizes_that_are_all_different(number: int, most: float) -> None:
    """Rounding and filling alone leave 1.04 and 1.06 here; with single jobs moved it is near the bound."""
    chance = random.Random(1)
    jobs = [
        PlannedJob(f"j{i}", Resources(round(chance.uniform(0.5, 16), 3), chance.randint(500, 120 * 1024)))
        for i in range(number)
    ]
    goods = bundled().select(["c7i.*", "m7i.*", "r7i.*"], ["*.metal*"])
    result = plan(jobs, (), goods, policy="priced", effort="fast")
    assert result.gap is not None
    assert 1 + result.gap <= most
    check(result, jobs, (), goods)


def test_a_cost_per_launch_buys_fewer_and_larger_machines(general_purpose: Catalogue) -> None:
    scattered = plan(pipeline(300), (), general_purpose, policy="priced")
    gathered = plan(pipeline(300), (), general_purpose, policy="priced", objective=Objective(0.05, 1.0))
    assert len(gathered.launches) < 0.5 * len(scattered.launches)
    assert gathered.cost < 1.05 * scattered.cost


def test_a_million_jobs_by_count(general_purpose: Catalogue) -> None:
    jobs = [PlannedJob(job.name, job.resources, 50_000, arch="x86_64") for job in pipeline(400)]
    result = plan(jobs, (), general_purpose, policy="priced")
    assert sum(placement.count for placement in result.placements) == 1_000_000
    assert result.gap is not None
    assert result.gap < 0.01


def test_running_instances_are_filled_first_and_by_priority() -> None:
    goods = catalogue(one=(4, 8, 1.0))
    there = [Location("i", Resources(4, 8), Resources(2, 0), "one")]
    jobs = [PlannedJob("low", Resources(2, 4), 3), PlannedJob("high", Resources(2, 4), priority=1)]
    result = plan(jobs, there, goods, policy="priced")
    assert contents(result, there)[0] == ("i", "one", {"high": 1})
    assert len(result.launches) == 2


def test_jobs_that_end_together_share_an_instance() -> None:
    goods = catalogue(pair=(2, 8, 1.0))
    jobs = [
        PlannedJob(f"{name}{i}", Resources(1, 4), time=time)
        for i in range(4)
        for name, time in [("s", 60.0), ("l", 9e4)]
    ]
    for policy in ("greedy", "priced"):
        for _, _, held in contents(plan(jobs, (), goods, policy=policy)):
            assert len({name[0] for name in held}) == 1


def test_what_no_type_fits_goes_to_what_is_there() -> None:
    goods = catalogue(one=(4, 8, 1.0))
    there = [Location("big", Resources(32, 64))]
    jobs = [PlannedJob("huge", Resources(30, 1)), PlannedJob("small", Resources(3, 1), 2)]
    result = plan(jobs, there, goods, policy="priced")
    assert contents(result, there) == [
        ("big", None, {"huge": 1}),
        (None, "one", {"small": 1}),
        (None, "one", {"small": 1}),
    ]


def test_limited_tasks_and_the_others_share_machines() -> None:
    goods = catalogue(one=(4, 8, 1.0))
    jobs = [PlannedJob("limited", Resources(1, 1), 6, task="align"), PlannedJob("other", Resources(1, 1), 10)]
    result = plan(jobs, (), goods, InstanceLimits(tasks={"align": 1}), "priced")
    check(result, jobs, (), goods)
    assert sum("limited" in held for _, _, held in contents(result)) == 1
    assert [(wait.job, wait.count) for wait in told(result.waits)] == [("limited", 2)]
    assert len(result.launches) == 4
