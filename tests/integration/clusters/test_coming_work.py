"""Allocations for upcoming work, on a real SLURM: one of them serves two tasks that depend on each other, and they are
as small as a run allows without ending later.

Airflow's side is its tables, in which the test does what its scheduler does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

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
from lading.scheduling.provisioning.allocation_plan import MINUTE, NOT_MEASURED, SECONDS_BETWEEN_STEPS
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
# Makes a house by a Dag, the limits of its tasks, which of them are queued, and options of the site.
MakeHouse: TypeAlias = Callable[..., House]


@pytest.fixture
def make_house(
    account: Account, slurm_login: Sshd, api: ExecutionApi, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[MakeHouse]:  # fmt: skip
    """A cluster on which an allocation is said to wait in its queue for an hour, and a run of a Dag."""
    monkeypatch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(live_runs, "SECONDS_UNTIL_FORGOTTEN", 3600.0)  # however slow the machine is
    houses: list[House] = []

    def make(dag: DAG, limits: Mapping[str, int], queued: Collection[str], **known: int) -> House:
        options = {"idle_seconds": IDLE, "expected_queue_time": 3600, "kill_grace": GRACE, **known}
        site = small_slurm(account, api.url, **options)("there", tmp_path / "there")
        with Session(airflow_database) as session:
            add_run(session)
            session.flush()
            SerializedDagModel.write_dag(LazyDeserializedDAG.from_dag(dag), "bundle", session=session)
            for name, limit in limits.items():
                state = "queued" if name in queued else None
                hints: dict[str, Any] = {"cpus": 1, "memory": 300, "site": "there", "ahead": False}
                task(session, name, state=state, time=limit, **hints)
            session.commit()
        houses.append(House(airflow_database, make_settings(tmp_path / "state"), [site]))
        return houses[-1]

    yield make
    for gate in api.gates.values():
        gate.set()
    for each in houses:
        close(each.sites)


@pytest.fixture
def house(make_house: MakeHouse) -> House:
    with DAG("d", schedule=None) as dag:
        first, second = (BashOperator(task_id=name, bash_command=":") for name in ("a", "b"))
        first >> second
    return make_house(dag, {"a": LIMIT, "b": LIMIT}, ["a"], max_allocations=1)


def queue(house: House, task_id: str, limit: int = LIMIT) -> None:
    with Session(house.engine) as session:
        words = json.dumps(probe.workload())
        columns: dict[str, Any] = {"cpus": 1.0, "memory": 300, "time_limit": limit, "site_hint": "there"}
        job(session, task_id, State.QUEUED, workload=words, queued_at=time.time(), **columns)
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


def test_short_tasks_beside_a_long_one_share_a_part_of_a_node(make_house: MakeHouse, slurm: Slurm) -> None:
    """By what waits they would have all four cpus of the node: their run ends no sooner by that."""
    limits = {"long": LIMIT, **dict.fromkeys(("s1", "s2", "s3"), 60)}
    with DAG("d", schedule=None) as dag:
        for name in limits:
            BashOperator(task_id=name, bash_command=":")
    house = make_house(dag, limits, limits)
    for name, limit in limits.items():
        queue(house, name, limit)

    def batch_jobs() -> list[str]:
        house.tick()
        return slurm.command("squeue", "--noheader", "--format=%C").split()

    assert wait_until(lambda: bool(batch_jobs()), PATIENCE, 0.2)
    assert sum(each.cpus for each in allocations(house)) == 2, "one for the long one, and one for the others"

    def have_ended() -> bool:
        house.tick()
        return all(each.state == State.SUCCEEDED for each in house.by_token().values())

    assert wait_until(have_ended, PATIENCE, 0.1), house.by_token()
    assert len({each.location for each in house.by_token().values()}) <= 2
