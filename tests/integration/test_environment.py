"""What a task finds in its environment: under Lading nothing that it does not find under LocalExecutor."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.services.airflow import Airflow

SOURCE = """
import os
from pathlib import Path
from airflow.sdk import dag, task

def seen(**_):
    birth = Path("/proc/self/environ").read_bytes().split(b"\\0")
    first = dict(each.decode(errors="replace").split("=", 1) for each in birth if b"=" in each)
    return {"now": dict(os.environ), "born": first}

@dag(schedule=None)
def environment():
    task(seen, task_id="local", executor="LocalExecutor")()
    task(seen, task_id="lading", executor="lading")()

environment()
"""
# What tells the processes of a job whose they are.
OF_LADING = {"LADING_JOB", "LADING_CPUS"}
NO_DATABASE = "airflow-db-not-allowed:///"


def test_a_task_sees_no_more_than_under_local_executor(start_airflow: Callable[..., Airflow]) -> None:
    fernet = "K" * 43 + "="
    airflow = start_airflow(
        executor="LocalExecutor,lading:lading.executors.LadingExecutor", config={"core.fernet_key": fernet}
    )
    jwt, database = (
        airflow.environment[f"AIRFLOW__{name}"] for name in ("API_AUTH__JWT_SECRET", "DATABASE__SQL_ALCHEMY_CONN")
    )
    airflow.add_dag("environment", SOURCE)
    run = airflow.trigger("environment")
    assert airflow.wait_for_run("environment", run) == "success"
    local, lading = (airflow.xcom("environment", run, task) for task in ("local", "lading"))
    print(json.dumps({"local": sorted(local["now"]), "lading": sorted(lading["now"])}))
    assert set(lading["now"]) - set(local["now"]) <= OF_LADING
    assert set(lading["born"]) <= set(local["born"]) | OF_LADING
    # What LocalExecutor's tasks can use, and Lading's cannot even find.
    assert local["now"]["AIRFLOW__API_AUTH__JWT_SECRET"] == local["born"]["AIRFLOW__API_AUTH__JWT_SECRET"] == jwt
    assert local["now"]["AIRFLOW__CORE__FERNET_KEY"] == fernet
    assert local["born"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == database
    assert local["now"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == NO_DATABASE
    assert lading["now"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"] == NO_DATABASE
    for secret in (jwt, fernet, database):
        assert secret not in json.dumps(lading)
