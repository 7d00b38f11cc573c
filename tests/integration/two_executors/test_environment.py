"""What a task finds in its environment: under Lading nothing that it does not find under LocalExecutor."""

from __future__ import annotations

import hashlib
from typing import Any

from tests.services.airflow import Airflow

# Values are compared by their hashes, so that no secret reaches a log.
SOURCE = """
import hashlib, os
from pathlib import Path
from airflow.sdk import dag, task

def hashed(environment):
    return {name: hashlib.sha256(value.encode()).hexdigest() for name, value in environment.items()}

def seen():
    birth = Path("/proc/self/environ").read_bytes().decode(errors="replace").split("\\0")
    return {"now": hashed(os.environ), "born": hashed(dict(each.split("=", 1) for each in birth if "=" in each))}

@dag(schedule=None)
def environment():
    task(seen, task_id="local", executor="LocalExecutor")()
    task(seen, task_id="lading", executor="lading")()

environment()
"""
# Whose the processes of a job are, which task it runs, how many cpus it has, and the folder of its own.
OF_LADING = {
    "LADING_JOB",
    "LADING_TASK",
    "LADING_CPUS",
    "LADING_SCRATCH",
    "TMPDIR",
    "AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_STORAGE_PATH",
}
JWT, FERNET, DATABASE = (
    f"AIRFLOW__{name}" for name in ("API_AUTH__JWT_SECRET", "CORE__FERNET_KEY", "DATABASE__SQL_ALCHEMY_CONN")
)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_task_sees_no_more_than_under_local_executor(two_executors: Airflow) -> None:
    airflow = two_executors
    airflow.add_dag("environment", SOURCE)
    run = airflow.trigger("environment")
    assert airflow.wait_for_run("environment", run) == "success"
    seen: dict[str, dict[str, dict[str, str]]] = {
        task: airflow.xcom("environment", run, task) for task in ("local", "lading")
    }
    local, lading = seen["local"], seen["lading"]
    assert set(lading["now"]) - set(local["now"]) <= OF_LADING
    assert lading["now"]["TMPDIR"] == lading["now"]["LADING_SCRATCH"]
    assert set(lading["born"]) <= set(local["now"])
    secrets: dict[str, Any] = {name: sha(airflow.environment[name]) for name in (JWT, FERNET, DATABASE)}
    # What LocalExecutor's tasks have, and Lading's do not. (Of these the title of the process has overwritten what it
    # was born with.)
    assert {name: local["now"].get(name) for name in (JWT, FERNET)} == {name: secrets[name] for name in (JWT, FERNET)}
    assert local["now"][DATABASE] == lading["now"][DATABASE] == sha("airflow-db-not-allowed:///")
    assert secrets.keys().isdisjoint(lading["born"])
    assert {JWT, FERNET}.isdisjoint(lading["now"])
    # By this tasks find connections under both.
    assert lading["now"]["AIRFLOW_CONN_MINE"] == local["now"]["AIRFLOW_CONN_MINE"] == sha("http://here")
