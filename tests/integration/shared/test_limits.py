"""Tasks that exceed a limit are ended, and the reason is shown everywhere."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.services.airflow import Airflow
from tests.services.diary import Diary


@pytest.fixture(scope="module")
def run(airflow: Airflow, runs: Mapping[str, str]) -> str:
    assert airflow.wait_for_run("limits", runs["limits"]) == "failed"
    return runs["limits"]


def told(airflow: Airflow, run: str, task_id: str, event: str) -> list[str]:
    return [e["extra"] for e in airflow.events("limits", run) if (e["task_id"], e["event"]) == (task_id, event)]


def test_out_of_memory(airflow: Airflow, run: str, diary: Diary) -> None:
    assert diary.lines("hog-tries") == ["1", "2"], "retries are honoured"
    for number in (1, 2):
        log = airflow.logs("limits", run, "hog", try_number=number)
        assert "about to take more than there is" in log
        assert f"its limit is {400 * number} MiB" in log, "a retry asks for twice as much"
    events = told(airflow, run, "hog", "lading out_of_memory")
    assert len(events) == 2
    # The Dag processor calls the callbacks of a task that could not do so itself; it passes on no reason.
    assert airflow.wait_for_callbacks("limits", lambda: len(diary.lines("hog-callbacks")) == 2)
    assert diary.lines("hog-callbacks") == ["retry of try 1", "failure of try 2"]
    assert "its limit is 400 MiB" in told(airflow, run, "hog", "state mismatch")[0]


def test_time_limit(airflow: Airflow, run: str, diary: Diary) -> None:
    words = "the task exceeded its time limit of 40 s"
    log = airflow.logs("limits", run, "dawdler")
    assert "about to take longer than allowed" in log
    assert words in log
    assert diary.lines("dawdler-killed") == ["on_kill"]
    assert [words in event for event in told(airflow, run, "dawdler", "lading time_limit")] == [True]
    assert words in told(airflow, run, "dawdler", "state mismatch")[0]
    assert airflow.wait_for_callbacks("limits", lambda: diary.lines("dawdler-callbacks") == ["failure of try 1"])


def test_a_default_is_no_limit(airflow: Airflow, run: str) -> None:
    assert airflow.task_instance("limits", run, "small")["state"] == "success"
    assert airflow.xcom("limits", run, "small") == 600 * 2**20
