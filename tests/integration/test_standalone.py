"""``airflow standalone``, the way in which most people meet Airflow."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import httpx

from tests.services.airflow import AIRFLOW, Airflow
from tests.services.processes import wait_until

SOURCE = """
import os, time
from airflow.sdk import dag, task

@dag(schedule=None)
def first():
    @task
    def where():
        return os.environ["LADING_JOB"]
    where()

@dag(schedule=None)
def endless():
    @task
    def sleep():
        time.sleep(1000)
    sleep()

first()
endless()
"""
HEALTHY = ("metadatabase", "scheduler", "triggerer", "dag_processor")
COMPONENTS = ("standalone", "api-server", "scheduler", "triggerer", "dag-processor")


def test_standalone(tmp_path: Path) -> None:
    airflow = Airflow(tmp_path / "home", components=())
    airflow.dags.mkdir(parents=True)
    # It starts its components as `airflow`.
    folders = (str(AIRFLOW.parent), str(Path(sys.executable).parent), os.environ["PATH"])
    airflow.environment["PATH"] = os.pathsep.join(folders)

    def healthy() -> bool:
        try:
            health = httpx.get(f"{airflow.url}/api/v2/monitor/health", timeout=60).json()
        except (httpx.TransportError, ValueError):
            return False
        return all(health[name]["status"] == "healthy" for name in HEALTHY)

    airflow.start("standalone")
    try:
        assert wait_until(healthy, 120, 0.5), unwell(airflow)
        assert "Forcing executor" not in airflow.log_file("standalone").read_text()
        airflow.add_dag("standalone", SOURCE)
        endless, first = airflow.trigger("endless"), airflow.trigger("first")
        assert airflow.wait_for_run("first", first) == "success"
        assert len(str(airflow.xcom("first", first, "where"))) == 36, "a token of Lading's"
        airflow.wait_for_task("endless", endless, "sleep", "running")
        # As Ctrl-C ends it: all its components at once, so Lading has no API server to tell of the end.
        airflow.kill("standalone", signal.SIGINT, group=True)
        if not wait_until(lambda: not airflow.processes(), 60):
            # Airflow's scheduler can lose the exception by which a signal ends it. A person then presses Ctrl-C again.
            airflow.kill("standalone", signal.SIGINT, group=True)
            assert wait_until(lambda: not airflow.processes(), 60), airflow.processes()
    finally:
        airflow.stop()


def unwell(airflow: Airflow) -> str:
    """What is known of an Airflow that is not healthy: a component that has ended is not started again."""
    try:
        health = httpx.get(f"{airflow.url}/api/v2/monitor/health", timeout=60).text
    except httpx.TransportError as error:
        health = repr(error)
    lines = airflow.log_file("standalone").read_text().splitlines()
    tails = [line for name in COMPONENTS for line in [each for each in lines if each.startswith(name)][-25:]]
    running = [f"{process.pid} {process.command}" for process in airflow.processes()]
    return "\n".join([health, *running, *tails])
