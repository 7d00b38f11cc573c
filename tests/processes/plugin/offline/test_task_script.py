"""`lading script --dag DAG --task TASK`: what a task would submit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lading.hooks.cluster.jobs.job_script import SHOWN_NAME
from lading.plugin import hint_checks
from lading.plugin.offline.command import main

DAG = """
from airflow.sdk import DAG, task
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import JobScriptOperator, resources

print("what a Dag file prints is no part of a script")


@task
def found():
    return [1]


@task(executor_config=resources(site="hpc", memory="number * 1 GiB"))
def use(number):
    return number


def bash(name, **hints):
    BashOperator(task_id=name, bash_command="true", executor_config=resources(**hints))


with DAG("genomes", default_args={"executor_config": resources(memory="1 GiB")}):
    bash("solve", site="hpc", nodes=2, ppn=4, threads=2, time="1h", native={"account": "astro"})
    BashOperator.partial(task_id="sort", executor_config=resources(site="hpc", cpus=2)).expand(bash_command=["a", "b"])
    bash("short", site="packed", cpus=2, queue="long")
    bash("here", cpus=0.5, time="2h")
    bash("queued", queue="night")
    bash("learning", site="hpc", memory="attempt * 2 GiB")
    use.override(task_id="unknown")(found())
    use.override(task_id="literal").expand(number=[3, 4])
    BashOperator(task_id="elsewhere", bash_command="true", executor="LocalExecutor")
    JobScriptOperator(task_id="script", site="hpc", body="true")
"""
WRONG = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources

with DAG("broken"):
    BashOperator(task_id="t", bash_command="true", executor_config=resources(nodes=2, cpus=2))
"""
SITES = """
[sites.local]
kind = "local"
memory_limit = "3 GiB"
accept_untargeted = true

[sites.hpc]
kind = "slurm"
work_dir = "/scratch/lading"
python = "/apps/python"
setup = "module load mpi"
accept_untargeted = true
node_cpus = 16
node_memory = "32 GiB"
api_url = "http://airflow:8080/execution/"
ssh_conn_id = "nobody_asks_it"

[sites.packed]
kind = "slurm"
mode = "allocation"
work_dir = "/scratch/packed"
python = "/apps/python"
node_cpus = 16
node_memory = "32 GiB"
api_url = "http://airflow:8080/execution/"
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with Dags and sites, to which Airflow's configuration points."""
    (tmp_path / "dags").mkdir()
    (tmp_path / "dags" / "genomes.py").write_text(DAG)
    (tmp_path / "sites.toml").write_text(SITES)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [{"name": "mine", "classpath": local, "kwargs": {"path": str(tmp_path / "dags")}}]
    for name, value in {
        "CORE__EXECUTOR": "lading.executors.LadingExecutor,LocalExecutor",
        "CORE__LOAD_EXAMPLES": "False",
        "DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST": json.dumps(bundles),
        "DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{tmp_path}/there-is-none.db",
        "LADING__SITES_FILE": str(tmp_path / "sites.toml"),
        "LADING__STATE_FOLDER": str(tmp_path / "state"),
    }.items():
        monkeypatch.setenv(f"AIRFLOW__{name}", value)
    monkeypatch.setenv("_AIRFLOW_PARSING_CONTEXT_DAG_ID", "")  # which Airflow leaves behind
    monkeypatch.setattr(hint_checks, "_read_sites", hint_checks._read_sites.__wrapped__)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str, str]:
    status = main(["script", *options])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def shown(capsys: pytest.CaptureFixture[str], task: str) -> tuple[list[str], str]:
    status, out, err = run(capsys, "--dag", "genomes", "--task", task)
    assert status == 0, err
    return out.splitlines(), err


def fault(capsys: pytest.CaptureFixture[str], dag: str, task: str) -> str:
    status, out, err = run(capsys, "--dag", dag, "--task", task)
    assert (status, out) == (2, "")
    return err.rstrip("\n").splitlines()[-1]


