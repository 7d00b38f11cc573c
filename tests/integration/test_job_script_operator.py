"""JobScriptOperator in a real Airflow with a triggerer, on a real SLURM and a real Grid Engine behind a real sshd."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lading.example_dags
from tests.services import processes
from tests.services.airflow import Airflow
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

SITES = """
[sites.slurm]
kind = "slurm"
ssh_conn_id = "slurm_login"
work_dir = "~/operator"

[sites.sge]
kind = "sge"
ssh_conn_id = "sge_login"
work_dir = "~/operator-sge"
"""
DAG = """
from datetime import timedelta

from airflow.sdk import dag

from lading.operators import JobScriptOperator


@dag(schedule=None)
def scripts():
    common = {"site": "slurm", "retries": 0}
    JobScriptOperator(
        task_id="deferred", body="echo {word!q}; echo done", attributes={"word": "hi {{ run_id }}"}, **common
    )
    JobScriptOperator(task_id="waiting", body="echo here; echo done", deferrable=False, **common)
    JobScriptOperator(
        task_id="failing",
        body='echo "try {{ ti.try_number }}"; exit $((4 - {{ ti.try_number }}))',
        site="slurm",
        retries=1,
        retry_delay=timedelta(seconds=1),
    )
    JobScriptOperator(task_id="rejected", body="true", properties={"queue": "nonesuch"}, site="slurm", retries=3)
    JobScriptOperator(task_id="marked", body="echo begun; sleep 300", **common)
    JobScriptOperator(task_id="killed", body="echo begun; sleep 300", deferrable=False, **common)
    JobScriptOperator(
        task_id="late", body="sleep 300", execution_timeout=timedelta(seconds=4), **common
    )


scripts()
"""


def eventually(reached: Callable[[], object], seconds: float = 60) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.3)


@pytest.fixture
def airflow(
    start_airflow: Callable[..., Airflow],
    slurm: Slurm,
    slurm_login: Sshd,
    gridengine: GridEngine,
    gridengine_login: Sshd,
    tmp_path: Path,
) -> Iterator[Airflow]:
    (tmp_path / "sites.toml").write_text(SITES)
    service = start_airflow(executor="LocalExecutor", config={"lading.sites_file": tmp_path / "sites.toml"})
    for name, login in (("slurm_login", slurm_login), ("sge_login", gridengine_login)):
        fields = json.loads(login.connection())
        fields["extra"] = json.dumps(fields["extra"])
        service.rest("POST", "connections", {"connection_id": name, **fields})
    yield service
    slurm.command("scancel", "-u", slurm.account.name)


def jobs(slurm: Slurm, state: str) -> list[str]:
    return slurm.command("squeue", "-h", "-t", state, "-o", "%j").split()


def test_job_scripts_in_dags(airflow: Airflow, slurm: Slurm) -> None:
    """Every way in which a task may end, while the example runs on two batch systems."""
    example = Path(lading.example_dags.__path__[0]) / "batch_script.py"
    airflow.add_dags({"scripts": DAG, "batch_script": example.read_text()})
    run = airflow.trigger("scripts")
    examples = [airflow.trigger("batch_script", {"site": site}) for site in ("slurm", "sge")]
    airflow.wait_for_task("scripts", run, "marked", "deferred")
    assert eventually(lambda: "begun" in airflow.logs("scripts", run, "marked"))  # live
    for task in ("marked", "killed"):
        airflow.rest("PATCH", f"dags/scripts/dagRuns/{run}/taskInstances/{task}", {"new_state": "failed"})
    assert airflow.wait_for_run("scripts", run) == "failed"
    assert eventually(lambda: not jobs(slurm, "RUNNING,PENDING")), slurm.command("squeue")
    states = {ti["task_id"]: (ti["state"], ti["try_number"]) for ti in airflow.task_instances("scripts", run)}
    assert states == {
        "deferred": ("success", 1),
        "waiting": ("success", 1),
        "failing": ("failed", 2),
        "rejected": ("failed", 1),
        "marked": ("failed", 1),
        "killed": ("failed", 1),
        "late": ("failed", 1),
    }
    for task, line in (("deferred", f"hi {run}"), ("waiting", "here")):
        assert line in airflow.logs("scripts", run, task).splitlines()
        assert airflow.xcom("scripts", run, task) == "done"
        batch_job = airflow.xcom("scripts", run, task, key="batch_job")
        assert (batch_job["state"], batch_job["exit_code"]) == ("succeeded", 0)
    assert "exit status 3" in airflow.logs("scripts", run, "failing", try_number=1)
    assert "exit status 2" in airflow.logs("scripts", run, "failing", try_number=2)
    assert "invalid partition" in airflow.logs("scripts", run, "rejected")

    for each in examples:
        assert airflow.wait_for_run("batch_script", each) == "success"
        assert 3.0 < float(str(airflow.xcom("batch_script", each, "pi"))) < 3.3
