"""Jobs that start together, on a real Airflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

import lading.example_dags
from lading.executors.store import Job
from lading.executors.store.gangs import runs
from lading.executors.store.gangs.runs import Run
from lading.scheduling.hints.hints import Hints
from tests.services.airflow import Airflow
from tests.services.processes import wait_until

EXAMPLE = Path(lading.example_dags.__path__[0]) / "ray_together.py"
PRIMES_BELOW_200_000 = 17_984
TOO_LARGE = """
from airflow.sdk import dag, task
from lading.operators import resources


@dag(schedule=None)
def too_large():
    @task(executor_config=resources(gang="large", cpus=3, attempts={"pauses": ["1h"], "count": 2}))
    def half(number):
        pass

    half.expand(number=[1, 2])


too_large()
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
    found = jobs(airflow, "ray_together", run_id)
    assert len(found) == 4
    starts = [float(job["started_at"]) for job in found]
    assert max(starts) < min(float(job["ended_at"]) for job in found), "all of them ran at the same time"


def test_one_without_room_sleeps_and_is_woken(airflow: Airflow) -> None:
    airflow.add_dag("too_large", TOO_LARGE)
    run_id = airflow.trigger("too_large")

    def states() -> set[str]:
        return {job["state"] for job in jobs(airflow, "too_large", run_id)}

    assert wait_until(lambda: states() == {"attempted"}, 60), jobs(airflow, "too_large", run_id)
    assert "attempt 1 of 2 has found no room for gang 'large'" in jobs(airflow, "too_large", run_id)[0]["reason"]
    assert "1 woken" in airflow.lading("wake", "too_large", run_id)
    assert airflow.wait_for_run("too_large", run_id) == "failed"
    assert "no room was found, tried 2 times" in jobs(airflow, "too_large", run_id)[0]["reason"]
    assert "nothing sleeps" in airflow.run("lading", "wake", "too_large").output


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

    expected = "1 of 2 members of gang 'pair' are queued; max_active_tis_per_dagrun of task 'half' is 1"
    assert wait_until(lambda: expected in words(), 60), jobs(airflow, "known_late", run_id)
    airflow.rest("PATCH", f"/dags/known_late/dagRuns/{run_id}", {"state": "failed"})
    assert airflow.wait_for_run("known_late", run_id) == "failed"


def test_what_a_task_will_need_is_known_before_airflow_has_queued_it(airflow: Airflow) -> None:
    airflow.add_dag("asks_ahead", FAILS)
    run = Run("asks_ahead", airflow.trigger("asks_ahead"))
    assert airflow.wait_for_run(*run) == "failed"
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    with Session(engine) as session:
        found = {name: Hints.of(config) for name, config in runs.configs(session, run).items()}
        [first] = session.scalars(select(Job).where(Job.dag_id == run.dag_id))
    engine.dispose()
    assert {name: each.ahead_after for name, each in found.items()} == {"first": (), "second": ("first",)}
    assert (found["second"].ahead, found["second"].cpus, found["second"].time) == (True, 2, 3600)
    assert (first.task_id, first.ahead) == ("first", True)
