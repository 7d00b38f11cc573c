"""Tries that the infrastructure has ended, in a database with Airflow's own tables."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancehistory import TaskInstanceHistory
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunType
from sqlalchemy import create_engine, insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors import store
from lading.executors.retry_credits import EVENT, accept_reported_success, give_back
from lading.executors.store import JobRow, State
from lading.operators import resources
from lading.scheduling.hints.hints import Hints
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.auto import as_text, choices

TASK = {"dag_id": "dag", "task_id": "task", "run_id": "run", "map_index": -1}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    import_all_models()
    made = create_engine("sqlite://")
    Base.metadata.create_all(made)
    store.metadata.create_all(made)
    yield made
    made.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine) as session:
        session.add(DagBundleModel(name="bundle"))
        session.flush()
        session.add(DagModel(dag_id="dag", bundle_name="bundle"))
        session.add(DagRun(dag_id="dag", run_id="run", run_type=DagRunType.MANUAL, state=DagRunState.RUNNING))
        session.flush()
        yield session
        session.rollback()


def task(session: Session, token: str, state: str = "running", retries: int = 0) -> TaskInstance:
    columns = {"id": uuid7(), "state": state, "pool": "default_pool", "pool_slots": 1, "max_tries": retries}
    columns |= {"external_executor_id": token, "try_number": 1, "queued_by_job_id": 7}
    session.execute(insert(TaskInstance).values(**TASK, **columns))
    return session.scalars(select(TaskInstance)).one()


def job(session: Session, token: str, cause: str, try_number: int = 1, **columns: Any) -> JobRow:
    ended = {
        "state": State.FAILED,
        "cause": cause,
        "owner": 7,
        "unreported": True,
        "ended_at": 9.0,
        "reason": free_text("words"),
    }
    asked = {"cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": 1.0, "workload": "{}"}
    made = JobRow(
        token=token, kind="ExecuteTask", subject="x", try_number=try_number, **TASK, **ended | asked | columns
    )
    session.add(made)
    session.flush()
    return made


def told(session: Session, ended: JobRow, most: int = 3) -> list[str]:
    entries = give_back(session, [ended], most)
    session.flush()
    return [entry.event for entry in entries]


def fail(session: Session, found: TaskInstance, retries: int) -> str | None:
    """What Airflow's scheduler does when the failure is reported."""
    found.task = SimpleNamespace(retries=retries, owner="me", owners={})  # type: ignore[assignment]
    TaskInstance.fetch_handle_failure_context(found, "words", session=session)
    return found.state


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("state", ["running", "queued"])
@pytest.mark.parametrize("cause", ["node_failure", "preempted"])
def test_airflow_retries_it_whatever_the_dag_says(session: Session, cause: str, state: str, retries: int) -> None:
    found = task(session, "a", state, retries)
    before = found.id
    ended = job(session, "a", cause)
    assert told(session, ended) == [EVENT]
    assert ended.given_back
    assert found.max_tries == retries + 1
    assert found.id != before, "what is left of the try cannot speak for the next one"
    assert fail(session, found, retries) == TaskInstanceState.UP_FOR_RETRY
    [history] = session.scalars(select(TaskInstanceHistory))
    assert (history.try_number, history.state) == (1, "failed")


@pytest.mark.parametrize("cause", ["error", "out_of_memory", "time_limit", "cancelled", "lost", "submit_rejected"])
def test_what_is_not_the_infrastructure_s_uses_up_a_try(session: Session, cause: str) -> None:
    found = task(session, "a")
    session.add(place("node"))
    assert told(session, job(session, "a", cause, site="hpc", location="node")) == []
    assert (found.max_tries, found.state) == (0, "running")
    assert fail(session, found, 0) == TaskInstanceState.FAILED


@pytest.mark.parametrize("hints", [{"memory": "auto(8 GiB)"}, {}])
def test_a_size_of_ours_that_was_too_little_uses_up_no_try_while_the_next_one_gets_more(
    session: Session, hints: dict[str, Any]
) -> None:
    found = task(session, "a")
    found.executor_config = resources(**hints)

    def short(token: str, number: int, memory: int) -> list[str]:
        left = as_text(choices(Hints.parse(hints), Resources(0.25, 512), is_auto=True))
        columns = {"memory": memory, "memory_limit": memory if hints else None, "chosen": left}
        columns |= {} if hints else {"reason": because("machine_out_of_memory")}
        return told(session, job(session, token, "out_of_memory", number, **columns), most=0)

    assert short("a", 1, 1040) == [EVENT]
    assert (found.max_tries, found.state) == (1, TaskInstanceState.RESTARTING)
    found.state, found.try_number, found.external_executor_id = "running", 2, "b"
    assert short("b", 2, 2080) == [EVENT]
    found.state, found.try_number, found.external_executor_id = "running", 3, "c"
    assert short("c", 3, 2080) == [], "that is all there is"
    assert found.max_tries == 2


