"""What Airflow's tables say of the members of gangs."""

from __future__ import annotations

from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.models.pool import Pool
from airflow.models.taskinstance import TaskInstance
from airflow.utils.types import DagRunType
from sqlalchemy import insert
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session
from uuid6 import uuid7

from lading.executors.orchestrator.airflow_roster import read
from lading.executors.orchestrator.orchestrator import ExpectedGang, Roster
from lading.scheduling.model.reasons import because
from tests.reasons import told

GANG = ExpectedGang("d", "r", ("head", "workers"))


@pytest.fixture
def session(airflow_database: Engine) -> Session:
    session = Session(airflow_database)
    session.add(DagBundleModel(name="bundle"))
    session.flush()
    session.add(DagModel(dag_id="d", bundle_name="bundle", max_active_tasks=3))
    session.add(DagRun(dag_id="d", run_id="r", run_type=DagRunType.MANUAL, state="running"))
    session.add(DagRun(dag_id="d", run_id="other", run_type=DagRunType.BACKFILL_JOB, state="running"))
    session.add(Pool(pool="small", slots=2, description="", include_deferred=False))
    session.flush()
    return session


def add(session: Session, task_id: str, map_index: int, state: str | None, run_id: str = "r", **more: Any) -> None:
    values = {"dag_id": "d", "run_id": run_id, "task_id": task_id, "map_index": map_index, "state": state}
    values |= {"id": uuid7(), "pool": "endless", "pool_slots": 1, "try_number": 1, "max_tries": 0, **more}
    session.execute(insert(TaskInstance.__table__), [values])


def test_which_members_are_to_come_and_which_have_failed(session: Session) -> None:
    for number, state in enumerate(("queued", "running", "up_for_retry", "success", "skipped", "failed", "deferred")):
        add(session, "workers", number, state)
    add(session, "head", -1, None)
    add(session, "other", -1, None)
    add(session, "head", -1, "failed", run_id="other")
    found = read(session, {"gang": GANG, "none": ExpectedGang("d", "gone", ("head",))})
    assert found["gang"].to_come == {("workers", 0), ("workers", 1), ("workers", 2), ("head", -1)}
    assert found["gang"].failed == {("workers", 5)}
    assert told(found["gang"].hindrances) == ("waits: max_active_tasks of the Dag is 3, but the gang has more members",)
    assert found["none"] == Roster(frozenset())


def test_a_pool_that_is_too_small_is_named(session: Session) -> None:
    add(session, "head", -1, "queued", pool="small")
    add(session, "workers", 0, "scheduled", pool="small", pool_slots=2)
    [found] = read(session, {"gang": GANG}).values()
    assert found.hindrances == (because("gang_pool", pool="small", there=2, slots=3),)


def test_a_pool_that_others_have_taken_is_named(session: Session) -> None:
    add(session, "head", -1, "queued", pool="small")
    add(session, "workers", 0, "scheduled", pool="small")
    assert read(session, {"gang": GANG})["gang"].hindrances == ()
    add(session, "head", -1, "queued", pool="small", run_id="other")
    [found] = read(session, {"gang": GANG}).values()
    assert found.hindrances == (because("gang_pool_shared", pool="small", there=2, theirs=1, slots=2),)


def test_a_limit_of_a_task_is_named(session: Session) -> None:
    for number in range(3):
        add(session, "workers", number, "scheduled")
    limits = {"workers": ("max_active_tis_per_dagrun", 2)}
    assert read(session, {"gang": GANG._replace(limits=limits)})["gang"].hindrances == (
        because("gang_limit", name="max_active_tis_per_dagrun", task="workers", most=2),
    )
