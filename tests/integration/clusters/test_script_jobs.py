"""Job scripts of tasks as jobs of Lading's executor: a real Airflow with a triggerer, on a real SLURM behind sshd."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services import processes
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

SITES = """
[sites.hpc]
kind = "slurm"
ssh_conn_id = "hpc"
work_dir = "{home}/lading"
python = "/usr/bin/python3"
node_cpus = 4
node_memory = 4000
max_poll_interval = 4

[[budgets]]
name = "small"
dag = "spending"
cpu_hours = 0.03
per = "day"
"""
# The first script uses up the budget, while the prologue keeps the second one from being ordered. SLURM rounds its time
# up to a minute, so it uses more than the budget could foresee.
SPENDING = """
from airflow.sdk import dag

from lading.operators import JobScriptOperator, resources


@dag(schedule=None)
def spending():
    common = {{"site": "hpc", "retries": 0, "executor_config": resources(cpus=0.01, time="10m")}}
    JobScriptOperator(task_id="first", body="sleep 40; echo done", properties={{"ppn": 4, "time": "20s"}}, **common)
    wait = "until [ -e {go} ]; do sleep 0.3; done"
    JobScriptOperator(task_id="second", body="echo done", properties={{"prologue": wait}}, **common)


spending()
"""
OTHERS = """
from datetime import timedelta

from airflow.sdk import dag

from lading.operators import JobScriptOperator


@dag(schedule=None)
def others():
    common = {{"site": "hpc", "retries": 0}}
    JobScriptOperator(task_id="large", body="true", properties={{"nodes": 1, "ppn": 64}}, **common)
    JobScriptOperator(task_id="failing", body="exit 3", **common)
    JobScriptOperator(task_id="memory", body="echo done", properties={{"mem": "4000 MiB"}}, **common)
    JobScriptOperator(task_id="survivor", body="echo begun; until [ -e {go} ]; do sleep 0.5; done; echo done", **common)
    JobScriptOperator(task_id="marked", body="echo begun; sleep 300", **common)


others()
"""


def eventually(reached: Callable[[], object], seconds: float = 30) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.5)


@pytest.fixture(scope="module")
def airflow(
    account: Account, slurm: Slurm, slurm_login: Sshd, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow-script-jobs")
    (home / "sites.toml").write_text(SITES.format(home=account.home))
    with Airflow(home, config={"lading.sites_file": home / "sites.toml"}, preloaded=True) as service:
        fields = json.loads(slurm_login.connection())
        fields["extra"] = json.dumps(fields["extra"])
        service.rest("POST", "connections", {"connection_id": "hpc", **fields})
        yield service


@pytest.fixture(autouse=True)
def left_as_found(slurm: Slurm) -> Iterator[None]:
    yield
    slurm.command("scancel", "-u", slurm.account.name)
    slurm.wait_until_free()


def jobs(airflow: Airflow, dag: str, task: str) -> list[dict[str, Any]]:
    """The jobs of a task, oldest first."""
    found = json.loads(airflow.lading("jobs", "--dag-id", dag, "-o", "json"))
    return sorted((each for each in found if each["task_id"] == task), key=lambda each: each["queued_at"])


def test_a_script_waits_for_its_budget(airflow: Airflow, slurm: Slurm, tmp_path: Path) -> None:
    go = tmp_path / "go"
    airflow.add_dag("spending", SPENDING.format(go=go))
    run = airflow.trigger("spending")

    def is_spent() -> bool:
        [budget] = json.loads(airflow.lading("budgets", "-o", "json"))
        return bool(budget["spent"] > budget["most"])

    assert eventually(is_spent, 60), jobs(airflow, "spending", "first")
    go.touch()
    assert eventually(
        lambda: [each["reason_limit"] for each in jobs(airflow, "spending", "second")] == [None, "budget small"]
    )
    _, script = jobs(airflow, "spending", "second")
    assert (script["state"], script["site"]) == ("queued", None)
    assert "budget small" in script["reason"]
    assert airflow.task_instance("spending", run, "second")["state"] == "deferred"
    text = f"The batch job is not admitted yet: {script['reason'].removeprefix('waits: ')}"
    assert eventually(lambda: text in airflow.logs("spending", run, "second"))
    assert slurm.command("squeue", "-h", "-o", "%j").split() == []
    assert "waiting for Lading's controller to admit it" in airflow.logs("spending", run, "second")

    airflow.lading("budgets", "--lift", "small")
    assert airflow.wait_for_run("spending", run) == "success"
    for task in ("first", "second"):
        before, script, after = jobs(airflow, "spending", task)
        assert (before["site"], script["site"], after["site"]) == ("local", "hpc", "local")
        assert {each["state"] for each in (before, script, after)} == {"succeeded"}
        assert before["ended_at"] <= script["started_at"] <= script["ended_at"] <= after["started_at"]
        told = airflow.xcom("spending", run, task, key="batch_job")
        assert script["batch_job"] == told["job_id"]  # type: ignore[index]
    first = jobs(airflow, "spending", "first")[1]
    assert (first["cpus"], first["duration_seconds"]) == (4, pytest.approx(40, abs=4))
    bill = json.loads(airflow.lading("cost", "spending", run, "-o", "json"))
    [hours] = [row["cpu_hours"] for row in bill if (row["task_id"], row["site"]) == ("first", "hpc")]
    assert float(hours) == pytest.approx(4 * first["duration_seconds"] / 3600, abs=0.001)  # it is rounded


def test_every_end_of_a_script(airflow: Airflow, slurm: Slurm, account: Account) -> None:
    """One is refused, one fails, one needs a whole node, one outlives the controller, and one is marked as failed."""
    airflow.add_dag("others", OTHERS.format(go=f"{account.home}/go"))
    run = airflow.trigger("others")
    assert eventually(
        lambda: [each["state"] for each in jobs(airflow, "others", "survivor")] == ["succeeded", "running"]
    )
    assert eventually(lambda: [each["state"] for each in jobs(airflow, "others", "marked")] == ["succeeded", "running"])
    before = jobs(airflow, "others", "survivor")[1]
    airflow.restart("scheduler")
    airflow.rest("PATCH", f"dags/others/dagRuns/{run}/taskInstances/marked", {"new_state": "failed"})
    assert eventually(lambda: jobs(airflow, "others", "marked")[1]["state"] == "cancelled"), jobs(
        airflow, "others", "marked"
    )
    assert eventually(lambda: len(slurm.command("squeue", "-h", "-o", "%j").split()) == 1), slurm.command("squeue")
    account.write("go", "")
    assert airflow.wait_for_run("others", run) == "failed"
    states = {ti["task_id"]: ti["state"] for ti in airflow.task_instances("others", run)}
    assert states == {
        "large": "failed",
        "failing": "failed",
        "memory": "success",
        "survivor": "success",
        "marked": "failed",
    }
    refused, failed = (jobs(airflow, "others", task)[1] for task in ("large", "failing"))
    assert (refused["state"], refused["started_at"]) == ("failed", None)
    assert refused["reason"] in airflow.logs("others", run, "large")
    assert (failed["state"], failed["cause"]) == ("failed", "error")
    explained = airflow.lading("explain", "others", run, "failing")
    assert "at hpc/hpc" in explained, explained
    assert "exit code 3" in explained, explained
    survivor = jobs(airflow, "others", "survivor")[1]
    assert (survivor["state"], survivor["started_at"]) == ("succeeded", pytest.approx(before["started_at"], abs=6))