@pytest.mark.parametrize(
    ("hints", "memory", "reason"),
    [
        ({"memory": "1 GiB"}, 1024, "over_memory"),
        ({"memory": "auto(8 GiB)"}, 8192, "over_memory"),
        ({"memory": "auto", "infrastructure_retries": 0}, 1040, "over_memory"),
        ({"memory": "auto"}, 512, "machine_out_of_memory"),
        ({}, 512, "machine_out_of_memory"),
        ({}, 100, "over_memory"),
    ],
)
def test_an_amount_that_lading_has_not_chosen_uses_up_a_try(
    session: Session, hints: dict[str, Any], memory: int, reason: str
) -> None:
    found = task(session, "a")
    found.executor_config = resources(**hints)
    left = as_text(choices(Hints.parse(hints), Resources(0.25, 512), is_auto=True))
    values = {"used": 2000, "limit": 1000} if reason == "over_memory" else {}
    columns = {"memory": memory, "chosen": left, "reason": because(reason, **values)}
    assert told(session, job(session, "a", "out_of_memory", **columns)) == []
    assert found.max_tries == 0


@pytest.mark.parametrize(
    ("state", "cause", "token", "after"),
    [
        ("success", "node_failure", "a", State.SUCCEEDED),
        ("success", "error", "a", State.FAILED),
        ("success", "node_failure", "another try", State.FAILED),
        ("running", "node_failure", "a", State.FAILED),
        ("failed", "node_failure", "a", State.FAILED),
    ],
)
def test_a_task_that_had_reported_its_success_has_succeeded(
    session: Session, state: str, cause: str, token: str, after: State
) -> None:
    task(session, "a", state)
    ended = job(session, token, cause)
    accept_reported_success(session, [ended])
    session.flush()
    assert ended.state == after
    assert (ended.cause is None) == (after == State.SUCCEEDED)
    assert str(ended.reason).endswith("words")


def place(name: str) -> store.LocationRow:
    amounts = {"cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "seen_at": 1.0}
    return store.LocationRow(site="hpc", name=name, kind="local", **amounts)


def test_a_job_that_is_lost_with_its_machine_uses_up_none(session: Session) -> None:
    found = task(session, "a")
    session.add(place("another"))
    assert told(session, job(session, "a", "lost", site="hpc", location="node")) == [EVENT]
    assert found.max_tries == 1


def test_it_is_reported_twice_and_given_back_once(session: Session) -> None:
    found = task(session, "a")
    ended = job(session, "a", "preempted")
    assert told(session, ended) == [EVENT]
    assert told(session, ended) == []
    assert found.max_tries == 1


def test_no_more_than_some_are_given_back(session: Session) -> None:
    found = task(session, "d", retries=1)
    for number, token in enumerate("abc", 1):
        job(session, token, "preempted", number, given_back=number > 1)
    assert told(session, job(session, "d", "preempted"), most=2) == ["lading counts the try"]
    assert (found.max_tries, found.state) == (1, "running")
    ended = session.get_one(JobRow, "d")
    assert told(session, ended, most=0) == [], "it was not requested"
    assert told(session, ended, most=3) == [EVENT]


@pytest.mark.parametrize(("hint", "option", "given"), [(0, 3, []), (1, 0, [EVENT]), (None, 0, []), (None, 3, [EVENT])])
def test_the_hint_of_a_task_overrides_the_option(
    session: Session, hint: int | None, option: int, given: list[str]
) -> None:
    """With 0, and no retries, what must not run twice does not."""
    found = task(session, "a")
    if hint is not None:
        found.executor_config = resources(infrastructure_retries=hint)
    assert told(session, job(session, "a", "node_failure"), option) == given
    assert (fail(session, found, 0) == TaskInstanceState.FAILED) == (given == [])


def test_a_try_in_which_nothing_of_the_task_has_run_is_given_back_whatever_the_hint_says(session: Session) -> None:
    found = task(session, "d")
    found.executor_config = resources(infrastructure_retries=0)
    silent = because("api_silent_at_start", text="ReadTimeout: timed out")
    for number, token in enumerate("abc", 1):
        job(session, token, "node_failure", number, given_back=True, reason=silent)
    assert told(session, job(session, "d", "node_failure", reason=silent), most=0) == [EVENT]
    found.executor_config = {}
    found.state, found.external_executor_id = "running", "e"
    session.flush()
    assert told(session, job(session, "e", "node_failure"), most=1) == [EVENT], "those before do not count"


def test_what_airflow_has_decided_about_stays(session: Session) -> None:
    found = task(session, "a", "failed")
    assert told(session, job(session, "a", "preempted")) == []
    found.state = TaskInstanceState.UP_FOR_RETRY
    assert told(session, session.get_one(JobRow, "a")) == [EVENT], "it has reported the failure itself"
    assert (found.state, found.max_tries) == ("up_for_retry", 1)


def test_a_try_that_runs_elsewhere_by_now_is_left_alone(session: Session) -> None:
    found = task(session, "b")
    assert told(session, job(session, "a", "preempted")) == []
    found.external_executor_id, found.queued_by_job_id = "a", 8
    session.flush()
    assert told(session, session.get_one(JobRow, "a")) == [], "another scheduler has queued it"
