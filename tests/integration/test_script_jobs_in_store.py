"""Job scripts of deferred tasks as rows of the store, in the tables of Airflow and Lading on the real databases."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import Trigger, handle_event_submit
from airflow.triggers.base import TriggerEvent
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunType
from cryptography.fernet import Fernet
from sqlalchemy import create_engine, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.accounting import task_usage
from lading.executors.controller import script_jobs
from lading.executors.controller.script_jobs import ScriptJobs, ended
from lading.executors.orchestrator import airflow_scripts
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.orchestrator import ScriptEnd
from lading.executors.store import Change, JobRow, State, queue
from lading.executors.store.durations import levels
from lading.executors.store.tables import UsageRow
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.task_run import token
from lading.operators.job_script_trigger import JobScriptTrigger
from lading.plugin.ui.queries.advice import tasks_asked
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.usage import Usage
from tests.conftest import DATABASES

REQUEST = ScriptRequest(site="hpc", nodes=2, ppn=4, threads=2, mem=4000, time=600, queue="long")
TIMES = {"started_at", "ended_at"}
NODE: Any = SimpleNamespace(memory_overhead=384)


@pytest.fixture(scope="module", params=DATABASES)
def engine(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    url = database_url(request.param) or f"sqlite:///{tmp_path_factory.mktemp('scripts')}/airflow.db"
    made = create_engine(url)
    import_all_models()
    Base.metadata.create_all(made)
    store.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", Fernet.generate_key().decode())
    with Session(engine) as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        session.add(DagModel(dag_id="dag", bundle_name="bundle"))
        session.add(DagRun(dag_id="dag", run_id="run", run_type=DagRunType.MANUAL, state="running"))
        session.flush()
        yield session
        session.rollback()


@pytest.fixture
def scripts(session: Session) -> ScriptJobs:
    class Nested(AirflowOrchestrator):
        @contextmanager
        def session(self) -> Iterator[Session]:
            with session.begin_nested():
                yield session

    return ScriptJobs(Nested(), {"hpc": NODE}, lambda name: Resources(16, 3700, 0, 0))


def deferred(session: Session, task_id: str, job: Any = REQUEST, classpath: str | None = None, **columns: Any) -> Any:
    """A task that has left its job script to the triggerer, and the row of the job that did."""
    given = job.to_json() if isinstance(job, ScriptRequest) else job
    path, kwargs = JobScriptTrigger("hpc", {"nodes": 2}, job=given).serialize()
    trigger = Trigger(classpath=classpath or path, kwargs=kwargs)
    session.add(trigger)
    session.flush()
    ours = {"dag_id": "dag", "run_id": "run", "task_id": task_id, "map_index": -1, "try_number": 1}
    its = {"id": uuid7(), "state": "deferred", "trigger_id": trigger.id, "next_method": "execute_complete"}
    its |= {"pool": "default_pool", "pool_slots": 1, "max_tries": 0, "external_executor_id": f"job of {task_id}"}
    session.execute(insert(TaskInstance).values(**ours, **its))
    row = {"token": f"job of {task_id}", "kind": "ExecuteTask", "subject": str(its["id"]), "state": State.SUCCEEDED}
    row |= {"cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "priority": 5, "workload": '{"log_path": "a.log"}'}
    row |= {"owner": 7, "team": "genomics", "dag_owner": "me", "executor_team": "genomics", "max_jobs": 3}
    row |= {"started_at": 1.0, "ended_at": 2.0, "unreported": False, "news": 0, **columns}
    store.add_jobs(session, [{**ours, **row}])
    return SimpleNamespace(**its, **ours)


def row_of(session: Session, task: Any) -> JobRow:
    session.expire_all()
    return session.scalars(select(JobRow).where(JobRow.token == token(task))).one()


def task_of(session: Session, task: Any) -> TaskInstance:
    session.expire_all()
    return session.scalars(select(TaskInstance).where(TaskInstance.id == task.id)).one()


def placed(session: Session, task: Any, **values: Any) -> float:
    now = time.time()
    where = {"state": State.PLACED, "site": "hpc", "location": "hpc", "placed_at": now - 60}
    store.apply(session, [Change(token(task), {**where, **values})])
    return now


def assert_failed(task: TaskInstance, why: str) -> None:
    assert (task.state, task.next_method, task.trigger_id) == (TaskInstanceState.SCHEDULED, "__fail__", None)
    assert why in str(task.next_kwargs)


def settled(session: Session, scripts: ScriptJobs, now: float) -> list[Change]:
    """End the scripts whose tasks have left them, as the controller does."""
    ends = scripts.ends(now)
    done = scripts.write(store.apply, ends, "failed")
    scripts.forget(each.token for each in ends)
    return [change for changes in done for change in changes]


def resumed(session: Session, task: Any, record: RunRecord, **told: Any) -> None:
    """Resume a task as the triggerer does, with a record of which a task can change anything."""
    event = TriggerEvent({"record": {**record.to_json(), **told}, "last_line": None})
    handle_event_submit(event, task_instance=task_of(session, task), session=session)
    session.flush()


def test_a_deferral_orders_a_job_of_the_tenant(session: Session, scripts: ScriptJobs) -> None:
    task = deferred(session, "script")
    scripts.add([])
    scripts.add(["job of another"])
    assert not scripts.any_live
    scripts.add(["job of script"])
    row = row_of(session, task)
    assert (row.kind, row.state, row.subject, row.try_number) == (JOB_SCRIPT, State.QUEUED, str(task.id), 1)
    assert (row.team, row.dag_owner, row.owner, row.priority, row.max_jobs) == ("genomics", "me", 7, 5, 3)
    assert (row.cpus, row.nodes, row.ppn, row.threads, row.time_limit) == (8.0, 2, 4, 2, 600)
    # A node has 384 MiB more for a script than for a task, and the script requests a part of those.
    assert (row.site_hint, row.queue_hint, row.memory, row.workload) == (
        "hpc",
        "long",
        3700,
        '{"type": "JobScript", "log_path": "a.log"}',
    )
    [job] = queue.waiting(session)
    assert (job.name, job.site, job.nodes, job.team) == (token(task), "hpc", 2, "genomics")
    scripts.add(["job of script"])
    scripts.sweep()
    assert settled(session, scripts, time.time()) == [], "the task still waits for it"


def test_what_is_no_order_of_lading(session: Session, scripts: ScriptJobs) -> None:
    """Triggers of other tasks, executors and versions, and arguments that a task made up."""
    tasks = [
        deferred(session, "other", classpath="airflow.providers.standard.triggers.temporal.TimeDeltaTrigger"),
        deferred(session, "elsewhere", kind="TestConnection"),
        deferred(session, "ungated", job=None),
        deferred(session, "again", token="job of an earlier try"),
    ]
    scripts.sweep()
    assert not scripts.any_live
    assert store.find(session, [token(task) for task in tasks]) == {}


@pytest.mark.parametrize(
    ("told", "state", "cause"),
    [
        ({"state": "succeeded", "exit_code": 0}, State.SUCCEEDED, None),
        ({"state": "failed", "cause": "time_limit", "reason": "it took too long"}, State.FAILED, "time_limit"),
        ({"state": "failed", "cause": "never heard of", "reason": "why"}, State.FAILED, "error"),
        ({"state": "cancelled", "cause": "cancelled", "reason": "it was cancelled"}, State.CANCELLED, "cancelled"),
    ],
)
def test_the_trigger_tells_how_it_has_ended(
    session: Session, scripts: ScriptJobs, told: dict[str, Any], state: State, cause: str | None
) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    now = placed(session, task)
    record = RunRecord(token(task), "/x", job_id="17", nodes="n1", started_at=now - 40, ended_at=now - 10)
    resumed(session, task, record, **told)
    [change] = settled(session, scripts, now)
    row = row_of(session, task)
    assert (change.token, row.state, row.cause) == (token(task), state, cause)
    assert (row.native_id, row.node, row.exit_code) == ("17", "n1", told.get("exit_code"))
    assert (row.started_at, row.ended_at) == (pytest.approx(now - 40), pytest.approx(now - 10))
    assert not scripts.any_live
    assert settled(session, scripts, now) == []


def test_times_that_cannot_be_are_limited(session: Session, scripts: ScriptJobs) -> None:
    """A task can resume with anything, and a triggerer's clock may be wrong."""
    task = deferred(session, "script")
    scripts.sweep()
    now = placed(session, task)
    record = RunRecord(token(task), "/x", state="succeeded", started_at=1.0, ended_at=now + 9999)
    resumed(session, task, record)
    settled(session, scripts, now)
    row = row_of(session, task)
    assert (row.started_at, row.ended_at) == (pytest.approx(now - 60), pytest.approx(now))


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"exit_code": 2**31 - 1}, {"exit_code": 2**31 - 1}),
        ({"exit_code": 2**40}, {"exit_code": None}),
        ({"exit_code": -(2**70)}, {"exit_code": None}),
        ({"started_at": math.nan}, {"started_at": None, "ended_at": -10}),
        ({"ended_at": math.inf}, {"started_at": -40, "ended_at": 0}),
        ({"ended_at": 1e15}, {"started_at": -40, "ended_at": 0}),
        ({"job_id": "1\x007" + "x" * 500}, {"native_id": "1\ufffd7" + "x" * 247}),
        ({"nodes": "n\ud800\x00"}, {"node": "n?\ufffd"}),
        ({"reason": "a\x00b"}, {"reason": free_text("a\ufffdb")}),
    ],
)
def test_what_a_task_tells_about_the_end_is_checked(
    session: Session, scripts: ScriptJobs, given: dict[str, Any], found: dict[str, Any]
) -> None:
    """A value that no column can hold would stop the controller for everyone."""
    task = deferred(session, "script")
    scripts.sweep()
    now = placed(session, task)
    end = {"started_at": now - 40, "ended_at": now - 10, **given}
    names = {"job_id": "native_id", "nodes": "node", "reason": "text"}
    change = ended(ScriptEnd(token(task), None, **{names.get(key, key): end[key] for key in end}), now - 60, now)
    store.apply(session, [change])
    row = row_of(session, task)
    times = {name: pytest.approx(now + found[name]) for name in TIMES & found.keys() if found[name] is not None}
    assert {name: getattr(row, name) for name in found} == {**found, **times}
    assert row.state == State.SUCCEEDED


