"""What locations have beside what the store thinks they have."""

from __future__ import annotations

import pytest

from lading.executors.controller import absence
from lading.executors.controller.absence import Absence
from lading.executors.controller.comparison import (
    SECONDS_UNTIL_LOST,
    SECONDS_UNTIL_REPEATED,
    SECONDS_UNTIL_STRANGE,
    lost,
    repeats,
    strangers,
)
from lading.executors.store import State
from lading.executors.store.queue import GivenJob
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.resources import Resources
from tests.services.outside_clocks import off

NOW = 1000.0


def given(token: str, state: State, expires_at: float | None = NOW + 600) -> GivenJob:
    job = WaitingJob(name=token, resources=Resources(cpus=1, memory=100))
    return GivenJob(job, state, "node1", NOW, expires_at, None)


def test_a_running_job_that_its_site_forgot_is_lost_but_not_at_once() -> None:
    jobs = [given("a", State.RUNNING)]
    assert not lost(jobs, {"a": SECONDS_UNTIL_LOST - 1}, NOW)
    [change] = lost(jobs, {"a": SECONDS_UNTIL_LOST + 1}, NOW)
    assert (change.values["state"], change.values["cause"]) == (State.FAILED, "lost")


def test_absence_is_timed_by_a_clock_that_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(absence.time, "monotonic", lambda: clock[0])
    missing = Absence()
    assert missing.look(["a", "b"]) == {"a": 0.0, "b": 0.0}
    clock[0] += 20
    assert missing.look(["a"]) == {"a": 20.0}
    clock[0] += 20
    assert missing.look(["a", "b"]) == {"a": 40.0, "b": 0.0}, "b turned up in between"
    clock[0] += 20
    assert missing.look(["b"], {"a"}) == {"b": 20.0}, "a could not be asked"
    assert missing.look(["a", "b"]) == {"a": 60.0, "b": 20.0}


def test_a_job_that_the_store_does_not_want_is_ended_after_a_while() -> None:
    assert list(strangers({"new": 1.0, "old": SECONDS_UNTIL_STRANGE + 1})) == ["old"]


def test_a_placed_job_that_did_not_arrive_is_given_again() -> None:
    jobs = [given("a", State.PLACED), given("b", State.RUNNING)]
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED - 1, "b": 99.0}, NOW, 600) == []
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED + 1, "b": 99.0}, NOW, 600) == ["a"]


def test_a_waiting_job_gets_a_fresh_jwt_before_the_old_one_runs_out() -> None:
    jobs = [given("fresh", State.PLACED, NOW + 600), given("old", State.PLACED, NOW + 100)]
    assert repeats(jobs, {}, NOW, 600) == ["old"]


@off
def test_a_jwt_of_a_controller_with_another_clock_is_renewed_before_it_runs_out(ahead: float) -> None:
    """The time is that of the API server; the controller before this one was ahead of it, and this one is not."""
    valid, made_at = 600.0, NOW
    for age in range(int(valid)):
        job = given("waits", State.PLACED, made_at + ahead + valid)
        if repeats([job], {}, made_at + age, valid):
            break
    assert age < valid - 1, "it was renewed while it was valid"
    made_now = given("waits", State.PLACED, made_at + valid)
    assert repeats([made_now], {}, made_at, valid) == [], "one of our own is fresh"
