"""Asking ahead on real parts, SLURM and EC2's double: what a later task needs is launched while the first one runs.

Airflow's side is its tables, in which the test does what its scheduler does.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.agent.tasks import probe
from lading.executors.forecast import live_runs
from lading.executors.store import JobRow, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.conformance.site_suite import close
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import Site
from lading.scheduling.forecast.policy import SLACK, SOON
from tests.clusters.dag_runs import add_run, job, store_dag, task
from tests.clusters.driven import HEALTH
from tests.clusters.gangs import House
from tests.clusters.sites import ANY, make_settings
from tests.clusters.small_slurm import small_slurm
from tests.services import node_python
from tests.services.account import Account
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

PATIENT = "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT"
# The time limit of the first task, and the predicted wait for the room of the second one, seconds. They are far apart:
# what is asked for ahead has to be seen before the first task is ended at its limit, however busy the machine is.
SECONDS = 30
WAIT = 15.0
PATIENCE = 120.0


@dataclass
class Run:
    """A run whose first task runs on this machine, and whose second one needs what is launched at ``there``.

    :param hints: of the second task
    """

    house: House
    engine: Engine
    api: ExecutionApi
    hints: dict[str, Any]
    first: JobRow | None = None

    def begin(self) -> None:
        """Queue the first task, and wait until it runs."""
        self.api.gates[HEALTH] = threading.Event()
        with Session(self.engine) as session:
            add_run(session)
            task(session, "a", state="queued", time=SECONDS, cpus=1, site="local")
            task(session, "b", "a", cpus=2, memory=300, site="there", **self.hints)
            store_dag(session)
            session.commit()
        self._queue("a", cpus=1.0, site_hint="local", time_limit=SECONDS)
        assert wait_until(lambda: self._is("a", State.RUNNING), PATIENCE, 0.1), self.house.by_token()
        self.first = self.house.by_token()["a"]
        self._airflow("a", "running", start_date=datetime.now(timezone.utc))

    def asked(self) -> InstanceRow:
        """What is launched before the second task is there."""
        assert wait_until(lambda: bool(self._launched()), SECONDS, 0.1), "nothing was asked for"
        assert self._is("a", State.RUNNING)
        [found] = self._launched()
        assert self.first is not None
        assert self.first.placed_at is not None
        # From when it was placed: on a busy machine it has not quite begun by then.
        due = self.first.placed_at + SECONDS - WAIT
        assert found.ordered_at > due - SLACK - SOON - 1.0, "not before its start less the predicted wait"
        with Session(self.engine) as session:
            [note] = session.scalars(select(Log).where(Log.event == "lading asks ahead"))
            assert (note.task_id, "is requested at there" in str(note.extra)) == ("b", True)
        return found

    def end_first(self, state: State) -> None:
        """The first task ends, and Airflow does what follows from it."""
        self.api.gates[HEALTH].set()
        assert wait_until(lambda: self._is("a", state), PATIENCE, 0.1), self.house.by_token()
        if state is State.SUCCEEDED:
            self._airflow("a", "success")
            self._airflow("b", "queued")
            self._queue("b", cpus=2.0, site_hint="there", time_limit=600, **self.hints)
        else:
            self._airflow("a", "failed")
            self._airflow("b", "upstream_failed")
            with Session(self.engine) as session:
                session.execute(update(DagRun).values(state="failed"))
                session.commit()

    def second_runs_in(self, launched: InstanceRow) -> None:
        """The second task runs in what was launched for it, and nothing else is launched."""
        assert wait_until(lambda: self._is("b", State.SUCCEEDED), PATIENCE, 0.1), self.house.by_token()
        assert self.house.by_token()["b"].location == launched.token
        assert [each.token for each in self._launched()] == [launched.token]

    def nothing_is_left(self, lives: Callable[[], bool]) -> None:
        def is_over() -> bool:
            self.house.tick()
            return not lives() and all(each.state == InstanceState.ENDED for each in self._launched())

        assert wait_until(is_over, PATIENCE, 0.2), [(each.token, each.state) for each in self._launched()]
        assert len(self._launched()) == 1, "nothing was asked for again"

    def _is(self, task_id: str, state: State) -> bool:
        self.house.tick()
        return bool(self.house.by_token()[task_id].state == state)

    def _launched(self) -> list[InstanceRow]:
        self.house.tick()
        with Session(self.engine) as session:
            return list(session.scalars(select(InstanceRow).where(InstanceRow.ordered_at > 0)))

    def _queue(self, task_id: str, **columns: Any) -> None:
        with Session(self.engine) as session:
            words = json.dumps(probe.workload())
            job(session, task_id, State.QUEUED, workload=words, queued_at=time.time(), memory=300, **columns)
            session.commit()

    def _airflow(self, task_id: str, state: str, **columns: Any) -> None:
        with Session(self.engine) as session:
            session.execute(update(TaskInstance).where(TaskInstance.task_id == task_id).values(state=state, **columns))
            session.commit()


MakeRun = Callable[..., Run]
LIMITED: dict[str, Any] = {"max_instances": 1}


@pytest.fixture
def make_run(
    api: ExecutionApi, airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[MakeRun]:
    """Makes a run over this machine and a site called ``there``."""
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", api.url)
    monkeypatch.setenv(PATIENT, "600")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "lading.executors.LadingExecutor")
    monkeypatch.setattr(live_runs, "SECONDS_BETWEEN_LOOKS", 1.0)
    made: list[House] = []

    def make(site: Site[Any], **hints: Any) -> Run:
        local = LocalSite("local", LocalConfig(kind="local", cpus=2, memory=2000, kill_grace=2), tmp_path / "local")
        made.append(House(airflow_database, make_settings(tmp_path / "state"), [local, site]))
        return Run(made[-1], airflow_database, api, hints)

    yield make
    for gate in api.gates.values():
        gate.set()
    api.refusals.clear()
    close(site for house in made for site in house.sites)


@pytest.fixture
def hpc(
    account: Account, slurm_login: Sshd, api: ExecutionApi, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Site[Any]:  # fmt: skip
    """A cluster of which it is known how long its allocations wait in the queue."""
    monkeypatch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
    with Session(airflow_database) as session:
        for number in range(20):
            session.add(
                InstanceRow(
                    token=f"old{number}", site="there", kind=ANY, cpus=4, memory=8000, disk=0, gpus=0.0, seconds=3600.0,
                    state=InstanceState.ENDED, ordered_at=0.0, ready_at=WAIT,
                )
            )  # fmt: skip
        session.commit()
    return small_slurm(account, api.url, idle_seconds=20)("there", tmp_path / "there")


def test_an_allocation_is_asked_for_while_the_first_task_runs(make_run: MakeRun, hpc: Site[Any], slurm: Slurm) -> None:
    run = make_run(hpc)
    run.begin()
    launched = run.asked()
    run.end_first(State.SUCCEEDED)
    run.second_runs_in(launched)
    run.nothing_is_left(lambda: bool(slurm.command("squeue", "--noheader")))


def test_an_allocation_is_abandoned_when_the_first_task_fails(make_run: MakeRun, hpc: Site[Any], slurm: Slurm) -> None:
    run = make_run(hpc, **LIMITED)
    run.begin()
    run.asked()
    run.api.refusals[HEALTH] = 500
    run.end_first(State.FAILED)
    run.nothing_is_left(lambda: bool(slurm.command("squeue", "--noheader")))


@pytest.mark.parametrize(
    ("state", "hints"),
    [(State.SUCCEEDED, LIMITED), (State.FAILED, {})],
    ids=["on few machines", "and it fails"],
)
def test_a_machine_is_asked_for_while_the_first_task_runs(
    make_run: MakeRun,
    api: ExecutionApi,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    state: State,
    hints: dict[str, Any],
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=")
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    with FakeEC2(boot_seconds=2) as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        table = {
            **service.table,
            "instance_types": ("m5.large",),
            "python": str(node_python.make(service.account)),
            "api_url": api.url,
            "setup": f"export {PATIENT}=600",
            "kill_grace": 2,
            "idle_seconds": 20,
            "expected_boot_time": WAIT,
        }
        run = make_run(EC2Site("there", EC2Config(**table), tmp_path / "there"), **hints)
        run.begin()
        launched = run.asked()
        if state is State.FAILED:
            api.refusals[HEALTH] = 500
        run.end_first(state)
        if state is State.SUCCEEDED:
            run.second_runs_in(launched)
        run.nothing_is_left(lambda: bool(service.living()))
        close(run.house.sites)