def test_an_impossible_exit_code_does_not_keep_the_end_from_being_stored(session: Session, scripts: ScriptJobs) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    now = placed(session, task)
    resumed(session, task, RunRecord(token(task), "/x", state="succeeded"), exit_code=2**40)
    assert [change.token for change in settled(session, scripts, now)] == [token(task)]
    assert (row_of(session, task).state, row_of(session, task).exit_code) == (State.FAILED, None), "it is not valid"


def test_an_end_that_cannot_be_stored_costs_only_itself(
    session: Session, scripts: ScriptJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, fine = (deferred(session, name) for name in ("bad", "fine"))
    scripts.sweep()
    session.execute(update(TaskInstance).where(TaskInstance.id.in_([bad.id, fine.id])).values(state="success"))

    def spoiled(end: ScriptEnd, *times: Any) -> Change:
        change = ended(end, *times)
        values = {"exit_code": 2**70} if end.token == token(bad) else {}
        return Change(change.token, {**change.values, **values}, report=True)

    monkeypatch.setattr(script_jobs, "ended", spoiled)
    assert [change.token for change in settled(session, scripts, time.time())] == [token(fine)]
    assert row_of(session, bad).state == State.QUEUED


def test_an_order_that_cannot_be_stored_costs_only_itself(
    session: Session, scripts: ScriptJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An author can write any request; whatever a check lets pass is refused by a column at the latest."""
    tasks = [deferred(session, name) for name in ("one", "bad", "two")]
    forged = ScriptRequest(site="hpc", queue="long\x00\ud800")
    real = airflow_scripts._request

    arguments = session.scalars(select(Trigger.encrypted_kwargs).where(Trigger.id == tasks[1].trigger_id)).one()

    def request(encrypted: str) -> ScriptRequest | None:
        return forged if encrypted == arguments else real(encrypted)

    monkeypatch.setattr(airflow_scripts, "_request", request)
    for orders in (["job of one", "job of bad"], None, None):
        scripts.add(orders)
    assert store.find(session, [token(task) for task in tasks]).keys() == {token(tasks[0]), token(tasks[2])}
    assert caplog.text.count("A job script could not be queued") == 1
    assert_failed(task_of(session, tasks[1]), "Lading cannot admit the job script: ")


@pytest.mark.parametrize(
    ("job", "why"),
    [({"site": "hpc", "nodes": -1}, "nodes"), ({"site": ["hpc"]}, "site"), ({"site": "\0"}, "site"), ({}, "site")],
)
def test_an_order_that_is_not_valid_fails_its_task(
    session: Session, scripts: ScriptJobs, caplog: pytest.LogCaptureFixture, job: Any, why: str
) -> None:
    tasks = [deferred(session, "forged", job=job), deferred(session, "fine")]
    for _ in range(3):
        scripts.sweep()
    assert store.find(session, [token(task) for task in tasks]).keys() == {token(tasks[1])}
    assert caplog.text.count("cannot be admitted") == 1
    assert_failed(task_of(session, tasks[0]), why)


def test_orders_wait_while_the_controller_has_another_fernet_key(
    session: Session, scripts: ScriptJobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = [deferred(session, name) for name in ("one", "two")]
    with monkeypatch.context() as other:
        other.setattr(airflow_scripts, "get_fernet", lambda: Fernet(Fernet.generate_key()))
        scripts.sweep()
    assert "2 job scripts wait" in caplog.text
    assert not scripts.any_live
    assert {task_of(session, task).state for task in tasks} == {TaskInstanceState.DEFERRED}
    scripts.sweep()
    assert store.find(session, [token(task) for task in tasks]).keys() == {token(task) for task in tasks}


def test_a_deferral_without_an_order_is_read_once(session: Session, scripts: ScriptJobs) -> None:
    orders = airflow_scripts.Orders()
    tasks = [deferred(session, name, job=None) for name in ("ungated", "resumed")]
    for jobs in (["job of resumed"], None, None):
        assert orders.read(session, jobs) == []
    assert {run for run, _ in orders._without} == {token(task) for task in tasks}
    session.execute(update(TaskInstance).where(TaskInstance.id == tasks[1].id).values(state="failed"))
    assert orders.read(session, None) == []
    assert {run for run, _ in orders._without} == {token(tasks[0])}


@pytest.mark.parametrize("is_in_arguments", [True, False])
def test_no_class_that_a_task_names_is_imported(
    session: Session, scripts: ScriptJobs, monkeypatch: pytest.MonkeyPatch, *, is_in_arguments: bool
) -> None:
    forged = {"__classname__": "tests.integration.forged_class.Forged", "__version__": 1, "__data__": {}}
    task = deferred(session, "script")
    if is_in_arguments:
        values = {"encrypted_kwargs": json.dumps({"job": REQUEST.to_json(), "more": forged})}
        session.execute(update(Trigger).where(Trigger.id == task.trigger_id).values(**values))
    scripts.sweep()
    values = {"state": "scheduled", "next_kwargs": {"event": {"record": forged}}}
    session.execute(update(TaskInstance).where(TaskInstance.id == task.id).values(**values))
    monkeypatch.setattr("airflow.sdk.serde.deserialize", lambda *_, **__: pytest.fail("a class was looked for"))
    settled(session, scripts, time.time())
    row = row_of(session, task)
    assert (row.state, row.reason) == (State.FAILED, free_text("its trigger returned no valid result"))


@pytest.mark.parametrize("ahead", [-50.0, 0.0, 50.0])
def test_the_clock_of_the_triggerer_does_not_change_how_long_a_script_took(ahead: float) -> None:
    end = ScriptEnd("run", None, started_at=1030.0 + ahead, ended_at=1050.0 + ahead)
    values = ended(end, 1000.0, 1060.0).values
    assert 1000 <= values["started_at"] <= values["ended_at"] <= 1060
    assert values["ended_at"] - values["started_at"] == 20


def test_a_script_says_nothing_about_what_its_task_should_request(session: Session, scripts: ScriptJobs) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    now = placed(session, task)
    end = {"state": State.SUCCEEDED, "started_at": now - 50, "ended_at": now}
    store.apply(session, [Change(token(task), end)])
    assert task_usage.of_task(session, "dag", "script").tries == 1
    assert tasks_asked(session, "dag") == {"script": (1.0, 1)}
    task_usage.keep(session, session.execute(select(*task_usage.COLUMNS).where(JobRow.task_id == "script")).all())
    kept = session.scalars(select(UsageRow).where(UsageRow.dag_id == "dag")).all()
    assert (sum(row.jobs for row in kept), sum(Usage.load(row.usage).tries for row in kept)) == (2, 1)


@pytest.mark.parametrize(
    ("values", "state"),
    [
        ({"state": "failed", "next_method": None, "next_kwargs": None}, State.CANCELLED),
        ({"state": "success"}, State.CANCELLED),
        ({"state": "success", "next_kwargs": {"event": {"record": "odd"}}}, State.CANCELLED),
        ({"state": None, "next_method": None}, State.CANCELLED),
        ({"id": uuid.UUID(int=5), "state": "deferred", "try_number": 2}, State.CANCELLED),
        ({"state": "scheduled", "next_method": "__fail__", "next_kwargs": {"error": "Trigger timeout"}}, State.FAILED),
        ({"state": "scheduled", "next_kwargs": {"event": {"record": "odd"}}}, State.FAILED),
    ],
)
def test_a_task_that_no_longer_waits_ends_its_script(
    session: Session, scripts: ScriptJobs, values: dict[str, Any], state: State
) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    session.execute(update(TaskInstance).where(TaskInstance.id == task.id).values(**values))
    [change] = settled(session, scripts, time.time())
    row = row_of(session, task)
    assert (row.state, row.started_at, change.report) == (state, None, True)
    assert (row.reason == because("unwanted")) == (state == State.CANCELLED)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"error": "Trigger timeout"}, "exceeded its execution_timeout"),
        (
            {"error": "Trigger failure", "traceback": ["Traceback:\n", "ValueError: no site 'x'\n"]},
            "ValueError: no site 'x'",
        ),
        ({"error": "Trigger failure", "traceback": "odd"}, "Trigger failure"),
        ({}, "its trigger has failed"),
    ],
)
def test_a_failed_trigger_is_the_reason_of_its_script(
    session: Session, scripts: ScriptJobs, given: dict[str, Any], why: str
) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    values = {"state": "scheduled", "next_method": "__fail__", "next_kwargs": given}
    session.execute(update(TaskInstance).where(TaskInstance.id == task.id).values(**values))
    settled(session, scripts, time.time())
    assert why in str(row_of(session, task).reason)


def test_a_script_that_lading_refuses_fails_its_trigger(session: Session, scripts: ScriptJobs) -> None:
    tasks = [deferred(session, name) for name in ("fine", "refused", "refused too")]
    scripts.sweep()
    for task in tasks[1:]:
        why = because("row_unreadable", text=f"why {task.task_id}")
        values = {"state": State.FAILED, "cause": "error", "reason": why, "ended_at": 9.0}
        store.apply(session, [Change(token(task), values, report=True)])
    airflow_scripts.fail_deferred(session, [row_of(session, task) for task in tasks])
    session.flush()
    fine, *refused = (task_of(session, task) for task in tasks)
    for task in refused:
        assert_failed(task, f"why {task.task_id};")
    assert fine.state == TaskInstanceState.DEFERRED


def test_a_script_is_sent_again_while_it_runs_and_a_task_is_not(session: Session, scripts: ScriptJobs) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    placed(session, task)
    store.apply(session, [Change(token(task), {"state": State.RUNNING, "started_at": time.time()})])
    session.execute(update(JobRow).where(JobRow.token == "job of script").values(state=State.RUNNING, site="hpc"))
    assert [each.token for each in queue.to_send(session, [token(task), "job of script"])] == [token(task)]
    assert {each.token: each.is_script for each in queue.given(session, "hpc")} == {
        token(task): True,
        "job of script": False,
    }


def test_a_script_is_not_predicted_by_the_short_jobs_of_its_task(session: Session, scripts: ScriptJobs) -> None:
    task = deferred(session, "script")
    scripts.sweep()
    worker = session.scalars(select(JobRow).where(JobRow.token == "job of script")).one()
    of_script, of_worker = ({level for level, _ in levels(row)} for row in (row_of(session, task), worker))
    assert of_script.isdisjoint(of_worker)
