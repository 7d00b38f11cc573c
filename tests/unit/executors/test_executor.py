"""The executor in Airflow's scheduler: queued workloads become rows, and rows become events."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from airflow.executors import workloads
from airflow.jobs.job import Job as AirflowJob
from airflow.models.callback import CallbackKey
from airflow.models.dag import DagModel, DagTag
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.models.trigger import Trigger
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy import event, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import LadingExecutor, executor, store
from lading.executors.store import JobRow, State
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.sizing.auto import from_text
from tests.clusters.sites import make_settings

OWNER, OTHER = 7, 3
VERSION = UUID(int=1)
REASONS = (("site_full", {"site": "lab"}), ("booting", {"text": "it boots"}), ("paused", {"site": "lab", "by": "me"}))


@pytest.fixture
def engine(airflow_database: Engine) -> Engine:
    with Session(airflow_database) as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        session.add(DagModel(dag_id="dag", bundle_name="bundle"))
        session.add(DagRun(dag_id="dag", run_id="run", run_type=DagRunType.MANUAL, state="running"))
        session.commit()
    return airflow_database


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What is written into the logs of tasks."""
    found: list[tuple[Any, ...]] = []
    monkeypatch.setattr(executor, "append_to_task_log", lambda *words: found.append(words))
    return found


def new_executor(folder: Path, owner: int | None = OWNER) -> LadingExecutor:
    made = LadingExecutor()
    made._settings = make_settings(folder)
    made.job_id = owner
    return made


@pytest.fixture
def scheduler(engine: Engine, tmp_path: Path, logs: list[tuple[Any, ...]]) -> LadingExecutor:
    """The executor of the scheduler with the number 7."""
    return new_executor(tmp_path)


def add_task(session: Session, task_id: str, token: str | None, **columns: Any) -> UUID:
    values: dict[str, Any] = {"state": "queued", "queued_by_job_id": OWNER, "try_number": 1, "max_tries": 0}
    values |= {"id": uuid7(), "pool": "default_pool", "pool_slots": 1, "map_index": -1, **columns}
    values |= {"dag_id": "dag", "run_id": "run", "task_id": task_id, "external_executor_id": token}
    session.execute(insert(TaskInstance).values(**values))
    return UUID(str(values["id"]))


def workload(
    task_id: str, token: str | None, id: UUID, config: Any = None, bundle: str = "bundle"
) -> workloads.ExecuteTask:
    ti = workloads.TaskInstanceDTO(
        id=id, dag_id="dag", run_id="run", task_id=task_id, try_number=1, dag_version_id=VERSION, pool_slots=1,
        priority_weight=5, external_executor_id=token, executor_config=config,
    )  # fmt: skip
    info = workloads.BundleInfo(name=bundle)
    return workloads.ExecuteTask(ti=ti, dag_rel_path=Path("dag.py"), token="jwt", log_path="a.log", bundle_info=info)


def callback(id: UUID) -> workloads.ExecuteCallback:
    bundle = workloads.BundleInfo(name="bundle")
    wanted: dict[str, Any] = {"id": str(id), "fetch_method": "import_path", "data": {"path": "x.y"}}
    return workloads.ExecuteCallback.model_validate(
        {"callback": wanted, "dag_rel_path": "dag.py", "token": "jwt", "log_path": None, "bundle_info": bundle}
    )


def queue(engine: Engine, scheduler: LadingExecutor, *tokens: str, config: Any = None, bundle: str = "bundle") -> None:
    """Queue tasks, each named after its token, as the scheduler does."""
    with Session(engine) as session:
        for token in tokens:
            scheduler.queue_workload(workload(token, token, add_task(session, token, token), config, bundle), session)
        session.commit()


def change(engine: Engine, token: str, **columns: Any) -> None:
    """What a controller stores about a job."""
    with Session(engine) as session:
        store.apply(session, [store.Change(token, columns, report=True)])
        session.commit()


