"""What runs whose Dags ask ahead will need, from real rows of Airflow and of the store, by a clock that a test sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import site_threads
from lading.executors.gangs import ahead_requests as module
from lading.executors.gangs.ahead_requests import AheadRequests
from lading.executors.store import State
from lading.executors.store.durations import Durations, PastWaits
from lading.executors.store.gangs.tables import GangRow
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.scheduling.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.gangs.room import Ways
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.ranking import Match
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.resources import Resources
from lading.scheduling.shares.budgets import BudgetUse, PeriodBudget, Unit, budget_terms
from lading.scheduling.shares.who import Who
from tests.clusters.dag_runs import NOW, add_run, job, task
from tests.clusters.gangs import House
from tests.clusters.sites import ANY, FakeElasticSite, make_settings
from tests.services.outside_clocks import OFFSETS

NODE = Resources(4, 4096)
HPC = SiteView(name="hpc", possible=[Location("node", NODE)], market=Market(NODE, 0, 3600.0, 600.0, 9, whole=True))
LAB = SiteView(name="lab", possible=[Location("m", NODE)])
LATENCY = 2.0


@pytest.fixture
def session(airflow_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(module, "SECONDS_BETWEEN_LOOKS", 0.0)
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


@pytest.fixture
def ahead(session: Session, tmp_path: Path) -> AheadRequests:
    return AheadRequests(make_settings(tmp_path), Durations(), PastWaits(), lambda: LATENCY, Ways())


Asks = Callable[..., list[str]]


@pytest.fixture
def asks(session: Session, ahead: AheadRequests) -> Asks:
    def asks(seconds: float, *sites: SiteView) -> list[str]:
        """The jobs for which is asked after so many seconds, as SITE TASK MAP_INDEX."""
        found = ahead.look_ahead(session, sites or [HPC], NOW + seconds, by_dag=False)
        return sorted(
            f"{site} {' '.join(each.name.split()[2:])}" for site, jobs in found.wanted.items() for each in jobs
        )

    return asks


def running_a(session: Session, **hints: Any) -> None:
    task(session, "a", state="running", **hints)
    job(session, "a", State.RUNNING, site="hpc", location="i1")


def test_it_is_asked_for_at_its_start_less_the_predicted_wait(
    session: Session, asks: Asks, ahead: AheadRequests
) -> None:
    running_a(session)
    task(session, "b", "a")
    task(session, "c", "b")
    assert asks(299) == []
    assert asks(300) == ["hpc b -1"], "it is to start at 600 s, and it takes 300 s until there is room"
    assert asks(301) == ["hpc b -1"]
    assert asks(1000) == ["hpc b -1"], "c finds the room that was asked for for b"


def test_where_a_budget_of_its_dag_is_spent_nothing_is_asked_for(
    session: Session, asks: Asks, ahead: AheadRequests
) -> None:
    def use(unit: Unit, spent: float) -> BudgetUse:
        return BudgetUse(PeriodBudget("d", Who(dag="d"), 10.0, unit), spent, 0.0, NOW, NOW + 9000)

    running_a(session)
    task(session, "b", "a")
    for unit in Unit:
        ahead.budgets = partial(budget_terms, [use(unit, 10.0)])
        assert asks(300) == []
    ahead.budgets = partial(budget_terms, [use(Unit.USD, 9.0)])
    assert asks(301) == ["hpc b -1"]
    ahead.budgets = partial(budget_terms, [use(Unit.USD, 10.0)])
    assert asks(302) == [], "it was asked for while some was left"


@pytest.mark.parametrize("off_by", OFFSETS)
def test_the_clock_of_a_tasks_machine_does_not_say_when_it_has_begun(
    session: Session, asks: Asks, off_by: float
) -> None:
    task(session, "a", state="running", begun=NOW + off_by)
    job(session, "a", State.RUNNING, site="hpc", location="i1", started_at=NOW)
    task(session, "b", "a")
    assert asks(299) == []
    assert asks(300) == ["hpc b -1"]


def test_plugins_see_of_a_task_that_is_to_come_which_it_is(session: Session, asks: Asks, ahead: AheadRequests) -> None:
    seen: list[tuple[object, ...]] = []

    def rank(job: PlannedJob, matches: Sequence[Match]) -> None:
        seen.append((job.dag_id, job.run_id, job.task_id, job.map_index, job.inputs))

    ahead.ways = Ways(rank=rank)
    running_a(session)
    task(session, "b", "a")
    assert asks(300, HPC, LAB) == ["hpc b -1"]
    assert set(seen) == {("d", "r", "b", -1, ())}


def test_history_says_how_long_it_takes_where_there_is_one(session: Session, asks: Asks) -> None:
    running_a(session)
    task(session, "b", "a")
    for number in range(5):
        job(session, "a", State.SUCCEEDED, token=f"a{number}", ahead=None, started_at=NOW, ended_at=NOW + 400.0)
    assert asks(99) == []
    assert asks(100) == ["hpc b -1"], "it ends after 400 s, not after the 600 s of its limit"


def test_what_its_own_machine_leaves_is_not_asked_for(session: Session, asks: Asks) -> None:
    running_a(session)
    task(session, "b", "a", size=2)
    there = Location("i1", NODE, Resources(4, 512), instance_type=ANY, ends_at=NOW + 3600.0)
    site = SiteView(name="hpc", possible=HPC.possible, market=HPC.market, launched=[there], locations=[there])
    assert asks(400, site) == ["hpc b 1"], "the other one goes where a was"
    assert asks(400) == ["hpc b 0", "hpc b 1"]


@pytest.mark.parametrize(
    ("hints", "size", "asked"),
    [
        ({}, 0, 1),
        ({}, 3, 3),
        ({"max_jobs": 2}, 3, 2),
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
        "a job", "mapped", "so many at once", "on so many machines", "not this one", "as earlier tries say",
        "as its inputs say", "money is decided about later", "nothing is launched there", "it fits nowhere",
        "no site holds room",
    ],
)  # fmt: skip
def test_what_is_asked_for(session: Session, asks: Asks, hints: dict[str, Any], size: int, asked: int) -> None:
    running_a(session)
    task(session, "b", "a", size=size, **hints)
    assert len(asks(590, HPC, LAB)) == asked


def test_what_has_come_is_not_asked_for_any_more(session: Session, asks: Asks) -> None:
    running_a(session)
    task(session, "b", "a")
    task(session, "b2", "a")
    assert asks(400) == ["hpc b -1", "hpc b2 -1"]
    job(session, "b", State.QUEUED)
    assert asks(401) == ["hpc b2 -1"], "what waits is provided for like all that waits"
    session.execute(update(store.JobRow).values(state=State.SUCCEEDED))
    assert asks(402) == []


@pytest.mark.parametrize(
    ("state", "columns", "first"),
    [
        ("queued", {"state": State.QUEUED}, 100),
        ("queued", {"state": State.ATTEMPTED, "gang": "g"}, 1000),
        ("queued", {"state": State.PLACED, "site": "hpc", "location": "i1"}, 0),
        ("queued", {"state": State.PLACED, "site": "lab", "location": "m"}, 0),
        ("up_for_retry", None, 0),
    ],
    ids=["in a queue", "sleeps until 900", "about to begin", "at a site without a queue", "comes again"],
)
def test_a_first_partition_whose_start_has_moved(
    session: Session, asks: Asks, state: str, columns: dict[str, Any] | None, first: float
) -> None:
    """It takes 100 s then; what b needs is asked for 300 s before that is over."""
    task(session, "a", state=state, time=100)
    job(session, "a" if columns is not None else "x", **{"state": State.RUNNING, **(columns or {})})
    session.add(GangRow(token="g", dag_id="d", run_id="r", stage="attempted", wake_at=NOW + 900, memory="{}"))
    task(session, "b", "a")
    assert first == 0 or asks(first - 1, HPC, LAB) == []
    assert asks(first, HPC, LAB) == ["hpc b -1"]


@pytest.mark.parametrize(("state", "hints"), [("failed", {}), ("running", {"time": None})])
def test_behind_what_has_failed_or_has_no_known_end_nothing_is_asked_for(
    session: Session, asks: Asks, state: str, hints: dict[str, Any]
) -> None:
    task(session, "a", state=state, **hints)
    job(session, "x", State.RUNNING)
    task(session, "b", "a")
    assert asks(5000) == []


def test_of_what_is_paused_or_has_ended_nothing_comes(session: Session, asks: Asks) -> None:
    running_a(session)
    task(session, "b", "a")
    assert asks(400) == ["hpc b -1"]
    session.execute(update(DagModel).values(is_paused=True))
    assert asks(401) == []
    session.execute(update(DagModel).values(is_paused=False))
    assert asks(402) == ["hpc b -1"]
    session.execute(update(DagRun).values(state="failed"))
    assert asks(403) == []


def test_the_boot_of_a_machine_counts_where_too_few_are_known(session: Session, asks: Asks) -> None:
    types = Catalogue({"large": InstanceType("large", NODE, (Offering(1.0),))})
    cloud = SiteView(name="cloud", possible=[Location("large", NODE)], market=MachineMarket(types, boot_seconds=90.0))
    running_a(session)
    task(session, "b", "a")
    assert asks(509, cloud) == []
    assert asks(510, cloud) == ["cloud b -1"]


def test_an_allocation_that_is_there_early_lasts_for_what_it_is_for(session: Session, ahead: AheadRequests) -> None:
    running_a(session)
    task(session, "b", "a")
    task(session, "long", "a", time=3400)
    found = {each.name.split()[2]: each.time for each in look(ahead, session, 400).wanted["hpc"]}
    assert found["b"] == 600 + 300, "300 s from its predicted start until it is there at the earliest"
    assert found["long"] == 3600 - 120, "as long as allocations are, less what it takes to begin"


def look(ahead: AheadRequests, session: Session, seconds: float) -> module.Outlook:
    return ahead.look_ahead(session, [HPC], NOW + seconds, by_dag=False)


def test_the_event_log_of_a_task_says_once_that_it_is_asked_for(session: Session, ahead: AheadRequests) -> None:
    running_a(session)
    task(session, "b", "a", size=3)
    [note] = look(ahead, session, 400).notes
    assert (note.event, note.task[:3]) == ("lading asks ahead", ("d", "b", "r"))
    assert note.text.startswith("what it needs is asked for at hpc: it is to start at ")
    assert note.text.endswith("UTC, and until there is room it takes 5 min")
    assert look(ahead, session, 401).notes == []


def test_a_run_that_makes_no_sense_costs_no_other(
    session: Session, asks: Asks, caplog: pytest.LogCaptureFixture
) -> None:
    """Gangs that wait for each other; Airflow's table is as good as the Dag."""
    running_a(session)
    task(session, "b", "a", gang="one", site="hpc")
    task(session, "c", "b", gang="two")
    task(session, "d", "c", gang="one")
    session.add(DagRun(dag_id="d", run_id="other", run_type=DagRunType.BACKFILL_JOB, state="running"))
    session.flush()
    session.execute(update(TaskInstance).where(TaskInstance.run_id == "r").values(run_id="other"))
    session.execute(update(store.JobRow).values(run_id="other", token="elsewhere"))
    running_a(session)
    task(session, "b", "a")
    assert asks(400) == ["hpc b -1"]
    assert "nothing is asked for ahead: ('nodes are in a cycle'" in caplog.text


