"""From what waits and what sites answered to what is to be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lading.executors.controller import dispatch
from lading.executors.controller.dispatch import (
    BEHIND_OTHERS,
    SECONDS_UNTIL_LOST,
    SECONDS_UNTIL_REPEATED,
    SECONDS_UNTIL_STRANGE,
    Absence,
    decided,
    lost,
    repeats,
    strangers,
)
from lading.executors.store import State, queue
from lading.executors.store.queue import Given
from lading.scheduling.matching.sites import Waiting
from lading.scheduling.placement import Assignment
from lading.scheduling.plan import Location
from lading.scheduling.resources import Resources

NOW = 1000.0


def given(token: str, state: State, expires_at: float | None = NOW + 600) -> Given:
    return Given(token, state, Resources(cpus=1, memory=100), "node1", expires_at, None)


def test_a_running_job_that_its_site_forgot_is_lost_but_not_at_once() -> None:
    jobs = [given("a", State.RUNNING)]
    assert not lost(jobs, {"a": SECONDS_UNTIL_LOST - 1}, NOW)
    [change] = lost(jobs, {"a": SECONDS_UNTIL_LOST + 1}, NOW)
    assert (change.values["state"], change.values["cause"]) == (State.FAILED, "lost")


def test_absence_is_timed_by_a_clock_that_never_jumps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(dispatch.time, "monotonic", lambda: clock[0])
    absence = Absence()
    assert absence.look(["a", "b"]) == {"a": 0.0, "b": 0.0}
    clock[0] += 20
    assert absence.look(["a"]) == {"a": 20.0}
    clock[0] += 20
    assert absence.look(["a", "b"]) == {"a": 40.0, "b": 0.0}, "b turned up in between"
    clock[0] += 20
    assert absence.look(["b"], {"a"}) == {"b": 20.0}, "a could not be asked"
    assert absence.look(["a", "b"]) == {"a": 60.0, "b": 20.0}


def test_a_job_that_the_store_does_not_want_is_ended_after_a_while() -> None:
    assert list(strangers({"new": 1.0, "old": SECONDS_UNTIL_STRANGE + 1})) == ["old"]


def test_a_placed_job_that_did_not_arrive_is_given_again() -> None:
    jobs = [given("a", State.PLACED), given("b", State.RUNNING)]
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED - 1, "b": 99.0}, NOW) == []
    assert repeats(jobs, {"a": SECONDS_UNTIL_REPEATED + 1, "b": 99.0}, NOW) == ["a"]


def test_a_waiting_job_gets_a_fresh_jwt_before_the_old_one_runs_out() -> None:
    jobs = [given("fresh", State.PLACED, NOW + 600), given("old", State.PLACED, NOW + 100)]
    assert repeats(jobs, {}, NOW + 300) == ["old"]


def test_what_is_decided_is_recorded_with_the_place_and_the_words() -> None:
    jobs = [Waiting(name=token, resources=Resources(1, 100), reason=reason) for token, reason in
            (("a", None), ("b", "old"), ("c", "old"), ("d", None), ("e", "full"), ("f", None))]  # fmt: skip
    found = Assignment(
        placed={"a": ("lab", "node1"), "b": ("hpc", "hpc")},
        passed={"b": "site 'lab' has no room"},
        waits={"c": None, "d": None, "e": "full"},
        refused={"f": "too large"},
    )
    decision = decided(jobs, found, NOW)
    assert decision.placed == {"lab": {"node1": ["a"]}, "hpc": {"hpc": ["b"]}}
    by_token = {change.token: change for change in decision.changes}
    assert set(by_token) == {"a", "b", "f"}
    assert decision.reasons == {BEHIND_OTHERS: ["c"]}, "who was told the same before, or nothing, is not told again"
    assert by_token["a"].values["reason"] is None
    assert by_token["b"].values["location"] == "hpc"
    assert by_token["b"].values["reason"] == "sent here because site 'lab' has no room"
    assert (by_token["f"].values["state"], by_token["f"].values["reason"]) == (State.FAILED, "too large")
    assert by_token["f"].report
    assert decision.more_waiting


def test_a_location_has_what_was_given_to_it_and_of_short_jobs_many_in_store() -> None:
    """It would run dry before the next tick; but the next ones may be long, so there is a limit."""
    jobs = [given("runs", State.RUNNING), given("runs too", State.RUNNING), given("waits", State.PLACED)]
    machine = Location("node1", Resources(cpus=4, memory=8192))
    loaded = queue.loaded(machine, jobs, 3)
    assert (loaded.used, loaded.running) == (Resources(3, 300), Resources(2, 200))
    assert ([job.name for job in loaded.stored], loaded.jobs) == (["waits"], 3)
    assert [queue.loaded(machine, jobs, ahead).ahead for ahead in (0, 2, 4, 99)] == [0, 2, 4, 4]
    flagged = queue.loaded(replace(machine, draining=True, used=machine.capacity, stored=loaded.stored), [], 9)
    assert (flagged.empty, flagged.draining) == (True, False), "what a site says of that is not its own to know"
    assert queue.loaded(Location("node1", machine.capacity, max_jobs=9), jobs, 0).jobs == 3
