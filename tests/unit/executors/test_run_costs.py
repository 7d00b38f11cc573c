"""What runs with a budget have cost until now, by the store."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import LocationRow, State, queue

AMOUNTS = {"cpus": 2.0, "memory": 1, "disk": 0, "gpus": 0.0}
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "priority": 0, "dag_id": "d", **AMOUNTS}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        machine = {"kind": "ec2", "cpus": 4.0, "memory": 1, "disk": 0, "gpus": 0.0, "seen_at": 0.0}
        found.add(LocationRow(site="cloud", name="L", usd_per_cpu_hour=0.25, **machine))
        yield found


def add(session: Session, token: str, state: State, run_id: str = "r", **values: object) -> None:
    given = {"queued_at": 0.0, "state": state, "run_id": run_id, "task_id": "t", "max_usd": 3.0, **values}
    store.add_job(session, token=token, **COMMON, **given)


def test_a_budget_is_what_ended_what_runs_and_what_that_goes_on_to_cost(session: Session) -> None:
    half_an_hour_ago = time.time() - 1800
    there = {"site": "cloud", "location": "L"}
    add(session, "ended", State.SUCCEEDED, usd=0.4, ended_at=1.0)
    add(session, "free", State.SUCCEEDED, usd=None, ended_at=1.0)
    add(session, "runs", State.RUNNING, started_at=half_an_hour_ago, **there)
    add(session, "wide", State.PLACED, nodes=2, **there)
    add(session, "waits", State.QUEUED)
    add(session, "other", State.SUCCEEDED, run_id="q", usd=9.0, ended_at=1.0)
    add(session, "next", State.QUEUED, run_id="q", max_usd=5.0)
    add(session, "unlimited", State.QUEUED, run_id="p", max_usd=None)
    session.flush()
    found = {job.name: job.budgets for job in queue.waiting(session)}
    assert found["unlimited"] == ()
    [waits], [later] = found["waits"], found["next"]
    assert (waits.name, waits.most) == ("d r", 3.0)
    assert waits.spent == pytest.approx(0.4 + 0.25 * 2 * 0.5, abs=0.001)
    assert waits.per_hour == pytest.approx(0.5 + 1.0)
    assert later == ("d q", 5.0, 9.0, 0.0, None)
