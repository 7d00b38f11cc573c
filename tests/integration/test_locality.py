"""A chain of tasks on two machines behind SSH, which stays where its files are."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

import lading.example_dags
from tests.services import node_python
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.processes import wait_until
from tests.services.sshd import Sshd

EXAMPLE = Path(lading.example_dags.__path__[0]) / "stays_with_its_files.py"
SAMPLES = 8
# A file that none but its own machine can read, for several jobs of the other one.
ELSEWHERE = """
import hashlib, os, pathlib
from airflow.sdk import dag, task
from lading.operators import resources, staged

@dag(schedule=None, default_args={"executor_config": resources(site="lab", cpus=0.25, memory=256)})
def reads_elsewhere():
    @task(executor_config=resources(instance_type="first"))
    def write():
        folder = pathlib.Path.home() / "private"
        folder.mkdir(mode=0o700, exist_ok=True)
        file = folder / "file"
        file.write_bytes(os.urandom(20 * 2**20 + 1))
        return {"class": "File", "path": str(file), "sha": hashlib.sha256(file.read_bytes()).hexdigest()}

    @task(executor_config=resources(instance_type="second", stage="file"))
    def read(file, number):
        path = pathlib.Path(staged(file))
        assert hashlib.sha256(path.read_bytes()).hexdigest() == file["sha"], path
        assert not os.access(file["path"], os.R_OK)
        return [str(path), path.stat().st_ino]

    read.partial(file=write()).expand(number=[1, 2, 3])

reads_elsewhere()
"""


@pytest.mark.timeout(600)
def test_every_step_is_where_the_file_of_the_step_before_is(tmp_path: Path) -> None:
    work_dir = Path(tempfile.mkdtemp(prefix="lading-lab-", dir="/var/tmp"))
    work_dir.chmod(0o1777)  # the machines of the tests are one
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, work_dir)
        accounts = {f"lab{number}": stack.enter_context(Account()) for number in (1, 2)}
        hosts = {name: stack.enter_context(Sshd(account)) for name, account in accounts.items()}
        python = node_python.make(accounts["lab1"])
        dags = work_dir / "dags"
        dags.mkdir(mode=0o755)
        shutil.copy(EXAMPLE, dags)
        (dags / "reads_elsewhere.py").write_text(ELSEWHERE)
        tables = ", ".join(
            f'{{ssh_conn_id = "{name}", cpus = 2, memory = 4000, instance_type = "{kind}"}}'
            for name, kind in zip(hosts, ("first", "second"), strict=True)
        )
        sites = tmp_path / "sites.toml"
        sites.write_text(
            f"""
            [sites.local]
            enabled = false

            [sites.lab]
            kind = "ssh"
            policy = "data_locality"
            locality_wait = "10m"
            hosts = [{tables}]
            work_dir = "{work_dir}"
            python = "{python}"
            api = "tunnel"
            setup = "export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={dags}"
            """
        )
        airflow = Airflow(
            tmp_path / "airflow",
            dags=dags,
            config={"lading.sites_file": sites},
            components=("dag-processor", "scheduler", "api-server"),
            preloaded=True,
            constants={"lading.executors.locality.staging.SWEEP_INTERVAL": 2.0},
        )
        for name, host in hosts.items():
            airflow.environment[f"AIRFLOW_CONN_{name.upper()}"] = host.connection()
        stack.enter_context(airflow)
        airflow.wait_for_dag("stays_with_its_files")
        assert wait_until(lambda: up(airflow) == {*hosts}, 120, 2), "the first tasks have both to choose from"
        run = airflow.trigger("stays_with_its_files", {"samples": SAMPLES})
        assert airflow.wait_for_run("stays_with_its_files", run, timeout=300) == "success"
        chains = [airflow.xcom("stays_with_its_files", run, "mean", map_index=number) for number in range(SAMPLES)]
        ways = [chain["machines"] for chain in chains]
        assert all(len(way) == 3 and len(set(way)) == 1 for way in ways), ways
        assert len({way[0] for way in ways}) == 2, "both machines have some"
        _is_brought_once(airflow, work_dir / "lab2")


def up(airflow: Airflow) -> set[str]:
    """The machines that take jobs."""
    rows = json.loads(airflow.lading("sites", "--output", "json") or "[]")
    return {row["location"] for row in rows if row["state"] == "up"}


def _is_brought_once(airflow: Airflow, root: Path) -> None:
    airflow.wait_for_dag("reads_elsewhere")
    run = airflow.trigger("reads_elsewhere")
    assert airflow.wait_for_run("reads_elsewhere", run, timeout=180) == "success"
    copies = {str(airflow.xcom("reads_elsewhere", run, "read", map_index=number)) for number in range(3)}
    assert len(copies) == 1, copies
    assert str(root) in copies.pop()
    assert wait_until(lambda: not [*(root / "inputs").glob("*")], 90, 0.5), "no run needs it any more"