@pytest.mark.usefixtures("home")
def test_a_batch_job(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = shown(capsys, "solve")
    assert lines[:2] == ["#!/bin/bash", f"#SBATCH --job-name={SHOWN_NAME}"]
    assert {
        "#SBATCH --nodes=2",
        "#SBATCH --ntasks-per-node=4",
        "#SBATCH --cpus-per-task=2",
        "#SBATCH --mem=1408",
        "#SBATCH --time=01:03:00",
        "#SBATCH --account=astro",
        "module load mpi",
        "export OMP_NUM_THREADS=2",
    } <= set(lines)
    assert not any("print" in line for line in lines)
    assert lines[-1].startswith("exec /apps/python -m lading.executors.agent.batch_job /scratch/lading ")


@pytest.mark.usefixtures("home")
def test_one_element_of_a_mapped_task(capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = shown(capsys, "sort")
    assert "#SBATCH --cpus-per-task=2" in lines
    assert not any("--array" in line for line in lines)
    assert "note: this is for one instance" in err


@pytest.mark.usefixtures("home")
def test_an_allocation(capsys: pytest.CaptureFixture[str]) -> None:
    lines, err = shown(capsys, "short")
    assert {"#SBATCH --partition=long", "#SBATCH --cpus-per-task=2"} <= set(lines)
    assert lines[-1] == f"exec /apps/python -m lading.executors.agent.allocation_agent /scratch/packed {SHOWN_NAME}"
    assert "note: tasks are packed into allocations" in err


@pytest.mark.usefixtures("home")
def test_a_site_that_submits_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    [line], _ = shown(capsys, "here")
    assert line == (
        "Dag 'genomes', task 'here': nothing is submitted. Site 'local' (kind local) packs it by 0.5 cpus, 1 GiB "
        "memory, and kills it if it uses more than 1 GiB of memory or after 2 h."
    )


@pytest.mark.usefixtures("home")
def test_the_site_is_the_first_that_can_run_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = shown(capsys, "queued")
    assert "#SBATCH --partition=night" in lines
    _, err = shown(capsys, "script")
    assert "note: this runs the task itself" in err


@pytest.mark.usefixtures("home")
def test_expressions(capsys: pytest.CaptureFixture[str]) -> None:
    assert "#SBATCH --mem=2432" in shown(capsys, "learning")[0]
    assert "#SBATCH --mem=3456" in shown(capsys, "literal")[0]
    assert "the result of task found is known only in a run" in fault(capsys, "genomes", "unknown")


def test_names_that_are_not_there(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = fault(capsys, "genome", "solve")
    assert words == "--dag 'genome': there is no such Dag; similar: genomes"
    words = fault(capsys, "genomes", "solves")
    assert words == "--task 'solves': Dag 'genomes' has no such task; similar: solve"
    assert "the tasks are: elsewhere, found, here, " in fault(capsys, "genomes", "xyz")
    (home / "dags" / "wrong.py").write_text(WRONG)
    words = fault(capsys, "broken", "t")
    assert "wrong.py cannot be imported: " in words
    assert "hint cpus: it cannot be combined with nodes" in words


@pytest.mark.usefixtures("home")
def test_what_is_not_for_lading(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "it runs on LocalExecutor, not on Lading" in fault(capsys, "genomes", "elsewhere")
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", "LocalExecutor")
    assert "it runs on the default executor" in fault(capsys, "genomes", "solve")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "give --body FILE, or --dag DAG and --task TASK"),
        (["--dag", "d"], "--dag and --task belong together; give both"),
        (["--task", "t"], "--dag and --task belong together; give both"),
        (
            ["--dag", "d", "--task", "t", "--scheduler", "slurm", "-r", "nodes=2"],
            "--scheduler and --resource cannot be combined with --dag",
        ),
    ],
)
def test_options_that_do_not_go_together(capsys: pytest.CaptureFixture[str], options: list[str], words: str) -> None:
    status, out, err = run(capsys, *options)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_both_commands_print_the_script_alone_and_need_no_database(home: Path) -> None:
    options = ["script", "--dag", "genomes", "--task", "solve"]
    environment = {**os.environ, "AIRFLOW_HOME": str(home / "home")}
    printed = [
        subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=True).stdout
        for command in (
            [sys.executable, "-m", "lading.plugin.offline.command"],
            [sys.executable, "-m", "airflow", "lading"],
        )
    ]
    assert printed[0] == printed[1]
    assert printed[0].startswith(f"#!/bin/bash\n#SBATCH --job-name={SHOWN_NAME}\n")
    assert not (home / "there-is-none.db").exists()
