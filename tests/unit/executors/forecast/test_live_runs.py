"""The upcoming work of live runs, from real rows of Airflow and of the store."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from airflow.utils.types import DagRunType
from sqlalchemy import insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.forecast import live_runs, site_plans
from lading.executors.forecast.live_runs import LiveRuns
from lading.executors.forecast.site_plans import SitePlans, with_alike
from lading.executors.orchestrator import airflow_run_requests, airflow_runs
from lading.executors.store import JobRow, State, queue
from lading.executors.store.durations import PastWaits
from lading.executors.store.run_rows import RunForecastRow
from lading.operators import resources
from lading.plugin.host import AirflowHost
from lading.scheduling.accounting.budgets import BudgetUse, PeriodBudget, Unit, budget_terms
from lading.scheduling.accounting.who import Who
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask
from lading.scheduling.gangs.room import Ways
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import decide
from lading.scheduling.text.units import format_moment
from tests.clusters.sites import make_settings
from tests.services.at_once import AtOnce
from tests.services.packing import catalogue

NOW = 1_800_000_000.0  # 2027-01-15 08:00:00 UTC, 13:45 in Kathmandu
ZONE = ZoneInfo("Asia/Kathmandu")
GOODS = catalogue(small=(2, 4096, 0.36))
CLOUD = SiteView(
    name="cloud",
    possible=[Location("small", Resources(2, 4096), instance_type="small")],
    market=MachineMarket(GOODS, policy=FORECAST),
)
LAB = SiteView(name="lab", possible=[Location("m", Resources(2, 4096))])


class House:
    """A Dag ``d``: a >> b >> c, a >> branch >> c, a >> empty >> last, many (mapped) after b."""

    def __init__(self, engine: Engine, folder: Path) -> None:
        self.engine, self.live_runs = engine, LiveRuns(AirflowHost(), make_settings(folder), Ways(), PastWaits())
        with DAG("d", schedule=None, start_date=datetime(2020, 1, 1, tzinfo=ZONE), max_active_tasks=7) as dag:
            tasks = {each: BashOperator(task_id=each, bash_command=":") for each in ("a", "b", "branch", "c", "last")}
            many = BashOperator.partial(task_id="many").expand(bash_command=["1", "2"])
            empty = EmptyOperator(task_id="empty")
            tasks["a"] >> [tasks["b"], tasks["branch"]] >> tasks["c"]
            tasks["a"] >> empty >> tasks["last"]
            tasks["b"] >> many
        with Session(engine) as session:
            session.add(DagBundleModel(name="bundle"))
            session.flush()
            session.add(DagModel(dag_id="d", bundle_name="bundle", is_paused=False))
            session.flush()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "bundle", session=session)
            session.commit()

    def run(self, run_id: str, state: str, **states: str | None) -> None:
        """A run, with the states of its task instances; where they are several, one of each is mapped."""
        with Session(self.engine) as session:
            run = DagRun(dag_id="d", run_id=run_id, run_type=DagRunType.MANUAL, state=state)
            run.start_date = datetime.fromtimestamp(NOW - 9000, timezone.utc)
            session.add(run)
            session.flush()
            for task_id, said in states.items():
                each_state = (said or "none").split()
                for number, each in enumerate(each_state):
                    index = number if len(each_state) > 1 else -1
                    self.instance(session, run_id, task_id, None if each == "none" else each, index)
            session.commit()

    @staticmethod
    def instance(session: Session, run_id: str, task_id: str, state: str | None, index: int = -1, **hints: Any) -> None:
        values = {
            "id": uuid7(), "dag_id": "d", "run_id": run_id, "task_id": task_id, "map_index": index, "state": state,
            "pool": "p", "pool_slots": 1, "try_number": 1, "max_tries": 0,
            "executor_config": resources(**{"cpus": 2, "time": 600, **hints}),
        }  # fmt: skip
        session.execute(insert(TaskInstance.__table__), [values])

    def say(self, task_id: str, **hints: Any) -> None:
        """Give a task of the run ``r`` these hints."""
        with Session(self.engine) as session:
            mine = TaskInstance.run_id == "r", TaskInstance.task_id == task_id
            session.execute(update(TaskInstance).where(*mine).values(executor_config=resources(**hints)))
            session.commit()

    def job(self, task_id: str | None, state: State = State.RUNNING, run_id: str = "r", **columns: Any) -> None:
        known: dict[str, Any] = {"cpus": 2.0, "memory": 512, "disk": 0, "gpus": 0.0, "dag_id": "d", "run_id": run_id}
        known |= {"token": f"{run_id}-{task_id}", "queued_at": NOW - 50, "subject": "s", "workload": "{}"}
        known |= {"kind": "ExecuteTask", "priority": 1, "task_id": task_id, "map_index": -1, "try_number": 1}
        if state == State.RUNNING:
            known |= {"site": "cloud", "location": "m", "started_at": NOW - 10}
        with Session(self.engine) as session:
            store.add_job(session, state=state, **{**known, **columns})
            session.commit()

    def look(self, *sites: SiteView, now: float = NOW) -> dict[str, ComingRun]:
        with Session(self.engine) as session:
            found = self.live_runs.coming_runs(session, sites or [CLOUD], now, by_dag=False)
        return {each.name: each for each in found}

    def jobs(self, now: float = NOW) -> dict[str, list[ComingJob]]:
        """The jobs of the run ``r`` by their tasks."""
        [run] = self.look(now=now).values()
        return {task_id: list(task.jobs) for task_id, task in run.tasks.items()}


@pytest.fixture
def house(airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(live_runs, "SECONDS_BETWEEN_LOOKS", 0.0)
    return House(airflow_database, tmp_path)


def fresh(house: House, **states: str | None) -> None:
    """A run whose first task runs."""
    known: dict[str, str | None] = dict.fromkeys(("b", "branch", "c", "last", "many", "empty"))
    house.run("r", "running", **{"a": "running", **known, **states})


def test_a_run_is_all_that_is_to_come_of_it(house: House) -> None:
    fresh(house)
    house.job("a")
    [run] = house.look().values()
    assert (run.began, run.most_at_once, run.hurry) == (NOW - 50, 7, None)
    [a] = run.tasks["a"].jobs
    assert (a.token, a.begun, a.location, a.site) == ("r-a", NOW - 10, "m", "cloud")
    [b] = run.tasks["b"].jobs
    assert (b.token, b.site, b.need and b.need.resources.cpus, run.tasks["b"].upstream) == (None, "cloud", 2, ("a",))
    [empty] = run.tasks["empty"].jobs
    assert (empty.site, empty.expected.seconds) == (None, 0.0)
    assert [each.index for each in run.tasks["many"].jobs] == [0]
    assert run.tasks["c"].upstream == ("b", "branch")


def test_what_a_job_takes_in_an_allocation_is_known_once_its_site_has_answered(house: House) -> None:
    """Until then, it is not known that the site has allocations, and of which kind the job needs one."""
    hpc = SiteView(name="hpc", possible=[Location("hpc", Resources(4, 8000))], launches=True)
    fresh(house, a="queued")
    house.job("a", State.QUEUED)
    market = Market(Resources(4, 8000), 0, 3000.0, 1500.0, 1)
    for seen, kind in ((hpc, None), (replace(hpc, market=market), "[null, []]")):
        [run] = house.look(seen).values()
        [a] = run.tasks["a"].jobs
        assert a.need is not None
        assert (a.site, a.need.instance_type) == ("hpc", kind)


def test_mapped_tasks_and_branches_are_expected_as_in_earlier_runs(house: House) -> None:
    house.run("old", "success", many="success success success", branch="skipped", c="success")
    fresh(house)
    house.job("a")
    jobs = house.jobs()
    assert [each.index for each in jobs["many"]] == [0, 1, 2]
    assert jobs["branch"] == []
    with Session(house.engine) as session:
        session.execute(
            update(TaskInstance)
            .where(TaskInstance.run_id == "r", TaskInstance.task_id == "branch")
            .values(state="scheduled")
        )
        session.commit()
    assert len(house.jobs(NOW + 1)["branch"]) == 1, "it comes all the same"


def test_lengths_are_learnt_at_once(house: House) -> None:
    fresh(house)
    house.job("a")
    before = house.jobs()["b"][0].expected.seconds
    house.job("b", State.SUCCEEDED, "old", started_at=NOW - 100, ended_at=NOW - 70)
    assert (before, round(house.jobs(NOW + 1)["b"][0].expected.seconds)) == (600.0, 30)


def test_a_job_keeps_its_name(house: House) -> None:
    fresh(house)
    house.job("a")
    [before] = house.jobs()["b"]
    house.job("b", State.QUEUED)
    [after] = house.jobs(NOW + 1)["b"]
    assert before.name == after.name
    assert (before.token, after.token, after.begun) == (None, "r-b", None)


def test_what_has_been_handed_over_and_has_no_job_has_ended(house: House) -> None:
    """The end of a job is stored at Lading before Airflow has stored it."""
    fresh(house, b="running")
    house.job("a")
    assert "b" not in house.jobs()


def test_behind_what_has_failed_nothing_comes(house: House) -> None:
    fresh(house, b="failed")
    house.job("a")
    jobs = house.jobs()
    assert (jobs["b"], jobs["c"], jobs["many"]) == ([], [], [])
    assert len(jobs["branch"]) == 1


def test_hints_say_what_a_run_is_worth_and_on_how_many_machines_it_may_be(house: House) -> None:
    fresh(house)
    house.job("a")
    house.say("b", cpus=2, hurry="fast", max_usd=5, finish_by="1h")
    house.say("c", cpus=2, max_instances=2)
    house.say("last", cpus=2, memory="input_size + 1 MiB", run_max_instances=4)
    [run] = house.look().values()
    assert (run.hurry, run.finish_by) == (10.0, NOW - 50 + 3600)
    assert (house.live_runs.with_budget, run.max_instances) == ({run.name}, 4)
    assert (run.tasks["c"].jobs[0].site, run.tasks["c"].max_instances) == ("cloud", 2)
    assert run.tasks["last"].jobs[0].site is None, "what it asks for is not known"
    house.job("last", State.SUCCEEDED, "old", cpus=1.5, started_at=NOW - 100, ended_at=NOW - 70)
    later = LiveRuns(AirflowHost(), house.live_runs.settings, Ways(), PastWaits())
    house.live_runs = later
    [last] = house.jobs(NOW + 1)["last"]
    assert last.need is not None
    assert last.need.resources.cpus == 1.5, "as much as its last job"


@pytest.mark.parametrize(
    ("queued", "clock"),
    [("2027-01-15T07:59:10+00:00", "2027-01-16T06:00+05:45"), ("2027-01-15T00:10:00+00:00", "2027-01-15T06:00+05:45")],
)
def test_a_time_of_day_is_the_next_one_in_the_zone_of_the_dag_after_the_first_job(
    house: House, queued: str, clock: str
) -> None:
    fresh(house)
    house.job("a", State.SUCCEEDED, queued_at=datetime.fromisoformat(queued).timestamp(), ended_at=NOW - 20)
    house.job("b")
    house.say("b", cpus=2, finish_by="06:00")
    [run] = house.look().values()
    assert run.began == datetime.fromisoformat(queued).timestamp(), "before this controller"
    assert run.finish_by == datetime.fromisoformat(clock).timestamp()


def test_what_a_person_asks_of_a_run_wins_over_its_hints_until_it_is_taken_back(house: House) -> None:
    fresh(house)
    house.job("a")
    house.say("b", cpus=2, hurry=0.5, finish_by="2h")

    def terms(now: float) -> tuple[float | None, float | None]:
        [run] = house.look(now=now).values()
        return run.hurry, run.finish_by

    by_hint = 0.5, NOW - 50 + 7200
    assert terms(NOW) == by_hint
    with Session(house.engine) as session:
        airflow_run_requests.ask(session, "d", "r", "cheap", None, "alice")
        session.commit()
        assert terms(NOW + 1) == (0.0, by_hint[1]), "of what is not asked the hint holds"
        airflow_run_requests.ask(session, "d", "r", None, "06:00", "alice")
        session.commit()
        at_six = datetime.fromisoformat("2027-01-16T06:00+05:45").timestamp()
        assert terms(NOW + 2) == (0.5, at_six), "later than the hint"
        assert house.live_runs.forecasts({"d r": 5.0}) == {("d", "r"): (0.5, at_six, 5.0)}
        assert airflow_run_requests.ask(session, "d", "r", None, None, "bob") is None
        session.commit()
    assert terms(NOW + 3) == by_hint


def test_waiting_jobs_go_by_the_rest_of_their_run_where_nothing_is_bought(house: House, tmp_path: Path) -> None:
    fresh(house)
    house.job("a", State.SUCCEEDED, ended_at=NOW - 50)
    house.job("last", State.QUEUED, queued_at=NOW - 40)
    house.job("b", State.QUEUED, queued_at=NOW - 30)
    house.job(None, State.QUEUED, queued_at=NOW - 20)

    def order(by: str, now: float) -> list[str]:
        plans = SitePlans(AirflowHost(), make_settings(tmp_path, order=by), Ways(), lambda: None, PastWaits())
        with Session(house.engine) as session:
            if by == "critical_path":
                plans.read(session, [LAB], now, by_dag=False)
            assert plans.foresee(session, [LAB], [], now, by_dag=False) == {}
            found = [job.name for job in queue.waiting(session, rests=plans.rests)]
        plans.close()
        return found

    assert order("priority", NOW) == ["r-last", "r-b", "r-None"]
    assert order("critical_path", NOW) == ["r-b", "r-last", "r-None"], "c comes after b, and nothing after last"
    assert order("critical_path", NOW + 1e6) == ["r-last", "r-b", "r-None"], "all have waited too long"


def test_what_is_forecast_of_a_run_is_stored_until_nothing_is_bought_by_it(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_plans, "SECONDS_BETWEEN_NOTES", 0.0)
    fresh(house)
    house.job("a")
    house.say("b", cpus=2, hurry="fast", finish_by="1 min")
    machine = Location("m", Resources(2, 4096), Resources(2, 512), instance_type="small", usd_per_hour=0.36)
    cloud, plans = (
        replace(CLOUD, launched=[machine]),
        SitePlans(AirflowHost(), make_settings(tmp_path), Ways(), lambda: None, PastWaits()),
    )
    plans.threads = AtOnce()
    with Session(house.engine) as session:
        plans.foresee(session, [cloud], [], NOW, by_dag=False)
        row = session.get_one(RunForecastRow, ("d", "r"))
        assert (row.hurry, row.finish_by) == (10.0, NOW - 50 + 60)
        assert row.ends_at is not None
        assert row.ends_at > NOW + 900, "three tasks of ten minutes, one behind the other, on one machine"
        assert str(row.trouble).startswith(f"cannot end by {format_moment(NOW + 10)}: about ")
        plans.foresee(session, [LAB], [], NOW + 1, by_dag=False)
        assert session.scalars(select(RunForecastRow)).all() == []
    plans.close()


def test_of_some_runs_it_is_not_known_what_they_need(house: House) -> None:
    fresh(house)
    house.job("a")
    house.look()
    assert (len(house.live_runs.names), house.live_runs.without_needs) == (1, set())
    house.say("c", memory="2 * input_size")
    house.live_runs.known.clear()
    house.look()
    assert house.live_runs.without_needs == house.live_runs.names, "no try of it has ended yet"
    house.job("c", State.SUCCEEDED, "old", started_at=NOW - 100, ended_at=NOW - 70)
    house.live_runs.known.clear()
    house.look()
    assert house.live_runs.without_needs == set(), "as much as the last time"


def test_a_site_that_comes_first_has_it(house: House) -> None:
    fresh(house)
    house.job("a")
    [run] = house.look(LAB, CLOUD).values()
    assert run.tasks["b"].jobs[0].site == "lab"
    assert run.tasks["a"].jobs[0].site == "cloud", "it is at work there"


def test_of_a_dag_that_cannot_be_read_its_jobs_are_known_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(run: object, session: object) -> None:
        raise KeyError("another version of Airflow")

    monkeypatch.setattr(house.live_runs.dags.bag, "get_dag_for_run", odd)
    fresh(house)
    house.job("a")
    jobs = house.jobs()
    assert {task_id: len(some) for task_id, some in jobs.items() if some} == {"a": 1}
    assert house.live_runs.without_structure == set(house.look())
    assert "another version of Airflow" in caplog.text


def test_jobs_of_no_run_are_alone(house: House) -> None:
    house.job(None, State.QUEUED)
    assert [(name, [job.token for job in run.tasks[""].jobs]) for name, run in house.look().items()] == [
        ("r-None", ["r-None"])
    ]


def test_a_run_is_forgotten_when_it_has_had_no_job_for_a_while(house: House) -> None:
    fresh(house)
    house.job("a")
    assert len(house.look()) == 1
    with Session(house.engine) as session:
        session.execute(update(JobRow).values(state=State.SUCCEEDED, ended_at=NOW))
        session.commit()
    assert len(house.look(now=NOW + 30)) == 1
    assert house.look(now=NOW + 61) == {}


def test_pools_and_what_airflow_lets_be_at_work_are_known(house: House) -> None:
    fresh(house)
    with Session(house.engine) as session:
        session.add_all(
            [Pool(pool="p", slots=3, include_deferred=False), Pool(pool="all", slots=-1, include_deferred=False)]
        )
        mine = TaskInstance.run_id == "r", TaskInstance.task_id == "b"
        session.execute(update(TaskInstance).where(*mine).values(pool_slots=2))
        session.commit()
    house.job("a")
    jobs = house.jobs()
    assert {task_id: {(job.pool, job.pool_slots) for job in some} for task_id, some in jobs.items()} == {
        "a": {("p", 1)}, "b": {("p", 2)}, "branch": {("p", 1)}, "c": {("p", 1)}, "last": {("p", 1)}, "many": {("p", 1)},
        "empty": {(None, 1)},
    }  # fmt: skip
    assert {name: house.live_runs.pools.get(name) for name in ("p", "all")} == {"p": 3, "all": None}


def test_of_hints_that_cannot_be_read_the_jobs_of_the_run_are_known_alone(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def odd(session: object, run: object) -> None:
        raise ModuleNotFoundError("No module named 'ours'")

    monkeypatch.setattr(airflow_runs, "configs", odd)
    fresh(house)
    house.job("a")
    assert {task_id for task_id, some in house.jobs().items() if some} == {"a"}
    assert house.live_runs.without_structure == {"d r"}
    assert "The requests of the tasks of some runs cannot be read" in caplog.text


NEAR_THE_END = {"started_at": NOW - 60, "time_limit": 100.0}
MACHINE = Location("m", Resources(2, 4096), Resources(2, 512), instance_type="small", usd_per_hour=0.36)
FULL_CLOUD = replace(CLOUD, launched=[MACHINE])


def budget(unit: Unit, spent: float, lifted_by: str | None = None) -> BudgetUse:
    return BudgetUse(PeriodBudget("d", Who(dag="d"), 10.0, unit), spent, 0.0, NOW - 9000, NOW + 9000, lifted_by)


def foreseen(house: House, folder: Path, *uses: BudgetUse) -> list[tuple[str, ...]]:
    """The jobs of each machine that is launched for what is to come, and for what waits and is not looked at."""
    plans = SitePlans(
        AirflowHost(), make_settings(folder), Ways(), lambda: None, PastWaits(), partial(budget_terms, uses)
    )
    plans.threads = AtOnce()
    with Session(house.engine) as session:
        found = plans.foresee(session, [FULL_CLOUD], [], NOW, by_dag=False)["cloud"]
    plans.close()
    made = decide([], [MACHINE], FULL_CLOUD.market, None, InstanceLimits(), now=NOW, foreseen=found)
    return [tuple(sorted(name.removeprefix("d r ") for name in each.jobs)) for each in made.launches]


def test_for_what_is_to_come_of_a_dag_whose_budget_is_spent_nothing_is_launched(house: House, tmp_path: Path) -> None:
    fresh(house)
    house.job("a", **NEAR_THE_END)
    without = foreseen(house, tmp_path)
    assert without, "while a runs a machine is launched for what comes after it"
    assert foreseen(house, tmp_path, budget(Unit.USD, 2.0)) == without
    assert foreseen(house, tmp_path, budget(Unit.USD, 10.0)) == []
    assert foreseen(house, tmp_path, budget(Unit.CPU_HOURS, 10.0)) == []
    assert foreseen(house, tmp_path, budget(Unit.USD, 10.0, "ann")) == without, "it was lifted"
    others = BudgetUse(PeriodBudget("e", Who(dag="e"), 1.0), 1.0, 0.0, NOW - 9000, NOW + 9000)
    assert foreseen(house, tmp_path, others) == without


def test_nor_for_what_waits_behind_more_jobs_than_a_tick_looks_at(house: House, tmp_path: Path) -> None:
    fresh(house)
    house.job("b", State.QUEUED)
    without = foreseen(house, tmp_path)
    assert "r-b" in {name for names in without for name in names}
    assert foreseen(house, tmp_path, budget(Unit.USD, 2.0))
    assert foreseen(house, tmp_path, budget(Unit.USD, 10.0)) == []
    assert foreseen(house, tmp_path, budget(Unit.CPU_HOURS, 10.0)) == []


def test_what_a_share_may_not_have_is_not_planned_either_where_it_was_not_looked_at() -> None:
    """Of thousands that are alike some are looked at in a tick."""

    def waits(token: str, task_id: str) -> WaitingJob:
        return WaitingJob(token, Resources(1, 1), dag_id="d", run_id="r", task_id=task_id)

    def runs_with(*tokens: str) -> ComingTask:
        return ComingTask([ComingJob(f"d r {token}", Prediction(1.0), "cloud", token=token) for token in tokens])

    runs = [
        ComingRun("d r", NOW, {"a": runs_with("a1", "a2", "a3"), "b": runs_with("b1", "b2")}),
        ComingRun("other r", NOW, {"a": runs_with("o1", "o2")}),
    ]
    waiting = [waits("a1", "a"), waits("a2", "a"), waits("b1", "b")]
    assert with_alike(frozenset({"a1"}), waiting, runs) == {"a1", "a3"}
    assert with_alike(frozenset({"gone"}), waiting, runs) == {"gone"}
