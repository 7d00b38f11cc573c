"""Ids as long as Airflow allows them are ids like others."""

from __future__ import annotations

from pathlib import Path

from tests.services.airflow import Airflow
from tests.services.processes import wait_until

DAG, RUN, TASK = "d" * 250, "r" * 250, "t" * 250
SOURCE = f"""
from airflow.sdk import dag, task

@dag(dag_id="{DAG}", schedule=None)
def long():
    task(lambda: print("it runs") or 7, task_id="{TASK}")()

long()
"""


def test_a_task_with_long_ids_runs_and_has_a_log(airflow: Airflow) -> None:
    airflow.add_dag("long", SOURCE)
    airflow.rest("POST", f"dags/{DAG}/dagRuns", {"logical_date": None, "dag_run_id": RUN})
    assert airflow.wait_for_run(DAG, RUN) == "success"
    assert airflow.xcom(DAG, RUN, TASK) == 7
    [log] = Path(airflow.home, "logs").glob(f"dag_id={DAG[:100]}*/run_id={RUN[:100]}*/task_id={TASK[:100]}*/*.log")
    assert wait_until(lambda: "it runs" in log.read_text(), 60)
