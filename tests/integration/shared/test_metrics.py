"""What the scheduler and the controller send to Airflow's metrics backend."""

from __future__ import annotations

from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.metrics import Collector
from tests.services.processes import wait_until

NAMES = {
    "airflow.executor.open_slots",
    "airflow.executor.queued_tasks",
    "airflow.executor.running_tasks",
    "airflow.lading.tick.duration",
    "airflow.lading.jobs.started",
    "airflow.lading.jobs.ended",
    "airflow.lading.jobs.live",
    "airflow.lading.jobs.cpu",
    "airflow.lading.jobs.wait",
    "airflow.lading.cpus.up",
    "airflow.lading.cpus.used",
}

SUCCEEDED = {"state": "succeeded", "cause": "none"}

SOURCE = """
import os, time
from pathlib import Path
from airflow.sdk import dag, task

@dag(schedule=None)
def measured():
    @task
    def wait():
        while not (Path(os.environ["AIRFLOW_HOME"]) / "diary" / "measured").exists():
            time.sleep(0.1)
    wait()

measured()
"""


def test_metrics(airflow: Airflow, metrics: Collector, diary: Diary) -> None:
    airflow.add_dag("measured", SOURCE)
    run = airflow.trigger("measured")
    running = {"site": "local", "state": "running"}
    assert wait_until(lambda: running in metrics.tags("airflow.lading.jobs.live"), 60)
    diary.write("measured")
    assert airflow.wait_for_run("measured", run) == "success"
    assert wait_until(lambda: metrics.names() >= NAMES, 60), NAMES - metrics.names()
    assert wait_until(lambda: SUCCEEDED in metrics.tags("airflow.lading.jobs.ended"), 60)