def job(engine: Engine, token: str) -> JobRow:
    with Session(engine) as session:
        return session.scalars(select(JobRow).where(JobRow.token == token)).one()


def sync(scheduler: LadingExecutor) -> dict[Any, Any]:
    """What is reported to Airflow in one loop of the scheduler."""
    scheduler.sync()
    return scheduler.get_event_buffer()


def key(task_id: str) -> TaskInstanceKey:
    return TaskInstanceKey("dag", task_id, "run", 1, -1)


def entries(engine: Engine) -> list[tuple[str, str | None]]:
    with Session(engine) as session:
        return [(entry.event, entry.extra) for entry in session.scalars(select(Log).order_by(Log.id))]


ENDED = {"state": State.SUCCEEDED, "ended_at": 9.0}
FAILED = {"state": State.FAILED, "cause": "out_of_memory", "reason": free_text("it took 9 GiB"), "ended_at": 9.0}


# -- queue_workload


def test_a_job_is_stored_with_the_owners_and_tags_of_its_dag(engine: Engine, scheduler: LadingExecutor) -> None:
    with Session(engine) as session:
        session.execute(update(DagModel).values(owners="ann, bob"))
        session.add_all([DagTag(name="prod", dag_id="dag"), DagTag(name="a,b", dag_id="dag")])
        session.commit()
    queue(engine, scheduler, "t")
    assert (job(engine, "t").dag_owner, job(engine, "t").dag_tags) == ("ann, bob", '["a,b", "prod"]')


def test_a_task_becomes_a_job_with_all_that_its_placement_needs_and_without_its_jwt(
    engine: Engine, scheduler: LadingExecutor
) -> None:
    queue(engine, scheduler, "a", config={"lading": {"cpus": 2, "memory": "3 GiB"}})
    found = job(engine, "a")
    assert (found.state, found.owner, found.priority, found.kind) == (State.QUEUED, OWNER, 5, "ExecuteTask")
    assert (found.dag_id, found.task_id, found.run_id, found.try_number) == ("dag", "a", "run", 1)
    assert (found.cpus, found.memory, found.unreported) == (2.0, 3072, False)
    assert json.loads(found.workload)["token"] == ""
    assert "jwt" not in found.workload


def test_what_of_a_task_s_amounts_is_left_to_lading_is_stored(engine: Engine, scheduler: LadingExecutor) -> None:
    queue(engine, scheduler, "plain", config={"KubernetesExecutor": {"image": "x"}})
    queue(engine, scheduler, "written", config={"lading": {"cpus": 2, "memory": "3 GiB"}})
    queue(engine, scheduler, "half", config={"lading": {"memory": "3 GiB"}})
    default = job(engine, "plain")
    assert from_text(default.chosen).keys() == {"cpus", "memory"}
    assert from_text(default.chosen)["memory"].until_known == default.memory == 512
    assert job(engine, "written").chosen is None
    assert from_text(job(engine, "half").chosen).keys() == {"cpus"}
    scheduler._settings = replace(scheduler.settings, packs_by_use=False)
    queue(engine, scheduler, "as before")
    queue(engine, scheduler, "auto", config={"lading": {"memory": "auto"}})
    assert job(engine, "as before").chosen is None
    assert from_text(job(engine, "auto").chosen).keys() == {"memory"}


def test_a_job_is_as_little_there_as_its_task_when_the_scheduler_rolls_back(
    engine: Engine, scheduler: LadingExecutor
) -> None:
    with Session(engine) as session:
        scheduler.queue_workload(workload("a", "a", add_task(session, "a", "a")), session)
        session.rollback()
        session.commit()
    sync(scheduler)
    assert scheduler.live == {}
    with Session(engine) as session:
        assert session.scalars(select(JobRow.token)).all() == []


