"""What plans launch ahead of jobs that are to come, from real rows of Airflow and of the store."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import delete, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import site_threads
from lading.executors.forecast import live_runs
from lading.executors.forecast.allocation_work import AllocationWork
from lading.executors.forecast.site_plan import SitePlan
from lading.executors.forecast.site_plans import SitePlans, at_once
from lading.executors.store import State
from lading.executors.store.durations import PastWaits
from lading.executors.store.gangs.tables import GangRow
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.site import LocationState
from lading.plugin.host import AirflowHost
from lading.scheduling.accounting.budgets import NO_BUDGETS, BudgetTerms, BudgetUse, PeriodBudget, Unit, budget_terms
from lading.scheduling.accounting.who import Tenant, Who
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import NATIVE, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch, Provision, decide
from lading.scheduling.provisioning.allocation_plan import MINUTE, NOT_MEASURED
from lading.scheduling.provisioning.foreseen import ForeseenActions
from lading.scheduling.provisioning.launch import AllocationPlan
from tests.clusters.bought import Clock
from tests.clusters.dag_runs import NOW, add_run, job, store_dag, task
from tests.clusters.gangs import House
from tests.clusters.sites import ANY, FakeElasticSite, make_settings
from tests.services.at_once import AtOnce
from tests.services.outside_clocks import OFFSETS

NODE = Resources(4, 4096)
TYPES = Catalogue({"large": InstanceType("large", NODE, (Offering(1.0),))})
LARGE = Location("large", NODE, instance_type="large")
# It buys by what waits alone, and takes 300 s to boot.
CLOUD = SiteView(name="cloud", possible=[LARGE], market=MachineMarket(TYPES, policy="greedy", boot_seconds=300.0))
# It buys by a forecast.
PLANNING = SiteView(
    name="cloud", possible=[LARGE], market=MachineMarket(TYPES, policy=FORECAST, boot_seconds=300.0), holds=True
)
HPC = SiteView(
    name="hpc", possible=[Location("node", NODE)], market=Market(NODE, 0, 3600.0, 600.0, 9, whole=True), holds=True
)
LAB = SiteView(name="lab", possible=[Location("m", NODE)])
QUEUE = SiteView(name="queue", possible=[Location("q", NODE, max_jobs=9, hints=frozenset({NATIVE}))])


@pytest.fixture
def session(airflow_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(live_runs, "SECONDS_BETWEEN_LOOKS", 0.0)
    with Session(airflow_database) as session:
        add_run(session)
        for number in range(20):  # such waits are known: three of four take 300 s at most
            session.add(instance(f"old{number}", InstanceState.ENDED, ordered_at=0.0, ready_at=300.0))
        session.commit()
        yield session


def instance(token: str, state: InstanceState, **columns: Any) -> InstanceRow:
    return InstanceRow(
        token=token, site="hpc", kind=ANY, cpus=4, memory=4096, disk=0, gpus=0.0, seconds=3600.0, state=state, **columns
    )


class Requests:
    """What is launched ahead for a run, by the clock of the test."""

    def __init__(self, session: Session, folder: Path) -> None:
        self.session, self.terms = session, NO_BUDGETS
        self.plans = SitePlans(
            AirflowHost(), make_settings(folder), Ways(), lambda: None, PastWaits(), lambda tenant: self.terms
        )
        self.plans.threads = AtOnce()
        self.live_runs = self.plans.live_runs
        self.starts: dict[str, float] = {}

    def provisions(self, seconds: float, *sites: SiteView) -> dict[str, Provision]:
        """What is decided after so many seconds, by site."""
        now = NOW + seconds
        if not self.live_runs.known:
            store_dag(self.session)
        self.plans.due_at = 0.0
        foreseen = self.plans.foresee(self.session, sites, [], now, by_dag=False)
        found = {
            site.name: decide(
                [],
                site.launched,
                site.market,
                now=now,
                foreseen=foreseen.get(site.name),
            )
            for site in sites
            if site.market is not None
        }
        self.starts = {name: start for each in found.values() for name, start in each.ahead.items()}
        return found

    def launches(self, seconds: float, *sites: SiteView) -> dict[str, list[Launch]]:
        """The launches for nothing but jobs that are to come."""
        return {
            site: [each for each in provision.launches if all(" " in name for name in each.jobs)]
            for site, provision in self.provisions(seconds, *(sites or (CLOUD,))).items()
        }

    def __call__(self, seconds: float, *sites: SiteView) -> list[str]:
        """The jobs that are to start first on what is launched ahead, as SITE TASK MAP_INDEX."""
        found = self.provisions(seconds, *(sites or (CLOUD,)))
        return sorted(
            f"{site} {' '.join(name.split()[2:])}" for site, provision in found.items() for name in provision.ahead
        )


@pytest.fixture
def asks(session: Session, tmp_path: Path) -> Requests:
    return Requests(session, tmp_path)


def running_a(session: Session, **hints: Any) -> None:
    task(session, "a", state="running", **hints)
    job(session, "a", State.RUNNING, site="cloud", location="i1", started_at=NOW, time_limit=hints.get("time", 600))


def test_it_is_asked_for_at_its_start_less_the_predicted_wait(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a")
    task(session, "c", "b")
    assert asks(299) == []
    assert asks(300) == ["cloud b -1"], "it is to start at 600 s, and it takes 300 s until there is room"
    assert asks(301) == ["cloud b -1"]
    assert asks(1000) == ["cloud b -1"], "c finds the room that was asked for for b"


@pytest.mark.parametrize(
    ("site", "hints"),
    [
        (PLANNING, {"gang": "g"}),
        (PLANNING, {"attempts": {"pauses": ["1h"], "count": 2}}),
        (HPC, {"gang": "g"}),
    ],
)
def test_gangs_and_jobs_with_attempts_are_planned_for_like_others(
    session: Session, asks: Requests, site: SiteView, hints: dict[str, Any]
) -> None:
    running_a(session)
    task(session, "b", "a", **hints)
    assert asks(299, site) == []
    assert asks(300, site) == [f"{site.name} b -1"]


@pytest.mark.parametrize("hints", [{"gang": "g"}, {"attempts": {"pauses": ["1h"], "count": 2}}])
def test_what_sites_hold_room_for_goes_to_no_other_site(
    session: Session, asks: Requests, hints: dict[str, Any]
) -> None:
    running_a(session)
    task(session, "b", "a", **hints)
    assert asks(300, QUEUE, PLANNING) == ["cloud b -1"]


def test_a_gang_is_asked_for_together_when_all_of_it_may_begin(session: Session, asks: Requests) -> None:
    """Its second task comes after b, of which the first one is no part."""
    running_a(session)
    task(session, "b", "a", time=100, site="lab")
    task(session, "head", "a", gang="g", cpus=1)
    task(session, "half", "b", size=2, gang="g", cpus=2)
    task(session, "behind", "head", gang="other", cpus=4)
    assert asks(399, PLANNING) == []
    assert asks(400, PLANNING) == ["cloud half 0", "cloud half 1", "cloud head -1"], "a ends at 600 s, b at 700 s"
    assert {*asks.starts.values()} == {NOW + 700}
    session.execute(update(TaskInstance).where(TaskInstance.task_id != "behind").values(state="running"))
    session.execute(update(store.JobRow).values(state=State.SUCCEEDED))
    at = {"site": "cloud", "location": "i1", "started_at": NOW + 700, "time_limit": 600}
    for number, task_id in ((-1, "head"), (0, "half"), (1, "half")):
        job(session, task_id, State.RUNNING, token=f"{task_id}{number}", map_index=number, gang="token", **at)
    assert asks(999, PLANNING) == []
    assert asks(1000, PLANNING) == ["cloud behind -1"], "they take 600 s"


def test_members_that_have_come_are_not_asked_for_and_the_others_are(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "head", state="queued", gang="g", cpus=1)
    task(session, "half", "a", size=2, gang="g", cpus=2)
    job(session, "head", State.QUEUED, gang="token")
    assert asks(300, PLANNING) == ["cloud half 0", "cloud half 1"]


def test_where_a_budget_of_its_dag_is_spent_nothing_is_asked_for(session: Session, asks: Requests) -> None:
    def terms(unit: Unit, spent: float) -> BudgetTerms:
        use = BudgetUse(PeriodBudget("d", Who(dag="d"), 10.0, unit), spent, 0.0, NOW, NOW + 9000)
        return budget_terms([use], Tenant(None, "d"))

    running_a(session)
    task(session, "b", "a")
    for unit in Unit:
        asks.terms = terms(unit, 10.0)
        assert asks(300) == []
    asks.terms = terms(Unit.USD, 9.0)
    assert asks(301) == ["cloud b -1"], "it is bought within it"
    asks.terms = terms(Unit.USD, 10.0)
    assert asks(302) == [], "it was asked for while some was left"


@pytest.mark.parametrize("off_by", OFFSETS)
def test_the_clock_of_a_tasks_machine_does_not_say_when_it_has_begun(
    session: Session, asks: Requests, off_by: float
) -> None:
    task(session, "a", state="running", begun=NOW + off_by)
    job(session, "a", State.RUNNING, site="cloud", location="i1", started_at=NOW, time_limit=600)
    task(session, "b", "a")
    assert asks(299) == []
    assert asks(300) == ["cloud b -1"]


def test_plugins_see_of_a_task_that_is_to_come_which_it_is(session: Session, asks: Requests) -> None:
    seen: list[tuple[object, ...]] = []

    def rank(job: PlannedJob, matches: Sequence[Match]) -> None:
        seen.append((job.dag_id, job.run_id, job.task_id, job.map_index, job.inputs))

    asks.live_runs.ways = Ways(rank=rank)
    running_a(session)
    task(session, "b", "a")
    assert asks(300, CLOUD, LAB) == ["cloud b -1"]
    assert set(seen) == {("d", "r", "b", -1, ())}


def test_where_a_plugin_has_ended_a_controller_over_such_a_task_none_is_asked(session: Session, asks: Requests) -> None:
    seen: list[object] = []
    asks.live_runs.ways = Ways(rank=lambda job, matches: seen.append(job.task_id))
    asks.live_runs.may_look_ahead = False
    running_a(session)
    task(session, "b", "a")
    assert asks(300, CLOUD, LAB) == []
    assert seen == []


def test_history_says_how_long_it_takes_where_there_is_one(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a")
    for number in range(5):
        job(session, "a", State.SUCCEEDED, token=f"a{number}", started_at=NOW, ended_at=NOW + 400.0, time_limit=600)
    assert asks(98) == []
    assert asks(101) == ["cloud b -1"], "it ends after 400 s, not after the 600 s of its limit"


def test_what_its_own_machine_leaves_is_not_asked_for(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a", size=2)
    there = Location("i1", NODE, Resources(4, 512), instance_type="large")
    assert asks(400, replace(CLOUD, launched=[there], locations=[there])) == ["cloud b 1"], "the other goes where a was"
    assert asks(406) == ["cloud b 0", "cloud b 1"]


@pytest.mark.parametrize(
    ("hints", "size", "asked"),
    [
        ({}, 0, 1),
        ({}, 3, 3),
        ({"max_jobs": 2}, 3, 2),
        ({"run_max_jobs": 2}, 3, 2),
        ({"max_instances": 1}, 3, 1),
        ({"ahead": False}, 0, 0),
        ({"memory": "auto"}, 0, 0),
        ({"cpus": "len(samples)"}, 0, 0),
        ({"max_usd": 5.0}, 0, 0),
        ({"site": "lab"}, 0, 0),
        ({"cpus": 5}, 0, 0),
        ({"gang": "ray"}, 2, 0),
    ],
    ids=[
        "a job", "mapped", "so many at once", "so many of the run at once",
        "on few machines", "not this one",
        "as earlier tries say", "as its inputs say", "money is decided about later", "nothing is launched there",
        "it fits nowhere", "no site holds room",
    ],
)  # fmt: skip
def test_how_many_machines_are_launched(
    session: Session, asks: Requests, hints: dict[str, Any], size: int, asked: int
) -> None:
    running_a(session)
    task(session, "b", "a", size=size, **hints)
    assert len(asks.launches(590, CLOUD, LAB)["cloud"]) == asked


def test_what_depends_on_its_inputs_asks_for_as_much_as_in_the_last_run(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a", size=2, cpus="len(samples)")
    job(session, "a", State.SUCCEEDED, token="older", run_id="earlier", started_at=NOW - 650, ended_at=NOW - 50)
    of_b = {"run_id": "earlier", "cpus": 3.0, "started_at": NOW - 9, "ended_at": NOW - 5}
    job(session, "b", State.SUCCEEDED, token="old", **of_b)
    assert len(asks.launches(400)["cloud"]) == 2, "a machine has room for one of them"


def test_what_has_come_is_not_asked_for_any_more(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a")
    task(session, "b2", "a")
    assert asks(400) == ["cloud b -1", "cloud b2 -1"]
    job(session, "b", State.QUEUED)
    assert asks(401) == ["cloud b2 -1"], "what waits is provided for like all that waits"
    session.execute(update(store.JobRow).values(state=State.SUCCEEDED))
    session.execute(update(TaskInstance).values(state="queued"))
    assert asks(402) == []


@pytest.mark.parametrize(
    ("columns", "first"),
    [
        ({"state": State.ATTEMPTED, "gang": "g", "site_hint": "planning"}, 1000),
        ({"state": State.PLACED, "site": "cloud", "location": "i1"}, 0),
        ({"state": State.PLACED, "site": "lab", "location": "m"}, 0),
        ({"state": State.PLACED, "site": "queue", "location": "q", "placed_at": NOW}, 700),
        ({"state": State.QUEUED, "targets": '[["queue/long"], []]', "queued_at": NOW}, 1700),
    ],
    ids=["it sleeps until 900", "about to begin", "at a site without a queue", "900 s in a queue",
        "1900 s in the queue that its target names",
    ],
)  # fmt: skip
def test_a_first_task_whose_start_has_moved(
    session: Session, asks: Requests, columns: dict[str, Any], first: float
) -> None:
    """It takes 100 s then; what b needs is asked for 300 s before that is over."""
    for number in range(20):
        job(
            session, "a", State.SUCCEEDED, token=f"a{number}", run_id="old", site="queue", submitted_at=NOW - 1100.0,
            started_at=NOW - 200.0, ended_at=NOW - 100.0,
        )  # fmt: skip
        job(
            session, "x", State.SUCCEEDED, token=f"x{number}", run_id="old", site="queue", queue="long",
            submitted_at=NOW - 2100.0, started_at=NOW - 200.0,
        )  # fmt: skip
    task(session, "a", state="queued", time=100, ahead=False)
    job(session, "a", **{"time_limit": 100, **columns})
    session.add(GangRow(token="g", dag_id="d", run_id="r", stage="attempted", wake_at=NOW + 900, memory="{}"))
    task(session, "b", "a")
    sites = [CLOUD, LAB, QUEUE, replace(PLANNING, name="planning")]
    assert first == 0 or asks(first - 1, *sites) == []
    assert asks(first, *sites) == ["cloud b -1"]


def test_until_what_comes_again_has_come_nothing_is_asked_for_behind_it(session: Session, asks: Requests) -> None:
    """When it does is not known, and a machine has to boot for it, too."""
    task(session, "a", state="up_for_retry", time=100, ahead=False)
    job(session, "x", State.RUNNING)
    task(session, "b", "a")
    assert asks(5000) == []


def test_what_comes_again_is_asked_for_when_it_may_begin_and_what_is_behind_it_neither(
    session: Session, asks: Requests
) -> None:
    """A retry may be hours away."""
    running_a(session)
    task(session, "b", state="up_for_retry")
    task(session, "local", state="up_for_retry", site="lab", time=100)
    task(session, "c", "b local", cpus=1)
    task(session, "behind", "local")
    assert asks(0, CLOUD, LAB) == []
    session.execute(update(TaskInstance).where(TaskInstance.task_id == "local").values(state="running"))
    job(session, "local", State.RUNNING, site="lab", location="m", started_at=NOW, time_limit=100)
    assert asks(10, CLOUD, LAB) == ["cloud behind -1"]


def test_what_was_not_known_of_a_site_when_a_run_came_is_found_out_later(session: Session, asks: Requests) -> None:
    """A site that has not answered says nothing of what it launches, and nothing of the run may change for hours."""
    running_a(session)
    task(session, "b", "a")
    silent = replace(CLOUD, market=None, trouble=because("site_silent", site="cloud", text="no answer"))
    assert asks(0, silent) == []
    assert asks(299, CLOUD) == []
    assert asks(300, CLOUD) == ["cloud b -1"]
    slow = replace(CLOUD, market=MachineMarket(TYPES, policy="greedy", boot_seconds=500.0))
    other = Requests(session, Path(asks.live_runs.settings.state_folder))
    assert other(99, CLOUD) == []
    assert other(100, slow) == ["cloud b -1"], "boots have been measured since"


@pytest.mark.parametrize(("state", "hints"), [("failed", {}), ("running", {"time": None})])
def test_behind_what_has_failed_or_has_no_known_end_nothing_is_asked_for(
    session: Session, asks: Requests, state: str, hints: dict[str, Any]
) -> None:
    task(session, "a", state=state, **hints)
    job(session, "a" if state == "running" else "x", State.RUNNING, site="cloud", location="i1", started_at=NOW)
    task(session, "b", "a")
    assert asks(5000) == []


def test_of_what_is_paused_or_has_ended_nothing_comes(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a")
    assert asks(400) == ["cloud b -1"]
    session.execute(update(DagModel).values(is_paused=True))
    assert asks(401) == []
    session.execute(update(DagModel).values(is_paused=False))
    assert asks(402) == ["cloud b -1"]
    session.execute(update(DagRun).values(state="failed"))
    assert asks(403) == []


def test_an_allocation_waits_in_its_queue_as_others_did(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a", gang="g")
    assert asks(299, HPC) == []
    assert asks(300, HPC) == ["hpc b -1"]
    session.execute(delete(InstanceRow))
    asks.live_runs.waits.stale_at = 0.0
    market = Market(NODE, 0, 3600.0, 600.0, 9, whole=True, queue_seconds=100.0)
    other = Requests(session, Path(asks.live_runs.settings.state_folder))
    assert other(499, replace(HPC, market=market)) == [], "as its site says it, where too few are known"
    assert other(500, replace(HPC, market=market)) == ["hpc b -1"]


def test_an_allocation_that_is_there_early_lasts_for_what_it_is_for(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a", gang="g")
    task(session, "long", "a", time=3400, gang="h")
    found = {each.jobs[0].split()[2]: each.seconds for each in asks.launches(400, HPC)["hpc"]}
    assert found["b"] == -(-(200 + 600 + NOT_MEASURED) // MINUTE) * MINUTE, "should it be there at once"
    assert found["long"] == 3400 + NOT_MEASURED


def test_it_is_asked_for_from_a_moment_on(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a", size=3)
    asks(400)
    assert asks.starts == {f"d r b {number}": NOW + 700 for number in range(3)}
    booting = [
        replace(LARGE, name=f"i{number}", capacity_type="on-demand", booting=True, ready_at=NOW + 700)
        for number in range(3)
    ]
    assert asks(401, replace(CLOUD, launched=booting)) == [], "what is launched is not launched again"


def test_gangs_that_wait_for_each_other_cost_themselves_alone(
    session: Session, asks: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    running_a(session)
    task(session, "b", "a", gang="one")
    task(session, "c", "b", gang="two")
    task(session, "d", "c", gang="one")
    task(session, "e", "a", attempts={"pauses": ["1h"], "count": 2})
    assert "cloud e -1" in asks(400, PLANNING)
    assert "Gangs of some runs wait for each other" in caplog.text


def test_a_run_without_jobs_is_forgotten(session: Session, asks: Requests) -> None:
    running_a(session)
    task(session, "b", "a")
    asks(400)
    assert asks.plans.plans
    session.execute(update(store.JobRow).values(state=State.SUCCEEDED))
    asks(500)
    assert asks.plans.plans == {}


def test_it_is_launched_once_and_not_again_for_the_job_itself(
    airflow_database: Engine, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole controller: what is asked for ahead is there when the job comes, and it begins in it."""
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    site = FakeElasticSite("hpc", tmp_path / "hpc")
    site.config = site.config.model_copy(update={"accept_untargeted": True})
    site.says = MachineMarket(TYPES, policy="greedy", boot_seconds=3600.0)
    house = House(airflow_database, make_settings(tmp_path / "state"), [site])
    begun = time.time() - 10
    task(session, "a", state="running", begun=begun)
    session.add(instance("i1", InstanceState.UP, ordered_at=begun, ready_at=begun))
    job(
        session,
        "a",
        State.RUNNING,
        site="hpc",
        location="i1",
        queued_at=begun,
        started_at=begun,
        cpus=1.0,
        time_limit=600,
    )
    task(session, "b", "a")
    store_dag(session)
    session.commit()
    site.see("i1", state=LocationState.DRAINING)  # so that b does not go where a was
    site.given["i1"] = {"a": True}
    house.tick(3)
    [order] = site.ordered
    assert order.launch.jobs == ("d r b -1",)
    [note] = session.scalars(select(Log).where(Log.event == "lading asks ahead"))
    assert note.task_id == "b"
    assert "room is requested at hpc for a planned start at " in str(note.extra)
    site.see(order.name, kind=order.launch.kind)
    house.tick(2)
    job(session, "b", State.QUEUED, queued_at=time.time() - 30, time_limit=600)
    session.commit()
    house.tick(4)
    assert list(site.given[order.name]) == ["b"]
    assert len(site.ordered) == 1
    house.controller.threads.end()


