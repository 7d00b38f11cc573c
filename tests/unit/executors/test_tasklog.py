"""Lines of Lading's own in a task's log."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from lading.executors.tasklog import append_to_task_log

WORDS = 'no room for "8 × 4 GiB"'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path))
    return tmp_path


def events(path: Path) -> list[str]:
    return [json.loads(line)["event"] for line in path.read_text().splitlines()]


def test_a_task_that_never_started_gets_a_log(folder: Path) -> None:
    append_to_task_log("dag/attempt=1.log", WORDS, "lost")
    [line] = (folder / "dag" / "attempt=1.log").read_text().splitlines()
    assert {key: json.loads(line)[key] for key in ("event", "cause", "level")} == {
        "event": WORDS,
        "cause": "lost",
        "level": "error",
    }


def test_a_log_is_made_as_airflow_makes_logs(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FOLDER_PERMISSIONS", "0o770")
    monkeypatch.setenv("AIRFLOW__LOGGING__FILE_TASK_HANDLER_NEW_FILE_PERMISSIONS", "0o660")
    before = os.umask(0)
    try:
        append_to_task_log("dag/attempt=1.log", WORDS, "lost")
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "dag").stat().st_mode) == 0o770
    assert stat.S_IMODE((folder / "dag/attempt=1.log").stat().st_mode) == 0o660


def test_what_the_supervisor_has_said_is_not_said_twice(folder: Path) -> None:
    log = folder / "attempt=1.log"
    log.write_text("".join(json.dumps({"event": event}, ensure_ascii=False) + "\n" for event in ("first", WORDS)))
    append_to_task_log(log.name, WORDS)
    assert events(log) == ["first", WORDS]
    append_to_task_log(log.name, "more")
    assert events(log) == ["first", WORDS, "more"]


def test_a_log_that_cannot_be_written_fails_nothing(folder: Path) -> None:
    (folder / "dag").write_text("in the way")
    append_to_task_log("dag/attempt=1.log", WORDS)
    append_to_task_log(None, WORDS)
