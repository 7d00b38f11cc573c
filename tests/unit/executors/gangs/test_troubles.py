"""Gangs whose rows are damaged, whose sites say nothing yet, and whose clocks differ."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.controller import answers, site_threads
from lading.executors.gangs import gang_controller
from lading.executors.store import JobRow, State
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.hooks.spool.events import sift
from lading.scheduling.gangs.room import Ways
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.matching.rules import Rule
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.reasons import Reason, because, free_text
from tests.reasons import told
from tests.unit.executors.gangs.test_gang_controller import ATTEMPTED, QUEUED, RUNNING, HoldingSite, House, house, lab

__all__ = ["house", "lab"]  # fixtures


@pytest.mark.parametrize("memory", ["", "null", "{}", '{"terms": 3}'])
def test_a_row_that_cannot_be_read_costs_its_gang_the_pass_alone(house: House, lab: HoldingSite, memory: str) -> None:
    house.queue("head", "workers.0", cpus=3)
    house.tick(2)
    with Session(house.engine) as session:
        session.scalars(select(GangRow)).one().memory = memory
        session.commit()
    house.queue("alone", gang=None, cpus=1, attempts=AttemptSchedule())
    del house.to_come["alone", -1]
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    assert (house.holds(), lab.held) == ([], {})


@pytest.mark.parametrize("terms", ["null", "[", '{"colour": 3}', '{"attempts": 3}', '{"tasks": []}'])
def test_terms_that_cannot_be_read_fail_their_gang_alone(house: House, lab: HoldingSite, terms: str) -> None:
    house.queue("head", "workers.0")
    with Session(house.engine) as session:
        for job in session.scalars(select(JobRow)):
            job.gang_terms = terms
        session.commit()
    house.to_come = {}
    house.queue("alone", gang=None, attempts=AttemptSchedule())
    house.tick(6)
    failed = State.FAILED.value
    assert house.states() == {"head": failed, "workers0": failed, "alone": RUNNING}
    assert "clear the task, which rewrites its row" in str(told(house.jobs()["head"].reason))
    assert [row.name for row in house.gangs()] == [None]


@pytest.mark.parametrize("where", ["_events", "_claim", "_explain"])
def test_a_gang_whose_turn_fails_costs_no_other_its_turn(
    house: House, lab: HoldingSite, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = getattr(gang_controller.GangTick, where)

    def fails(self: gang_controller.GangTick) -> object:
        found = real(self)
        if "head" in {member.key[0] for member in self.members}:
            raise KeyError("a plugin's")
        return found

    monkeypatch.setattr(gang_controller.GangTick, where, fails)
    house.queue("head", "workers.0")
    house.queue("alone", gang=None, cpus=1, attempts=AttemptSchedule())
    del house.to_come["alone", -1]
    house.tick(6)
    failed = State.FAILED.value
    assert house.states() == {"head": failed, "workers0": failed, "alone": RUNNING}
    assert "looking for room for gang 'ray' failed: KeyError" in str(told(house.jobs()["head"].reason))
    assert (house.holds(), lab.held) == ([], {})


def test_no_attempt_is_lost_to_a_site_that_has_not_answered_yet(
    house: House, lab: HoldingSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    house.queue("head", "workers.0")
    monkeypatch.setattr(site_threads, "FIRST_LOOK_SECONDS", 0.0)
    lab.hang.add("observe")
    here = house.controller
    here.leadership.leads_until = time.monotonic() + 20
    here.record(here.decide(here.observe(), here.any_wait()), True, time.time())
    assert set(house.states().values()) == {QUEUED}
    lab.go_on()
    house.tick(5)
    assert set(house.states().values()) == {RUNNING}
    assert [row.attempt for row in house.gangs()] == [1]


@pytest.mark.parametrize(("on_failure", "ends"), [("cancel", True), ("leave", False)])
def test_those_that_have_begun_do_not_wait_for_ever_for_one_whose_site_is_away(
    tmp_path: Path, house: House, lab: HoldingSite, on_failure: str, ends: bool
) -> None:
    """Of two sites one goes after it has held room, and before it is given its job."""
    other = HoldingSite("other", tmp_path)
    house.sites = [lab, other]
    house.begin()
    house.queue(
        "head", "worker", cpus=4, sites=("lab", "other"), on_failure=on_failure, attempts=AttemptSchedule(timeout=300)
    )
    while not (decision := house.decided()).placed:
        house.act(house.recorded(decision))
    other.trouble = OSError("away")
    house.act(house.recorded(decision))
    house.tick(2)
    assert house.states() == {"head": RUNNING, "worker": State.PLACED.value}
    with Session(house.engine) as session:
        for job in session.scalars(select(JobRow)):
            assert job.placed_at is not None
            job.placed_at -= 301
        session.commit()
    house.tick(1)
    words = house.jobs()["head"].cancel
    assert (words is not None) == ends
    if ends:
        assert "the job of task 'worker' in its gang 'ray' did not start at site 'other' within 300 s" in str(words)
        assert lab.cancelled == {"head-r": words}
        assert house.states()["worker"] == State.FAILED.value
        other.trouble = None
        house.tick(2)
        assert other.at == {}, "it does not begin when its site is back"


def test_none_begins_before_the_files_of_all_are_there(house: House, lab: HoldingSite) -> None:
    house.queue("head", "worker", cpus=4)
    with Session(house.engine) as session:
        for job in session.scalars(select(JobRow).where(JobRow.task_id == "worker")):
            job.stage = '{"/data/reads": null}'
        session.commit()
    asked: list[tuple[str, str]] = []
    answer: list[tuple[Reason, bool] | None] = [(because("staging", address="/data/reads"), False)]

    def files(session: Session, site: str, location: str, text: str, job: WaitingJob) -> tuple[Reason, bool] | None:
        asked.append((site, text))
        return answer[0]

    house.controller.gangs.files = files
    house.tick(4)
    assert set(house.states().values()) == {QUEUED}
    assert len(lab.held) == 2
    assert set(asked) == {("lab", '{"/data/reads": null}')}
    words = "waits: /data/reads is being copied to the site; attempt 1 of 5"
    assert {told(job.reason) for job in house.jobs().values()} == {words}
    answer[0] = free_text("/data/reads cannot be copied to the site: it is not there any more"), True
    house.tick(3)
    assert set(house.states().values()) == {ATTEMPTED}
    assert "/data/reads cannot be copied" in str(told(house.jobs()["head"].reason))
    assert (house.holds(), lab.held) == ([], {})
    answer[0] = None
    house.sleep(900)
    for _ in range(6):
        decision = house.recorded(house.decided())
        if decision.placed:
            break
        house.act(decision)
    assert sorted(token for here in decision.placed["lab"].values() for token in here) == ["head-r", "worker-r"]


@pytest.mark.parametrize("ahead", [-3600.0, 3600.0])
def test_a_failure_counts_whatever_the_clock_of_its_site_says(house: House, lab: HoldingSite, ahead: float) -> None:
    house.queue("head", "workers.0")
    house.tick(6)
    lab.end("workers0-r", "error")
    lab.events[-1]["at"] += ahead
    house.tick(3)
    assert "the job of task 'workers' in its gang 'ray' failed" in str(house.jobs()["head"].cancel)


def test_members_that_wait_for_others_again_do_not_say_that_they_sleep(house: House, lab: HoldingSite) -> None:
    lab.lies = "refused"
    house.queue("head", "workers.0", "workers.1")
    house.tick(4)
    assert set(house.states().values()) == {ATTEMPTED}
    with Session(house.engine) as session:
        job = session.get(JobRow, "workers1-r")
        assert job is not None
        job.state = State.CANCELLED
        session.commit()
    house.tick(2)
    assert (house.states()["head"], house.states()["workers0"]) == (QUEUED, QUEUED)
    assert told(house.jobs()["head"].reason) == "waits: 2 of 3 members of gang 'ray' are queued"


@pytest.mark.parametrize("set_back", [3600.0, -3600.0])
def test_what_is_held_is_asked_for_again_though_the_clock_was_set(
    house: House, lab: HoldingSite, monkeypatch: pytest.MonkeyPatch, set_back: float
) -> None:
    house.queue("head", "workers.0", cpus=4)
    house.tick(2)
    with Session(house.engine) as session:
        for row in session.scalars(select(HoldRow)):
            row.asked_at += set_back
        session.commit()
    monkeypatch.setattr(gang_controller.GangTick, "seconds_until_repeated", 60.0)
    house.tick(1)
    assert all(abs(row.asked_at - time.time()) < 60 for row in house.holds())


def test_texts_of_a_plugin_that_no_database_takes_do_not_fail_the_tick(house: House) -> None:
    def relax(job: WaitingJob) -> object:
        raise OSError("/data/\udcff\0")

    house.controller.gangs.ways = Ways(rules=(Rule("broken", relax=relax),))
    house.queue("head", "workers.0")
    house.tick(4)
    assert "rule 'broken' failed: OSError: /data/?\ufffd" in str(told(house.jobs()["head"].reason))


def test_a_reason_is_stored_as_every_database_takes_it() -> None:
    [said], _ = sift([{"event": "refused", "token": "t", "at": 1.0, "reason": "full\0 \ud800"}])
    assert list(answers.holds_in_events([said, {"event": "started"}])) == [("t", "refused", free_text("full\ufffd ?"))]
