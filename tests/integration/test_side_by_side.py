"""Lading beside another executor."""

from __future__ import annotations

import json

import pytest

from tests.services.airflow import Airflow, AirflowError

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
    jobs = json.loads(airflow.lading("jobs", "--run-id", run, "-o", "json"))
    assert sorted(job["task_id"] for job in jobs) == ["alias", "mapped", "mapped", "name", "path"]
    assert {(job["cpus"], job["state"]) for job in jobs} == {(0.5, "succeeded")}
