"""What the events of a site mean for the rows of the store."""

from __future__ import annotations

import pytest

from lading.executors.controller.events import changes
from lading.executors.store import JobRow, State
from lading.executors.store.tables import LONGEST_TEXT
from lading.hooks.spool.events import reason_of
from lading.scheduling.reasons import CAUSES, because, free_text
from tests.reasons import told


def finished(cause: str | None, started_at: float | None = 5.0) -> dict[str, object]:
    return {
        "event": "finished",
        "token": "t",
        "at": 9.0,
        "started_at": started_at,
        "exit_code": 0 if cause is None else 1,
        "cause": cause,
        "reason": None if cause is None else free_text("in words"),
        "peak_memory": 12,
        "cpu_seconds": 0.5,
    }


@pytest.mark.parametrize(
    ("cause", "state"),
    [
        (None, State.SUCCEEDED),
        ("out_of_memory", State.FAILED),
        ("time_limit", State.FAILED),
        ("lost", State.FAILED),
        ("error", State.FAILED),
        ("cancelled", State.CANCELLED),
    ],
)
def test_the_cause_decides_the_state(cause: str | None, state: State) -> None:
    [change] = changes([finished(cause)])
    assert change.values["state"] == state
    assert change.values["cause"] == cause
    assert change.report


def test_a_job_that_never_started_keeps_no_start() -> None:
    [change] = changes([finished("cancelled", started_at=None)])
    assert change.values["started_at"] is None


def test_started_and_waiting() -> None:
    started, waiting = changes(
        [
            {"event": "started", "token": "t", "at": 5.0, "pid": 1},
            {"event": "waiting", "token": "u", "reason": free_text("waits for cpus")},
        ]
    )
    assert started.values == {"state": State.RUNNING, "started_at": 5.0, "reason": None}
    assert waiting.values == {"reason": free_text("waits for cpus")}


def test_what_is_told_often_is_one_change() -> None:
    many = [{"event": "waiting", "token": "t", "reason": free_text(f"for {number} cpus")} for number in range(1000)]
    many[500:500] = [
        {"event": "located", "token": "t", "native_id": "17"},
        {"event": "waiting", "token": "u", "reason": because("turn")},
    ]
    waits, other = changes(many)
    assert (waits.token, waits.values, waits.report) == (
        "t",
        {"reason": free_text("for 999 cpus"), "native_id": "17"},
        True,
    )
    assert other.token == "u"
    begun = [{"event": "started", "token": "t", "at": 5.0, "pid": 1}] * 1000
    ended = [finished(None), finished("error")]
    states = [each.values.get("state") for each in changes([*begun, *ended, *begun])]
    assert states == [State.RUNNING, State.SUCCEEDED], "what comes after its end changes nothing"


def test_an_unknown_event_changes_nothing() -> None:
    assert changes([{"event": "hibernated", "token": "t"}]) == []


@pytest.mark.parametrize(("text", "cleaned"), [("a\0b", "a\ufffdb"), ("a\udc80b", "a?b"), ("grün", "grün")])
def test_words_are_made_fit_for_every_database(text: str, cleaned: str) -> None:
    [change] = changes([finished("error") | {"reason": reason_of(text)}])
    assert told(change.values["reason"]) == cleaned


def test_a_long_message_is_cut() -> None:
    [change] = changes([finished("error") | {"reason": free_text("x" * 100_000)}])
    assert len(told(change.values["reason"])) == LONGEST_TEXT


def test_the_batch_job_and_its_node() -> None:
    located = {"event": "located", "token": "t", "native_id": "17[3].server", "node": "n" * 999}
    [change] = changes([located])
    assert change.values == {"native_id": "17[3].server", "node": "n" * 250}
    assert not change.report
    [started] = changes([{"event": "started", "token": "t", "at": 1.0, "native_id": "17"}])
    assert (started.values["native_id"], "node" in started.values) == ("17", False), "what is known stays"
    assert changes([{"event": "located", "token": "t"}]) == []


def test_an_end_has_its_code_and_what_to_do_about_that() -> None:
    why = because("allocation_over", least=60)
    [change] = changes([finished("time_limit") | {"reason": why}])
    assert change.values["reason"] == why
    job = JobRow(state=State.FAILED, cause="time_limit", reason=why)
    assert (job.reason_code, job.remedy) == ("allocation_over", why.meaning.remedy)
    assert why.meaning.remedy != CAUSES["time_limit"].remedy
    job.reason = free_text("by its supervisor")
    assert (job.reason_code, job.remedy) == ("free_text", CAUSES["time_limit"].remedy)
    assert JobRow(state=State.SUCCEEDED, reason=because("had_succeeded")).remedy is None
    assert JobRow(state=State.RUNNING, reason=None).remedy is None
