"""A whole Airflow that fills this machine, buys spot machines for the rest, and loses one of them."""

from __future__ import annotations

import shutil
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

import lading.example_dags
from lading.executors.agent.ending import BEFORE
from lading.executors.store import JobRow
from lading.executors.store.instances import InstanceRow
from tests.services import node_python, processes, tutorials
from tests.services.airflow import Airflow
from tests.services.ec2 import FakeEC2

EXAMPLE = Path(lading.example_dags.__path__[0]) / "burst.py"
PARTS, SECONDS = 4, 28
# From the notice until jobs are asked to end, seconds.
LEFT = 8.0
PATIENCE = 240.0


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.5) as service:
        service.price("m5.*", 100.0)
        service.price("m5.*", 36.0, capacity_type="spot")  # a second costs a cent
        yield service


@pytest.fixture
def airflow(
    start_airflow: Callable[..., Airflow], service: FakeEC2, tmp_path_factory: pytest.TempPathFactory
) -> Airflow:
    """An Airflow with this machine and EC2.

    It is on PostgreSQL: the queries that it makes are tried on both databases by test_store, and test_lab has machines
    on SQLite.
    """
    folder = service.account.folder / "airflow"
    (folder / "dags").mkdir(parents=True)
    shutil.copy(EXAMPLE, folder / "dags")
    sites = tmp_path_factory.mktemp("sites") / "sites.toml"
    sites.write_text(
        f"""
        [sites.local]
        cpus = 1.5
        memory = "4 GiB"

        [sites.cloud]
        {service.toml}
        accept_untargeted = true
        instance_types = ["m5.large", "m5.xlarge"]
        capacity_type = "spot-with-fallback"
        max_instances = 4
        idle_seconds = 2
        expected_boot_time = 5
        python = "{node_python.make(service.account)}"
        kill_grace = 3
        setup = '''
        export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={folder}/dags
        export AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=60
        '''
        """
    )
    config = {
        "lading.sites_file": sites,
        "core.default_task_retry_delay": 1,
        "core.fernet_key": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.environment.items():
            patch.setenv(name, value)
        return start_airflow(
            "postgresql", dags=folder / "dags", config=config, components=("dag-processor", "scheduler", "api-server")
        )


@pytest.mark.timeout(900)
def test_the_example_bursts_to_spot_machines_and_survives_the_loss_of_one(airflow: Airflow, service: FakeEC2) -> None:
    before = len(service.ledger())
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    def rows() -> list[InstanceRow]:
        with Session(engine) as session:
            return list(session.scalars(select(InstanceRow)))

    def jobs() -> list[JobRow]:
        with Session(engine) as session:
            return list(session.scalars(select(JobRow)))

    def lost() -> str | None:
        """A spot machine on which tasks run, which begin a moment after their jobs."""
        instances = airflow.task_instances("burst", run)
        states = {each["map_index"]: each["state"] for each in instances if each["task_id"] == "throw"}
        there = [job for job in jobs() if (job.site, job.task_id, job.state) == ("cloud", "throw", "running")]
        busy = {job.location for job in there if states.get(job.map_index) == "running"}
        return next((row.native_id for row in rows() if row.token in busy and row.capacity_type == "spot"), None)

    airflow.wait_for_dag("burst")
    run = airflow.trigger("burst", {"parts": PARTS, "seconds": SECONDS})
    found: list[str] = []

    def is_at_work() -> bool:
        found[:] = filter(None, [lost()])
        return bool(found)

    assert processes.wait_until(is_at_work, PATIENCE, 0.5), airflow.log_tails()
    [machine] = found
    service.reclaim(machine, notice=BEFORE + LEFT)
    assert airflow.wait_for_run("burst", run, timeout=PATIENCE) == "success"

    report = airflow.xcom("burst", run, "report")
    assert isinstance(report, dict)
    assert sum(report["parts"].values()) == PARTS
    assert socket.gethostname() in report["parts"], "this machine is filled first"
    assert len(report["parts"]) > 1
    causes = Counter(job.cause for job in jobs() if job.cause is not None)
    assert causes.keys() == {"preempted"}, [(job.task_id, job.cause, job.reason) for job in jobs()]
    tries = [each["try_number"] for each in airflow.task_instances("burst", run)]
    assert sum(tries) == len(tries) + causes.total(), "none was lost, and none ran twice; no Dag has retries here"

    assert processes.wait_until(lambda: all(row.ended_at for row in rows()), PATIENCE, 0.5), airflow.log_tails()
    assert service.living() == []
    bought = service.ledger()[before:]
    assert {row.native_id for row in rows() if row.native_id} == {each["id"] for each in bought}
    bills = {row.native_id: row.usd for row in rows() if row.native_id}
    assert bills == pytest.approx({each["id"]: each["usd"] for each in bought}, abs=0.005), "to the cent"
    [taken] = [row for row in rows() if row.native_id == machine]
    assert taken.cause == "preempted", taken.reason
    listed, *_ = tutorials.follow(airflow, "ec2.md", {"burst": run}.__getitem__)
    assert machine in listed
    engine.dispose()
    airflow.stop()
    assert processes.wait_until(lambda: not processes.of_user(service.account.uid), 60), "a machine's process lives on"
