"""What a task's log says about why it failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.tasks.task_exception import read_exception

FAILED = {
    "event": "Task failed with exception",
    "error_detail": [
        {"exc_type": "RuntimeError", "exc_value": "line 1\nline 2\x1b", "frames": []},
        {"exc_type": "KeyError", "exc_value": "'cause'"},
    ],
}


def written(tmp_path: Path, *records: Any) -> Path:
    log = tmp_path / "task.log"
    log.write_bytes(b"\n".join(each if isinstance(each, bytes) else json.dumps(each).encode() for each in records))
    return log


def test_the_exception_is_that_of_the_task_itself(tmp_path: Path) -> None:
    later = {"event": "Failed to run task callback", "error_detail": [{"exc_type": "OSError", "exc_value": "callback"}]}
    first = {**FAILED, "error_detail": [{"exc_type": "ValueError", "exc_value": "of an earlier attempt"}]}
    log = written(tmp_path, first, {"event": "x" * 2**18}, FAILED, later, {"event": "Task finished"})
    assert read_exception(log) == "RuntimeError: line 1 line 2\\x1b"


def test_a_task_that_exits_tells_its_exit_code(tmp_path: Path) -> None:
    assert read_exception(written(tmp_path, {"event": "Task exited", "exit_code": 3})) == "it exited with exit code 3"


@pytest.mark.parametrize(
    "record",
    [
        {"event": "I quote: Task failed with exception"},
        {"event": "Task failed with exception", "error_detail": []},
        {"event": "Task failed with exception", "error_detail": [5]},
        {"event": "Task exited", "exit_code": "many"},
        b"Task failed with exception",
        b'"Task failed with exception"',
        b"[" * 100_000 + b"Task failed with exception",
        b"\xff Task exited",
    ],
)
def test_what_a_task_prints_is_not_believed(tmp_path: Path, record: Any) -> None:
    assert read_exception(written(tmp_path, record)) is None
    assert read_exception(written(tmp_path, FAILED, record)) == "RuntimeError: line 1 line 2\\x1b"


def test_a_log_that_has_gone_tells_nothing(tmp_path: Path) -> None:
    assert read_exception(tmp_path / "missing.log") is None
    assert read_exception(tmp_path) is None
