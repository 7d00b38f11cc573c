"""The upcoming work at a cluster: a controller with real Dags and tables, simulated allocations and clock."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.models.log import Log
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.forecast import site_plans
from lading.executors.forecast.allocation_work import SECONDS_UNSEEN, AllocationWork, BeginTimes
from lading.executors.forecast.held_up import SECONDS_UNTIL_HELD_UP
from lading.executors.forecast.site_plan import PlanningInput, SitePlan, chosen
from lading.executors.forecast.site_plans import PAUSE_BETWEEN_LOOKS, SitePlans
from lading.executors.store import run_rows
from lading.executors.store.durations import PastWaits
from lading.executors.store.instances import InstanceRow
from lading.executors.store.run_rows import RunForecast, RunKey
from lading.plugin.host import AirflowHost
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, SiteForecast, alone
from lading.scheduling.forecast.fleet_work import Fleet
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.market import MachineMarket, Market, kind
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import allocation_plan
from lading.scheduling.provisioning.foreseen import Foreseen, ForeseenActions
from lading.scheduling.provisioning.launch import AllocationPlan
from lading.scheduling.starts.expected_starts import StartSource
from tests.clusters import workflow_runs
from tests.clusters.bought import Clock
from tests.clusters.sites import make_settings
from tests.clusters.workflow_runs import SaidRuns, WorkflowRuns
from tests.services.at_once import AtOnce

QUEUE = 30.0
MARKET = Market(Resources(4, 8000), 0, 3000.0, 1500.0, 1, idle_seconds=5, queue_seconds=QUEUE)
NEED = PlannedJob("", Resources(1, 500), time=60.0, instance_type=kind(None, {}))


def task(name: str, seconds: float, *parents: str) -> Arrival:
    return Arrival(PlannedJob(name, Resources(2, 1024), time=60.0), 0.0, seconds, parents)


def test_one_allocation_serves_a_chain_and_ends_with_it(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = [task("a", 10), task("b", 10, "a"), task("c", 10, "b")]
    ends: list[float | None] = []

    def note(session: Session, forecasts: Mapping[RunKey, RunForecast]) -> None:
        ends.extend(each.ends_at for each in forecasts.values())

    with monkeypatch.context() as patch:
        patch.setattr(site_plans, "SECONDS_BETWEEN_NOTES", 0.0)
        patch.setattr(run_rows, "note", note)
        house = WorkflowRuns(airflow_database, {"d": chain}, MARKET, tmp_path, patch, queue=QUEUE)
        found = house.run([(0.0, "d", "r1")])
        house.close()
    diary = house.site.diary
    assert [machine for machine, _ in diary.begun.values()] == [0, 0, 0]
    assert found.launches == 1
    last = max(begun for _, begun in diary.begun.values()) + 10
    assert diary.released[0] - last < MARKET.idle_seconds, "at once, not when it has been idle for long"
    assert any(each is not None and each >= last for each in ends), "people see when the run should end"


def test_jobs_of_no_dag_are_decided_about_as_without_a_forecast(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {}, MARKET, tmp_path, patch, queue=QUEUE)
        house.add_alone("x", Resources(2, 1024), 10.0)
        found = house.run([])
        house.close()
    [(_, begun)] = house.site.diary.begun.values()
    assert found.launches == 1
    assert house.site.diary.released[0] - (begun + 10) >= MARKET.idle_seconds, "another one may come"


def test_a_walltime_covers_the_time_that_nodes_take_to_begin(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They have taken longer than was assumed, so too little is left of the first allocation."""
    with monkeypatch.context() as patch:
        patch.setattr(allocation_plan, "NOT_MEASURED", 10.0)
        house = WorkflowRuns(
            airflow_database, {"d": [task("a", 10)]}, MARKET, tmp_path, patch, queue=1.0, node_boots=70.0
        )
        first, second = house.run([(0.0, "d", "r1")]), house.run([(0.0, "d", "r2")])
        house.close()
    assert (first.launches, second.launches) == (2, 1)


