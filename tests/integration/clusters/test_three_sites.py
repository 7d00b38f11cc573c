"""One Dag whose tasks name no place, on a real SLURM, this machine and EC2, of which the SLURM is away for a while."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, LocationRow, State
from lading.executors.store.instances import InstanceRow
from tests.services import node_python
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.ec2 import FakeEC2
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

PARTS = 6
# Each part lasts until a test ends it, so that all sites have some.
DAG = f"""
import time
from pathlib import Path
from airflow.sdk import dag, task, task_group
from lading.operators import resources

@dag(schedule=None, max_active_tasks=100, default_args={{"executor_config": resources(cpus=1, memory="300 MiB")}})
def everywhere():
    @task
    def part(number):
        while not Path(__file__).with_name("end").exists():
            time.sleep(0.1)
        return number

    @task
    def after(number):
        return number * 2

    @task_group
    def chain(number):
        return after(part(number))

    @task
    def total(numbers):
        return sum(numbers)

    total(chain.expand(number=list(range({PARTS}))))

everywhere()
"""


@pytest.mark.timeout(600)
def test_one_dag_uses_all_of_them_and_what_is_away_comes_back(
    account: Account, slurm: Slurm, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dags = account.folder / "everywhere"
    dags.mkdir()
    (dags / "everywhere.py").write_text(DAG)
    with ExitStack() as stack:
        service = stack.enter_context(FakeEC2(boot_seconds=0.5))
        login = stack.enter_context(Sshd(account, environment=slurm.environment))
        variables = f"AIRFLOW__CORE__DAGS_FOLDER={dags} AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT=60"
        sites = tmp_path / "sites.toml"
        sites.write_text(
            f"""
            [sites.hpc]
            kind = "slurm"
            accept_untargeted = true
            ssh_conn_id = "hpc"
            work_dir = "{account.home}/lading-everywhere"
            python = "{node_python.make(account)}"
            queue = "batch"
            max_jobs = 2
            node_cpus = 8
            node_memory = 16000
            max_poll_interval = 2
            setup = "export AIRFLOW_HOME={account.home}/airflow {variables}"

            [sites.local]
            accept_untargeted = true
            cpus = 1
            memory = "1 GiB"

            [sites.cloud]
            {service.toml}
            accept_untargeted = true
            instance_types = ["m5.large", "m5.xlarge"]
            max_instances = 2
            idle_seconds = 2
            expected_boot_time = 5
            python = "{node_python.make(service.account)}"
            setup = "export AIRFLOW_HOME={service.account.home}/airflow {variables}"
            """
        )
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        config = {
            "lading.sites_file": sites,
            "core.fernet_key": "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=",
        }
        components = ("dag-processor", "scheduler", "api-server")
        airflow = Airflow(tmp_path / "airflow", dags=dags, config=config, components=components, preloaded=True)
        airflow.environment["AIRFLOW_CONN_HPC"] = login.connection()
        stack.enter_context(airflow)
        engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])

        def jobs(task: str, *states: State) -> Counter[str | None]:
            """The sites of the jobs of a task, of those in some states."""
            with Session(engine) as session:
                query = select(JobRow.site).where(JobRow.task_id == f"chain.{task}", JobRow.state.in_(states))
                return Counter(session.scalars(query))

        def is_away() -> bool:
            with Session(engine) as session:
                return session.scalar(select(LocationRow.state).where(LocationRow.site == "hpc")) == "unreachable"

        airflow.wait_for_dag("everywhere")
        run = airflow.trigger("everywhere")
        all_sites = {"hpc", "local", "cloud"}
        assert wait_until(lambda: jobs("part", State.RUNNING).keys() == all_sites, 120, 0.2), airflow.log_tails()
        login.halt()
        assert wait_until(is_away, 60, 0.2), airflow.log_tails()
        (dags / "end").touch()
        assert wait_until(lambda: jobs("after", State.SUCCEEDED).total() >= 2, 90, 0.2), airflow.log_tails()
        assert "hpc" not in jobs("after", *State), "what is away gets nothing"
        assert "hpc" in jobs("part", State.RUNNING), "its own end meanwhile, which cannot be seen"
        login.start()
        assert airflow.wait_for_run("everywhere", run, timeout=120) == "success"
        assert airflow.xcom("everywhere", run, "total") == sum(range(PARTS)) * 2
        assert wait_until(lambda: not (is_away() or jobs("part", State.RUNNING)), 60, 0.2), airflow.log_tails()
        ran = jobs("part", *State)
        assert ran.keys() == all_sites, ran
        assert (ran.total(), jobs("part", State.SUCCEEDED)) == (PARTS, ran), "none ran twice, and none was lost"
        assert {each["try_number"] for each in airflow.task_instances("everywhere", run)} == {1}

        def bought() -> set[str | None]:
            with Session(engine) as session:
                rows = list(session.scalars(select(InstanceRow)))
            return {row.native_id for row in rows} if all(row.ended_at for row in rows) else set()

        assert wait_until(lambda: service.living() == [] and bool(bought()), 60, 0.5), airflow.log_tails()
        assert bought() == {each["id"] for each in service.ledger()}
