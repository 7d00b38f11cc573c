"""The upcoming work of live runs, as steps of one site."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from lading.scheduling.forecast.coming import (
    ComingJob,
    ComingRun,
    ComingTask,
    SiteForecast,
    alone,
    run_at_site,
    site_forecast,
)
from lading.scheduling.forecast.forecast import RoomWait
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources

SECONDS = 100.0


def job(name: str, site: str | None = "cloud", **known: Any) -> ComingJob:
    need = None if site is None else PlannedJob(f"a name of {name}", Resources(2, 1), task="its limit")
    return ComingJob(name, Prediction(SECONDS, 0.3), site, need, **known)


def mapped(task: str, number: int, **known: Any) -> list[ComingJob]:
    return [job(f"{task}{index}", index=index, **known) for index in range(number)]


def run(hurry: float | None = None, most: int | None = None, **tasks: ComingTask) -> SiteForecast:
    return site_forecast([run_at_site(ComingRun("r", 5.0, tasks, hurry, most), "cloud")])


def task(jobs: Sequence[ComingJob], *upstream: str, by_index: Sequence[str] = ()) -> ComingTask:
    return ComingTask(jobs, upstream, frozenset(by_index))


def test_jobs_of_the_site_are_steps_and_others_take_time() -> None:
    found = run(a=task([job("a")]), b=task([job("b", site="hpc")], "a"), c=task([job("c", site=None)], "b", "gone"))
    steps = found.forecast.steps
    assert {name: (each.parents, each.elsewhere, each.seconds) for name, each in steps.items()} == {
        "a": ((), False, SECONDS),
        "b": (("a",), True, SECONDS),
        "c": (("b",), True, SECONDS),
    }
    assert steps["a"].job == PlannedJob("a", Resources(2, 1), run="r", task="its limit", priority=1)
    assert steps["b"].job.resources == Resources(), "what it takes elsewhere is nothing here"
    assert found.waiting == {}


def test_on_how_many_machines_a_task_and_a_run_may_be_less_those_where_they_are_elsewhere() -> None:
    elsewhere = [
        job("b0", site="lab", begun=9.0, location="m"),
        job("b1", site="lab", begun=9.0, location="m"),  # on the same machine
        job("b2", site="hpc", begun=9.0),  # a batch job of its own
        job("b3", site=None, begun=9.0),  # not ours
    ]
    here = [job("a0", begun=9.0, location="up"), job("a1", token="t")]
    tasks = {"a": ComingTask(here, max_instances=3), "b": ComingTask(elsewhere)}
    groups = site_forecast([run_at_site(ComingRun("r", 5.0, tasks, max_instances=5), "cloud")]).groups
    assert (groups.tasks, groups.runs) == ({"its limit": 3}, {"r": 3})


def test_a_run_with_nothing_at_the_site_is_no_matter_of_it() -> None:
    assert run(a=task([job("a", site="hpc")])).forecast.steps == {}


def test_a_job_keeps_its_name_and_waits_for_none_when_it_has_come() -> None:
    found = run(
        a=task([job("a", token="t1", begun=9.0, location="m")]),
        b=task([job("b", token="t2")], "a"),
        c=task([job("c")], "b"),
    )
    steps = found.forecast.steps
    assert (steps["a"].begun, steps["a"].location) == (9.0, "m")
    assert steps["b"].parents == ()
    assert steps["c"].parents == ("b",)
    assert found.waiting == {"b": "t2"}


def test_of_a_thousand_before_a_thousand_none_has_a_thousand_parents() -> None:
    steps = run(a=task(mapped("a", 1000)), b=task(mapped("b", 1000), "a")).forecast.steps
    assert len(steps["r a end"].parents) == 1000
    assert (steps["r a end"].seconds, steps["r a end"].elsewhere) == (0.0, True)
    assert {steps[f"b{index}"].parents for index in range(1000)} == {("r a end",)}


def test_in_a_mapped_group_each_waits_for_its_own() -> None:
    a = mapped("a", 3)
    steps = run(a=task(a[1:]), b=task(mapped("b", 3), "a", by_index=["a"])).forecast.steps
    assert [steps[f"b{index}"].parents for index in range(3)] == [(), ("a1",), ("a2",)]


def test_of_some_jobs_it_is_known_for_which_others_they_wait() -> None:
    of_jobs = {0: {"a": [1, 7], "b": []}, 1: {"a": [], "b": []}, 2: {"a": [2], "b": [1]}}
    a, b = ComingTask(mapped("a", 3)), ComingTask(mapped("b", 3), ("a", "b"), before=of_jobs)
    steps = run(a=a, b=b).forecast.steps
    assert [steps[f"b{index}"].parents for index in range(3)] == [("a1",), (), ("a2", "b1")], "a7 has ended"
    steps = run(a=a, b=ComingTask(mapped("b", 2), ("a",), before={0: {"a": [1]}})).forecast.steps
    assert [steps[f"b{index}"].parents for index in range(2)] == [("a1",), ("r a end",)]


def test_what_is_left_out_is_passed_through() -> None:
    steps = run(a=task([job("a")]), b=task([], "a"), c=task([job("c")], "b")).forecast.steps
    assert steps["c"].parents == ("r b end",)
    assert steps["r b end"].parents == ("a",)


def test_what_a_run_says_of_itself_is_kept() -> None:
    found = run(3.0, 16, a=task([job("a")])).forecast
    assert (found.began, found.hurries, found.most_at_once) == ({"r": 5.0}, {"r": 3.0}, {"r": 16})
    assert run(a=task([job("a")])).forecast.hurries == {}


def test_a_job_of_which_nothing_else_is_known_is_a_run() -> None:
    runs = alone(job("x", token="x"), 7.0), alone(job("y", site="hpc", token="y"), 8.0)
    found = site_forecast(run_at_site(each, "cloud") for each in runs)
    assert found.forecast.steps.keys() == {"x"}
    assert (found.forecast.began, found.waiting) == ({"x": 7.0}, {"x": "x"})


def test_of_a_task_with_a_most_each_waits_for_one_before_it() -> None:
    jobs = mapped("a", 4)
    waiting = [job("a0", index=0, token="t0"), job("a1", index=1, token="t1", begun=9.0), *jobs[2:]]
    steps = run(a=ComingTask(waiting, most=2)).forecast.steps
    assert [steps[f"a{index}"].parents for index in range(4)] == [(), (), ("a1",), ("a0",)]


@pytest.mark.parametrize("most", [0, 1])
def test_a_retry_beside_its_earlier_try_waits_for_neither(most: int) -> None:
    """The machine of the earlier try does not answer, so it may run still."""
    both = [job("a", token="old", begun=4.0, location="m"), job("a", token="new")]
    found = run(a=ComingTask(both, most=most))
    assert found.forecast.steps["a"].parents == ()
    assert found.forecast.rests(5.0)["a"] == SECONDS


def test_what_its_pool_never_lets_begin_is_not_queued_for_another_reason() -> None:
    part = run_at_site(ComingRun("r", 5.0, {"a": task([job("a", pool="closed", pool_slots=1)])}), "cloud")
    assert site_forecast([part], {"closed": 0}).unqueued() == ["a"]
    assert site_forecast([part], {"closed": 1}).unqueued() == ["a"], "as all that could be queued"


def test_a_gang_begins_when_all_before_any_of_its_tasks_has_ended() -> None:
    found = run(
        a=task([job("a", begun=0.0)]),
        b=task([job("b")]),
        head=ComingTask([job("head")], ("a",), gang="g"),
        half=ComingTask(mapped("half", 2), ("b", "head"), gang="g"),
        last=task([job("last")], "half"),
    ).forecast
    steps, begin = found.steps, "r gang g begin"
    assert (steps[begin].parents, steps[begin].seconds, steps[begin].elsewhere) == (("a", "b"), 0.0, True)
    assert {steps[name].parents for name in ("head", "half0", "half1")} == {(begin,)}, "head is before none of its gang"
    starts = found.soonest(0.0)
    assert {starts[name] for name in ("head", "half0", "half1")} == {SECONDS}


def test_members_that_have_come_wait_for_the_others_and_those_at_work_for_none() -> None:
    members = [job("half0", index=0, token="t"), job("half1", index=1), job("half2", index=2, begun=5.0, token="u")]
    steps = run(a=task([job("a")]), half=ComingTask(members, ("a",), gang="g")).forecast.steps
    assert [steps[each.name].parents for each in members] == [("r gang g begin",), ("r gang g begin",), ()]


def test_what_runs_elsewhere_waits_for_its_room() -> None:
    waits = RoomWait(30.0)
    steps = run(a=task([job("a", room_wait=waits)]), b=task([job("b", site=None, room_wait=waits)])).forecast.steps
    assert (steps["a"].room_wait, steps["b"].room_wait) == (None, waits), "here a plan provides it"