def test_many_runs_take_turns(session: Session, asks: Asks, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_RUNS_PER_TICK", 2)
    for number in range(3):
        name = f"r{number}"
        session.add(DagRun(dag_id="d", run_id=name, run_type=DagRunType.BACKFILL_JOB, state="running"))
        session.flush()
        running_a(session)
        task(session, "b", "a")
        session.execute(update(TaskInstance).where(TaskInstance.run_id == "r").values(run_id=name))
        session.execute(update(store.JobRow).where(store.JobRow.run_id == "r").values(run_id=name, token=name))
    assert [len(asks(400 + tick)) for tick in range(3)] == [2, 3, 3]


def test_a_run_without_jobs_is_forgotten(session: Session, ahead: AheadRequests) -> None:
    running_a(session)
    task(session, "b", "a")
    look(ahead, session, 400)
    assert ahead.asked_at
    session.execute(update(store.JobRow).values(state=State.SUCCEEDED))
    look(ahead, session, 500)
    assert [ahead.asked_at, ahead.steps, ahead.found, ahead.seen_at, ahead.looked_at] == [{}] * 5


def test_it_is_launched_once_and_not_again_for_the_job_itself(
    airflow_database: Engine, session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole controller: what is asked for ahead is there when the job comes, and it begins in it."""
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    site = FakeElasticSite("hpc", tmp_path / "hpc")
    site.config = site.config.model_copy(update={"accept_untargeted": True})
    house = House(airflow_database, make_settings(tmp_path / "state"), [site])
    session.execute(update(InstanceRow).values(ready_at=3600.0))  # it takes an hour
    begun = time.time() - 10
    task(session, "a", state="running", begun=begun)
    session.add(instance("i1", InstanceState.UP, ordered_at=begun, ready_at=begun))
    job(session, "a", State.RUNNING, site="hpc", location="i1", queued_at=begun, started_at=begun, cpus=1.0)
    task(session, "b", "a")
    session.commit()
    site.see("i1")
    site.given["i1"] = {"a": True}
    house.tick(3)
    [order] = site.ordered
    assert order.launch.jobs == ("d r b -1",)
    [note] = session.scalars(select(Log).where(Log.event == "lading asks ahead"))
    assert note.task_id == "b"
    site.see(order.name)
    house.tick(2)
    job(session, "b", State.QUEUED, queued_at=time.time() - 30)
    session.commit()
    house.tick(4)
    assert list(site.given[order.name]) == ["b"]
    assert len(site.ordered) == 1
    house.controller.threads.end()
