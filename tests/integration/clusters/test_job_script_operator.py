"""JobScriptOperator in a real Airflow with a triggerer, on a real SLURM and a real Grid Engine behind a real sshd."""

from __future__ import annotations

import json
import os
import shutil
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import lading.example_dags
from tests.services import processes
from tests.services.account import Account
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
# However slowly the tasks of a scatter come, those of one are gathered into one array.
LOCAL_SETTINGS = """
from lading.hooks.job_scripts import batcher

batcher.Batcher.window = (12.0, 120.0)
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
        task_id="late", body="sleep 300", execution_timeout=timedelta(seconds=20), **common
    )


scripts()
"""
SCATTERED = """
from datetime import timedelta

from airflow.sdk import dag

from lading.operators import JobScriptOperator, scatter

BODY = '''
echo "try {{ ti.try_number }} of {number}"
if [ {number} = 2 ] && [ "{{ ti.try_number }}" = 1 ]; then exit 3; fi
if [ {number} = 4 ]; then sleep 300; fi
echo "element $CLUSTERJOB_ARRAY_INDEX"
'''


@dag(schedule=None)
def scattered():
    part = JobScriptOperator.partial(
        task_id="part", site="slurm", body=BODY, retries=1, retry_delay=timedelta(seconds=1)
    )
    scatter(part, attributes=[{"number": number} for number in range(6)])


scattered()
"""
LASTING = """
from airflow.sdk import dag

from lading.operators import JobScriptOperator


@dag(schedule=None)
def lasting():
    JobScriptOperator(
        task_id="survivor", site="slurm", body="echo begun; until [ -e ~/go ]; do sleep 0.5; done; echo done"
    )
    JobScriptOperator(
        task_id="cleared",
        site="slurm",
        body="echo begun; [ -e ~/cleared ] || { touch ~/cleared; sleep 300; }; echo done",
    )


lasting()
"""


def eventually(reached: Callable[[], object], seconds: float = 60) -> bool:
    return processes.wait_until(lambda: bool(reached()), seconds, 0.3)


@pytest.fixture(scope="module")
def airflow(
    slurm: Slurm,
    slurm_login: Sshd,
    gridengine: GridEngine,
    gridengine_login: Sshd,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Airflow]:
    """One for all tests of this module."""
    home = tmp_path_factory.mktemp("airflow-scripts")
    (home / "sites.toml").write_text(SITES)
    (home / "config").mkdir()
    (home / "config" / "airflow_local_settings.py").write_text(LOCAL_SETTINGS)
    config = {
        "lading.sites_file": home / "sites.toml",
        # As many processes as it is to start; with SQLite a request whose client has timed out may still win.
        "core.parallelism": 6,
    }
    with Airflow(home, executor="LocalExecutor", config=config, preloaded=True) as service:
        for name, login in (("slurm_login", slurm_login), ("sge_login", gridengine_login)):
            fields = json.loads(login.connection())
            fields["extra"] = json.dumps(fields["extra"])
            service.rest("POST", "connections", {"connection_id": name, **fields})
        yield service


@pytest.fixture(autouse=True)
def left_as_found(slurm: Slurm) -> Iterator[None]:
    """The jobs of a test that has failed must not be mistaken for those of the next one."""
    yield
    slurm.command("scancel", "-u", slurm.account.name)
    slurm.wait_until_free()


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
    airflow.wait_for_task("scripts", run, "killed", "running")
    assert eventually(lambda: "begun" in airflow.logs("scripts", run, "killed"))
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
    for each, mark in zip(examples, "_.", strict=True):
        told = airflow.xcom("batch_script", each, "throw", key="batch_job", map_index=0)
        assert mark in told["job_id"]  # type: ignore[index]  # an element of an array


