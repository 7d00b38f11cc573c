"""Jobs that start together, on a real Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

import lading.example_dags
from lading.executors.orchestrator import airflow_runs as runs
from lading.executors.store.gangs.runs import DagRunKey
from lading.scheduling.hints.hints import Hints
from tests.services.airflow import Airflow
from tests.services.processes import wait_until

EXAMPLE = Path(lading.example_dags.__path__[0]) / "ray_together.py"
PRIMES_BELOW_200_000 = 17_984
# The gang has no room beside the other task, and has some beside the tasks of other tests that run for long.
TOO_LARGE = """
import time
from pathlib import Path
from airflow.sdk import dag, task
from lading.operators import resources

FOLDER = Path("{folder}")


@dag(schedule=None)
def too_large():
    @task(executor_config=resources(cpus=2.5))
    def other():
        (FOLDER / "began").touch()
        while not (FOLDER / "end").exists():
            time.sleep(0.1)

    @task
    def wait():
        while not (FOLDER / "began").exists():
            time.sleep(0.1)

    @task(executor_config=resources(gang="large", cpus=1, attempts={{"pauses": ["1h"], "count": 2}}))
    def half(number):
        pass

    other()
    wait() >> half.expand(number=[1, 2])


too_large()
"""
MORE_THAN_THERE_IS = """
from airflow.sdk import dag, task
from lading.operators import resources


@dag(schedule=None)
def more_than_there_is():
    @task(executor_config=resources(gang="large", cpus=3))
    def half(number):
        pass

    half.expand(number=[1, 2])


more_than_there_is()
"""
NEVER = """
from airflow.sdk import dag, task
from lading.operators import resources


@dag(schedule=None, max_active_tasks=1)
def never_together():
    @task(executor_config=resources(gang="pair"))
    def half(number):
        pass

    half.expand(number=[1, 2])


never_together()
"""
LATE = """
from airflow.sdk import dag, task
from lading.operators import resources


@dag(schedule=None)
def known_late():
    @task
    def numbers():
        return [1, 2]

    @task(executor_config=resources(gang="pair"), max_active_tis_per_dagrun=1)
    def half(number):
        pass

    half.expand(number=numbers())


known_late()
"""


FAILS = """
from airflow.sdk import dag, task
from lading.operators import resources


@dag(schedule=None, default_args={"executor_config": resources(ahead=True, time="1h")})
def asks_ahead():
    @task
    def first():
        raise ValueError

    @task(executor_config=resources(cpus=2))
    def second(number):
        pass

    first() >> second.expand(number=[1, 2])


asks_ahead()
"""


def jobs(airflow: Airflow, dag_id: str, run_id: str) -> list[Mapping[str, Any]]:
    found = json.loads(airflow.lading("jobs", "--dag-id", dag_id, "--run-id", run_id, "--output", "json"))
    return list(found)


def test_a_head_and_its_workers_find_each_other(airflow: Airflow) -> None:
    airflow.add_dag("ray_together", EXAMPLE.read_text())
    run_id = airflow.trigger("ray_together")
    assert airflow.wait_for_run("ray_together", run_id) == "success"
    assert airflow.xcom("ray_together", run_id, "head") == {"primes": PRIMES_BELOW_200_000, "workers": 3}
    found: list[Mapping[str, Any]] = []

    def are_stored() -> bool:  # the tasks report their ends to Airflow themselves, which may be sooner
        found[:] = jobs(airflow, "ray_together", run_id)
        return len(found) == 4 and all(job["ended_at"] is not None for job in found)

    assert wait_until(are_stored, 60), found
    starts = [float(job["started_at"]) for job in found]
    assert max(starts) < min(float(job["ended_at"]) for job in found), "all of them ran at the same time"


def members(airflow: Airflow, run_id: str) -> list[dict[str, Any]]:
    return [job for job in jobs(airflow, "too_large", run_id) if job["task_id"] == "half"]


def sleeping(airflow: Airflow, folder: Path) -> str:
    """A run whose gang has found no room next to another task; its id."""
    airflow.add_dag("too_large", TOO_LARGE.format(folder=folder))
    run_id = airflow.trigger("too_large")
    assert wait_until(lambda: {job["state"] for job in members(airflow, run_id)} == {"attempted"}, 120)
    return run_id


def test_one_without_room_sleeps_and_is_woken(airflow: Airflow, tmp_path: Path) -> None:
    run_id = sleeping(airflow, tmp_path)
    assert "attempt 1 of 2 found no room for gang 'large'" in members(airflow, run_id)[0]["reason"]
    assert "1 woken" in airflow.lading("wake", "too_large", run_id)
    assert wait_until(lambda: {job["state"] for job in members(airflow, run_id)} == {"failed"}, 120)
    assert "no room was found, tried 2 times" in members(airflow, run_id)[0]["reason"]
    assert "no job is sleeping" in airflow.run("lading", "wake", "too_large").output
    (tmp_path / "end").touch()
    assert airflow.wait_for_run("too_large", run_id) == "failed"


def test_one_without_room_begins_when_the_other_task_has_ended(airflow: Airflow, tmp_path: Path) -> None:
    run_id = sleeping(airflow, tmp_path)
    (tmp_path / "end").touch()
    assert airflow.wait_for_run("too_large", run_id) == "success"


def test_one_that_asks_for_more_than_there_is_is_an_import_error(airflow: Airflow) -> None:
    (airflow.dags / "more_than_there_is.py").write_text(MORE_THAN_THERE_IS)
    assert wait_until(lambda: bool(airflow.import_errors("more_than_there_is.py")), 60)
    [error] = airflow.import_errors("more_than_there_is.py")
    assert "gang 'large' can never start together: the 2 jobs of task 'half' request 6 cpus" in error
    (airflow.dags / "more_than_there_is.py").unlink()


def test_what_can_never_start_together_is_an_import_error(airflow: Airflow) -> None:
    (airflow.dags / "never_together.py").write_text(NEVER)
    assert wait_until(lambda: bool(airflow.import_errors("never_together.py")), 60)
    [error] = airflow.import_errors("never_together.py")
    assert "max_active_tasks of the Dag is 1, fewer than the 2 members of gang 'pair'" in error
    (airflow.dags / "never_together.py").unlink()


def test_a_limit_below_a_length_that_is_known_late_is_the_reason_of_the_wait(airflow: Airflow) -> None:
    airflow.add_dag("known_late", LATE)
    run_id = airflow.trigger("known_late")

    def words() -> str:
        return " ".join(str(job["reason"]) for job in jobs(airflow, "known_late", run_id) if job["state"] == "queued")

    expected = (
        "1 of 2 members of gang 'pair' are queued; max_active_tis_per_dagrun of task 'half' is 1, but the "
        "gang has more members of this task"
    )
    assert wait_until(lambda: expected in words(), 60), jobs(airflow, "known_late", run_id)
    airflow.rest("PATCH", f"/dags/known_late/dagRuns/{run_id}", {"state": "failed"})
    assert airflow.wait_for_run("known_late", run_id) == "failed"


def test_what_a_task_will_need_is_known_before_airflow_has_queued_it(airflow: Airflow) -> None:
    airflow.add_dag("asks_ahead", FAILS)
    run = DagRunKey("asks_ahead", airflow.trigger("asks_ahead"))
    assert airflow.wait_for_run(*run) == "failed"
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine) as session:
        found = {name: Hints.from_config(config) for name, config in runs.configs(session, run).items()}
    engine.dispose()
    assert (found["second"].ahead, found["second"].cpus, found["second"].time) == (True, 2, 3600)
