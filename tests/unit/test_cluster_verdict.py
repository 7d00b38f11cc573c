"""How a job of a cluster has ended."""

from __future__ import annotations

from typing import Any

import pytest

from lading.executors.news import of_event
from lading.hooks.batch import NativeJob
from lading.hooks.cluster_verdict import finished, is_certain, of_sentinel


def own(cause: str | None, exit_code: int | None, message: str | None = "words") -> dict[str, Any]:
    return {"cause": cause, "exit_code": exit_code, "message": message}


def native(cause: Any = None, exit_code: int | None = 0, reason: str | None = None) -> NativeJob:
    return NativeJob(id="1", state="ended", cause=cause, exit_code=exit_code, reason=reason)


@pytest.mark.parametrize(
    ("said", "certain"),
    [
        (own(None, 0), True),
        (own("error", 1), True),
        (own("error", -9), False),
        (own("terminated", None), False),
        (own("lost", None), False),
        (own("cancelled", None), True),
        (own("out_of_memory", -9), True),
    ],
)
def test_what_a_job_can_know_itself(said: dict[str, Any], certain: bool) -> None:
    assert is_certain(said) == certain


def test_the_batch_system_beats_a_signal() -> None:
    event = finished("a", native("out_of_memory"), own("error", -9))
    assert (event["cause"], event["exit_code"]) == ("out_of_memory", -9)


def test_the_agent_s_cause_stands_where_the_batch_system_has_none() -> None:
    assert finished("a", native(), own("out_of_memory", -9, "its limit"))["message"] == "its limit"


def test_silence_is_no_success() -> None:
    event = finished("a", native(None, 0), None, "last line")
    assert event["cause"] == "error"
    assert "without a word" in event["message"]
    assert event["message"].endswith("last words: last line")
    assert finished("a", None, None)["cause"] == "lost"


def test_a_job_that_was_told_to_end_for_nothing_that_is_known_has_failed() -> None:
    assert finished("a", native(), own("terminated", None))["cause"] == "error"


def test_a_sentinel_with_a_cause_of_the_agent() -> None:
    sentinel = {"exit_code": -15, "error": "it", "ended_at": 1.0, "cpu_seconds": 2.0, "peak_memory": 3}
    event = of_sentinel(sentinel, {"cause": "time_limit", "message": "too long"})
    assert (event["cause"], event["message"], event["exit_code"]) == ("time_limit", "too long", -15)
    assert of_sentinel({**sentinel, "error": None}, None)["cause"] is None


def test_a_failed_node_beats_the_exit_code_of_what_it_took_down() -> None:
    assert finished("a", native("node_failure"), own("error", 1))["cause"] == "node_failure"
    assert finished("a", native("cancelled"), own("time_limit", -15))["cause"] == "time_limit"
    assert finished("a", native("cancelled"), own(None, 0))["cause"] is None


def test_a_task_that_airflow_did_not_let_start_has_not_failed() -> None:
    sentinel = {"exit_code": 1, "error": "it was cleared", "ended_at": 1.0, "cpu_seconds": 2.0, "peak_memory": 3}
    event = finished("a", native(), of_sentinel({**sentinel, "cause": "cancelled"}, None))
    assert (event["cause"], event["started_at"]) == ("cancelled", None)
    change = of_event(event)
    assert change is not None
    assert (change.values["state"], change.values["started_at"]) == ("cancelled", None)
    assert "started_at" not in of_sentinel({**sentinel, "cause": "error"}, None)