def test_what_is_to_come_in_allocations_is_found_out_no_sooner_for_what_is_launched_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, clock = SitePlans(AirflowHost(), make_settings(tmp_path), Ways(), lambda: None, PastWaits()), Clock(0.0)
    b = ComingTask([ComingJob("d r b -1", Prediction(60.0), "cloud", PlannedJob("b", NODE))], ("a",), ahead=True)
    a = ComingTask([ComingJob("d r a -1", Prediction(60.0), begun=NOW)])
    runs, looks = [ComingRun("d r", NOW, {"a": a, "b": b})], list[int]()

    def coming_runs(*_: object, **known: object) -> list[ComingRun]:
        clock.now += 2.0
        return runs

    plans.has_noted = False
    monkeypatch.setattr(plans.live_runs, "coming_runs", coming_runs)
    work = AllocationWork(SitePlan(MachineMarket(Catalogue({})), at_once, lambda: None))
    monkeypatch.setattr(work, "next_plan", lambda *_, **known: looks.append(1) or AllocationPlan())
    plans.work["hpc"] = work
    monkeypatch.setattr(plans.waits, "read", lambda _: None)
    monkeypatch.setattr(time, "monotonic", clock)
    found = [plans.foresee(None, [HPC, CLOUD], [], NOW + number, by_dag=False) for number in range(2)]  # type: ignore[arg-type]
    assert (len(looks), found[1]["hpc"]) == (1, found[0]["hpc"])
    runs.clear()
    later = plans.foresee(None, [HPC, CLOUD], [], NOW + 2, by_dag=False)  # type: ignore[arg-type]
    actions = [each["cloud"] for each in found]
    names = [[*each.actions.launched_for.values()] for each in actions if isinstance(each, ForeseenActions)]
    assert names == [[("d r b -1",)]] * 2
    assert later.keys() == {"hpc"}
    plans.close()
