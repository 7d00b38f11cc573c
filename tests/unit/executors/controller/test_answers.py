"""What follows from what sites answer for the rows of the store: from events, and from what locations have."""

from __future__ import annotations

import pytest

from lading.executors.controller import site_memory
from lading.executors.controller.answers import (
    changes_by_events,
    lost,
    repeats,
    strangers,
)
from lading.executors.controller.site_memory import MissingSince
from lading.executors.store import JobRow, State
from lading.executors.store.queue import GivenJob
from lading.hooks.spool.values import reason_of
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reason_codes import CAUSES
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.printable import LONGEST_TEXT
from tests.reasons import told
from tests.services.outside_clocks import off

NOW = 1000.0


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
    [change] = changes_by_events([finished(cause)])
    assert change.values["state"] == state
    assert change.values["cause"] == cause
    assert change.report


def test_a_job_that_never_started_keeps_no_start() -> None:
    [change] = changes_by_events([finished("cancelled", started_at=None)])
    assert change.values["started_at"] is None


def test_started_and_waiting() -> None:
    started, waiting = changes_by_events(
        [
            {"event": "started", "token": "t", "at": 5.0, "pid": 1},
            {"event": "waiting", "token": "u", "reason": free_text("waits for cpus")},
        ]
    )
    assert started.values == {"state": State.RUNNING, "started_at": 5.0, "reason": None}
    assert waiting.values == {"reason": free_text("waits for cpus")}


def test_the_memory_of_a_running_job_changes_nothing_else() -> None:
    measured = {"event": "measured", "token": "t", "peak_memory": 700}
    started, change = changes_by_events([{"event": "started", "token": "t", "at": 5.0, "pid": 1}, measured])
    assert (started.values["state"], change.values, change.report) == (State.RUNNING, {"peak_memory": 700}, False)
    [end] = changes_by_events([measured, finished(None)])
    assert (end.values["state"], end.values["peak_memory"]) == (State.SUCCEEDED, 12)


def test_what_is_reported_often_is_one_change() -> None:
    many = [{"event": "waiting", "token": "t", "reason": free_text(f"for {number} cpus")} for number in range(1000)]
    many[500:500] = [
        {"event": "located", "token": "t", "native_id": "17"},
        {"event": "waiting", "token": "u", "reason": because("turn")},
    ]
    waits, other = changes_by_events(many)
    assert (waits.token, waits.values, waits.report) == (
        "t",
        {"reason": free_text("for 999 cpus"), "native_id": "17"},
        True,
    )
    assert other.token == "u"
    begun = [{"event": "started", "token": "t", "at": 5.0, "pid": 1}] * 1000
    ended = [finished(None), finished("error")]
    states = [each.values.get("state") for each in changes_by_events([*begun, *ended, *begun])]
    assert states == [State.RUNNING, State.SUCCEEDED], "what comes after its end changes nothing"


def test_an_unknown_event_changes_nothing() -> None:
    assert changes_by_events([{"event": "hibernated", "token": "t"}]) == []


@pytest.mark.parametrize(("text", "cleaned"), [("a\0b", "a\ufffdb"), ("a\udc80b", "a?b"), ("grün", "grün")])
def test_texts_are_made_fit_for_every_database(text: str, cleaned: str) -> None:
    [change] = changes_by_events([finished("error") | {"reason": reason_of(text)}])
    assert told(change.values["reason"]) == cleaned


def test_a_long_message_is_cut() -> None:
    [change] = changes_by_events([finished("error") | {"reason": free_text("x" * 100_000)}])
    assert len(told(change.values["reason"])) == LONGEST_TEXT


def test_the_batch_job_and_its_node() -> None:
    located = {"event": "located", "token": "t", "native_id": "17[3].server", "node": "n" * 999}
    [change] = changes_by_events([located])
    assert change.values == {"native_id": "17[3].server", "node": "n" * 250}
    assert not change.report
    [started] = changes_by_events([{"event": "started", "token": "t", "at": 1.0, "native_id": "17"}])
    assert (started.values["native_id"], "node" in started.values) == ("17", False), "what is known stays"
    assert changes_by_events([{"event": "located", "token": "t"}]) == []


