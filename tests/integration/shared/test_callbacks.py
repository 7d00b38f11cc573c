"""Callbacks of Dags and tasks, wherever Airflow runs them, and those that it gives to the executor."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.processes import wait_until

CALLBACK = "ExecuteCallback"  # what `airflow lading jobs` shows in the place of a task

Runs = Mapping[str, str]


def test_callbacks_of_tasks_and_dags(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    assert airflow.wait_for_run("unhappy", runs["unhappy"]) == "failed"
    assert airflow.wait_for_run("happy", runs["happy"]) == "success"
    expected = {
        "task execute": 4,
        "task success": 1,
        "task retry": 1,
        "task failure": 1,
        "task skipped": 1,
        "Dag failed": 1,
        "happy Dag succeeded": 1,
    }
    # The Dag processor runs those of the Dags, a little later.
    assert airflow.wait_for_callbacks("callbacks", lambda: Counter(diary.lines("callbacks")) == expected), diary.lines(
        "callbacks"
    )


def test_callbacks_of_deadlines_run_on_the_executor(airflow: Airflow, runs: Runs, diary: Diary) -> None:
    words, token = diary.wait_for("deadline", lines=2)
    assert words == "too late"
    assert airflow.wait_for_run("late", runs["late"]) == "success"

    jobs: list[dict[str, str]] = []

    def ended() -> bool:
        jobs[:] = [
            job
            for job in json.loads(airflow.lading("jobs", "--limit", "1000", "-o", "json"))
            if job["task_id"] == CALLBACK
        ]
        return len(jobs) == 2 and all(job["state"] in ("succeeded", "failed") for job in jobs)

    assert wait_until(ended, 60, 1), jobs
    good, bad = sorted(jobs, key=lambda job: job["state"], reverse=True)
    assert (good["state"], bad["state"]) == ("succeeded", "failed")
    assert good["token"] == token
    assert "exited with code 1" in bad["reason"]
