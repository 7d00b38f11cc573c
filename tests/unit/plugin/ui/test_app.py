"""The application of the page, on a real database and behind Airflow's own rights."""

from __future__ import annotations

import csv
import io
import json
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from typing import Any, get_args

import httpx
import pytest
import schemathesis
import uvicorn
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from fastapi import FastAPI
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from jwt import InvalidTokenError
from schemathesis import Case, GenerationMode
from sqlalchemy import create_engine, delete, insert, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from lading.executors import request_rows, store
from lading.executors.accounting import share_rows, task_usage
from lading.executors.accounting.share_rows import BudgetRow, save_standings
from lading.executors.request_rows import RequestKind
from lading.executors.starts.expected_starts import show_starts
from lading.executors.starts.work_left import work_left
from lading.executors.store import Capacity, JobRow, LocationRow, SiteRow, State, durations, instances, reason_values
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.run_rows import RunForecastRow, RunRequestRow
from lading.executors.store.tables import RequestRow
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.explain import outcome, start_step
from lading.plugin.subcommands.jobs import job_row, short_job_row
from lading.plugin.ui.queries import explorer, live_runs
from lading.plugin.ui.queries.bill import bill_page, released_machines
from lading.plugin.ui.queries.sight import EVERYTHING
from lading.scheduling.accounting.budgets import PeriodBudget, Unit
from lading.scheduling.accounting.periods import Period
from lading.scheduling.accounting.share_table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, share_standings
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.sizing.auto import SizeChoice, as_text
from lading.scheduling.starts.expected_starts import ExpectedStart
from lading.scheduling.text.units import format_moment
from tests.services.examples import part
from tests.services.processes import wait_until

NOW = time.time()
HOUR = {"since": NOW - 3600, "until": NOW + 60}
AMOUNTS = {"cpus": 4.0, "memory": 8192, "gpus": 0.0}
# The Dags that the viewer of these tests may not read, and what of theirs must never be said.
SECRETS = ("hush_dag", "hush_task", "hush_run", "hush_reason", "hush_native", "hush_node", "hush_gang")
ROUTES = (
    "summary", "waits", "machines", "packing", "jobs", "jobs.csv", "requests", "failures", "queue-waits",
    "bill", "savings", "starts", "live-runs",
)  # fmt: skip
# The parameters that may be given several times.
LISTS = ("state", "dag_id", "team", "site", "cause", "reason_code")
USERS = ("viewer", "operator", "nobody")


class Viewers:
    """An auth manager with one Dag of three for all users, and rights by the name of the user."""

    def __init__(self, dags: frozenset[str]) -> None:
        self.dags = dags

    async def get_user_from_token(self, token: str) -> SimpleAuthManagerUser:
        if token not in USERS:
            raise InvalidTokenError(token)
        return SimpleAuthManagerUser(username=token, role="VIEWER")

    def is_authorized_view(self, *, access_view: Any, user: SimpleAuthManagerUser) -> bool:
        return user.username != "nobody"

    def is_authorized_configuration(self, *, method: str, user: SimpleAuthManagerUser, details: Any = None) -> bool:
        return user.username == "operator"

    def is_authorized_dag(self, *, method: str, user: Any, access_entity: Any = None, details: Any = None) -> bool:
        may = method == "GET" or (user.username == "operator" and access_entity is DagAccessEntity.RUN)
        return may and details is not None and details.id in self.dags

    def get_authorized_dag_ids(self, *, user: Any, session: Session) -> set[str]:
        return set(self.dags)


@pytest.fixture
def session(airflow_database: Engine) -> Iterator[Session]:
    with Session(airflow_database) as session:
        yield session


@pytest.fixture(scope="module")
def app() -> FastAPI:
    """The application, which takes longer to make than to ask and keeps nothing of the user that has asked."""
    from lading.plugin.ui.app import create_app

    return create_app()