def test_what_comes_after_a_known_length_does_not_wait_in_a_queue(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both branches behind the first task cannot be in one allocation at a time, so the second one is asked for ahead
    as soon as lengths are known."""
    its_end = [task("a", 100), task("b", 50, "a"), task("c", 50, "a")]
    its_end = [replace(each, job=replace(each.job, resources=Resources(4, 1024), time=200.0)) for each in its_end]
    market = replace(MARKET, most=2)
    with monkeypatch.context() as patch:
        patch.setattr(workflow_runs, "TICK", 1.0)  # nothing wakes the controller when room is to be requested ahead
        house = WorkflowRuns(airflow_database, {"d": its_end}, market, tmp_path, patch, queue=QUEUE, ahead=True)
        first, second = house.run([(0.0, "d", "r1")]), house.run([(0.0, "d", "r2")])
        house.close()
    with Session(airflow_database) as session:
        notes = session.scalars(select(Log).where(Log.event == "lading asks ahead", Log.run_id == "r2")).all()
    assert [each.task_id in ("b", "c") for each in notes] == [True]
    assert str(notes[0].extra).startswith("room is requested at cloud for a planned start at ")
    assert second.launches == 2
    assert second.seconds < first.seconds - QUEUE / 2


def test_short_tasks_beside_a_long_one_have_a_part_of_a_node(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fill the node at once; nothing ends later by it that they go one after the other.

    What a plan has begin behind others is not prefetched to an allocation where it would not."""
    tasks = [task("long", 300), *(task(f"s{number}", 30) for number in range(3))]
    tasks = [replace(each, job=replace(each.job, resources=Resources(1, 500), time=400.0)) for each in tasks]
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {"d": tasks}, replace(MARKET, most=4), tmp_path, patch, queue=QUEUE)
        first, second = house.run([(0.0, "d", "r1")]), house.run([(0.0, "d", "r2")])
        house.close()
    with Session(airflow_database) as session:
        rows = session.scalars(select(InstanceRow).order_by(InstanceRow.ordered_at)).all()
    asked = [each.cpus for each in rows[first.launches :]]
    assert len(asked) == second.launches
    assert sum(asked) == 2, "one for the long one, and one for the others"
    begun = house.site.diary.begun
    assert second.seconds <= 300 + QUEUE + 20
    assert len({begun[token] for token in begun if token.endswith("r2")}) >= 3, "the short ones go one after the other"


