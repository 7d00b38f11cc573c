"""What is known of the jobs that were given to a machine."""

from __future__ import annotations

import time
import uuid

import pytest

from lading.hooks.machines import tracker as module
from lading.hooks.machines.tracker import MachineJobTracker, Parcel
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.reasons import free_text
from lading.scheduling.model.resources import Resources


def envelope(token: str | None = None) -> Envelope:
    now = time.time()
    workload = {"log_path": "dag/task.log"}
    return Envelope(token or str(uuid.uuid4()), workload, Resources(1, 100), None, None, 0, now, now + 600)


def parcels(tracker: MachineJobTracker) -> list[Parcel]:
    return [Parcel(job, each, each, job.is_renewed) for job, each in tracker.on_the_way()]


def test_a_job_is_known_from_when_it_is_given_until_its_end_is_stored() -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    assert tracker.known() == {job.token}
    tracker.arrived(parcels(tracker), frozenset([job.token]))
    assert (tracker.known(), tracker.on_the_way()) == ({job.token}, [])
    tracker.read({"event": "started", "token": job.token})
    tracker.read({"event": "finished", "token": job.token})
    assert tracker.known() == {job.token}, "the controller has not received its end"
    tracker.acknowledge([job.token])
    assert tracker.known() == frozenset()
    assert tracker.over() == [], "its log is still to be copied"
    tracker.jobs[job.token].log_done = True
    [over] = tracker.over()
    assert over.token == job.token
    tracker.forget([over])
    assert tracker.jobs == {}


def test_an_envelope_that_is_given_anew_meanwhile_is_not_taken_for_the_one_that_has_arrived() -> None:
    tracker, old = MachineJobTracker(), envelope()
    tracker.give([old])
    on_the_way = parcels(tracker)
    new = envelope(old.token)
    tracker.give([new])
    tracker.arrived(on_the_way, frozenset([old.token]))
    assert [each for _, each in tracker.on_the_way()] == [new]


def test_one_that_is_there_is_replaced_and_one_that_is_not_is_brought_again() -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    assert [each.is_renewed for each in parcels(tracker)] == [False]
    tracker.arrived(parcels(tracker), frozenset([job.token]))
    tracker.give([job])
    assert [each.is_renewed for each in parcels(tracker)] == [True]
    tracker.arrived([], frozenset())
    tracker.give([job])
    assert [each.is_renewed for each in parcels(tracker)] == [False]


def test_a_job_that_has_begun_is_not_brought_again() -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.read({"event": "started", "token": job.token})
    tracker.give([job])
    assert tracker.on_the_way() == []


def test_a_cancellation_is_asked_for_once_in_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    assert tracker.ask_to_cancel({job.token: free_text("why")})
    assert tracker.on_the_way() == [], "it is not brought there any more"
    assert tracker.known() == {job.token}
    assert not tracker.ask_to_cancel({job.token: free_text("why")})
    assert tracker.take_cancels() == {job.token: free_text("why")}
    tracker.put_back({job.token: free_text("why")})
    assert tracker.take_cancels() == {job.token: free_text("why")}, "it could not be written"
    monkeypatch.setattr(module, "SECONDS_UNTIL_ASKED_AGAIN", 0.0)
    assert tracker.ask_to_cancel({job.token: free_text("why")})


def test_logs_of_an_earlier_controllers_jobs() -> None:
    tracker, running, ended, told = MachineJobTracker(), *(str(uuid.uuid4()) for _ in range(3))
    tracker.arrived([], frozenset([running]))
    tracker.read({"event": "finished", "token": told})
    tracker.load({**dict.fromkeys((running, ended, told), "dag_id=a/x.log"), "no token": "x.log"})
    states = {token: (job.log_path, job.phase.value) for token, job in tracker.jobs.items()}
    path = "dag_id=a/x.log"
    assert states == {running: (path, "started"), ended: (path, "stored"), told: (path, "ended")}


def test_what_is_unknown_is_forgotten_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    tracker.arrived(parcels(tracker), frozenset([job.token]))
    tracker.arrived([], frozenset())
    assert tracker.is_busy
    monkeypatch.setattr(module, "SECONDS_UNTIL_VANISHED", -1.0)
    tracker.arrived([], frozenset())
    assert not tracker.is_busy


def test_a_job_that_is_taken_back_may_be_given_again_at_once() -> None:
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    tracker.arrived(parcels(tracker), frozenset([job.token]))
    tracker.give_back(job.token)
    assert tracker.known() == {job.token}, "until that is stored"
    tracker.acknowledge([job.token])
    assert (tracker.known(), tracker.is_busy) == (frozenset(), True)
    over = tracker.over()
    tracker.give([job])
    tracker.forget(over)
    assert [(each, new.is_renewed) for new, each in tracker.on_the_way()] == [(job, False)]
    assert tracker.known() == {job.token}


def test_a_job_that_came_back_and_of_which_that_is_not_stored_is_not_brought_again() -> None:
    """The controller that renews its JWT does not know yet that it goes elsewhere: it would run in both places."""
    tracker, job = MachineJobTracker(), envelope()
    tracker.give([job])
    tracker.arrived(parcels(tracker), frozenset([job.token]))
    tracker.give_back(job.token)
    tracker.give([job])
    assert tracker.on_the_way() == []
    tracker.acknowledge([job.token])
    tracker.give([job])
    assert [each for _, each in tracker.on_the_way()] == [job]


def test_what_is_on_its_way_is_not_taken_back_when_it_arrives() -> None:
    tracker, there, comes = MachineJobTracker(), envelope(), envelope()
    tracker.arrived([], frozenset([there.token]))
    tracker.give([comes])
    tracker.ask_back([there.token, comes.token])
    assert tracker.to_recall() == [there.token]


def test_jobs_that_wait_in_vain_are_taken_back_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = MachineJobTracker()
    tracker.stuck(frozenset("ab"))
    assert tracker.to_recall() == []
    monkeypatch.setattr(module, "SECONDS_UNTIL_RETURNED", -1.0)
    assert tracker.to_recall() == ["a", "b"]
    tracker.stuck(frozenset())
    assert tracker.to_recall() == []


def test_there_is_leisure_while_its_store_lasts_at_the_pace_of_its_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    tracker = MachineJobTracker()
    assert tracker.leisure() == 0.0
    tokens = [str(uuid.uuid4()) for _ in range(6)]

    def leisure(waiting: int, ends: int, seconds: float) -> float:
        nonlocal now
        now += seconds
        for _ in range(ends):
            tracker.read({"event": "finished", "token": str(uuid.uuid4())})
        tracker.arrived([], frozenset(tokens), frozenset(tokens[:waiting]))
        return tracker.leisure()

    assert leisure(0, 3, 1.0) == 0.0, "the next one that ends leaves it idle"
    assert leisure(6, 0, 1.0) == 0.0, "nothing has come, so there is nothing to gather"
    assert leisure(1, 5, 1.0) == pytest.approx(0.1)
    assert leisure(1, 5, 0.5) == pytest.approx(0.05)
    assert leisure(2, 5, 1.0) == pytest.approx(0.2)
    assert leisure(6, 5, 1.0) == module.MAX_COALESCE_SECONDS, "news is not kept for longer, whatever waits"