def test_deferred_jobs_are_found_again_ended_and_kept(airflow: Airflow, slurm: Slurm, account: Account) -> None:
    """A triggerer that is restarted, a task that is cleared, and leftovers that are removed at the same time."""
    folder = account.home / "operator" / "scripts"
    before = set(folder.iterdir()) if folder.exists() else set()
    airflow.add_dags({"lasting": LASTING})
    run = airflow.trigger("lasting")
    for task in ("survivor", "cleared"):
        airflow.wait_for_task("lasting", run, task, "deferred")
        assert eventually(lambda task=task: "begun" in airflow.logs("lasting", run, task))
    airflow.restart("triggerer")
    # What it finds again it reads from the beginning.
    assert eventually(lambda: airflow.logs("lasting", run, "survivor").count("begun") == 2, 200)
    assert eventually(lambda: airflow.logs("lasting", run, "cleared").count("begun") == 2)
    clear = {"dry_run": False, "dag_run_id": run, "task_ids": ["cleared"], "only_failed": False}
    airflow.rest("POST", "dags/lasting/clearTaskInstances", clear)
    airflow.wait_for_task("lasting", run, "cleared", "success")
    assert eventually(lambda: len(jobs(slurm, "RUNNING,PENDING")) == 1), slurm.command("squeue")

    runs = set(folder.iterdir()) - before
    assert [len(list(each.glob("attempt.*"))) for each in runs] == [1, 1, 1]
    for each in [path for run_folder in runs for path in (*run_folder.rglob("*"), run_folder)]:
        os.utime(each, (0, 0))
    clean = ("clean", "slurm", "--older-than", "1h", "-o", "json")
    [row] = json.loads(airflow.lading(*clean))
    assert (row["site"], row["kind"], row["number"]) == ("slurm", "runs", 2)
    account.write("go", "")
    assert airflow.wait_for_run("lasting", run) == "success"
    assert airflow.xcom("lasting", run, "survivor") == "done"
    assert airflow.task_instance("lasting", run, "survivor")["try_number"] == 1


def submissions(slurm: Slurm) -> set[Path]:
    """The answers of the batch system to all submissions of the operators."""
    scripts = slurm.account.home / "operator" / "scripts"
    found = [*scripts.glob("*/status"), *scripts.glob("*/attempt.*/status")]
    return {path for path in found if not path.parent.is_symlink()}


def test_a_scatter_is_a_job_array(airflow: Airflow, slurm: Slurm) -> None:
    """Six elements are submitted at once; one is tried again alone, one is killed alone."""
    before = submissions(slurm)
    airflow.add_dag("scattered", SCATTERED)
    run = airflow.trigger("scattered")

    def elements() -> dict[int, tuple[str, int]]:
        found = [ti for ti in airflow.task_instances("scattered", run) if ti["task_id"] == "part"]
        return {ti["map_index"]: (ti["state"], ti["try_number"]) for ti in found}

    assert eventually(lambda: [state for state, _ in elements().values()].count("success") == 5), elements()
    assert elements()[4] == ("deferred", 1)
    assert eventually(lambda: "try 1 of 4" in airflow.logs("scattered", run, "part", map_index=4))  # live
    airflow.rest("PATCH", f"dags/scattered/dagRuns/{run}/taskInstances/part/4", {"new_state": "failed"})
    assert airflow.wait_for_run("scattered", run) == "failed"
    assert eventually(lambda: not jobs(slurm, "RUNNING,PENDING")), slurm.command("squeue")
    assert elements() == {
        number: ("failed", 1) if number == 4 else ("success", 2 if number == 2 else 1) for number in range(6)
    }
    assert len(submissions(slurm) - before) == 2  # the array, and the retry
    ids = {}
    for number in (0, 1, 2, 3, 5):
        told = airflow.xcom("scattered", run, "part", key="batch_job", map_index=number)
        ids[number] = told["job_id"].split("_")  # type: ignore[index]
    assert len(ids.pop(2)) == 1  # a job of its own
    assert len({array for array, _ in ids.values()}) == 1
    assert "exit status 3" in airflow.logs("scattered", run, "part", map_index=2, try_number=1)
    assert "try 2 of 2" in airflow.logs("scattered", run, "part", map_index=2, try_number=2).splitlines()
    for number, (_, element) in ids.items():
        assert airflow.xcom("scattered", run, "part", map_index=number) == f"element {element}"


def test_the_survey_of_the_examples_runs_with_another_executor_alone(airflow: Airflow, tmp_path: Path) -> None:
    """A package of each of its three sizes; ``make demo`` has all."""
    packages = {"small": "json", "medium": "logging", "large": "encodings"}
    for package in packages.values():
        shutil.copytree(Path(sysconfig.get_path("stdlib"), package), tmp_path / "library" / package)
    example = (Path(lading.example_dags.__path__[0]) / "stdlib_survey.py").read_text()
    whole = 'sysconfig.get_path("stdlib")'
    assert whole in example
    airflow.add_dags({"stdlib_survey": example.replace(whole, repr(str(tmp_path / "library")))})
    run = airflow.trigger("stdlib_survey", {"folder": str(tmp_path)})
    assert airflow.wait_for_run("stdlib_survey", run, timeout=240) == "success"
    mapped = [ti for ti in airflow.task_instances("stdlib_survey", run) if ti["map_index"] >= 0]
    assert {ti["task_id"]: ti["state"] for ti in mapped} == dict.fromkeys(packages, "success")
    assert airflow.xcom("stdlib_survey", run, "gather")["report"] == str(tmp_path / "report.md")  # type: ignore[index]
    report = (tmp_path / "report.md").read_text()
    assert "# The standard library" in report
    assert all(f"| {package} |" in report for package in packages.values())
