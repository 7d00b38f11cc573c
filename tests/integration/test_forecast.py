"""A whole Airflow at a site that buys by a forecast: a machine stays for what its run still has to do, not longer."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors.store.instances import InstanceRow
from tests.services import node_python, processes
from tests.services.airflow import Airflow
from tests.services.ec2 import FakeEC2

PATIENCE = 240.0
# No machine goes because it was idle for so long, seconds.
IDLE = 3600
DAG = """
from airflow.sdk import DAG, task
from lading.operators import resources

with DAG("chain", schedule=None, default_args={"executor_config": resources(cpus=2, site="cloud", hurry="cheap")}):

    @task
    def begin() -> int:
        return 1

    @task
    def go_on(number: int) -> int:
        return number + 1

    @task
    def end(number: int) -> int:
        return number + 1

    end(go_on(begin()))
"""


@pytest.fixture(scope="module")
def service() -> Iterator[FakeEC2]:
    with FakeEC2(boot_seconds=0.5) as service:
        service.price("m5.*", 36.0)  # a second costs a cent
        yield service


@pytest.fixture
def airflow(
    start_airflow: Callable[..., Airflow], service: FakeEC2, tmp_path_factory: pytest.TempPathFactory
) -> Airflow:
    """An Airflow with a site of EC2 that buys by a forecast.

    It is on PostgreSQL: tests/unit/executors/forecast reads live runs from SQLite.
    """
    folder = service.account.folder / "airflow"
    (folder / "dags").mkdir(parents=True)
    (folder / "dags" / "chain.py").write_text(DAG)
    sites = tmp_path_factory.mktemp("sites") / "sites.toml"
    sites.write_text(
        f"""
        [sites.cloud]
        {service.toml}
        policy = "forecast"
        instance_types = ["m5.large"]
        idle_seconds = {IDLE}
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
        "core.fernet_key": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in service.environment.items():
            patch.setenv(name, value)
        return start_airflow(
            "postgresql", dags=folder / "dags", config=config, components=("dag-processor", "scheduler", "api-server")
        )


@pytest.mark.timeout(900)
def test_a_chain_has_one_machine_that_goes_with_its_last_task(airflow: Airflow, service: FakeEC2) -> None:
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

    def rows() -> list[InstanceRow]:
        with Session(engine) as session:
            return list(session.scalars(select(InstanceRow)))

    airflow.wait_for_dag("chain")
    for number in (1, 2):
        run = airflow.trigger("chain", {})
        assert airflow.wait_for_run("chain", run, timeout=PATIENCE) == "success", airflow.log_tails()
        assert processes.wait_until(lambda: all(row.ended_at for row in rows()), PATIENCE, 0.5), airflow.log_tails()
        assert len(rows()) == number, [(row.token, row.ordered_at, row.ended_at, row.reason) for row in rows()]
        assert {row.reason.code for row in rows() if row.reason is not None} == {"not_needed"}
    assert service.living() == []
    engine.dispose()
    airflow.stop()
    assert processes.wait_until(lambda: not processes.of_user(service.account.uid), 60), "a machine's process lives on"
