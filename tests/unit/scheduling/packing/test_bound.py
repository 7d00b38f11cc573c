"""The lower bound: a linear program with what fits where."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.model.catalogue import Catalogue, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing import bound
from lading.scheduling.packing.bound import bound_of_hours
from lading.scheduling.packing.linear_program import LinearProgram
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning.planner import plan
from tests.services.examples import part
from tests.services.packing import catalogue, catalogues, optimum, problems, workloads


def whole_program(jobs: list[PlannedJob], goods: Catalogue) -> float:
    """The same program without any reduction: one variable for every job and type that fits it."""
    kinds = list(goods.types.values())
    spread = [(i, t) for i, job in enumerate(jobs) for t, kind in enumerate(kinds) if fitting(job, kind.name, goods)]
    cost = np.array([0.0] * len(spread) + [kind.offerings[0].usd_per_hour for kind in kinds])
    load, whole = np.zeros((2 * len(kinds), len(cost))), np.zeros((len(jobs), len(cost)))
    for column, (i, t) in enumerate(spread):
        load[2 * t, column], load[2 * t + 1, column] = jobs[i].resources.cpus, jobs[i].resources.memory
        whole[i, column] = 1.0
    for t, kind in enumerate(kinds):
        load[2 * t, len(spread) + t] = -kind.capacity.cpus
        load[2 * t + 1, len(spread) + t] = -kind.capacity.memory
    counts = np.array([job.count for job in jobs])
    program = LinearProgram(
        np.append(np.full(2 * len(kinds), -np.inf), counts), np.append(np.zeros(2 * len(kinds)), counts)
    )
    every = np.vstack([load, whole])
    rows, columns = every.shape
    program.add(cost, np.full(columns, rows), np.tile(np.arange(rows), columns), every.T.ravel())
    return float(cost @ program.solve()[0])


def fitting(job: PlannedJob, name: str, goods: Catalogue) -> bool:
    kind = goods.types[name]
    return job.resources.fits(kind.capacity) and job.instance_type in (None, name) and job.arch in (None, kind.arch)


@part(0.5)
@given(catalogues.flatmap(lambda goods: st.tuples(st.just(goods), workloads(goods))))
def test_it_is_the_whole_program(problem: tuple[Catalogue, list[PlannedJob]]) -> None:
    goods, jobs = problem
    found = plan(jobs, (), goods).bound
    assert found == pytest.approx(whole_program(jobs, goods), rel=1e-6)


def test_merging_shapes_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(4)
    goods = bundled().select(["c7i.*", "m7i.*", "r7i.*", "t3a.*"])
    jobs = [
        PlannedJob(f"j{i}", Resources(round(chance.uniform(0.25, 16), 2), chance.randint(200, 60_000)), arch="x86_64")
        for i in range(250)
    ]
    merged = plan(jobs, (), goods).bound
    monkeypatch.setattr(bound, "ALONE", 10**9)
    assert merged == pytest.approx(plan(jobs, (), goods).bound, rel=1e-6)
    assert merged == pytest.approx(whole_program(jobs, goods), rel=1e-6)


@part(0.25)
@given(catalogues.flatmap(lambda goods: st.tuples(st.just(goods), workloads(goods, size=4, count=2))))
def test_nothing_can_cost_less(problem: tuple[Catalogue, list[PlannedJob]]) -> None:
    goods, jobs = problem
    least = optimum(jobs, goods)
    for policy in ("greedy", "priced"):
        result = plan(jobs, (), goods, policy=policy)
        assert result.bound is not None
        assert result.bound <= least + 1e-9 <= result.cost + 2e-9


@part(0.3)
@given(problems())
def test_running_instances_are_free_room(problem: tuple[list[PlannedJob], list[Location], Catalogue]) -> None:
    jobs, locations, goods = problem
    alone, together = plan(jobs, (), goods), plan(jobs, locations, goods)
    assert alone.bound is not None
    assert together.bound is not None
    assert together.bound <= alone.bound + 1e-9
    assert together.bound <= together.cost


def test_what_fits_matters() -> None:
    """A small type that is cheap by the cpu is of no use to a large job."""
    goods = catalogue(small=(1, 8, 0.01), large=(16, 128, 1.6))
    assert plan([PlannedJob("x", Resources(16, 128))], (), goods).bound == pytest.approx(1.6)


def test_gap() -> None:
    goods = catalogue(one=(4, 8, 1.0))
    result = plan([PlannedJob("x", Resources(3, 1))], (), goods)
    assert result.bound == pytest.approx(0.75)
    assert result.gap == pytest.approx(1 / 3)
    assert plan([], (), goods).gap is None
    assert plan([PlannedJob("x", Resources(3, 1))], (), goods, InstanceLimits(instances=0)).gap is None
    there = [Location("i", Resources(4, 8), instance_type="one")]
    assert plan([PlannedJob("x", Resources(3, 1))], there, goods).gap == 0


def test_job_hours_add_up() -> None:
    goods = catalogue(one=(4, 8, 1.0))
    jobs = [(PlannedJob("a", Resources(1, 1)), 2.0), (PlannedJob("b", Resources(2, 1)), 0.5)]
    assert bound_of_hours(jobs, goods) == pytest.approx(0.75)


def test_prices_prove_the_value() -> None:
    """Whatever the solver answered: no type is worth more than it costs, and the worths of the jobs are the bound."""
    goods = bundled().select(["c7i.*", "r7i.*"])
    jobs = [PlannedJob(f"j{i}", Resources(1 + i % 7, 1000 * (1 + i % 11)), 1 + i % 3, arch="x86_64") for i in range(60)]
    problem = pose(jobs, [], goods, InstanceLimits(), Objective(), 0.0, None)
    solved = bound.relax(problem, problem.counts(), 0.0, [])
    assert float(solved.worth @ problem.counts()) == pytest.approx(solved.value)
    for i, prices in zip(solved.bins, solved.prices, strict=True):
        capacity = np.array(problem.bins[i].capacity) / bound.SCALE
        assert capacity @ prices <= problem.bins[i].price * (1 + 1e-9)
    assert math.isfinite(solved.value)