@pytest.fixture
def client(app: FastAPI, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """The application for a viewer who may read the Dag ``mine``."""
    from airflow.api_fastapi.core_api import security

    from lading.plugin.ui import access

    manager = Viewers(frozenset({"mine"}))
    for module in (security, access):
        monkeypatch.setattr(module, "get_auth_manager", lambda: manager)
    monkeypatch.setattr(security.DagModel, "get_team_name", lambda dag_id: None)
    with TestClient(app, headers={"Authorization": "Bearer viewer"}) as client:
        yield client


@pytest.fixture(scope="module")
def cases(app: FastAPI) -> dict[GenerationMode, st.SearchStrategy[Case]]:
    """What the OpenAPI document allows to be asked, and what it does not."""
    schema = schemathesis.openapi.from_dict(app.openapi())
    schema.app = app
    operations = [each.ok() for each in schema.get_all_operations()]
    return {mode: st.one_of(each.as_strategy(generation_mode=mode) for each in operations) for mode in GenerationMode}


def add(session: Session, token: str, **columns: Any) -> None:
    defaults = {"kind": "ExecuteTask", "subject": token, "workload": "{}", "cpus": 1.0, "memory": 1024, "disk": 0}
    defaults |= {"gpus": 0.0, "priority": 0, "state": State.RUNNING, "queued_at": NOW - 600, "try_number": 1}
    names = {"dag_id": "mine", "run_id": "r", "task_id": "t", "map_index": -1}
    store.add_job(session, token=token, **{**defaults, **names, **columns})


def add_house(session: Session) -> None:
    """Two sites: this machine, and a cluster with one allocation."""
    for position, (name, kind) in enumerate((("local", "local"), ("hpc", "slurm"))):
        session.add(SiteRow(name=name, kind=kind, position=position, limits="{}", contact_at=NOW))
    for site, name, state in (("local", "host", "up"), ("hpc", "hpc", "up")):
        rate, nodes = (0.5, {"nodes": 40, "idle_nodes": 12}) if site == "hpc" else (None, {})
        session.add(
            LocationRow(
                site=site,
                name=name,
                kind=site,
                disk=0,
                state=state,
                seen_at=NOW,
                usd_per_cpu_hour=rate,
                **AMOUNTS,
                **nodes,
            )
        )
    session.add(Capacity(site="local", name="host", since=NOW - 9000, **AMOUNTS))
    session.add(
        InstanceRow(
            token="L1", site="hpc", kind="", disk=0, seconds=60.0, state=InstanceState.UP, ordered_at=NOW - 900,
            ready_at=NOW - 800, usd_per_hour=2.0, **AMOUNTS,
        )
    )  # fmt: skip
    at_local = {"site": "local", "location": "host", "placed_at": NOW - 590, "started_at": NOW - 580}
    add(session, "run1", **at_local, lane=0.0)
    add(session, "run2", site="hpc", location="L1", placed_at=NOW - 590, started_at=NOW - 300, lane=0.0, node="n1")
    hushed = {"dag_id": "hush_dag", "run_id": "hush_run", "task_id": "hush_task", "map_index": 3}
    add(session, "hid1", **at_local, **hushed, lane=1.0, native_id="hush_native", node="hush_node")
    ended = {
        "state": State.FAILED,
        "ended_at": NOW - 100,
        "cause": "error",
        "reason": free_text("hush_reason"),
        "usd": 0.25,
    }
    add(session, "hid2", **{**at_local, **hushed, **ended}, lane=2.0)
    add(session, "wait1", state=State.QUEUED, reason=because("max_allocations", used=4, most=4))
    reason = because("task_jobs", most=1, task="hush_task")
    add(session, "wait2", state=State.QUEUED, reason=reason, **hushed)
    add(session, "wait3", state=State.PLACED, site="local", location="host", placed_at=NOW - 5)
    session.add(
        GangRow(token="hush", dag_id="hush_dag", run_id="hush_run", name="hush_gang", stage="trying", memory="")
    )
    hold(session, "wait2", "hush", 1.0)
    session.commit()


def hold(session: Session, job: str, gang: str, cpus: float, state: str = "held") -> None:
    """Room for a job in the allocation of the house."""
    where = {"site": "hpc", "location": "L1", "cpus": cpus, "memory": 1, "disk": 0, "gpus": 0.0}
    times = {"created_at": NOW, "asked_at": NOW}
    session.add(HoldRow(token=f"for {job}", gang=gang, job=job, partition="t", state=state, **where, **times))


def test_how_things_are(session: Session, client: TestClient) -> None:
    add_house(session)
    found = client.get("/summary").json()
    assert (found["running"], found["waiting"], found["machines"]) == (3, 3, 2)
    assert (found["cpus_used"], found["cpus_up"], found["usd_per_hour"]) == (3, 8, 2.0)
    assert not found["controller_lives"], "the lease is free"
    local, hpc = found["sites"]
    assert (local["name"], local["state"], local["cpus_up"], local["usd_per_hour"]) == ("local", "up", 4, None)
    assert (local["nodes"], hpc["nodes"], hpc["idle_nodes"]) == (None, 40, 12)
    memory = [(site["memory_promised"], site["memory_up"]) for site in (local, hpc)]
    assert memory == [(2048, 8192), (1024, 8192)], "of what runs, by what it requested"
    assert [site["memory_used"] for site in found["sites"]] == [0, 0], "nothing was measured yet"
    session.execute(update(JobRow).where(JobRow.site == "local").values(peak_memory=300))
    session.commit()
    assert [site["memory_used"] for site in client.get("/summary").json()["sites"]] == [600, 0]
    assert (hpc["name"], hpc["running"], hpc["cpus_up"], hpc["usd_per_hour"]) == ("hpc", 1, 4, 2.0)


def test_a_site_is_full_or_degraded_by_what_the_controller_counts(session: Session, client: TestClient) -> None:
    add_house(session)
    site = session.get_one(SiteRow, "hpc")
    site.limits = json.dumps({"max_allocations": "2", "max_usd_per_hour": "10 USD", "max_jobs": "5", "queue": "batch"})
    site.limits = json.dumps({**json.loads(site.limits), "max_submitted": "200"})
    amounts = {"kind": "", "disk": 0, "seconds": 60.0, "usd_per_hour": 2.0, **AMOUNTS}
    add(session, "waits", state=State.QUEUED, site_hint="hpc")
    session.add(InstanceRow(token="L2", site="hpc", state=InstanceState.UP, ordered_at=NOW, ready_at=NOW, **amounts))
    session.add(
        LocationRow(site="local", name="far", kind="local", disk=0, state="unreachable", seen_at=NOW, **AMOUNTS)
    )
    session.add(Capacity(site="local", name="far", since=NOW - 9000, **AMOUNTS))
    session.commit()
    local, hpc = client.get("/summary").json()["sites"]
    assert local["machines_idle"] == 0, "an unreachable machine is not idle"
    assert (local["machines"], local["cpus_up"]) == (1, 4), "and not up"
    assert [(each["name"], each["used"], each["most"]) for each in hpc["limits"]] == [
        ("max_allocations", 2, 2), ("max_usd_per_hour", 4, 10), ("max_jobs", 0, 5), ("queue", None, None),
        ("max_submitted", 2, 200),
    ]  # fmt: skip
    assert (hpc["state"], hpc["machines"], hpc["machines_idle"], hpc["machines_silent"]) == ("up", 2, 1, 0)
    assert (local["state"], local["machines_silent"], local["full_because"]) == ("degraded", 1, None)
    assert (local["host"], hpc["host"]) == ("far", None)
    assert hpc["full_because"] == "2 of 2 allocations; 1 job waits", "no more allocations may be requested"
    session.execute(update(InstanceRow).where(InstanceRow.token == "L2").values(state=InstanceState.ENDED))
    session.commit()
    assert client.get("/summary").json()["sites"][1]["full_because"] is None
    add(session, "own", state=State.QUEUED, reason=because("task_jobs", most=1, task="t").at("hpc"))
    session.commit()
    assert client.get("/summary").json()["sites"][1]["full_because"] is None, "that limit is not one of the site"
    add(
        session,
        "told",
        state=State.QUEUED,
        reason=because("max_usd_per_hour", type="c7i", price=2.0, used=9.0, most=10.0).at("hpc"),
    )
    session.commit()
    hpc = client.get("/summary").json()["sites"][1]
    assert hpc["full_because"] == "max_usd_per_hour allows no more; 1 job waits", "a job says so that names no site"
    reached = {limit["name"]: limit["is_reached"] for limit in hpc["limits"]}
    assert reached["max_usd_per_hour"], "too little of it is left, although less than all is in use"
    assert not any(reached[name] for name in ("max_jobs", "queue"))
    full = because("max_allocations", used=2, most=2).at("hpc")
    add(session, "full", state=State.QUEUED, reason=full)
    session.commit()
    advice = (
        "Raise max_usd_per_hour of {0}, or allow cheaper types. Raise max_allocations too: {0} has also reached it."
    )
    [group] = [each for each in client.get("/waits").json()["groups"] if each["key"] == "max_usd_per_hour"]
    assert group["remedy"] == advice.format("site hpc")
    [job] = [each for each in client.get("/jobs").json()["jobs"] if each["id"] == "told"]
    told = session.scalars(select(JobRow).where(JobRow.token == "told")).one()
    assert job["remedy"] == advice.format("the site")
    assert any(job["remedy"] in line for line in outcome(AirflowHost(), session, told).lines)


def test_a_try_that_failed_is_no_task_that_failed(session: Session, client: TestClient) -> None:
    add_run(session, "mine", "r")
    for number, state in enumerate(("success", "up_for_retry", "failed")):
        instance = {"dag_id": "mine", "run_id": "r", "task_id": f"t{number}", "map_index": -1, "state": state}
        session.execute(insert(TaskInstance.__table__), [instance | {"id": uuid.uuid4(), "pool": "p", "pool_slots": 1}])
        for attempt in (1, 2):
            failed = {"state": State.FAILED, "cause": "error", "task_id": f"t{number}", "try_number": attempt}
            ended(session, f"job{number}{attempt}", **failed)
    ended(session, "callback", state=State.FAILED, cause="error", dag_id=None, run_id=None, task_id=None)
    session.commit()
    found = client.get("/summary").json()
    assert (found["failed"], found["failed_tasks"]) == (7, 2), "t2, and what Airflow knows no task of"
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    assert [(each["run_id"], each["map_index"], each["try_number"]) for each in group["failed_tasks"]] == [
        ("r", -1, 2)
    ] * 3


def test_a_failure_says_its_exit_code_and_its_message(session: Session, client: TestClient) -> None:
    reasons = {
        "silent": (None, 2, "exit code 2, no message"),
        "nothing": (None, None, "no exit code, no message"),
        "said": (because("job_error", text="KeyError: 'x'"), 3, "KeyError: 'x' (exit code 3)"),
        "coded": (because("task_exited", exit_code=4), 4, "the task's process exited with exit code 4"),
        "own": (because("task_failed"), 0, "the task failed; see its log"),
    }
    for task, (reason, code, _) in reasons.items():
        failed = {"state": State.FAILED, "cause": "error", "task_id": task, "exit_code": code, "reason": reason}
        ended(session, task, **failed)
    session.commit()
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    texts = [text for reason, _, text in reasons.values() if reason is not None]
    assert sorted(group["sentences"]) == sorted(texts), "jobs with a reason come first"
    jobs = client.get("/jobs", params={"state": "failed"}).json()["jobs"]
    assert {job["task_id"]: job["reason"] for job in jobs} == {task: text for task, (*_, text) in reasons.items()}
    session.execute(update(JobRow).values(reason=None, reason_code=None))
    session.commit()
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    codes = {f"exit code {code}, no message" for code in (0, 2, 3, 4)} | {"no exit code, no message"}
    assert len(group["sentences"]) == 3
    assert set(group["sentences"]) <= codes


def test_a_failure_says_what_has_become_of_its_task(session: Session, client: TestClient) -> None:
    add_run(session, "mine", "r")
    states = {"success": 2, "running": 2, "up_for_retry": 1, "failed": 1, "skipped": 2}
    end = datetime.fromtimestamp(NOW - 60, timezone.utc)
    for index, (state, last) in enumerate(states.items()):
        instance = {"dag_id": "mine", "run_id": "r", "task_id": "t", "map_index": index, "state": state}
        more = {"id": uuid.uuid4(), "pool": "p", "pool_slots": 1, "try_number": last, "end_date": end}
        session.execute(insert(TaskInstance.__table__), [instance | more])
        ended(session, f"job{index}", state=State.FAILED, cause="error", map_index=index)
    ended(session, "again", state=State.FAILED, cause="error", map_index=1, try_number=0)
    ended(session, "unknown", state=State.FAILED, cause="error", task_id="unknown")
    ended(session, "hid", state=State.FAILED, cause="error", dag_id="hush_dag", task_id="hush_task")
    session.commit()
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    assert group["since_then"] == {"succeeded": 1, "runs": 1, "waits": 1, "gave_up": 1, "skipped": 1}
    found = {each["id"]: each["since_then"] for each in client.get("/jobs", params={"state": "failed"}).json()["jobs"]}
    assert found["job0"] == {"state": "succeeded", "try_number": 2, "at": pytest.approx(NOW - 60)}
    assert found["job1"] == {"state": "runs", "try_number": 2, "at": None}
    assert found["job2"] == {"state": "waits", "try_number": None, "at": None}
    assert found["job3"] == {"state": "gave_up", "try_number": None, "at": None}
    assert found["unknown"] is None


def test_machines_that_were_taken_back_are_one_group_of_their_site(session: Session, client: TestClient) -> None:
    for number in range(3):
        ended(session, f"spot{number}", state=State.FAILED, cause="preempted", location=f"M{number}", site="cloud")
    session.commit()
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    assert (group["site"], group["node"], group["jobs"]) == ("cloud", None, 3)


def test_nothing_at_all_is_an_answer_too(client: TestClient) -> None:
    for route in ROUTES:
        assert client.get(f"/{route}", params=HOUR).status_code == 200
    assert client.get("/dags/mine/runs").json()["runs"] == []
    run = client.get("/dags/mine/runs/none").json()
    assert (run["totals"]["jobs"], run["bound_seconds"], run["waits"]) == (0, None, [])


def test_a_site_that_does_not_answer_says_why(session: Session, client: TestClient) -> None:
    add_house(session)
    session.get_one(SiteRow, "hpc").trouble = "it has not answered for more than 10 s"
    session.commit()
    hpc = client.get("/summary").json()["sites"][1]
    assert hpc["state"] == "down"
    assert "has not answered" in hpc["note"]


def test_why_jobs_wait_largest_first(session: Session, client: TestClient) -> None:
    add_house(session)
    for number in range(5):
        add(session, f"busy{number}", state=State.QUEUED, reason=because("max_allocations", used=4, most=4))
    session.commit()
    found = client.get("/waits").json()
    assert found["jobs"] == 8
    assert [(group["key"], group["jobs"]) for group in found["groups"]] == [
        ("max_allocations", 6), ("new", 1), ("task_jobs", 1),
    ]  # fmt: skip
    first, new, others = found["groups"]
    assert (first["kind"], first["site"], first["limit"], first["actors"]) == (
        "max_allocations", None, "max_allocations", ["operator"],
    )  # fmt: skip
    assert (new["site"], new["limit"]) == ("local", None)
    assert (others["site"], others["limit"]) == (None, None), "the limit names a task of its Dag, too"
    assert first["sentences"] == ["waits: 4 of 4 allocations are busy (max_allocations)"]
    assert first["dags"] == [{"dag_id": "mine", "jobs": 6}]
    assert "max_allocations" in first["remedy"]
    assert (others["sentences"], others["dags"], others["hidden"]) == ([], [], True), (
        "its sentence names a task of its Dag"
    )


def test_a_start_is_the_same_on_the_page_in_tabs_and_in_commands(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500 jobs that wait at a site that ends 15 in an hour start within 33 hours or so, wherever it is said."""
    monkeypatch.setattr("lading.plugin.ui.app.controller_now", lambda session: NOW)
    monkeypatch.setattr("lading.plugin.subcommands.explain.controller_now", lambda session: NOW)
    full = because("max_allocations", used=8, most=8).at("hpc")
    spent = because("budget_spent", budget="b", spent=2.0, most=1.0, until=2e9)
    for number in range(15):  # in an hour
        ended = NOW - 230 * number
        times = {"queued_at": ended - 1500, "started_at": ended - 900, "ended_at": ended}
        add(session, f"old{number}", state=State.SUCCEEDED, site="hpc", map_index=number, **times)
    for number in range(500):
        waits = {"queued_at": NOW - 9000 + 10 * number, "map_index": 100 + number, "site_hint": "hpc"}
        add(session, f"w{number:04}", state=State.QUEUED, reason=full, **waits)
    add(session, "held", state=State.QUEUED, reason=spent, task_id="held", planned_start=time.time() + 300)
    session.add(dag_run("r"))
    session.commit()
    groups = {group["key"]: group["start"] for group in client.get("/waits").json()["groups"]}
    last = groups["max_allocations"]
    assert last["since"] <= NOW + 33 * 3600 <= last["until"] <= NOW + 60 * 3600
    where = {"limit": 1, "state": "queued", "q": "w0499"}
    [of_job] = [job["start"] for job in client.get("/jobs", params=where).json()["jobs"]]
    [task] = client.get("/dags/mine/runs/r/tasks/t", params={"limit": 1, "map_index": 599}).json()["jobs"]
    of_task = task["start"]
    assert task["actors"] == ["operator"], "who can apply the remedy is shown with it, as among the waits"
    of_run = {job["id"]: job["start"] for job in client.get("/dags/mine/runs/r").json()["waits"]}
    row = session.scalars(select(JobRow).where(JobRow.token == "w0499")).one()
    [step] = start_step(session, row)
    start = show_starts(session, [row], NOW)["w0499"]
    assert isinstance(start, ExpectedStart)
    assert of_job == of_task == last
    said = (of_job["since"], of_job["at"], of_job["until"], of_job["text"])
    assert said == (start.since, start.at, start.until, start.text)
    moments = [format_moment(at) for at in (start.at, start.since, start.until)]
    assert step.lines[0] == "about {}; between {} and {} ({})".format(*moments, start.text)
    listed = job_row(row, start=start)
    assert [listed[f"starts_{which}"] for which in ("from", "at", "until")] == [start.since, start.at, start.until]
    first = session.scalars(select(JobRow).where(JobRow.token == "w0000")).one()
    assert of_run["w0000"]["until"] == show_starts(session, [first], NOW)["w0000"].until  # type: ignore[union-attr]
    held = {"since": None, "at": None, "until": None, "source": None, "text": "A budget is spent: budget b"}
    assert groups["budget_spent"] == held
    [of_held] = [job["start"] for job in client.get("/dags/mine/runs/r/tasks/held").json()["jobs"]]
    assert of_held == held
    row = session.scalars(select(JobRow).where(JobRow.token == "held")).one()
    assert start_step(session, row)[0].lines == ["none while it is held: A budget is spent: budget b"]
    assert short_job_row(row, start=show_starts(session, [row], NOW)["held"])["starts"] == f"held: {held['text']}"
    run = client.get("/dags/mine/runs/r/gantt").json()
    assert (run["expected_end"], run["end_unknown"]) == (None, "1 job is held (a budget is spent: budget b)")
    assert (run["expected_end_span"], run["expected_end_basis"]) == (None, None)
    session.delete(row)
    session.commit()
    run = client.get("/dags/mine/runs/r/gantt").json()
    assert run["end_unknown"] is None
    assert run["expected_end"] >= NOW + 30 * 3600, "after the last of its jobs"
    span = run["expected_end_span"]
    assert NOW < span["since"] < run["expected_end"] < span["until"]
    assert run["expected_end_basis"] == "the expected starts of its jobs and the durations of earlier ones"
    whose = {"name": "lab", "who": "everyone", "unit": "cpu-hours", "per": "month"}
    amounts = {"most": 12.0, "spent": 10.0, "per_hour": 8.0, "hours_of_work": 10.0}
    session.add(BudgetRow(**whose, **amounts, since=NOW - 7200, until=NOW + 20 * 86400, at=NOW))
    session.commit()
    until, reset = (format_moment(at) for at in (NOW + 900, NOW + 20 * 86400))
    budget = f"udget lab is expected to be used up at {until}, and resets at {reset}"
    [of_job] = [job["start"] for job in client.get("/jobs", params=where).json()["jobs"]]
    row = session.scalars(select(JobRow).where(JobRow.token == "w0499")).one()
    assert of_job == {**held, "text": f"B{budget}"} == client.get("/waits").json()["groups"][0]["start"]
    assert start_step(session, row)[0].lines == [f"none while it is held: B{budget}"]
    run = client.get("/dags/mine/runs/r/gantt").json()
    assert run["expected_end"] is None
    assert run["end_unknown"].endswith(f" jobs are held (b{budget})")


def dag_run(run_id: str) -> DagRun:
    """A run that lives."""
    run = DagRun(dag_id="mine", run_id=run_id, run_type=DagRunType.MANUAL, state="running")
    run.start_date = datetime.fromtimestamp(NOW - 20_000, timezone.utc)
    return run


def test_who_holds_what_while_it_waits(session: Session, client: TestClient) -> None:
    add_house(session)
    session.add(GangRow(token="g", dag_id="mine", run_id="r", name="ray", stage="trying", memory=""))
    which = {"gang": "gang 'ray'", "place": "hpc", "attempt": 1, "attempts": 5}
    reason = because("gang_room_partly", held=1, tasks=2, **which)
    for number in range(3):
        add(session, f"ray{number}", state=State.QUEUED, reason=reason, gang="g")
        hold(session, f"ray{number}", "g", 2.0, "held" if number < 2 else "asked")
    session.commit()
    groups = {group["key"]: group for group in client.get("/waits").json()["groups"]}
    there = {"place": "hpc/L1", "cpus": 4.0, "jobs": 2}
    assert groups["gang_room_partly"]["held"] == [{"dag_id": "mine", "gang": "ray", **there}]
    hidden = {"dag_id": None, "gang": None, "place": "hpc/L1", "cpus": 1.0, "jobs": 1}
    assert groups["task_jobs"]["held"] == [hidden], "of other Dags only how much"


def test_what_was_bought_says_what_it_is_and_costs(session: Session, client: TestClient) -> None:
    add_house(session)
    session.add(
        InstanceRow(
            token="M1", site="cloud", kind="c7i.xlarge", disk=0, seconds=0.0, state=InstanceState.UP,
            zone="us-east-1a", capacity_type="spot", ordered_at=NOW - 700, launched_at=NOW - 690, ready_at=NOW - 600,
            usd_per_hour=0.06, usd=0.01, usd_since=NOW - 300, native_id="i-1", **AMOUNTS,
        )
    )  # fmt: skip
    session.get_one(InstanceRow, "L1").kind = '["hush_queue", []]'
    session.commit()
    found = {each["name"]: each for each in client.get("/machines", params=HOUR).json()}
    names = ("instance_type", "capacity_type", "zone", "usd_per_hour", "usd", "usd_since")
    assert [found["M1"][name] for name in names] == ["c7i.xlarge", "spot", "us-east-1a", 0.06, 0.01, NOW - 300]
    assert [found["L1"][name] for name in names] == [None, None, None, 2.0, 0.0, None], "its kind may name a Dag"
    assert [found["host"][name] for name in names] == [None, None, None, None, 0.0, None]


def chart_jobs(found: Any) -> dict[str, dict[str, Any]]:
    """The jobs of the chart by their ids: it has a list for each column."""
    return {
        row["id"]: row
        for row in (dict(zip(found["jobs"], row, strict=True)) for row in zip(*found["jobs"].values(), strict=True))
    }


def test_what_ran_where(session: Session, client: TestClient) -> None:
    add_house(session)
    found = client.get("/packing", params=HOUR).json()
    rows = chart_jobs(found)
    assert set(rows) == {"run1", "run2", "hid1", "hid2"}
    places = {token: found["places"][row["place"]] for token, row in rows.items()}
    assert places == {"run1": "local/host", "run2": "hpc/L1", "hid1": "local/host", "hid2": "local/host"}
    assert found["names"][rows["run1"]["name"]] == ["mine", "r", "t"]
    assert [rows["hid1"][column] for column in ("name", "map_index", "try_number")] == [None, -1, 0]
    assert rows["hid2"]["state"] is None, "nor how it ended"
    assert [(each["key"], each["sort"], each["cpus"]) for each in found["machines"]] == [
        ("hpc/L1", "instance", 4), ("local/host", "machine", 4),
    ]  # fmt: skip
    assert client.get("/packing", params={"since": NOW - 90, "until": NOW}).json()["names"] == [["mine", "r", "t"]]


def test_a_delta_has_what_is_new(session: Session, client: TestClient) -> None:
    add_house(session)
    for table in (store.JobRow, InstanceRow):
        session.execute(update(table).values(changed_at=NOW - 1000))
    session.execute(update(store.LocationRow).values(seen_at=NOW - 1000))
    session.commit()
    delta = {**HOUR, "cursor": client.get("/packing", params=HOUR).json()["cursor"]}
    found = client.get("/packing", params=delta).json()
    assert (chart_jobs(found), found["machines"]) == ({}, [])
    store.apply(session, [store.Change("run1", {"state": State.SUCCEEDED, "ended_at": NOW})])
    instances.change(session, "hpc", {"L1": {"state": InstanceState.DRAINING}})
    session.commit()
    found = client.get("/packing", params=delta).json()
    [(token, row)], [machine] = chart_jobs(found).items(), found["machines"]
    state, ended = found["states"][row["state"]], found["origin"] + row["ended"]
    assert (token, state, machine["name"], machine["state"]) == ("run1", "succeeded", "L1", "draining")
    assert ended == pytest.approx(NOW, abs=0.01)


@pytest.mark.parametrize(
    ("since", "until"), [(10, 5), (5, 5), (0, 32 * 86400), ("nan", 5), (-1, 5), (0, "inf"), (0, 1e300)]
)
def test_a_window_that_is_none_is_refused(client: TestClient, since: object, until: object) -> None:
    assert client.get("/packing", params={"since": since, "until": until}).status_code == 422  # type: ignore[dict-item]


def test_pages_of_jobs_are_without_gaps(session: Session, client: TestClient) -> None:
    for number in range(7):
        add(session, f"job{number}", queued_at=NOW - 100 + number // 2)
    session.commit()
    found: list[str] = []
    after = None
    while True:
        page = client.get("/jobs", params={"limit": 3} | ({"after": after} if after else {})).json()
        found += [job["id"] for job in page["jobs"]]
        if (after := page["after"]) is None:
            break
    assert sorted(found) == [f"job{number}" for number in range(7)]
    assert len(found) == 7
    assert client.get("/jobs", params={"after": "x:y"}).status_code == 422


def test_filters_find_no_jobs_of_other_dags(session: Session, client: TestClient) -> None:
    add_house(session)
    assert client.get("/jobs", params={"dag_id": "hush_dag"}).status_code == 403
    for name in ("hush_run", "nothing"):
        assert client.get("/jobs", params={"run_id": name}).json()["jobs"] == []
    running = client.get("/jobs", params={"state": "running"}).json()["jobs"]
    assert {job["id"] for job in running} == {"run1", "run2"}
    hidden = [job for job in client.get("/jobs").json()["jobs"] if job["hidden"]]
    assert {job["id"] for job in hidden} == {"hid1", "hid2", "wait2"}
    assert {job["cpus"] for job in hidden} == {1.0}


def test_the_phases_of_a_try_have_no_gaps(session: Session, client: TestClient) -> None:
    times = {"queued_at": NOW - 100, "placed_at": NOW - 90, "started_at": NOW - 50, "ended_at": NOW - 10}
    add(session, "a", state=State.SUCCEEDED, **times, submitted_at=NOW - 80, site="hpc", location="hpc")
    session.add(
        InstanceRow(
            token="L1", site="hpc", kind="", disk=0, seconds=60.0, state=InstanceState.UP, ordered_at=NOW - 95,
            ready_at=NOW - 60, **AMOUNTS,
        )
    )  # fmt: skip
    add(session, "b", state=State.SUCCEEDED, **times, site="hpc", location="L1", map_index=1)
    # It was ordered for this one, which was placed there when it had come up.
    later = {**times, "placed_at": NOW - 55}
    add(session, "c", state=State.SUCCEEDED, **later, site="hpc", location="L1", map_index=2)
    session.commit()
    path = "/dags/mine/runs/r/tasks/t"
    by_index = {job["map_index"]: job for job in client.get(path).json()["jobs"]}
    keys = {index: [phase["key"] for phase in job["phases"]] for index, job in by_index.items()}
    assert keys == {
        -1: ["airflow", "sent", "queue", "runs"],
        1: ["airflow", "boot", "sent", "runs"],
        2: ["airflow", "boot", "sent", "runs"],
    }
    for job in by_index.values():
        assert [phase["until"] for phase in job["phases"]] == [
            *(phase["since"] for phase in job["phases"][1:]), job["ended_at"],
        ]  # fmt: skip
    assert [job["id"] for job in client.get(path, params={"map_index": 1}).json()["jobs"]] == ["b"]


def test_what_a_run_took(session: Session, client: TestClient) -> None:
    session.add(Capacity(site="local", name="host", since=NOW - 9000, **AMOUNTS))
    there = {"state": State.SUCCEEDED, "site": "local", "location": "host", "queued_at": NOW - 1000, "cpus": 2.0}
    for number in range(4):
        start = NOW - 990 + 100 * (number // 2)
        used = {"started_at": start, "ended_at": start + 100, "cpu_seconds": 50.0, "peak_memory": 512, "usd": 0.5}
        used |= {"time_limit": 400} if number else {}
        add(session, f"job{number}", **there, **used, map_index=number)
    add(session, "other", run_id="r2", queued_at=NOW - 50)
    session.commit()
    found = client.get("/dags/mine/runs/r").json()
    assert found["totals"]["cpu_hours"] == pytest.approx(800 / 3600)
    assert found["totals"]["cpu_hours_used"] == pytest.approx(200 / 3600)
    assert (found["totals"]["memory_used"], found["totals"]["usd"]) == (0.5, 2.0)
    assert (found["totals"]["time_used"], found["billed"]["usd_idle"]) == (0.25, 0.0), "of the limit of those with one"
    assert (found["most_at_once"], found["states"]) == (2, {"succeeded": 4})
    assert found["bound_seconds"] == pytest.approx(200), "800 cpu-seconds on 4 cpus"
    assert found["seconds"] == pytest.approx(210)
    assert [job["map_index"] for job in found["waits"]][:2] == [2, 3], "the longest waits first"
    assert [run["run_id"] for run in client.get("/dags/mine/runs").json()["runs"]] == ["r2", "r"]


def test_what_tasks_could_ask_for(session: Session, client: TestClient) -> None:
    for number in range(25):
        used = {"started_at": NOW - 3700, "ended_at": NOW - 100, "cpu_seconds": 1800.0, "peak_memory": 500}
        there = {"state": State.SUCCEEDED, "memory": 4096, "cpus": 2.0, "map_index": number}
        add(session, f"big{number}", task_id="big", **used, **there)
    add(session, "lost", task_id="big", state=State.FAILED, cause="lost", started_at=NOW - 500, ended_at=NOW)
    add(session, "once", task_id="once", state=State.SUCCEEDED, started_at=NOW - 50, ended_at=NOW)
    session.commit()
    big, once = client.get("/dags/mine/advice").json()["tasks"]
    assert (big["task_id"], big["tries"], big["memory"]["nearly_all"], big["cpus"]["most"]) == ("big", 25, 536, 0.5)
    assert big["line"] == 'executor_config=resources(cpus=0.5, memory="536 MiB", time="1 h 13 min")'
    assert big["saved_cpu_hours"] == pytest.approx(25 * 1.5)
    wasted = [each * 25 / 1024 for each in (4096 - 500, 536 - 500)]
    assert [big["wasted"], big["wasted_by_line"]] == pytest.approx(wasted)
    assert (once["tries"], once["line"]) == (1, None)
    assert task_usage.forget_ended(session, NOW + 1) == 27
    session.commit()
    assert task_usage.forget_ended(session, NOW + 1) == 0
    assert session.query(store.JobRow).count() == 0
    big_before, big = big, next(each for each in client.get("/dags/mine/advice").json()["tasks"] if each["tries"] == 25)
    known = ("memory", "cpus", "time", "line", "waited", "short")
    assert {name: big[name] for name in known} == {name: big_before[name] for name in known}, "it outlives the jobs"
    assert big["saved_cpu_hours"] == pytest.approx(25 * 1.5)
    rows = client.get("/bill", params={"since": NOW - 2 * 86400, "until": NOW + 1}).json()["rows"]
    assert [(row["dag_id"], row["total"]["jobs"]) for row in rows if row["kind"] == "named"] == [("mine", 27)]
    assert rows[0]["total"]["cpu_hours"] == pytest.approx((25 * 2 * 3600 + 500 + 50) / 3600)


def test_the_size_of_inputs_explains_what_tries_needed(session: Session, client: TestClient) -> None:
    for number in range(40):
        size = 2**20 if number % 2 else 2**30
        used = {"started_at": NOW - 3700, "ended_at": NOW - 100, "peak_memory": 200 if number % 2 else 3000}
        add(session, f"job{number}", state=State.SUCCEEDED, input_size=size, **used, map_index=number)
    session.commit()
    [task] = client.get("/dags/mine/advice").json()["tasks"]
    small, large = task["by_input"]
    assert (small["tries"], small["memory"]["nearly_all"], large["memory"]["nearly_all"]) == (20, 230, 3184)
    assert (small["bytes"], large["bytes"]) == (2**20, 2**30)


def ended(session: Session, token: str, **columns: Any) -> None:
    times = {"queued_at": NOW - 700, "started_at": NOW - 600, "ended_at": NOW - 100}
    add(session, token, **{"state": State.SUCCEEDED, "site": "hpc", "location": "hpc", **times, **columns})


def found_jobs(client: TestClient, **params: Any) -> list[str]:
    """The jobs that the explorer finds, through all its pages, in their order."""
    found: list[str] = []
    after: dict[str, str] = {}
    while True:
        page = client.get("/jobs", params={"limit": 2, **params, **after}).raise_for_status().json()
        found += [job["id"] for job in page["jobs"]]
        assert page["matching"] >= len(page["jobs"])
        if page["after"] is None:
            assert page["matching"] == len(found)
            return found
        after = {"after": page["after"]}


def test_jobs_are_found_by_what_they_have(session: Session, client: TestClient) -> None:
    add_house(session)
    ended(session, "a", task_id="align", run_id="scheduled__2026-11-26", native_id="4711", node="n17", map_index=3)
    ended(session, "b", task_id="sort", run_id="manual__1", native_id="4712", cause="error", state=State.FAILED)
    ended(session, "c", task_id="align_all", location="L1", cause="out_of_memory", state=State.FAILED)
    ended(session, "d", dag_id="hush_dag", task_id="align", node="n17", native_id="47")
    session.commit()
    for params, tokens in (
        ({"q": "ALIGN"}, "ac"), ({"q": "align[3]"}, "a"), ({"q": "2026-11-26"}, "a"), ({"q": "47"}, "ab"),
        ({"q": "4711"}, "a"), ({"q": "align n17"}, "a"), ({"q": "n17"}, "a"), ({"q": "%"}, ""),
        ({"cause": ["error", "out_of_memory"], "site": "hpc"}, "bc"), ({"location": "n17"}, "a"),
        ({"location": "L1", "state": "failed"}, "c"), ({"task_id": "sort"}, "b"), ({"run_id": "manual__1"}, "b"),
        ({"q": "mine.align[3]"}, "a"), ({"q": "'mine.align',"}, "ac"), ({"q": "hpc/L1"}, "crun2"),
        ({"q": "hpc / L1"}, "crun2"),        ({"q": "local/L1"}, ""), ({"q": "hpc/n17"}, "a"), ({"q": "mine.ali*"}, ""),
        ({"q": "mine align 3"}, "a"), ({"q": "align 9"}, ""), ({"q": "3"}, ""), ({"q": "align 4711"}, "a"),
        ({"q": "align", "queued_until": NOW - 700}, ""), ({"q": "align", "queued_since": NOW - 700}, "ac"),
    ):  # fmt: skip
        assert "".join(sorted(found_jobs(client, **params))) == tokens, params
    mine = {"dag_id": "mine", "task_id": "align", "first": 3}
    for q in ("align[1700]", "mine align 1700"):
        found = client.get("/jobs", params={"q": q}).json()["map_indexes"]
        assert found == [{**mine, "last": 3, "recorded": 1}], q
    ended(session, "e", task_id="align", map_index=3)
    ended(session, "f", task_id="align", map_index=9)
    session.commit()
    found = client.get("/jobs", params={"q": "align[7]"}).json()["map_indexes"]
    assert found == [{**mine, "last": 9, "recorded": 2}], "7 lies between the map indexes, but has no record"
    for q in ("align 3", "align", "1700", "nonsense 3"):
        assert client.get("/jobs", params={"q": q}).json()["map_indexes"] == [], q
    for q, names in (
        ("Mine", ["mine"]), ("align", ["mine.align", "mine.align_all"]), ("hush", []), ("align sort", []),
        ("mine.align[700]", ["mine.align", "mine.align_all"]),
    ):  # fmt: skip
        tasks = client.get("/jobs", params={"q": q}).json()["tasks"]
        assert [".".join(filter(None, (each["dag_id"], each["task_id"]))) for each in tasks] == names, q
    assert client.get("/jobs", params={"q": "mine"}).json()["tasks"][0]["run_id"] is not None
    assert found_jobs(client, q="wait1") == ["wait1"], "by its token"
    assert len(found_jobs(client, q="hpc")) >= 3, "by its site"
    for q, names in (("hpc/L", ["L1"]), ("L1", ["L1"]), ("local/host", ["host"]), ("hpc", []), ("lab/host", [])):
        assert [each["name"] for each in client.get("/jobs", params={"q": q}).json()["machines"]] == names, q
    waits = {"reason_code": "max_allocations", "reason_limit": "max_allocations"}
    assert found_jobs(client, **waits) == ["wait1"]
    assert found_jobs(client, reason_code="task_jobs") == [], "of another Dag"


def test_unfinished_jobs_are_counted_exactly_however_many_they_are(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explorer, "MOST_COUNTED", 2)
    for number in range(4):
        ended(session, f"old{number}")
        add(session, f"waits{number}", state=State.QUEUED)
    session.commit()
    for params, matching, is_more in (
        ({"state": "queued"}, 4, False),
        ({"state": "succeeded"}, 2, True),
        ({}, 2, True),
    ):
        found = client.get("/jobs", params=params).json()
        assert (found["matching"], found["is_more"]) == (matching, is_more), params


def test_jobs_are_sorted_by_the_server_and_pages_have_no_gaps(session: Session, client: TestClient) -> None:
    for number in range(5):
        times = {"queued_at": NOW - 1000 + 5 * number, "started_at": NOW - 900 + number * number}
        used = {"usd": 0.5 * (number % 3), "peak_memory": 100 * number or None, "cpu_seconds": float(5 - number)}
        ended(session, f"job{number}", **times, **used, ended_at=NOW - 800, memory=1000)
    session.commit()
    for sort, first in (
        ("queued", "43210"), ("started", "43210"), ("ended", "43210"), ("waited", "04132"), ("ran", "01234"),
        ("usd", "24130"), ("memory_used", "43210"), ("cpus_used", "01234"),
    ):  # fmt: skip
        assert "".join(token[-1] for token in found_jobs(client, sort=sort)) == first, sort
    rising = [token[-1] for token in found_jobs(client, sort="memory_used", order="asc")]
    assert "".join(rising) == "12340", "what has none comes last"


def test_waiting_jobs_are_sorted_by_their_expected_starts_and_pages_have_no_gaps(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.plugin.ui.app.controller_now", lambda session: NOW)
    for number, at in enumerate((700, 300, None, 500, 900, None, 100)):
        planned = None if at is None else NOW + at
        add(session, f"job{number}", state=State.QUEUED, queued_at=NOW - 60 + number, planned_start=planned)
    spent = because("budget_spent", budget="b", spent=2.0, most=1.0, until=2e9)
    add(session, "held7", state=State.QUEUED, reason=spent, planned_start=NOW + 200)
    add(session, "hush8", dag_id="hush_dag", state=State.QUEUED, planned_start=NOW + 50)
    ended(session, "ended9")
    session.commit()
    assert [token[-1] for token in found_jobs(client, sort="starts", order="asc")[:5]] == [*"61304"]
    falling = found_jobs(client, sort="starts")
    assert [token[-1] for token in falling[:5]] == [*"40316"]
    assert {*falling[5:]} == {"job2", "job5", "held7"}, "no start is expected of these"
    assert found_jobs(client, sort="starts", state="running") == []
    page = client.get("/jobs", params={"sort": "starts", "limit": 1}).json()
    assert (page["matching"], page["jobs"][0]["start"]["at"]) == (8, NOW + 900)


def test_a_group_of_waiting_jobs_says_when_each_of_its_dags_starts(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.plugin.ui.app.controller_now", lambda session: NOW)
    full = because("max_allocations", used=8, most=8).at("hpc")
    for dag_id, at in (("mine", 300), ("mine", 900), ("hush_dag", 600)):
        add(session, f"{dag_id}{at}", dag_id=dag_id, state=State.QUEUED, reason=full, planned_start=NOW + at)
    session.commit()
    [group] = [each for each in client.get("/waits").json()["groups"] if each["dags"]]
    whose = {name: group[name] for name in ("key", "site", "limit")}
    [mine] = client.get("/waits/dags", params=whose).json()
    assert (mine["dag_id"], mine["jobs"]) == ("mine", 2)
    assert (mine["first"]["at"], mine["last"]["at"]) == (NOW + 300, NOW + 900)
    assert group["start"]["at"] == NOW + 900
    assert client.get("/waits/dags", params={**whose, "site": "lab"}).json() == []


@pytest.mark.parametrize("after", [f"{'9' * 310}:0:a", "0:1e+999:a", "x"])
def test_what_is_not_the_end_of_a_page_is_refused(client: TestClient, after: str) -> None:
    assert client.get("/jobs", params={"after": after}).status_code == 422


def test_all_chosen_jobs_are_a_file(session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from lading.plugin.ui.queries import explorer

    monkeypatch.setattr(explorer, "ROWS_AT_A_TIME", 3)
    for number in range(8):
        ended(session, f"job{number}", task_id="=1+1", queued_at=NOW - 700 + number // 2, usd=0.5)
    ended(session, "hid", dag_id="hush_dag")
    session.commit()
    answer = client.get("/jobs.csv", params={"state": "succeeded"})
    assert answer.headers["content-type"].startswith("text/csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len(rows) == 8
    assert {(row["dag_id"], row["task_id"], row["usd"]) for row in rows} == {("mine", "'=1+1", "0.5")}
    assert [row["queued_at"] for row in rows] == sorted((row["queued_at"] for row in rows), reverse=True)
    assert float(rows[0]["ran_seconds"]) == 500


@pytest.fixture
def url(client: TestClient) -> Iterator[str]:
    """The application on a port, for what the test client would wait for: the end of an answer."""
    server = uvicorn.Server(uvicorn.Config(client.app, port=0, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        assert wait_until(lambda: server.started, 60, 0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def test_a_user_has_one_export_at_a_time(session: Session, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a share of a processor; all rows come, however long that takes. One that is broken off is paid for, too."""
    from lading.plugin.ui import app as app_module
    from lading.plugin.ui.queries import explorer

    monkeypatch.setattr(explorer, "ROWS_AT_A_TIME", 50)
    for number in range(500):
        ended(session, f"job{number}", queued_at=NOW - 700)
    session.commit()
    may_go_on, spent, timed = threading.Event(), [], app_module._timed

    def measured(parts: Iterator[str]) -> tuple[str, float] | None:
        if len(spent) == 3:
            may_go_on.wait()
        if (found := timed(parts)) is not None:
            spent.append(found[1])
        return found

    def get(user: str) -> httpx.Response:
        return httpx.get(f"{url}/jobs.csv", headers={"Authorization": f"Bearer {user}"}, timeout=120)

    monkeypatch.setattr(app_module, "_timed", measured)
    began = time.monotonic()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(get, "viewer")
        assert wait_until(lambda: len(spent) == 3, 60, 0.01)
        refused = get("viewer")
        assert (refused.status_code, "another export of yours" in refused.json()["detail"]) == (429, True)
        may_go_on.set()
        text = first.result().text
    took = time.monotonic() - began
    assert len(list(csv.DictReader(io.StringIO(text)))) == 500
    assert sum(spent) <= took * 0.25
    assert get("viewer").status_code == 200
    spent[:] = []
    may_go_on.clear()
    with httpx.stream("GET", f"{url}/jobs.csv", headers={"Authorization": "Bearer viewer"}, timeout=120) as broken_off:
        assert broken_off.status_code == 200
        assert wait_until(lambda: len(spent) == 3, 60, 0.01)
        assert get("viewer").status_code == 429
        spent.append(0.0)
        assert get("operator").status_code == 200, "it is another's"
    may_go_on.set()
    assert wait_until(lambda: get("viewer").status_code == 200, 60, 0.05)


def test_nothing_is_loaded_from_elsewhere(client: TestClient) -> None:
    for path in ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"):
        assert client.get(path).status_code == 404


def test_failures_are_grouped_by_cause_with_what_to_ask_for(session: Session, client: TestClient) -> None:
    for number in range(25):
        used = {"peak_memory": 4000, "memory": 2048, "cpu_seconds": 100.0}
        ended(session, f"good{number}", task_id="big", map_index=number, **used)
    for number in range(2):
        failed = {"state": State.FAILED, "cause": "out_of_memory", "memory": 2048, "ended_at": NOW - 50 + number}
        ended(session, f"oom{number}", task_id="big", **failed, reason=because("used_memory", most=2048, used=2049))
    ended(session, "dead", state=State.FAILED, cause="node_failure", node="n17")
    ended(session, "hid", state=State.FAILED, cause="out_of_memory", dag_id="hush_dag", task_id="hush_task")
    ended(session, "old", state=State.FAILED, cause="error", ended_at=NOW - 9000)
    session.commit()
    found = client.get("/failures", params={"since": NOW - 3600}).json()
    assert found["jobs"] == 4
    memory, node = found["groups"]
    assert (memory["cause"], memory["jobs"], memory["tasks"], memory["hidden"]) == ("out_of_memory", 3, 2, True)
    [task] = memory["failed_tasks"]
    assert (task["task_id"], task["jobs"], task["advice"]) == ("big", 2, "request 4256 MiB")
    assert 'memory="4256 MiB"' in task["line"]
    assert memory["dags"] == [{"dag_id": "mine", "jobs": 2}]
    assert (node["cause"], node["site"], node["node"], node["jobs"]) == ("node_failure", "hpc", "n17", 1)
    assert client.get("/summary").json()["failed"] == 5


def test_who_exceeded_the_memory_is_told_to_request_what_a_retry_gets_not_slightly_more(
    session: Session, client: TestClient
) -> None:
    for number in range(25):
        ended(session, f"good{number}", map_index=number, peak_memory=5000, memory=8192)
    failed = {"state": State.FAILED, "cause": "out_of_memory", "memory": 8192, "peak_memory": 5600}
    ended(session, "oom", **failed, reason=because("used_memory", most=8192, used=8200))
    session.commit()
    [group] = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    [task] = group["failed_tasks"]
    assert task["advice"] == "request 16 GiB"
    assert 'memory="16 GiB"' in task["line"]
    [advised] = client.get("/dags/mine/advice").json()["tasks"]
    assert (advised["memory"]["nearly_all"], advised["line"]) == (16_384, task["line"]), "as the tab of the Dag says"


def test_a_failure_whose_reason_has_a_remedy_of_its_own_is_no_failed_machine(
    session: Session, client: TestClient
) -> None:
    failed = {"state": State.FAILED, "cause": "node_failure", "node": "n17"}
    ended(session, "dead", **failed, reason=because("machine_rebooted"))
    ended(session, "away", **failed, reason=because("api_out_of_reach", text="ReadTimeout: timed out"))
    session.commit()
    found = client.get("/failures", params={"since": NOW - 3600}).json()["groups"]
    api, node = sorted(found, key=lambda each: str(each["title"]))
    assert (api["title"], api["jobs"]) == ("Airflow's execution API was unreachable", 1)
    assert "check api_url of site hpc" in api["remedy"]
    assert (node["title"], node["jobs"], "exclude the machine" in node["remedy"]) == ("Its machine failed", 1, True)


def test_a_job_that_waits_says_when_it_is_expected(session: Session, client: TestClient) -> None:
    now = time.time()  # the time of the module may be half an hour ago; the job would have waited too long
    for number in range(10):
        times = {"queued_at": now - 2000, "started_at": now - 2000 + 60 * (number + 1), "ended_at": now - 900}
        ended(session, f"job{number}", **times)
    add(session, "wait", state=State.QUEUED, queued_at=now - 30)
    session.commit()
    [job] = client.get("/jobs", params={"state": "queued"}).json()["jobs"]
    assert (job["start"]["since"], job["start"]["until"]) == (now - 30 + 120, now - 30 + 540)
    assert (job["start"]["source"], job["start"]["text"]) == ("past_waits", "the waits of 10 earlier tries of task t")
    [job] = client.get("/dags/mine/runs/r/tasks/t", params={"limit": 1}).json()["jobs"]
    assert job["start"]["source"] == "past_waits"


def test_the_bill_says_what_was_used_and_what_was_not(session: Session, client: TestClient) -> None:
    day = NOW // 86400 * 86400 - 86400
    times = {"queued_at": day, "started_at": day + 600, "ended_at": day + 4200}
    ended(session, "a", cpus=2.0, cpu_seconds=1800.0, usd=4.0, location="M1", site="cloud", **times)
    ended(session, "hid", dag_id="hush_dag", cpus=1.0, cpu_seconds=3600.0, usd=1.0, **times)
    session.add(
        InstanceRow(
            token="M1", site="cloud", kind="c7i.xlarge", disk=0, seconds=0.0, state=InstanceState.ENDED,
            capacity_type="spot", ordered_at=day, launched_at=day, ready_at=day + 360, ended_at=day + 7200,
            usd_per_hour=4.0, usd=8.0, usd_since=day + 7200, usd_idle=4.0, **AMOUNTS,
        )
    )  # fmt: skip
    session.commit()
    found = client.get("/bill", params={"since": day, "until": NOW}).json()
    assert [each["is_whole"] for each in found["periods"]] == [True, False]
    assert (found["total"]["usd"], found["total"]["jobs"]) == (8.0, 1), "the machine, but not what one other Dag cost"
    assert found["is_partial"]
    assert found["totals"][0] == found["total"]
    rows = {(row["kind"], row["dag_id"]): row["total"] for row in found["rows"]}
    names = ("usd_used", "usd_unused", "usd_idle", "usd_boot")
    parts = {key: tuple(round(each[name], 6) for name in names) for key, each in rows.items()}
    assert parts == {("named", "mine"): (1.0, 3.0, 3.6, 0.4)}
    assert found["rows"][0]["usd"] == pytest.approx([8.0, None])
    assert rows["named", "mine"]["cpu_hours"] == pytest.approx(4 * 2), "all of its machine"
    by_run = client.get("/bill", params={"since": day, "until": NOW, "split": "run"}).json()
    assert [(row["dag_id"], row["run_id"], row["total"]) for row in by_run["rows"]] == [
        ("mine", "r", rows["named", "mine"])
    ]
    [run] = client.get("/dags/mine/runs").json()["runs"]
    assert run["billed"] == rows["named", "mine"], "used, unused, idle and boot are those of the bill"
    by_site = client.get("/bill", params={"since": day, "until": NOW, "split": "site", "by": "month"}).json()
    assert [(row["kind"], row["site"], row["total"]["usd"]) for row in by_site["rows"]] == [("named", "cloud", 8.0)]
    for wrong in ({"until": day}, {"until": day + 401 * 86400}, {"until": day + 86400, "by": "year"}):
        assert client.get("/bill", params={"since": day, **wrong}).status_code == 422


def test_the_bill_includes_what_is_running_and_its_rows_add_up(session: Session, client: TestClient) -> None:
    at_cloud = {"site": "cloud", "location": "M1", "started_at": NOW - 3600, "queued_at": NOW - 3600}
    add(session, "live", **at_cloud, cpus=1.0)
    ended(session, "past", run_id="r0", **at_cloud, ended_at=NOW - 1, cpus=1.0, usd=0.5)
    price = {"kind": "ec2", "disk": 0, "state": "up", "seen_at": NOW, "usd_per_cpu_hour": 1.0}
    session.add(LocationRow(site="cloud", name="M1", **price, **AMOUNTS))
    session.add(
        InstanceRow(
            token="M1", site="cloud", kind="c7i.xlarge", disk=0, seconds=0.0, state=InstanceState.UP,
            capacity_type="spot", ordered_at=NOW - 3600, launched_at=NOW - 3600, ready_at=NOW - 3600,
            usd_per_hour=40.0, usd=40.0, usd_since=NOW, **AMOUNTS,
        )
    )  # fmt: skip
    session.commit()
    span = {"since": NOW // 86400 * 86400, "until": NOW}
    for split in ("dag", "task", "run", "site", "team"):
        found = client.get("/bill", params={**span, "split": split}).json()
        names = [name for name, value in found["total"].items() if value is not None]
        for name in names:
            assert sum(row["total"][name] or 0 for row in found["rows"]) == pytest.approx(found["total"][name]), name
        assert found["totals"] == [found["total"]]
        assert (found["total"]["jobs"], found["running"]["jobs"]) == (2, 1)
        hours = (found["now"] - NOW + 3600) / 3600
        assert found["total"]["usd"] == pytest.approx(40 * hours, abs=0.1), "what the machine has cost so far"
        if split != "site":
            assert [row["kind"] for row in found["rows"]].index("machines") == len(found["rows"]) - 1
    before = {"since": span["since"] - 86400, "until": span["since"]}
    past = client.get("/bill", params=before).json()
    assert (past["total"]["jobs"], past["running"]["jobs"]) == (0, 0), "it counts as of today"


def test_what_a_shorter_idle_time_would_save_is_taken_from_machines_that_were_released(
    session: Session, client: TestClient
) -> None:
    for position, (name, seconds) in enumerate({"cloud": 600.0, "hpc": 300.0, "lab": None}.items()):
        session.add(SiteRow(name=name, kind="k", position=position, limits="{}", idle_seconds=seconds))
    # How long each machine idled, seconds; None: it was not idle when it ended.
    for number, (site, idle) in enumerate(
        (("cloud", 200), ("cloud", 400), ("cloud", 9000), ("cloud", None), ("lab", 99))
    ):
        session.add(
            InstanceRow(
                token=f"M{number}", site=site, kind="", disk=0, seconds=0.0, state=InstanceState.ENDED,
                usd_per_hour=36.0, ordered_at=NOW - 9999, ready_at=NOW - 9999, ended_at=NOW - 1,
                idle_since=None if idle is None else NOW - 1 - idle, **AMOUNTS,
            )
        )  # fmt: skip
    session.commit()
    span = {"since": (NOW - 1) // 86400 * 86400, "until": NOW}
    released = released_machines(session, span["since"], NOW)
    assert released.keys() == {"cloud"}, "lab has no such setting, and hpc released no machine"
    its = released["cloud"]
    assert its.number == 3
    assert its.usd == pytest.approx((200 + 400 + 9000) * 0.01), "all the time without a job"
    assert its.usd_saved[0] == pytest.approx(0 + 100 * 0.01 + 300 * 0.01), "of the longest, only half the setting"
    assert its.usd_saved[-1] == pytest.approx(200 * 0.01 + 400 * 0.01 + 600 * 0.01), "no more than the setting"
    assert its.cpu_hours_saved[0] == pytest.approx(4 * 400 / 3600)
    by_site = client.get("/bill", params={**span, "split": "site"}).json()
    cloud = by_site["idle_sites"][0]
    assert (cloud["site"], cloud["idle_seconds"], cloud["machines"]) == ("cloud", 600, 3)
    assert cloud["usd_machines"] == pytest.approx(its.usd), "the rest is idle cpus of busy machines"
    assert cloud["cpu_hours_machines"] == pytest.approx(its.cpu_hours)
    advice = by_site["idle_advice"]
    assert advice["changes"] == [{"site": "cloud", "now": 600, "then": 0, "saved": pytest.approx(12)}], (
        "no shorter setting halves the cost"
    )
    assert (advice["is_halved"], advice["saved"]) == (False, pytest.approx(12))
    assert {part["kind"]: part["sites"] for part in advice["rest"]} == {"busy": ["cloud"], "unknown": ["lab"]}
    whole = client.get("/bill", params=span).json()
    assert (whole["idle_sites"], whole["idle_advice"]) == ([], None)
    task_usage.row_of(session, "d", "t", int(span["since"] // 86400) - 1, 0, "lab")
    session.commit()
    longer = client.get("/bill", params={**span, "since": span["since"] - 5 * 86400, "split": "site"}).json()
    assert (by_site["idle_since"], longer["idle_since"]) == (span["since"], span["since"]), "older records are deleted"
    assert [site["usd_machines"] for site in longer["idle_sites"]] == [
        site["usd_machines"] for site in by_site["idle_sites"]
    ]


def test_a_month_is_extrapolated_at_the_rate_of_the_last_week(session: Session, client: TestClient) -> None:
    today = NOW // 86400 * 86400
    for days in range(1, 10):
        at = today - days * 86400
        ended(session, f"j{days}", usd=24.0, cpus=24.0, started_at=at, queued_at=at, ended_at=at + 3600)
    session.commit()
    month = datetime.fromtimestamp(NOW, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    found = client.get("/bill", params={"since": month.timestamp(), "until": NOW}).json()
    expected, left = found["expected"], (found["expected"]["until"] - found["now"]) / 86400
    assert expected["since"] == today - 7 * 86400
    days = (found["now"] - expected["since"]) / 86400
    assert expected["usd_per_day"] == expected["cpu_hours_per_day"] == pytest.approx(7 * 24 / days)
    assert expected["usd"] == pytest.approx((found["total"]["usd"] or 0) + left * expected["usd_per_day"])
    assert expected["cpu_hours"] == pytest.approx(found["total"]["cpu_hours"] + left * expected["cpu_hours_per_day"])
    assert datetime.fromtimestamp(expected["until"], timezone.utc).day == 1
    later = client.get("/bill", params={"since": month.timestamp() - 86400, "until": NOW}).json()
    assert later["expected"] is None, "not of a month"


def test_a_month_and_a_budget_count_what_runs_and_waits_now(session: Session, client: TestClient) -> None:
    today = NOW // 86400 * 86400
    for days in range(1, 9):
        at = today - days * 86400
        # A job of this task takes two hours.
        ended(session, f"j{days}", usd=24.0, cpus=12.0, started_at=at, queued_at=at, ended_at=at + 7200)
    session.add(Capacity(site="lab", name="lab", cpus=4.0, memory=1, gpus=0.0, since=NOW, usd_per_hour=5.0))
    live = {"cpus": 4.0, "ended_at": None, "queued_at": NOW - 3600, "site": "lab"}
    ended(session, "now", state=State.RUNNING, started_at=NOW - 3600, location="lab", **live)
    for number in range(3):
        ended(session, f"next{number}", state=State.QUEUED, started_at=None, **live)
    ended(session, "hush", state=State.QUEUED, dag_id="hush_dag", task_id="t", started_at=None, **live)
    session.commit()
    work = [(each.tenant.dag_id, each.cpus, each.cpu_hours) for each in work_left(session, NOW)]
    assert sorted(work, key=repr) == [
        ("hush_dag", 0.0, pytest.approx(4.0)), ("mine", 0.0, pytest.approx(24.0)), ("mine", 4.0, pytest.approx(4.0)),
    ], "an hour where no job of a task has finished"  # fmt: skip
    budget = PeriodBudget("b", Who(dag="mine"), 100.0, Unit.CPU_HOURS, "month")
    [use] = share_rows.spending(session, [budget], NOW, lambda dag: None, work=work_left(session, NOW))
    assert use.hours_of_work == pytest.approx((24 + 4) / 4)
    month = datetime.fromtimestamp(NOW, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    found = bill_page(session, EVERYTHING, month.timestamp(), NOW, Period.DAY, "site", NOW)
    expected = found.expected
    assert expected is not None
    assert (expected.usd_per_hour, expected.cpus, expected.hours) == (5.0, 4.0, pytest.approx((24 + 4 + 4) / 4))
    left = (expected.until - NOW) / 3600
    busy = min(left, expected.hours)
    after = (left - busy) / 24
    assert expected.usd == pytest.approx((found.total.usd or 0) + 5 * busy + after * (expected.usd_per_day or 0))
    assert expected.cpu_hours == pytest.approx(found.total.cpu_hours + 4 * busy + after * expected.cpu_hours_per_day)
    seen = client.get("/bill", params={"since": month.timestamp(), "until": NOW}).json()["expected"]
    assert seen["hours"] == 0, "what hidden Dags do now is not revealed"


def test_the_first_day_of_data_is_not_extrapolated(session: Session, client: TestClient) -> None:
    ended(session, "j", usd=1.0, queued_at=NOW - 60, started_at=NOW - 60, ended_at=NOW - 1)
    session.commit()
    month = datetime.fromtimestamp(NOW, timezone.utc).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    found = client.get("/bill", params={"since": month.timestamp(), "until": NOW}).json()
    assert found["total"]["usd"] == 1.0
    assert found["expected"] is None


def test_the_dearest_run_comes_first_with_what_its_machine_idled(session: Session, client: TestClient) -> None:
    for number, usd in enumerate((1.0, 3.0, 2.0, 0.5)):
        ended(
            session, f"job{number}", run_id=f"r{number}", usd=usd, queued_at=NOW - 900 + number, location=f"M{number}"
        )
    machine = {"site": "cloud", "kind": "c7i.xlarge", "disk": 0, "seconds": 0.0, "state": InstanceState.ENDED}
    machine |= {"capacity_type": "spot", "ordered_at": NOW - 900, "launched_at": NOW - 900, "ready_at": NOW - 900}
    machine |= {"usd_per_hour": 50.0, "usd": 9.5, "usd_since": NOW, "usd_idle": 9.0, "ended_at": NOW, **AMOUNTS}
    session.add(InstanceRow(token="M3", **machine))
    session.commit()
    for sort, order in (("began", "3210"), ("cost", "3120")):
        runs = client.get("/dags/mine/runs", params={"sort": sort}).json()["runs"]
        assert "".join(run["run_id"][1:] for run in runs) == order, sort
    assert len(client.get("/dags/mine/runs", params={"sort": "cost", "limit": 1}).json()["runs"]) == 1


def test_what_right_sizes_would_save_in_a_month(session: Session, client: TestClient) -> None:
    for number in range(25):
        used = {"cpu_seconds": 500.0, "usd": 1.0, "cpus": 4.0, "peak_memory": 500, "memory": 4096}
        ended(session, f"job{number}", task_id="big", map_index=number, **used)
        ended(session, f"hid{number}", dag_id="hush_dag", task_id="hush_task", **used)
    session.commit()
    found = client.get("/savings").json()
    [task] = found["tasks"]
    assert (task["dag_id"], task["task_id"], found["tasks_left_out"]) == ("mine", "big", 0)
    assert task["usd"] == found["usd"] == pytest.approx(25 * 3 / 4, rel=0.03)
    assert task["line"].startswith("executor_config=resources(cpus=1")
    [advised] = client.get("/dags/mine/advice").json()["tasks"]
    for name in ("cpus_asked", "memory_asked", "cpus", "memory"):
        assert task[name] == advised[name], "as the tab of the Dag says"
    assert (task["cpus_asked"], task["memory_asked"], task["memory"]["most"]) == (4.0, 4096, 500)
    assert client.get("/savings", params={"dag_id": "mine"}).json()["tasks"] == [task], "as the tab of the Dag says"
    assert client.get("/savings", params={"dag_id": "hush_dag"}).status_code == 403


def test_what_sizing_frees_is_shown(session: Session, client: TestClient) -> None:
    assert client.get("/savings").json()["freed"] == {"cpus": 0, "gib": 0, "cpu_hours": 0, "gib_hours": 0}
    left = as_text({"cpus": SizeChoice(0.25), "memory": SizeChoice(512)})
    ended(session, "sized", cpus=0.05, memory=256, chosen=left)
    session.commit()
    freed = client.get("/savings").json()["freed"]
    assert freed["cpu_hours"] == pytest.approx(0.8 * freed["gib_hours"])


def test_budgets_of_dags_are_shown_to_who_may_read_one_of_them(session: Session, client: TestClient) -> None:
    whose = {"a": "team a", "b": "Dags mi*", "c": "team a, Dags hush_dag, tag t", "d": "everyone", "e": "Dags hush_*"}
    for name, who in whose.items():
        terms = {"unit": "USD", "per": "day", "since": NOW - 4 * 3600, "until": NOW + 20 * 3600, "at": NOW}
        spent = 4.0 if name == "a" else 1.0
        session.add(BudgetRow(name=name, who=who, most=10.0, spent=spent, per_hour=0.0, **terms))
    for name in "bc":
        session.add(RequestRow(kind=RequestKind.LIFT.value, target=name, by="operator", at=NOW))
    session.commit()
    budgets = client.get("/summary").json()["budgets"]
    assert [each["name"] for each in budgets] == ["a", "b", "d"]
    spent = [each["spent_at"] for each in budgets]
    assert spent == [pytest.approx(NOW + 6 * 3600), None, None], "6 of 10 USD are left, at one an hour, as until now"
    assert [each["expected"] for each in budgets] == [pytest.approx(24), pytest.approx(6), pytest.approx(6)]
    assert [each["target"] for each in client.get("/requests").json()] == ["b"]


def test_shares_say_what_they_use_of_what_is_kept_for_them(session: Session, client: TestClient) -> None:
    kept = (Kept("hpc", {"cpus": 8.0}), Kept(None, {"memory": 4096.0}))
    shares = Shares(
        (Share("a", Who(team="a"), 3, kept), Share("mine", Who(dag="mi*"), 1), Share("hush", Who(dag="hush_*"), 1))
    )
    used = {"a": {"hpc": ShareAmounts(10.0, 1024.0), "lab": ShareAmounts(2.0, 2048.0)}}
    standing = Standing(ShareAmounts(24.0, 16384.0), used, {"a": 0.25})
    save_standings(session, share_standings(shares, standing), NOW)
    for token, dag_id in (("1", "mine"), ("2", "mine"), ("3", "hush_dag")):
        add(session, token, dag_id=dag_id, team="a")
    session.commit()
    first, second = client.get("/summary").json()["shares"]
    assert (first["name"], first["entitled"], first["used"], first["lately"]) == ("a", 0.6, 0.5, 0.25)
    assert [(each["site"], each["what"], each["kept"], each["used"]) for each in first["guarantees"]] == [
        ("hpc", "cpus", 8, 10), (None, "memory", 4096, 3072),
    ]  # fmt: skip
    assert first["is_over"]
    assert [first[name] for name in ("dags", "dags_total", "hidden")] == [
        [{"dag_id": "mine", "jobs": 2}], 1, True,
    ]  # fmt: skip
    assert second["dags"] == [], "its jobs are of the share of their team, which comes first"
    assert (second["name"], second["is_over"], second["guarantees"]) == ("mine", False, []), "not the one of hush_*"


@pytest.mark.parametrize(
    "path", ["/summary", "/waits", "/jobs", "/dags/mine/runs/r", "/dags/mine/runs/r/gantt", "/dags/mine/runs/r/tasks/t"]
)
def test_where_shares_are_declared_starts_are_shown_everywhere(session: Session, client: TestClient, path: str) -> None:
    add_house(session)
    shares = Shares((Share("a", Who(team="a"), 3), Share("mine", Who(dag="mi*"), 1)))
    save_standings(session, share_standings(shares, Standing(ShareAmounts(24.0))), NOW)
    for number in range(10):
        times = {"queued_at": NOW - 2000, "started_at": NOW - 1000, "ended_at": NOW - 10 * number}
        ended(session, f"old{number}", **times)
    for number in range(5):
        full = because("max_allocations", used=4, most=4)
        add(session, f"late{number}", state=State.QUEUED, queued_at=NOW - 900, reason=full)
    session.add(dag_run("r"))
    session.commit()
    assert client.get(path).status_code == 200


def test_how_long_allocations_and_instances_took_to_start(session: Session, client: TestClient) -> None:
    add_house(session)
    session.add(SiteRow(name="cloud", kind="ec2", position=9, limits="{}"))
    amounts = {"kind": "", "disk": 0, "seconds": 60.0, **AMOUNTS}
    for site, wait in (("hpc", 30.0), ("hpc", 130.0), ("cloud", 50.0)):
        times = {"ordered_at": NOW - 1000, "ready_at": NOW - 1000 + wait, "ended_at": NOW}
        session.add(InstanceRow(token=f"{site}{wait}", site=site, state=InstanceState.ENDED, **times, **amounts))
    session.commit()
    found = {(each["what"], each["site"]): each for each in client.get("/queue-waits").json()["waits"]}
    assert client.get("/queue-waits").json()["read"] == durations.MOST
    waits = found["allocations", "hpc"]
    assert (waits["more_cpus_than"], waits["most_cpus"], waits["most"]) == (2, 4, 130)
    assert found["instances", "cloud"]["median"] == 50


def test_the_tasks_of_a_run_over_time(session: Session, client: TestClient) -> None:
    for run, began in (("r0", NOW - 9000), ("r", NOW - 1000)):
        names = {"run_id": run, "cpus": 1.0, "cpu_seconds": 50.0, "queued_at": began}
        ended(session, f"{run} a", task_id="a", **names, started_at=began + 10, ended_at=began + 110)
        ended(session, f"{run} b", task_id="b", **{**names, "queued_at": began + 120}, ended_at=began + 500,
              started_at=began + 130)  # fmt: skip
    session.commit()
    found = client.get("/dags/mine/runs/r/gantt").json()
    assert (found["began_at"], found["ended_at"], found["expected_end"]) == (NOW - 1000, NOW - 500, None)
    assert found["last_run"] == {"run_id": "r0", "seconds": 500.0}
    first, second = found["tasks"]
    assert (first["task_id"], first["jobs"], first["started_at"], first["until"]) == ("a", 1, NOW - 990, NOW - 890)
    assert (first["cpus_used"], first["last_seconds"], first["expected"]) == (0.5, 110.0, None)
    assert [phase["key"] for phase in second["tries"][0]["phases"]] == ["airflow", "runs"]
    assert (second["median_wait"], second["longest_wait"]) == (10.0, 10.0)


def test_what_boots_costs_what_waits_in_a_queue_does_not(session: Session, client: TestClient) -> None:
    add_house(session)
    before = client.get("/summary").json()["usd_per_hour"]
    bought = {"site": "hpc", "kind": "", "disk": 0, "seconds": 60.0, "usd_per_hour": 5.0, "ordered_at": NOW, **AMOUNTS}
    session.add(InstanceRow(token="L2", state=InstanceState.BOOTING, launched_at=NOW, **bought))
    session.add(InstanceRow(token="L3", state=InstanceState.BOOTING, **bought))
    session.add(InstanceRow(token="L4", state=InstanceState.ORDERED, **bought))
    session.commit()
    summary = client.get("/summary").json()
    assert summary["usd_per_hour"] == before + 5.0
    assert summary["sites"][1]["usd_ordered"] == 10.0, "limits count these, too"


def test_live_runs_are_listed_newest_first_and_none_of_the_newest_is_left_out(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_runs, "MOST_RUNS", 2)
    for run_id, age, jobs in (("old", 900, 3), ("newest", 100, 1), ("newer", 500, 2)):
        ended(session, f"{run_id} began", run_id=run_id, queued_at=NOW - age)
        for number in range(jobs):  # its unfinished jobs were queued after those of other runs
            add(session, f"{run_id}{number}", run_id=run_id, queued_at=NOW - age / 10)
    session.commit()
    found = client.get("/live-runs").json()
    assert [run["run_id"] for run in found["runs"]] == ["newest", "newer"]
    assert [run["live"] for run in found["runs"]] == [1, 2]
    assert found["runs_left_out"] == 1


def test_the_teams_add_up_to_all_jobs(session: Session, client: TestClient) -> None:
    add(session, "alone", cpus=3.0)
    session.commit()
    assert client.get("/summary").json()["teams"] == [], "Airflow has no teams"
    for token, team in (("genes", "genes"), ("loads", "loads"), ("more", "genes")):
        add(session, token, team=team)
    add(session, "waits", state=State.QUEUED)
    session.commit()
    found = client.get("/summary").json()
    assert [(each["name"], each["running"], each["waiting"], each["cpus_used"]) for each in found["teams"]] == [
        ("genes", 2, 0, 2.0), ("loads", 1, 0, 1.0), (None, 1, 1, 3.0),
    ]  # fmt: skip
    assert (found["running"], found["waiting"]) == (4, 1)


def test_a_live_run_of_unknown_end_says_why(session: Session, client: TestClient) -> None:
    session.add(dag_run("r"))
    add(session, "waits", state=State.QUEUED, task_id="t", queued_at=NOW - 5000)
    add(session, "ahead", state=State.QUEUED, task_id="t", queued_at=NOW - 6000)
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    why = "there is no estimate of when the waiting jobs of t start"
    assert (run["expected_end"], run["end_unknown"]) == (None, why)
    assert client.get("/dags/mine/runs/r/gantt").json()["end_unknown"] == why
    limit = because("task_jobs", most=2, task="t")
    session.execute(update(JobRow).values(reason_values(limit)))
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    [group] = client.get("/waits").json()["groups"]
    assert group["limit"] == "max_jobs of task t"
    assert run["end_unknown"].lower() == f"{why} ({group['title']}: {group['limit']})".lower()
    assert client.get("/dags/mine/runs/r/gantt").json()["end_unknown"] == run["end_unknown"]
    session.execute(update(JobRow).values(state=State.RUNNING, started_at=NOW - 60))
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    assert run["end_unknown"] == "no job of t has finished before, so its duration is unknown"
    session.execute(update(DagRun).values(state="success"))
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    assert run["end_unknown"] == "Airflow has marked the run as success, although it has unfinished jobs"
    session.execute(delete(DagRun))
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    assert run["end_unknown"] == "Airflow does not know the run"


def test_live_runs_say_when_they_end_and_what_they_cost_so_far(session: Session, client: TestClient) -> None:
    for number in range(5):
        ended(session, f"old{number}", run_id="before", usd=0.5)
    ended(session, "done", usd=2.0)
    session.add(dag_run("r"))
    add(session, "works", state=State.RUNNING, task_id="t", started_at=NOW - 10, map_index=1)
    add(session, "waits", state=State.QUEUED, task_id="t", queued_at=NOW - 5, map_index=2)
    add(session, "hid", dag_id="hush_dag", run_id="hush_run", task_id="hush_task", started_at=NOW - 10)
    session.commit()
    [run] = client.get("/live-runs").json()["runs"]
    names = ("dag_id", "run_id", "running", "waiting", "jobs", "live", "usd")
    assert [run[name] for name in names] == ["mine", "r", 1, 1, 3, 2, 2.0]
    tab = client.get("/dags/mine/runs/r/gantt").json()
    for name in ("expected_end", "end_unknown", "expected_end_basis"):
        assert run[name] == (pytest.approx(tab[name], abs=60) if name == "expected_end" else tab[name]), name
    assert run["expected_end"] > NOW


def test_of_a_task_with_many_tries_those_of_each_state_are_drawn(session: Session, client: TestClient) -> None:
    for number in range(100):
        add(session, f"wait{number:03}", state=State.QUEUED, queued_at=NOW - 900 + number, map_index=number)
    ended(session, "failed", state=State.FAILED, cause="error", queued_at=NOW - 10, started_at=NOW - 9, map_index=200)
    add(session, "runs", started_at=NOW - 5, queued_at=NOW - 6, map_index=201)
    session.commit()
    [task] = client.get("/dags/mine/runs/r/gantt").json()["tasks"]
    states = [each["state"] for each in task["tries"]]
    assert (len(states), states.count("failed"), states.count("running"), task["is_cut"]) == (60, 1, 1, True)
    assert 899 <= task["longest_wait"] <= time.time() - NOW + 901
    run = client.get("/dags/mine/runs/r").json()
    assert 800 <= run["median_wait"] < run["longest_wait"] <= time.time() - NOW + 901, "not 22 hours in all"


def paths(client: TestClient, method: str = "get") -> list[str]:
    """Every route with data, as the OpenAPI document has it."""
    document: Mapping[str, Any] = client.app.openapi()  # type: ignore[attr-defined]
    return sorted(path for path, methods in document["paths"].items() if method in methods)


@pytest.fixture
def routes(client: TestClient) -> list[str]:
    return paths(client)


def test_anonymous_is_401_and_without_rights_403_on_every_route(client: TestClient, routes: list[str]) -> None:
    assert len(routes) >= 16
    for path in routes:
        filled = path.format(dag_id="mine", run_id="r", task_id="t")
        anonymous = client.get(filled, params=HOUR, headers={"Authorization": ""})
        assert anonymous.status_code == 401, path
        assert client.get(filled, params=HOUR, headers={"Authorization": "Bearer nobody"}).status_code == 403, path
        if "{dag_id}" in path:
            hushed = path.format(dag_id="hush_dag", run_id="hush_run", task_id="hush_task")
            assert client.get(hushed, params=HOUR).status_code == 403, path
    bodies = {"/dags/{dag_id}/runs/{run_id}/hurry": {"hurry": 1}, "/requests": {"kind": "pause", "target": "local"}}
    assert paths(client, "post") == [*bodies]
    for path, asked in bodies.items():
        filled = path.format(dag_id="mine", run_id="r")
        assert client.post(filled, json=asked, headers={"Authorization": ""}).status_code == 401
        for user in ("viewer", "nobody"):
            assert client.post(filled, json=asked, headers={"Authorization": f"Bearer {user}"}).status_code == 403


def test_a_dag_that_airflow_does_not_know_is_shown_to_administrators_alone(
    session: Session, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rights are checked by its id, and an auth manager that goes by roles grants them for any id."""
    add_house(session)
    session.add(DagBundleModel(name="b"))
    session.flush()
    session.add_all([DagModel(dag_id=name, bundle_name="b") for name in ("mine", "other")])
    ended = {"state": State.SUCCEEDED, "started_at": NOW - 5, "ended_at": NOW}
    add(session, "gone", dag_id="gone_dag", run_id="gone_run", task_id="gone_task", **ended)
    add(session, "theirs", dag_id="other", run_id="r", task_id="t", **ended)
    session.commit()
    monkeypatch.setattr(Viewers, "is_authorized_dag", lambda *_, **__: True)
    of_gone = ["/dags/gone_dag/runs", "/dags/gone_dag/advice", "/dags/gone_dag/runs/gone_run"]
    of_gone.append("/dags/gone_dag/runs/gone_run/tasks/gone_task")
    for path in of_gone:
        assert client.get(path).status_code == 404, path
        assert "gone_run" not in client.get(path).text
    assert client.get("/jobs", params={"dag_id": "gone_dag"}).status_code == 403
    operator = {"Authorization": "Bearer operator"}
    for path in of_gone:
        assert client.get(path, headers=operator).status_code == 200, path
    bill = client.get("/bill", params={"since": NOW - 86400, "until": NOW + 1}, headers=operator).json()
    named = {each["dag_id"] for each in bill["rows"] if each["kind"] == "named"}
    assert named == {"gone_dag", "hush_dag", "mine"}, "another's Dag stays hidden"
    found = client.get("/jobs", params={"dag_id": "gone_dag"}, headers=operator).json()["jobs"]
    assert [each["id"] for each in found] == ["gone"]
    found = client.get("/jobs", params={"run_id": "r"}, headers=operator).json()["jobs"]
    assert "theirs" not in [each["id"] for each in found]


def test_names_that_no_database_takes_are_refused(session: Session, client: TestClient, routes: list[str]) -> None:
    add_house(session)
    client.headers["Authorization"] = "Bearer operator"
    for path in (each for each in routes if "{" in each):
        names = {"dag_id": "mine", "run_id": "r", "task_id": "t"}
        for name in names:
            if f"{{{name}}}" in path:
                assert client.get(path.format(**{**names, name: "a%00b"})).status_code == 404, path
    for name in ("dag_id", "run_id", "site", "after"):
        assert client.get("/jobs", params={name: "a\0b"}).status_code == 422, name
    for target in ("a\0b", "\ud800", "a/\udfff", "\ud800" * 300):
        body = json.dumps({"kind": "pause", "target": target})
        answer = client.post("/requests", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422, target
        assert answer.json()["detail"][0]["loc"] == ["body", "target"]
    for target in ("a\0b", "\ud800", "a/\udfff"):
        with pytest.raises(LookupError, match="is not a valid name"):
            request_rows.ask(session, RequestKind.PAUSE, target, "x")


def test_users_that_may_change_the_configuration_may_send_requests_and_the_audit_log_says_so(
    session: Session, client: TestClient
) -> None:
    add_house(session)
    assert client.get("/summary").json()["may_act"] is False
    client.headers["Authorization"] = "Bearer operator"
    assert client.get("/summary").json()["may_act"] is True
    for kind, target, status in (
        ("pause", "hpc", 202), ("terminate", "hpc/L1", 202), ("pause", "hpc/L1", 404), ("drain", "local/L1", 404),
        ("drain", "local/host", 404), ("end", "hpc", 422), ("pause", "", 422), ("pause", "x" * 321, 422),
    ):  # fmt: skip
        assert client.post("/requests", json={"kind": kind, "target": target}).status_code == status, (kind, target)
    found = client.get("/requests", headers={"Authorization": "Bearer viewer"}).json()
    assert [(each["kind"], each["target"], each["by"], each["done_at"]) for each in found] == [
        ("terminate", "hpc/L1", "operator", None), ("pause", "hpc", "operator", None),
    ]  # fmt: skip
    entry = session.scalars(select(Log).where(Log.event == "lading_request").order_by(Log.id)).first()
    assert entry is not None
    assert (entry.owner, json.loads(entry.extra or "")["target"]) == ("operator", "hpc")
    session.get_one(SiteRow, "hpc").paused_by = "operator"
    session.commit()
    hpc = client.get("/summary").json()["sites"][1]
    assert (hpc["state"], hpc["note"]) == ("paused", "paused by operator")


def test_open_requests_stay_in_sight_however_many_follow(session: Session, client: TestClient) -> None:
    made = [("drain", f"hpc/L{number}", None, NOW - 90_000) for number in range(25)]
    made += [("pause", "hpc", NOW - 5, NOW - 90_000)] + [("pause", "hpc", NOW - 5, NOW - 10)] * 25
    for kind, target, done_at, at in made:
        session.add(RequestRow(kind=kind, target=target, by="operator", at=at, done_at=done_at))
    session.commit()
    found = client.get("/requests").json()
    assert [each["id"] for each in found] == sorted((each["id"] for each in found), reverse=True)
    is_open = [each["done_at"] is None for each in found]
    assert (is_open.count(True), is_open.count(False)) == (25, 20)


def add_run(session: Session, dag_id: str, run_id: str, state: str = "running") -> None:
    session.merge(DagBundleModel(name="b"))
    session.flush()
    session.merge(DagModel(dag_id=dag_id, bundle_name="b"))
    session.flush()
    session.add(DagRun(dag_id=dag_id, run_id=run_id, run_type=DagRunType.MANUAL, state=state))
    session.commit()


def test_who_may_change_a_run_may_hurry_it_and_take_that_back(session: Session, client: TestClient) -> None:
    add_house(session)
    add_run(session, "mine", "r")
    add_run(session, "mine", "over", "success")
    session.add(RunForecastRow(dag_id="mine", run_id="r", hurry=0.5, finish_by=NOW + 60, ends_at=NOW + 120, at=NOW))
    session.commit()
    add_run(session, "mine", "some")
    add(session, "some", run_id="some", state=State.QUEUED, planned_start=time.time() + 90)
    session.commit()
    some = client.get("/dags/mine/runs/some").json()
    assert (some["outlook"]["is_planned"], some["waits"][0]["start"]["text"]) == (True, "Lading's plan")
    session.execute(update(JobRow).values(planned_start=None))
    session.commit()
    assert client.get("/dags/mine/runs/some").json()["outlook"]["is_planned"] is False
    path = "/dags/mine/runs/r/hurry"
    before = client.get("/dags/mine/runs/r").json()
    assert (before["may_edit"], before["outlook"]["hurry"], before["outlook"]["asked_by"]) == (False, 0.5, None)
    assert before["outlook"]["trouble"].startswith("cannot end by ")
    assert client.get("/dags/mine/runs/over").json()["outlook"] is None, "it has ended"
    client.headers["Authorization"] = "Bearer operator"
    assert client.get("/dags/mine/runs/r").json()["may_edit"] is True
    answer = client.post(path, json={"hurry": "fast", "finish_by": "06:00"})
    assert answer.status_code == 200
    found = client.get("/dags/mine/runs/r", headers={"Authorization": "Bearer viewer"}).json()["outlook"]
    assert found == answer.json()
    assert (found["asked_hurry"], found["asked_finish_by"], found["asked_by"]) == (10.0, "06:00", "operator")
    assert abs(found["asked_at"] - time.time()) < 60
    assert found["hurry"] == 0.5, "what the controller went by last"
    assert client.post(path, json={"hurry": 2.5}).json()["asked_finish_by"] is None, "all that was asked before is over"
    entries = session.scalars(select(Log).where(Log.event == "lading_request").order_by(Log.id)).all()
    assert [(each.owner, each.dag_id, each.run_id) for each in entries] == [("operator", "mine", "r")] * 2
    assert json.loads(entries[0].extra or "")["finish_by"] == "06:00"
    assert client.post(path, json={}).json()["asked_by"] is None
    assert session.scalars(select(RunRequestRow)).all() == []


@pytest.mark.parametrize(
    ("run_id", "body", "status", "said"),
    [
        ("none", {"hurry": 1}, 404, "has no live run 'none'; valid"),
        ("over", {"hurry": 1}, 404, "has no live run 'over'; valid"),
        ("r", {"hurry": 101}, 422, "less than or equal to 100"),
        ("r", {"hurry": "soon"}, 422, "'cheap', 'balanced' or 'fast'"),
        ("r", {"finish_by": "soon"}, 422, "'soon' is not a deadline for a run; valid"),
        ("r", {"finish_by": "2020-01-01T00:00Z"}, 422, "'2020-01-01T00:00Z' is in the past"),
        ("r", {"finish_by": "\0"}, 422, "pattern"),
        ("r", [], 422, "dictionary"),
    ],
)
def test_what_cannot_be_asked_of_a_run_is_refused(
    session: Session, client: TestClient, run_id: str, body: Any, status: int, said: str
) -> None:
    add_run(session, "mine", "r")
    add_run(session, "mine", "over", "failed")
    answer = client.post(f"/dags/mine/runs/{run_id}/hurry", json=body, headers={"Authorization": "Bearer operator"})
    assert answer.status_code == status
    assert said in json.dumps(answer.json()["detail"])
    assert session.scalars(select(RunRequestRow)).all() == []


def test_what_is_asked_of_a_locked_database_is_tried_again(
    session: Session,
    client: TestClient,
    airflow_database: Engine,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    from airflow import settings as airflow_settings

    from lading.plugin.ui import access

    add_house(session)
    session.close()
    hasty = create_engine(airflow_database.url, connect_args={"timeout": 0})
    monkeypatch.setattr(airflow_settings, "NonScopedSession", sessionmaker(hasty, expire_on_commit=False))
    client.headers["Authorization"] = "Bearer operator"
    asked = {"kind": "pause", "target": "hpc"}
    with sqlite3.connect(str(airflow_database.url.database), check_same_thread=False) as other:
        other.execute("BEGIN IMMEDIATE")
        release = threading.Timer(0.5, other.rollback)
        release.start()
        assert client.post("/requests", json=asked).status_code == 202
        release.join()
        other.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(access, "PATIENCE", 0.2)
        refused = client.post("/requests", json=asked)
        other.rollback()
    assert refused.status_code == 503
    assert "database is locked" in refused.json()["detail"]
    assert "database is locked" in caplog.text
    assert len(client.get("/requests").json()) == 1
    hasty.dispose()


@part(0.5, settings(suppress_health_check=[HealthCheck.function_scoped_fixture]))
@pytest.mark.parametrize("mode", list(GenerationMode))
@given(data=st.data())
def test_the_openapi_document_says_what_is_answered(
    session: Session,
    client: TestClient,
    cases: dict[GenerationMode, st.SearchStrategy[Case]],
    mode: GenerationMode,
    data: st.DataObject,
) -> None:
    if not store.knows(session, "run1"):
        add_house(session)
    case = data.draw(cases[mode])
    if mode is GenerationMode.POSITIVE and "until" in case.query:
        case.query |= HOUR  # that a window ends after it begins is nothing that such a document can say
    # A list of one thing is that thing in a URL, and several things where one is asked for are the last of them: both
    # may be what the document allows.
    several = {name: each for name, each in case.query.items() if isinstance(each, (list, dict))}
    assume(all(name in LISTS and len(each) > 1 for name, each in several.items()))
    # Likewise one thing is a list of one where a list is asked for.
    assume(not any(name in LISTS and isinstance(each, (str, int, float)) for name, each in case.query.items()))
    case.call_and_validate(headers={"Authorization": "Bearer operator"})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_name_of_a_dag_reaches_a_user_that_may_not_read_it(
    session: Session, client: TestClient, routes: list[str], data: st.DataObject
) -> None:
    if not store.knows(session, "run1"):
        add_house(session)
    path = data.draw(st.sampled_from(routes))
    names = st.sampled_from(["mine", "r", "t", *SECRETS])
    dag_id, run_id, task_id = data.draw(names), data.draw(names), data.draw(names)
    optional = {
        "state": st.sampled_from([state.value for state in State]), "run_id": names, "site": names,
        "cursor": st.sampled_from([0, NOW - 60]), "map_index": st.integers(-1, 5), "limit": st.integers(1, 5),
        "after": st.sampled_from([f"{NOW!r}:", f"{NOW!r}:{NOW!r}:", "0:a", "x"]), "dag_id": names,
        "task_id": names, "location": names, "q": names, "cause": st.sampled_from(["error", "hush_reason"]),
        "reason_code": st.sampled_from(["task_jobs", "free_text"]), "queued_until": st.just(NOW + 5),
        "reason_limit": st.sampled_from(["max_jobs of task hush_task", "max_allocations"]),
        "sort": st.sampled_from([*get_args(explorer.SortKey)]),
        "key": st.sampled_from(["task_jobs", "max_allocations"]),
        "order": st.sampled_from(["asc", "desc"]), "split": st.sampled_from(["dag", "task", "site", "team"]),
        "by": st.sampled_from(["day", "week", "month"]),
    }  # fmt: skip
    chosen = data.draw(st.sets(st.sampled_from(sorted(optional))))
    params = HOUR | {name: data.draw(optional[name]) for name in sorted(chosen)}
    answer = client.get(path.format(dag_id=dag_id, run_id=run_id, task_id=task_id), params=params)
    assert answer.status_code in (200, 403, 404, 422)
    if answer.status_code == 200:
        said = answer.text
        asked = {str(value) for value in (dag_id, run_id, task_id, *params.values())}
        assert [secret for secret in SECRETS if secret in said and secret not in asked] == []
        assert "hush_dag" not in said


def test_the_pages_own_files_need_no_login_and_hold_no_data(client: TestClient) -> None:
    for name in ("lading.js", "echarts.js", "echarts.LICENSE", "lading.svg"):
        answer = client.get(f"/static/{name}", headers={"Authorization": ""})
        assert answer.status_code == 200, name
        assert answer.headers["Cache-Control"] == "no-cache", "files of two releases must not meet in one browser"
    assert client.get("/static/lading.js").headers["content-type"].startswith("text/javascript")