def test_an_end_has_its_code_and_what_to_do_about_that() -> None:
    why = because("allocation_over", least=60)
    [change] = changes_by_events([finished("time_limit") | {"reason": why}])
    assert change.values["reason"] == why
    job = JobRow(state=State.FAILED, cause="time_limit", reason=why)
    assert (job.reason_code, job.remedy) == ("allocation_over", why.meaning.remedy)
    assert why.meaning.remedy != CAUSES["time_limit"].remedy
    job.reason = free_text("by its supervisor")
    assert (job.reason_code, job.remedy) == ("free_text", CAUSES["time_limit"].remedy)
    assert JobRow(state=State.SUCCEEDED, reason=because("had_succeeded")).remedy is None
    assert JobRow(state=State.RUNNING, reason=None).remedy is None


def given(token: str, state: State, expires_at: float | None = NOW + 600) -> GivenJob:
    job = WaitingJob(name=token, resources=Resources(cpus=1, memory=100))
    return GivenJob(job, state, "node1", NOW, expires_at, None)


def test_a_running_job_that_its_site_forgot_is_lost_but_not_at_once() -> None:
    jobs = [given("a", State.RUNNING)]
    assert not lost(jobs, {"a": 29.0}, NOW, 30.0)
    [change] = lost(jobs, {"a": 31.0}, NOW, 30.0)
    assert (change.values["state"], change.values["cause"]) == (State.FAILED, "lost")


def test_absence_is_timed_by_a_clock_that_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(site_memory.time, "monotonic", lambda: clock[0])
    missing = MissingSince()
    assert missing.update(["a", "b"]) == {"a": 0.0, "b": 0.0}
    clock[0] += 20
    assert missing.update(["a"]) == {"a": 20.0}
    clock[0] += 20
    assert missing.update(["a", "b"]) == {"a": 40.0, "b": 0.0}, "b turned up in between"
    clock[0] += 20
    assert missing.update(["b"], {"a"}) == {"b": 20.0}, "a could not be polled"
    assert missing.update(["a", "b"]) == {"a": 60.0, "b": 20.0}


def test_a_job_that_the_store_does_not_want_is_ended_after_a_while() -> None:
    assert list(strangers({"new": 1.0, "old": 61.0}, 60.0)) == ["old"]


def test_a_placed_job_that_did_not_arrive_is_given_again() -> None:
    jobs = [given("a", State.PLACED), given("b", State.RUNNING)]
    assert repeats(jobs, {"a": 4.0, "b": 99.0}, NOW, 600, 5.0) == []
    assert repeats(jobs, {"a": 6.0, "b": 99.0}, NOW, 600, 5.0) == ["a"]


def test_a_waiting_job_gets_a_fresh_jwt_before_the_old_one_runs_out() -> None:
    jobs = [given("fresh", State.PLACED, NOW + 600), given("old", State.PLACED, NOW + 100)]
    assert repeats(jobs, {}, NOW, 600, 5.0) == ["old"]


@off
def test_a_jwt_of_a_controller_with_another_clock_is_renewed_before_it_runs_out(ahead: float) -> None:
    """The time is that of the API server; the controller before this one was ahead of it, and this one is not."""
    valid, made_at = 600.0, NOW
    for age in range(int(valid)):
        job = given("waits", State.PLACED, made_at + ahead + valid)
        if repeats([job], {}, made_at + age, valid, 5.0):
            break
    assert age < valid - 1, "it was renewed while it was valid"
    made_now = given("waits", State.PLACED, made_at + valid)
    assert repeats([made_now], {}, made_at, valid, 5.0) == [], "one of our own is fresh"
