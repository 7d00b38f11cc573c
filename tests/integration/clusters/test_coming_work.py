"""Allocations by what is to come, on a real SLURM: one of them serves two tasks that depend on each other.

Airflow's side is its tables, in which the test does what its scheduler does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import LazyDeserializedDAG
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.agent.tasks import probe
from lading.executors.forecast import live_runs
from lading.executors.store import JobRow, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.conformance.site_suite import close
from lading.scheduling.provisioning.coming_work import MINUTE, NOT_MEASURED, SECONDS_BETWEEN_STEPS
from tests.clusters.dag_runs import add_run, job, task
from tests.clusters.driven import HEALTH
from tests.clusters.gangs import House
from tests.clusters.sites import make_settings
from tests.clusters.small_slurm import small_slurm
from tests.services.account import Account
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

PATIENCE = 300.0
# An allocation with nothing to come ends after so many idle seconds; the pause between the two tasks is longer.
IDLE, BREAK = 2, 8.0
# The limit of each task, and the kill_grace of the site, seconds.
LIMIT, GRACE = 1800, 2


@pytest.fixture
def house(
    account: Account, slurm_login: Sshd, api: ExecutionApi, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[House]:  # fmt: skip
    """A cluster on which an allocation is said to wait in its queue for an hour, and a run of two tasks."""
    monkeypatch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(live_runs, "SECONDS_UNTIL_FORGOTTEN", 3600.0)  # however slow the machine is
    options = {"idle_seconds": IDLE, "expected_queue_time": 3600, "max_allocations": 1, "kill_grace": GRACE}
    site = small_slurm(account, api.url, **options)("there", tmp_path / "there")
    with DAG("d", schedule=None) as dag:
        first, second = (BashOperator(task_id=name, bash_command=":") for name in ("a", "b"))
        first >> second
    with Session(airflow_database) as session:
        add_run(session)
        session.flush()
        SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "bundle", session=session)
        task(session, "a", state="queued", time=LIMIT, cpus=1, memory=300, site="there", ahead=False)
        task(session, "b", time=LIMIT, cpus=1, memory=300, site="there", ahead=False)
        session.commit()
    made = House(airflow_database, make_settings(tmp_path / "state"), [site])
    yield made
    for gate in api.gates.values():
        gate.set()
    close(made.sites)


def queue(house: House, task_id: str) -> None:
    with Session(house.engine) as session:
        words = json.dumps(probe.workload())
        columns: dict[str, Any] = {"cpus": 1.0, "memory": 300, "time_limit": LIMIT, "site_hint": "there"}
        job(session, task_id, State.QUEUED, workload=words, queued_at=time.time(), ahead=False, **columns)
        session.commit()


def airflow(house: House, task_id: str, state: str) -> None:
    with Session(house.engine) as session:
        session.execute(update(TaskInstance).where(TaskInstance.task_id == task_id).values(state=state))
        session.commit()


def found(house: House, task_id: str) -> JobRow:
    house.tick()
    return house.by_token()[task_id]


def allocations(house: House) -> list[InstanceRow]:
    house.tick()
    with Session(house.engine) as session:
        return list(session.scalars(select(InstanceRow)))


def test_one_allocation_serves_two_tasks_that_depend_on_each_other(
    house: House, api: ExecutionApi, slurm: Slurm
) -> None:
    api.gates[HEALTH] = threading.Event()
    queue(house, "a")
    assert wait_until(lambda: found(house, "a").state == State.RUNNING, PATIENCE, 0.1), house.by_token()
    airflow(house, "a", "running")
    [allocation] = allocations(house)
    both = LIMIT + SECONDS_BETWEEN_STEPS + LIMIT + GRACE + NOT_MEASURED
    assert both <= allocation.seconds < both + MINUTE, "for as long as both take at most, where the site would have 4 h"
    assert slurm.command("squeue", "--noheader", "--format=%l").split() == ["1:19:00"]
    api.gates[HEALTH].set()
    assert wait_until(lambda: found(house, "a").state == State.SUCCEEDED, PATIENCE, 0.1), house.by_token()
    airflow(house, "a", "success")

    def has_been_idle() -> bool:
        [it] = allocations(house)
        assert it.state == InstanceState.UP, "it was not kept"
        return it.idle_since is not None and time.time() - it.idle_since > BREAK

    assert wait_until(has_been_idle, PATIENCE, 0.2)
    airflow(house, "b", "queued")
    queue(house, "b")
    assert wait_until(lambda: found(house, "b").state == State.SUCCEEDED, PATIENCE, 0.1), house.by_token()
    assert found(house, "b").location == found(house, "a").location == allocation.token
    airflow(house, "b", "success")
    with Session(house.engine) as session:
        session.execute(update(DagRun).values(state="success"))
        session.commit()
    # Nothing comes any more: it is ended, though by itself it would stay for an hour.
    assert wait_until(lambda: allocations(house)[0].state == InstanceState.ENDED, PATIENCE, 0.2)
    assert len(allocations(house)) == 1
