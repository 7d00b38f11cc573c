"""A real Airflow with ``[core] multi_team``: two teams, each with an executor of Lading's, and one for all Dags."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.airflow import Airflow
from tests.services.processes import wait_until

EXECUTORS = "LocalExecutor;genes=lading.executors.LadingExecutor;loads=lading.executors.LadingExecutor"
# A cluster that is only named: the check at Dag parse needs no more.
SITES = """
[sites.local]
reserve_cpus = 0

[sites.cluster]
kind = "slurm"
work_dir = "/scratch/lading"
python = "/usr/bin/python3"
node_cpus = 4
node_memory = "8 GiB"
allowed_teams = ["genes"]
"""
DAG = """
import os, time
from airflow.sdk import dag, task
from lading.operators import resources

@dag(schedule=None)
def {name}():
    @task
    def where(seconds=0):
        time.sleep(seconds)
        return "lading" if os.environ.get("LADING_JOB") else "elsewhere"

    where()
    where.override(task_id="long")({seconds})
    if {at_cluster}:
        where.override(task_id="there", executor_config=resources(site="cluster"))()

{name}()
"""


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    home = tmp_path_factory.mktemp("airflow-teams")
    folders = {name: home / "dags" / (name or "all") for name in ("genes", "loads", None)}
    bundles = [
        {
            "name": f"of_{name or 'all'}",
            "classpath": "airflow.dag_processing.bundles.local.LocalDagBundle",
            "kwargs": {"path": str(folder), "refresh_interval": 1},
            **({"team_name": name} if name else {}),
        }
        for name, folder in folders.items()
    ]
    (home / "sites.toml").write_text(SITES)
    config: dict[str, object] = {
        "core.multi_team": True,
        "core.parallelism": 4,  # of which each is a process of LocalExecutor
        "dag_processor.dag_bundle_config_list": json.dumps(bundles),
        "lading.sites_file": home / "sites.toml",
        "lading.default_memory": "256 MiB",
    }
    parts = ("api-server", "dag-processor", "scheduler")
    service = Airflow(home, executor=EXECUTORS, config=config, components=parts, preloaded=True)
    service.environment["AIRFLOW__GENES___LADING__DEFAULT_MEMORY"] = "300 MiB"
    for folder in folders.values():
        folder.mkdir(parents=True)
    for team in ("genes", "loads"):
        (folders[team] / f"{team}.py").write_text(DAG.format(name=f"of_{team}", seconds=0, at_cluster=False))
    there = folders["loads"] / "loads_there.py"
    there.write_text(DAG.format(name="loads_there", seconds=0, at_cluster=True))
    (folders["genes"] / "lasting.py").write_text(DAG.format(name="lasting", seconds=20, at_cluster=False))
    (folders[None] / "all.py").write_text(DAG.format(name="of_all", seconds=0, at_cluster=False))
    service.migrate()
    for team in ("genes", "loads"):
        service.cli("teams", "create", team)
    with service:
        yield service
        # LocalExecutor's workers outlive a scheduler that was killed.
        service.stop(orphans=True)


def jobs(airflow: Airflow, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(airflow.lading("jobs", *arguments, "-o", "json"))
    return found


def controllers(airflow: Airflow) -> list[str]:
    return [each.command for each in airflow.processes() if "lading.plugin controller" in each.command]


def test_each_team_has_its_executor_and_all_share_one_controller(airflow: Airflow) -> None:
    names = ("of_genes", "of_loads", "of_all")
    for name in names:
        airflow.wait_for_dag(name)
    runs = {name: airflow.trigger(name) for name in names}
    assert {name: airflow.wait_for_run(name, run) for name, run in runs.items()} == dict.fromkeys(names, "success")
    where = {name: airflow.xcom(name, run, "where") for name, run in runs.items()}
    assert where == {"of_genes": "lading", "of_loads": "lading", "of_all": "elsewhere"}
    assert {(job["dag_id"], job["team"], job["memory_mib"]) for job in jobs(airflow)} == {
        ("of_genes", "genes", 300),
        ("of_loads", "loads", 256),
    }
    assert {job["dag_id"] for job in jobs(airflow, "--team", "loads")} == {"of_loads"}
    assert len(controllers(airflow)) == 1
    charged = airflow.lading("cost", "--by", "team", "-o", "csv").splitlines()
    assert charged[0] == "kind,team,jobs,failed,cpu_hours,usd"
    assert {",".join(line.split(",")[:4]) for line in charged[1:]} >= {"jobs,genes,2,0", "jobs,loads,2,0"}


def test_a_site_takes_the_dags_of_its_teams_alone(airflow: Airflow) -> None:
    assert wait_until(lambda: airflow.import_errors("loads_there.py") != [], 60, 0.5)
    (error,) = airflow.import_errors("loads_there.py")
    why = "Dag 'loads_there' of team 'loads' is not allowed there: site 'cluster' has allowed_teams = ['genes']"
    assert why in error
    (airflow.dags / "genes" / "genes_there.py").write_text(DAG.format(name="genes_there", seconds=0, at_cluster=True))
    airflow.wait_for_dag("genes_there")
    assert airflow.import_errors("genes_there.py") == []


def test_the_check_names_the_teams(airflow: Airflow) -> None:
    status, output, errors = airflow.run("lading", "check", "local", "-o", "json")
    assert status == 0, output + errors
    found = {each["check"]: each["details"] for each in json.loads(output)}
    assert "300 MiB" in found["team genes"]
    assert "256 MiB" in found["team loads"]


def test_a_scheduler_takes_over_the_jobs_of_a_dead_one_for_each_team(airflow: Airflow) -> None:
    airflow.wait_for_dag("lasting")
    run = airflow.trigger("lasting")
    airflow.wait_for_task("lasting", run, "long", "running")
    assert "genes" in airflow.lading("top", "--once")
    airflow.kill("scheduler", signal.SIGKILL)
    airflow.start("scheduler")
    assert airflow.wait_for_run("lasting", run, timeout=180) == "success"
    assert {each["try_number"] for each in airflow.task_instances("lasting", run)} == {1}