def test_when_jobs_start_in_allocations_is_said_by_the_plan(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that wait in the queue, and those behind them that wait for room."""
    tasks = [task("long", 300), *(task(f"s{number}", 90) for number in range(3))]
    tasks = [replace(each, job=replace(each.job, resources=Resources(1, 500), time=400.0)) for each in tasks]
    market = replace(MARKET, most=4, queue_seconds=120.0)
    with monkeypatch.context() as patch:
        house = SaidRuns(airflow_database, {"d": tasks}, market, tmp_path, patch, queue=120.0)
        house.run([(0.0, "d", "r1")])
        house.run([(0.0, "d", "r2")])
        house.close()
    assert house.accuracy() == [(StartSource.FORECAST, 8, 8)]


def test_how_long_allocations_take_to_begin_is_measured_as_they_begin() -> None:
    begins, asked = BeginTimes(), Location("a", MARKET.capacity, ends_at=1000.0, booting=True)
    up = replace(asked, booting=False)
    assert begins.measure([asked, Location("x", MARKET.capacity)], 0.0) is None
    assert begins.measure([up], 10.0) == 10.0, "so much less is left"
    assert begins.measure([up], 500.0) == 10.0, "it is seen once"
    begins.measure([replace(asked, name="b", ends_at=2000.0)], 1000.0)
    far = replace(up, name="b", ends_at=2100.0)
    assert begins.measure([far], 1000.0 + 2 * SECONDS_UNSEEN) == 10.0, "the site may not have answered for long"
    begins.measure([replace(asked, name="c", ends_at=3000.0)], 2000.0)
    assert begins.measure([], 3000.0) == 1000.0, "it was over before it was up"
    begins.measure([replace(asked, name="d", ends_at=9000.0)], 4000.0)
    begins.measure([replace(asked, name="d", ends_at=9000.0, booting=False, draining=True)], 4010.0)
    assert begins.measure([], 4020.0) == 1000.0, "it was let go"


def test_what_is_to_come_is_not_read_all_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, looks = Clock(0.0), []
    site = SiteView(name="hpc", market=MARKET)
    plans = SitePlans(AirflowHost(), make_settings(tmp_path), Ways(), lambda: None, PastWaits())

    def coming_runs(*_: object, **known: object) -> list[ComingRun]:
        looks.append(clock.now)
        clock.now += 2.0
        return []

    plans.has_noted = False
    plans.threads = AtOnce()
    monkeypatch.setattr(plans.live_runs, "coming_runs", coming_runs)
    monkeypatch.setattr(plans.waits, "read", lambda _: None)
    monkeypatch.setattr(time, "monotonic", clock)

    def found(at: float, *sites: SiteView) -> dict[str, Foreseen]:
        clock.now = at
        return plans.foresee(None, sites, [], at, by_dag=False)  # type: ignore[arg-type]

    first = found(0.0, site)
    assert (first.keys(), found(10.0, site), looks) == ({"hpc"}, first, [0.0])
    found(2.0 + 2.0 * PAUSE_BETWEEN_LOOKS, site)
    assert looks == [0.0, 22.0]
    plan = plans.work["hpc"].plan
    plan.choosing = Future()
    found(23.0, site)
    assert looks == [0.0, 22.0], "the search still runs"
    plan.choosing.set_result(None)
    found(24.0, site)
    assert looks == [0.0, 22.0, 24.0], "what it has chosen is used at once"
    assert found(23.0, replace(site, trouble=because("stopped"))) == {}, "it takes no jobs"
    plans.close()


def run(name: str, *jobs: ComingJob) -> ComingRun:
    return ComingRun(name, 0.0, {job.name: ComingTask((job,)) for job in jobs})


def job(name: str, **known: object) -> ComingJob:
    return ComingJob(name, Prediction(10.0), "hpc", NEED, **known)  # type: ignore[arg-type]


def work() -> AllocationWork:
    return AllocationWork(SitePlan(MachineMarket(Catalogue({})), site_plans.at_once, lambda: None))


def test_what_has_been_in_an_allocation_is_kept() -> None:
    made = work()
    site = SiteView(name="hpc", launched=[Location("a1", MARKET.capacity), Location("a2", MARKET.capacity)])

    def look(*runs: ComingRun) -> dict[str, bool]:
        made.next_plan(runs, site, MARKET, QueueWaits(), {"r"}, 0.0, pools={}, turns={}, is_blind=False)
        return made.foreseen

    assert look(run("r", job("x", token="t", begun=1.0, location="a1"), job("y", token="u"))) == {"a1": True}
    assert look() == {"a1": True}, "its job has ended"
    strange = alone(job("z", token="z", begun=1.0, location="a1"), 0.0)
    assert look(strange) == {"a1": False}
    assert look(run("r", job("x", token="t", begun=1.0, location="a1"))) == {"a1": False}


def test_what_is_held_up_keeps_no_allocation_and_ends_none() -> None:
    """A retry that is to come in hours, or what a full pool lets not begin."""
    kind = NEED.instance_type
    idle = Location("a1", MARKET.capacity, instance_type=kind, ends_at=3e3, idle_since=0.0)
    made, site = work(), SiteView(name="hpc", launched=[idle])
    made.foreseen = {"a1": True}
    runs = [run("r", job("x"))]
    plans = [
        made.next_plan(runs, site, MARKET, QueueWaits(), {"r"}, now, pools={}, turns={}, is_blind=False)
        for now in (0.0, SECONDS_UNTIL_HELD_UP)
    ]
    assert [(each.needed, each.releases) for each in plans] == [({"a1"}, {}), (frozenset(), {})]


def test_the_turns_of_shares_hold_for_what_waits_for_allocations(monkeypatch: pytest.MonkeyPatch) -> None:
    made, site = work(), SiteView(name="hpc", launched=[Location("a1", MARKET.capacity)])
    runs, turns = [run("r", job("x", token="t"), job("y"))], {"t": (3, 2.0), "of another site": (1, 1.0)}
    seen, next_actions = list[SiteForecast](), made.plan.next_actions

    def noted(its: SiteForecast, *rest: Any, **known: Any) -> ForeseenActions:
        seen.append(its)
        return next_actions(its, *rest, **known)

    monkeypatch.setattr(made.plan, "next_actions", noted)
    made.next_plan(runs, site, MARKET, QueueWaits(), {"r"}, 0.0, pools={}, turns=turns, is_blind=False)
    assert [each.forecast.turns for each in seen] == [{"x": (3, 2.0)}]


class Cluster:
    """A site of allocations at which what is asked for is there in the next tick, and the plans that are made."""

    def __init__(self, *launched: Location, wait: float = 200.0) -> None:
        self.launched, self.is_paid = list(launched), True
        self.market = replace(MARKET, most=4, idle_seconds=600, queue_seconds=wait)
        self.made: list[float] = []
        plan = SitePlan(MachineMarket(Catalogue({})), self.start, lambda: None)
        self.work = AllocationWork(plan)

    def start(self, here: PlanningInput, fleets: Sequence[Fleet]) -> Future[Fleet | None]:
        self.made.append(here.now)
        future: Future[Fleet | None] = Future()
        future.set_result(chosen(here, fleets, lambda: None))
        return future

    def tick(self, now: float, barred: Sequence[str] = (), **jobs: ComingTask) -> AllocationPlan:
        up = [each for each in self.launched if not each.booting]
        site = SiteView(name="hpc", market=self.market, locations=up, launched=list(self.launched))
        runs = [ComingRun("r", 0.0, jobs)]
        found = self.work.next_plan(
            runs, site, self.market, QueueWaits(), {"r"}, now, pools={}, turns={}, is_blind=False, barred=barred
        )
        for each in found.launches if self.is_paid else ():
            name = f"new-{len(self.launched)}"
            its = Location(name, each.capacity, instance_type=each.kind, ends_at=now + each.seconds, booting=True)
            self.launched.append(its)
        return found


def step(name: str, seconds: float, *parents: str, spread: float = 0.0, **known: object) -> ComingTask:
    need = replace(NEED, resources=Resources(4, 500), time=600.0)
    length = Prediction(seconds, spread, number=5)
    return ComingTask((ComingJob(name, length, "hpc", need, **known),), parents)  # type: ignore[arg-type]


def test_what_is_not_asked_for_ahead_is_not_planned_again_in_each_tick() -> None:
    """When an uncertain step ends is not known well enough to ask for what comes behind it before that waits."""
    busy = Location("a", MARKET.capacity, instance_type=NEED.instance_type, jobs=1, used=MARKET.capacity, ends_at=3e3)
    here = Cluster(busy)
    jobs = {"a": step("a", 300.0, spread=0.2, begun=0.0, token="a", location="a")}
    coming = {name: step(name, 600.0, "a", spread=0.2) for name in ("b", "c", "d")}
    for now in range(0, 190, 10):
        here.tick(float(now), **jobs, **coming)
    assert len(here.launched) == 1
    assert here.made == [0.0]
    here.launched = [replace(busy, jobs=0, used=Resources())]
    waiting = {name: step(name, 600.0, spread=0.2, token=name) for name in coming}
    asked = [here.tick(300.0 + now, **waiting) for now in range(3)]
    names = {name for each in asked for launch in each.launches for name in launch.jobs}
    assert len(names) == 2, "as soon as they wait, and one has the allocation that is there"


def test_what_no_budget_pays_for_is_asked_for_by_one_plan_until_one_does() -> None:
    here = Cluster()
    waiting = {name: step(name, 600.0, token=name) for name in ("a", "b")}
    here.is_paid = False
    asked = [here.tick(10.0 * number, **waiting) for number in range(100)]
    assert all(each.launches for each in asked)
    assert here.made == [0.0]
    here.is_paid = True
    here.tick(1000.0, **waiting)
    here.tick(1001.0, **waiting)
    assert {each.instance_type for each in here.launched} == {NEED.instance_type}
    assert here.made == [0.0, 1001.0], "it starts later than planned"


def test_what_its_share_keeps_from_a_cluster_is_not_planned_there() -> None:
    here = Cluster()
    waiting = {name: step(name, 600.0, token=name) for name in ("a", "b")}
    for number in range(100):
        found = here.tick(float(number), ["a", "b"], **waiting)
        assert not found.launches
    assert len(here.made) == 1
    assert {name for launch in here.tick(100.0, **waiting).launches for name in launch.jobs} == {"a", "b"}


def test_when_a_run_ends_is_not_said_while_its_share_keeps_jobs_of_it_from_a_cluster() -> None:
    here = Cluster()
    waiting = {name: step(name, 600.0, token=name) for name in ("a", "b")}
    plan = here.work.plan
    here.tick(0.0, ["b"], **waiting)
    assert (plan.planned_ends.keys(), plan.ends) == ({"r"}, {})
    here.tick(1.0, **waiting)
    assert plan.ends.keys() == {"r"}


def test_an_idle_allocation_that_stays_is_not_planned_again_in_each_tick() -> None:
    """It is not known who else may need it, as after a restart of the controller."""
    busy = Location("a", MARKET.capacity, instance_type=NEED.instance_type, jobs=1, used=MARKET.capacity, ends_at=3e3)
    here = Cluster(busy, replace(busy, name="idle", jobs=0, used=Resources(), idle_since=0.0))
    jobs = {"a": step("a", 900.0, begun=0.0, token="a", location="a")}
    found = [here.tick(float(now), **jobs) for now in range(10)]
    assert here.made == [0.0]
    assert not any(each.releases for each in found)


def test_what_a_plan_has_next_is_prefetched_and_stays_known_as_such() -> None:
    """Else another allocation would be asked for it, for it waits in the one that is there."""
    whole = replace(MARKET.capacity, cpus=4.0)
    full = Location("a", whole, instance_type=NEED.instance_type, jobs=1, used=whole, ends_at=3e3)
    here = Cluster(full)
    jobs = {"a": step("a", 2.0, begun=0.0, token="t-a", location="a"), "b": step("b", 3.0, token="t-b")}
    plan = here.tick(1.0, **jobs)
    assert plan.prefetch_to == {"t-b": "a"}
    assert plan.prefetched == {"t-b"}
    given = PlannedJob("t-b", Resources(4, 500), run="r")
    here.launched = [full.given([given])]
    placed = {"a": jobs["a"], "b": step("b", 3.0, begun=1.0, token="t-b", location="a")}
    plan = here.tick(1.5, **placed)
    assert (plan.prefetch_to, plan.prefetched) == ({}, {"t-b"})
    here.launched = [replace(full, used=given.resources)]
    plan = here.tick(2.0, b=placed["b"])
    assert plan.prefetched == frozenset(), "it has begun"