def test_jobs_of_one_transaction_are_a_few_statements_and_keep_their_order(
    engine: Engine, scheduler: LadingExecutor
) -> None:
    names = [f"{number * 7 % 40:02}" for number in range(40)]
    statements: list[str] = []
    with Session(engine) as session:
        tasks = [workload(name, name, add_task(session, name, name)) for name in names]
        session.flush()
        event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        for each in tasks:
            scheduler.queue_workload(each, session)
        asked = len(statements)
        session.commit()
    assert asked <= 5, "whose the Dag is, and nothing of each task"
    assert len(statements) - asked <= 4
    with Session(engine) as session:
        assert session.scalars(select(JobRow.token).order_by(JobRow.queued_at)).all() == names
    assert scheduler.live.keys() == {*names}


@pytest.mark.parametrize("old", ["a", None])
def test_a_try_has_a_token_of_its_own(engine: Engine, scheduler: LadingExecutor, old: str | None) -> None:
    """A retry keeps the token of the try before it, and some tasks get none from Airflow."""
    queue(engine, scheduler, "a")
    change(engine, "a", **ENDED)
    with Session(engine) as session:
        id = add_task(session, "b", old)
        scheduler.queue_workload(workload("b", old, id), session)
        session.commit()
        token = session.scalars(select(TaskInstance.external_executor_id).where(TaskInstance.id == id)).one()
    assert token not in (None, "a")
    assert job(engine, str(token)).state == State.QUEUED
    assert job(engine, "a").state == State.SUCCEEDED


def test_a_wrong_hint_fails_its_task_alone_and_says_why(
    engine: Engine, scheduler: LadingExecutor, logs: list[tuple[Any, ...]]
) -> None:
    queue(engine, scheduler, "a", config={"lading": {"cpus": "many"}})
    queue(engine, scheduler, "b")
    told = sync(scheduler)
    [(failed, (state, words))] = told.items()
    assert (failed, state) == (key("a"), TaskInstanceState.FAILED)
    assert "cpus" in words
    assert [log[0] for log in logs] == ["a.log"]
    assert scheduler.live == {"b": State.QUEUED}


# -- sync


def test_each_end_is_reported_to_airflow_once(engine: Engine, scheduler: LadingExecutor) -> None:
    queue(engine, scheduler, "a", "b", "c", "d", "e")
    change(engine, "a", **ENDED)
    change(engine, "b", **FAILED)
    change(engine, "c", state=State.CANCELLED, ended_at=9.0)
    change(engine, "d", state=State.CANCELLED, cause="cancelled", started_at=5.0, ended_at=9.0)
    change(engine, "e", state=State.RUNNING, started_at=5.0)
    told = sync(scheduler)
    assert {each.task_id: state for each, (state, _) in told.items()} == {"a": "success", "b": "failed", "d": "failed"}
    assert told[key("b")][1] == "out_of_memory: it took 9 GiB"
    assert scheduler.live == {"e": State.RUNNING}
    assert sync(scheduler) == {}
    with Session(engine) as session:
        assert session.scalars(select(JobRow.token).where(JobRow.unreported.is_(True))).all() == []


def test_a_task_that_airflow_ended_while_it_ran_is_no_failure_to_airflow(
    engine: Engine, scheduler: LadingExecutor
) -> None:
    """By a success Airflow queues a task anew that was cleared while it ran; one that was marked it leaves alone."""
    queue(engine, scheduler, "a")
    change(engine, "a", state=State.CANCELLED, cause="cancelled", started_at=5.0, ended_at=9.0, exit_code=0)
    assert {each.task_id: state for each, (state, _) in sync(scheduler).items()} == {"a": "success"}


def test_what_a_scheduler_got_before_it_died_is_reported_to_the_next_one(
    engine: Engine, scheduler: LadingExecutor, tmp_path: Path
) -> None:
    queue(engine, scheduler, "a")
    change(engine, "a", **ENDED)
    assert key("a") in sync(scheduler)
    assert key("a") in sync(new_executor(tmp_path)), "whether the first one has processed it is not known"


