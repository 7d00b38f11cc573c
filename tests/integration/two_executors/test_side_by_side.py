"""Lading next to another executor."""

from __future__ import annotations

import json
from typing import Any

import pytest

from lading.executors.store import ENDED
from tests.services.airflow import Airflow, AirflowError
from tests.services.processes import wait_until

SOURCE = """
import os
from airflow.sdk import dag, task
from lading.operators import resources

WRONG = {"lading": {"cpus": -1}}

def where():
    return "lading" if os.environ.get("LADING_JOB") else "local"

@dag(schedule=None, default_args={"executor_config": resources(cpus=0.5)})
def both():
    task(where, task_id="default").override(executor_config=WRONG)()  # none of Lading's business
    task(where, task_id="alias", executor="lading")()
    task(where, task_id="path", executor="lading.executors.LadingExecutor")()
    task(where, task_id="name", executor="LadingExecutor")()
    task(where, task_id="local", executor="LocalExecutor")()
    task(where, task_id="mapped", executor="lading").expand_kwargs([{}, {}])

both()
"""

# A scatter on SQLite; test_scatter.py has all kinds, on PostgreSQL.
SCATTER = """
from datetime import timedelta

from airflow.sdk import dag, get_current_context, task
from lading.operators import resources, scatter


@task(executor="lading")
def listed(rows):
    return [list(row) if hasattr(row, "_indexes") else row for row in rows]


@dag(schedule=None, default_args={"executor": "lading", "executor_config": resources(cpus=0.1)})
def spread():
    @task
    def numbers():
        return [0, 1]

    @task
    def pair(a, b):
        return None if (a, b) == (1, 1) else f"{a}{b}"

    @task(retries=1, retry_delay=timedelta(0))
    def square(n):
        if n == 3 and get_current_context()["ti"].try_number == 1:
            raise ValueError(f"{n} is not ready")
        return n * n

    listed.override(task_id="pairs")(scatter(pair, a=numbers(), b=["x", 1], method="nested_crossproduct"))
    listed.override(task_id="squares")(scatter(square, n=[1, 2, 3, 4, 5], chunk_size=3))


spread()
"""


def ended_jobs(airflow: Airflow, run_id: str) -> list[dict[str, Any]]:
    """The jobs of a run when all have ended, which Airflow learns before it is stored."""
    jobs: list[dict[str, Any]] = []

    def have_ended() -> bool:
        jobs[:] = json.loads(airflow.lading("jobs", "--run-id", run_id, "--limit", "1000", "-o", "json"))
        return all(job["state"] in ENDED for job in jobs)

    assert wait_until(have_ended, 60, 1), jobs
    return jobs


def test_executors_side_by_side(two_executors: Airflow) -> None:
    airflow = two_executors
    airflow.add_dag("both", SOURCE)
    run = airflow.trigger("both")
    try:
        with pytest.raises(AirflowError, match="task 'alias': hint cpus: -1 must be more than 0"):
            airflow.add_dag("wrong", SOURCE.replace('"lading")()', '"lading").override(executor_config=WRONG)()'))
    finally:
        (airflow.dags / "wrong.py").unlink()
    assert airflow.wait_for_run("both", run) == "success"
    ran = {task: airflow.xcom("both", run, task) for task in ("default", "alias", "path", "name", "local")}
    assert ran == {"default": "local", "alias": "lading", "path": "lading", "name": "lading", "local": "local"}
    assert [airflow.xcom("both", run, "mapped", map_index=index) for index in (0, 1)] == ["lading"] * 2
    jobs = ended_jobs(airflow, run)
    assert sorted(job["task_id"] for job in jobs) == ["alias", "mapped", "mapped", "name", "path"]
    assert {(job["cpus"], job["state"]) for job in jobs} == {(0.5, "succeeded")}


def test_a_scatter(two_executors: Airflow) -> None:
    airflow = two_executors
    airflow.add_dag("spread", SCATTER)
    run = airflow.trigger("spread")
    assert airflow.wait_for_run("spread", run) == "success"
    assert airflow.xcom("spread", run, "pairs") == [["0x", "01"], ["1x", None]]
    assert airflow.xcom("spread", run, "squares") == [1, 4, 9, 16, 25]
    assert "1 of 3 jobs failed: job 2 (n=3)" in airflow.logs("spread", run, "square", map_index=0)
    jobs = ended_jobs(airflow, run)
    tries = [job for job in jobs if job["task_id"] == "square"]
    states = sorted((int(job["map_index"]), int(job["try_number"]), job["state"]) for job in tries)
    assert states == [(0, 1, "failed"), (0, 2, "succeeded"), (1, 1, "succeeded")]
