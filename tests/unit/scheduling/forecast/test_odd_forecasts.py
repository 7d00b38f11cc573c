"""Plans for whatever can be forecast from hints, histories, prices and limits that are valid, however odd."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from lading.scheduling.forecast.coming import (
    ComingJob,
    ComingRun,
    ComingTask,
    SiteForecast,
    parts_at,
    site_forecast,
)
from lading.scheduling.forecast.policy import Planner
from lading.scheduling.model.catalogue import LEAST_USD, MOST_USD
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import MOST_HURRY, InstanceLimits, Objective
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import Problem, pose
from tests.services.packing import catalogue
from tests.services.planned import planned_actions

NOW = 1_800_000_000.0
# Hints take less than 68 years, and a million cpus.
LONGEST, MOST_CPUS = 2.0**31, 999_999.0
SECONDS = st.sampled_from([0.0, 1e-3, 0.1, 1.0, 900.0, 1e6, LONGEST])
SPREADS = st.sampled_from([0.0, 1e-9, 0.05, 1.2, 14.0])
PRICES = st.sampled_from([LEAST_USD, 0.36, MOST_USD])
MOMENTS = st.sampled_from([NOW - LONGEST, NOW - 1.0, NOW, NOW + 1.0, NOW + LONGEST])
HURRIES = st.sampled_from([None, 0.0, 5e-324, 1e-9, 1.0, MOST_HURRY])


@st.composite
def comings(draw: st.DrawFn) -> SiteForecast:
    runs = []
    for run in range(draw(st.integers(0, 2))):
        tasks: dict[str, ComingTask] = {}
        for number in range(draw(st.integers(0, 4))):
            jobs = []
            for index in range(draw(st.integers(0, 3))):
                need = PlannedJob(
                    "",
                    Resources(draw(st.sampled_from([0.001, 2.0, MOST_CPUS])), draw(st.sampled_from([0, 1024]))),
                    time=draw(st.sampled_from([None, 1.0, LONGEST])),
                )
                has_come = draw(st.booleans())
                begun = draw(st.sampled_from([None, NOW, NOW - 1.0, NOW - LONGEST])) if has_come else None
                length = Prediction(draw(SECONDS), draw(SPREADS), number=draw(st.sampled_from([0, 1, 10_000])))
                site = draw(st.sampled_from([None, "here", "there"]))
                name = f"{run} {number} {index}"
                its_pool = draw(st.sampled_from([None, "p", "closed"])), draw(st.sampled_from([1, 100]))
                jobs.append(
                    ComingJob(
                        name, length, site, need, index, name if has_come else None, begun, "up" if begun else None,
                        *its_pool,
                    )
                )  # fmt: skip
            upstream = draw(st.lists(st.sampled_from(sorted(tasks)), max_size=2, unique=True)) if tasks else []
            by_index = frozenset(upstream[:1]) if draw(st.booleans()) else frozenset[str]()
            most, ahead = draw(st.sampled_from([None, 1, 2])), draw(st.sampled_from([None, True, False]))
            tasks[f"t{number}"] = ComingTask(jobs, upstream, by_index, most, draw(st.integers(-9, 9)), ahead)
        finish_by = draw(st.sampled_from([None, NOW - LONGEST, NOW, NOW + LONGEST]))
        most = draw(st.sampled_from([None, 0, 1]))
        runs.append(ComingRun(f"r{run}", draw(MOMENTS), tasks, draw(HURRIES), most, finish_by))
    return site_forecast(
        parts_at(runs, "here", {}).values(), {"p": draw(st.sampled_from([-1, 0, 1, 128])), "closed": 0}
    )


@st.composite
def problems(draw: st.DrawFn, up: list[Location]) -> Problem:
    sizes = draw(st.lists(st.sampled_from([0.5, 2.0, 64.0]), max_size=2, unique=True))
    goods = catalogue(**{f"t{cpus:g}": (cpus, 4096, draw(PRICES)) for cpus in sizes})
    return pose([], up, goods, InstanceLimits(instances=draw(st.sampled_from([None, 0, 1, 3]))), Objective(), NOW, None)


@st.composite
def cases(draw: st.DrawFn) -> tuple[SiteForecast, list[Location], Problem]:
    up = []
    for name in draw(st.sampled_from([[], ["up"], ["up", "other"]])):
        usd, ends = draw(st.sampled_from([0.0, 0.36, MOST_USD])), draw(st.sampled_from([None, NOW - 1.0, NOW + 600.0]))
        ready = draw(st.sampled_from([None, NOW + 30.0]))
        up.append(Location(name, Resources(4, 4096), usd_per_hour=usd, ready_at=ready, ends_at=ends))
    return draw(comings()), up, draw(problems(up))


@given(
    cases(),
    st.sampled_from([0.0, 5e-324, 1.0, MOST_HURRY]),
    st.sampled_from([0.0, 60.0, LONGEST]),
    st.sampled_from([0.0, 1e9, 1e300]),
    st.sampled_from([0.0, 60.0, math.inf]),
)
def test_there_is_a_plan_for_whatever_is_valid(
    case: tuple[SiteForecast, list[Location], Problem], hurry: float, boot: float, spent: float, paid: float
) -> None:
    its, locations, problem = case
    planner = Planner(boot, hurry)
    waiting = list(its.waiting)
    for seconds in (0.0, 1.0, 1000.0):
        now = NOW + seconds
        actions = planned_actions(
            planner, its.forecast, waiting, locations, problem, spent=spent, now=now, most_boot_paid=paid
        )
        assert {*(each.job for each in actions.placements), *(each.job for each in actions.waits)} <= set(waiting)
        if planner.schedule is not None:
            assert all(math.isfinite(end) for end in planner.schedule.expected_ends(its.forecast).values())


def test_of_plans_that_all_cost_more_than_can_be_reckoned_one_is_taken() -> None:
    job = ComingJob("a", Prediction(10.0), "here", PlannedJob("", Resources(2, 1024)), token="a")
    its = site_forecast(parts_at([ComingRun("r", NOW, {"t": ComingTask([job])})], "here", {}).values())
    problem = pose([], [], catalogue(small=(2, 4096, 0.36)), InstanceLimits(), Objective(), NOW, None)
    for spent in (math.inf, math.nan):
        planner = Planner(60.0)
        planned_actions(planner, its.forecast, ["a"], [], problem, spent=spent, now=NOW)
        assert planner.schedule is not None
        assert planner.schedule.starts == {"a": NOW + 60.0}