def test_news_that_comes_while_it_is_reported_to_airflow_is_reported_as_well(
    engine: Engine, scheduler: LadingExecutor
) -> None:
    queue(engine, scheduler, "a")
    change(engine, "a", state=State.RUNNING, started_at=5.0)
    assert sync(scheduler) == {}
    change(engine, "a", **ENDED)
    assert list(sync(scheduler)) == [key("a")]


def test_a_wait_has_its_reason_in_the_event_log_once(engine: Engine, scheduler: LadingExecutor) -> None:
    queue(engine, scheduler, "a")
    change(engine, "a", reason=because("site_full", site="lab"))
    assert sync(scheduler) == {}
    sync(scheduler)
    assert entries(engine) == [("lading waits", "waits: site 'lab' has no room")]


def test_of_later_reasons_the_event_log_has_those_that_last(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def wait(token: str, reason: Any, seconds: float, **columns: Any) -> None:
        change(engine, token, reason=reason, **columns)
        sync(scheduler)
        clock[0] += seconds
        sync(scheduler)

    full, boots, _ = (because(code, **values) for code, values in REASONS)
    queue(engine, scheduler, "a", "b")
    wait("a", full, 0.0)
    wait("b", boots, 0.0)
    shown = [("lading waits", str(full)), ("lading waits", str(boots))]
    assert entries(engine) == shown, "the first reason of each"
    for _ in range(3):
        wait("a", boots, 50.0)
        wait("a", full, 50.0)
    assert entries(engine) == shown, "none lasted"
    wait("a", boots, 30.0)
    wait("a", boots, 31.0, state=State.PLACED)
    shown.append(("lading waits", str(boots)))
    assert entries(engine) == shown
    wait("a", boots, 600.0)
    wait("a", None, 600.0, state=State.RUNNING, started_at=5.0)
    wait("b", full, 59.0)
    wait("b", None, 600.0, **ENDED)
    assert entries(engine) == shown
    assert (scheduler.wait_events.shown, scheduler.wait_events.pending) == ({}, {})


def test_the_next_scheduler_does_not_show_a_first_reason_again(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    full, _, paused = (because(code, **values) for code, values in REASONS)
    queue(engine, scheduler, "a")
    change(engine, "a", reason=full)
    sync(scheduler)
    after = new_executor(tmp_path, OTHER)
    with Session(engine) as session:
        after.try_adopt_task_instances(session.scalars(select(TaskInstance)).all())
        session.commit()
    change(engine, "a", reason=paused)
    sync(after)
    assert entries(engine) == [("lading waits", str(full))]
    clock[0] += 60.0
    sync(after)
    assert entries(engine) == [("lading waits", str(full)), ("lading waits", str(paused))]


@pytest.mark.parametrize(("exit_code", "is_told"), [(0, False), (1, True), (None, True)])
def test_what_a_task_has_reported_itself_is_not_said_again(
    engine: Engine, scheduler: LadingExecutor, logs: list[tuple[Any, ...]], exit_code: int | None, is_told: bool
) -> None:
    queue(engine, scheduler, "a")
    change(engine, "a", state=State.FAILED, cause="error", exit_code=exit_code, started_at=5.0, ended_at=9.0)
    assert list(sync(scheduler)) == [key("a")]
    assert (bool(logs), bool(entries(engine))) == (is_told, is_told)


def test_one_loop_of_the_scheduler_gets_some_and_the_ends_first(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "REPORTS_PER_SYNC", 2)
    queue(engine, scheduler, "a", "b", "c", "d")
    for token in ("a", "b", "c"):
        change(engine, token, state=State.RUNNING, started_at=5.0)
    change(engine, "d", **ENDED)
    assert list(sync(scheduler)) == [key("d")]
    for _ in range(2):
        sync(scheduler)
    assert scheduler.live == dict.fromkeys("abc", State.RUNNING)


def test_a_database_that_is_away_costs_a_loop_and_no_news(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue(engine, scheduler, "a")
    change(engine, "a", **ENDED)
    with monkeypatch.context() as patch:
        away = OperationalError("SELECT", {}, Exception("it is away"))

        def fail(*_: Any) -> Sequence[JobRow]:
            raise away

        patch.setattr(store, "unreported", fail)
        assert sync(scheduler) == {}
    assert list(sync(scheduler)) == [key("a")]


def test_nothing_is_reported_to_another_scheduler(engine: Engine, scheduler: LadingExecutor, tmp_path: Path) -> None:
    live(engine, OWNER)
    queue(engine, scheduler, "a")
    change(engine, "a", **ENDED)
    assert sync(new_executor(tmp_path, OTHER)) == {}


def test_a_callback_is_reported_as_airflow_expects_it(engine: Engine, scheduler: LadingExecutor) -> None:
    id = UUID(int=5)
    with Session(engine) as session:
        scheduler.queue_workload(callback(id), session)
        session.commit()
    token = str(id)
    change(engine, token, state=State.RUNNING, started_at=5.0)
    [(told, (state, _))] = sync(scheduler).items()
    assert (told, state) == (CallbackKey(id=token), "running")
    change(engine, token, **ENDED)
    [(told, (state, _))] = sync(scheduler).items()
    assert (told, state) == (CallbackKey(id=token), "success")
    assert entries(engine) == []


class Process:
    """Takes the place of the controller's process."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.rung = 0

    def ensure(self) -> None:
        if self.error is not None:
            raise self.error

    def ring(self) -> None:
        self.rung += 1


def test_the_controller_is_woken_at_once_by_what_waits(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process()
    monkeypatch.setattr(scheduler, "controller", process)
    scheduler.heartbeat()
    assert process.rung == 0
    queue(engine, scheduler, "a")
    scheduler.heartbeat()
    assert process.rung == 1


def test_no_trouble_of_the_controller_ends_the_scheduler(
    engine: Engine, scheduler: LadingExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "controller", Process(OSError("no more processes")))
    queue(engine, scheduler, "a")
    change(engine, "a", **ENDED)
    scheduler.heartbeat()
    assert list(scheduler.get_event_buffer()) == [key("a")]


def test_what_waits_for_room_is_not_stuck(engine: Engine, scheduler: LadingExecutor) -> None:
    queue(engine, scheduler, "a")
    with Session(engine) as session:
        task = session.scalars(select(TaskInstance)).one()
        with pytest.raises(NotImplementedError, match="it is not stuck"):
            scheduler.revoke_task(ti=task)
        change(engine, "a", **ENDED)
        scheduler.revoke_task(ti=task)


# -- adoption


def live(engine: Engine, number: int) -> None:
    """A scheduler with this number lives."""
    with Session(engine) as session:
        now = datetime.now(timezone.utc)
        session.execute(
            insert(AirflowJob).values(id=number, job_type="SchedulerJob", state="running", latest_heartbeat=now)
        )
        session.commit()


def test_what_the_store_knows_is_adopted_and_the_rest_is_airflow_s(
    engine: Engine, scheduler: LadingExecutor, tmp_path: Path
) -> None:
    queue(engine, new_executor(tmp_path, OTHER), "runs", "ended")
    change(engine, "runs", state=State.RUNNING, started_at=5.0)
    change(engine, "ended", **ENDED)
    with Session(engine) as session:
        session.execute(update(JobRow).values(unreported=False))
        add_task(session, "unknown", "unknown")
        add_task(session, "nameless", None)
        session.commit()
        tasks = session.scalars(select(TaskInstance)).all()
        rest = scheduler.try_adopt_task_instances(tasks)
        session.commit()
        assert sorted(task.task_id for task in rest) == ["nameless", "unknown"]
        assert {task.task_id for task in tasks if scheduler.has_task(task)} == {"runs"}
    assert (job(engine, "runs").owner, job(engine, "ended").owner) == (OWNER, OWNER)
    assert list(sync(scheduler)) == [key("ended")], "the dead one may not have reported it"


def test_there_may_be_nothing_to_adopt(engine: Engine, scheduler: LadingExecutor) -> None:
    assert scheduler.try_adopt_task_instances([]) == []


def test_an_adoption_that_the_scheduler_rolls_back_is_none(
    engine: Engine, scheduler: LadingExecutor, tmp_path: Path
) -> None:
    queue(engine, new_executor(tmp_path, OTHER), "a")
    with Session(engine) as session:
        scheduler.try_adopt_task_instances(session.scalars(select(TaskInstance)).all())
        session.rollback()
    assert job(engine, "a").owner == OTHER


@pytest.mark.parametrize("lives", [False, True])
def test_the_jobs_of_a_dead_scheduler_are_taken_over_soon(
    engine: Engine, scheduler: LadingExecutor, tmp_path: Path, lives: bool
) -> None:
    if lives:
        live(engine, OTHER)
    queue(engine, new_executor(tmp_path, OTHER), "a", "b")
    with Session(engine) as session:
        session.execute(update(TaskInstance).values(queued_by_job_id=OTHER))
        session.commit()
    change(engine, "b", **FAILED)
    told = sync(scheduler)
    assert list(told) == ([] if lives else [key("b")])
    assert scheduler.live == ({} if lives else {"a": State.QUEUED})
    owner = OTHER if lives else OWNER
    assert job(engine, "a").owner == owner
    with Session(engine) as session:
        assert set(session.scalars(select(TaskInstance.queued_by_job_id))) == {owner}


def test_schedulers_that_died_are_not_looked_for_in_every_loop(
    engine: Engine, scheduler: LadingExecutor, tmp_path: Path
) -> None:
    sync(scheduler)
    queue(engine, new_executor(tmp_path, OTHER), "a")
    sync(scheduler)
    assert job(engine, "a").owner == OTHER
    scheduler.next_adoption = time.monotonic()
    sync(scheduler)
    assert job(engine, "a").owner == OWNER


def test_a_job_script_is_not_reported_and_its_wait_is_in_the_log_of_its_task(
    engine: Engine, scheduler: LadingExecutor, logs: list[tuple[Any, ...]]
) -> None:
    """Its trigger reports to Airflow. One that Lading refuses fails its trigger."""
    with Session(engine) as session:
        trigger = Trigger(classpath="x.y", kwargs={})
        session.add(trigger)
        session.flush()
        id = add_task(session, "script", "worker", state="deferred", trigger_id=trigger.id, next_method="done")
        row: dict[str, Any] = {
            "token": "run",
            "kind": "JobScript",
            "subject": str(id),
            "dag_id": "dag",
            "run_id": "run",
        }
        row |= {"task_id": "script", "map_index": -1, "try_number": 1, "owner": OWNER, "state": State.QUEUED}
        row |= {"cpus": 1.0, "memory": 0, "disk": 0, "gpus": 0.0, "priority": 0, "workload": '{"log_path": "a.log"}'}
        store.add_jobs(session, [{**row, "unreported": False, "news": 0}])
        session.commit()
    change(engine, "run", reason=free_text("the budget is spent"))
    assert sync(scheduler) == {}
    assert logs == [("a.log", "The batch job is not admitted yet: the budget is spent", None, "info")]
    assert entries(engine) == [("lading waits", "the budget is spent")]
    change(engine, "run", **{**FAILED, "cause": "error"})
    assert sync(scheduler) == {}
    assert not scheduler.live
    with Session(engine) as session:
        task = session.scalars(select(TaskInstance).where(TaskInstance.id == id)).one()
        assert (task.state, task.next_method) == (TaskInstanceState.SCHEDULED, "__fail__")
    sync(scheduler)
    assert not job(engine, "run").unreported
