"""Gangs in the controller: real ticks over a store and sites that are driven by a test."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from airflow.models.log import Log
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from lading.executors import request_rows, store
from lading.executors.controller import site_threads
from lading.executors.gangs import tick
from lading.executors.request_rows import RequestKind
from lading.executors.store import JobRow, State
from lading.executors.store.gangs import rows
from lading.hooks.site import Holding, SiteConfig
from lading.hooks.spool.hold import Hold
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.matching.rules import Soft
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from tests.clusters.gangs import HoldingSite, House
from tests.clusters.sites import FakeElasticSite, FakeSite, make_settings, make_store
from tests.reasons import told


@pytest.fixture
def lab(tmp_path: Path) -> HoldingSite:
    return HoldingSite("lab", tmp_path)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: HoldingSite) -> House:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    engine = make_store(tmp_path)
    Log.__table__.create(engine)  # in which it is said by which rule a job has less
    return House(engine, make_settings(tmp_path / "state"), [lab])


RUNNING, ATTEMPTED, QUEUED = State.RUNNING.value, State.ATTEMPTED.value, State.QUEUED.value


def test_members_start_together(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", "workers.1")
    house.to_come["workers", 2] = "coming"
    house.hindrances = (because("gang_pool", pool="small", there=3, slots=4),)
    house.tick(3)
    assert set(house.states().values()) == {QUEUED}
    assert lab.held == {}
    words = {told(job.reason) for job in house.jobs().values()}
    assert words == {
        ("waits: 3 of 4 members of gang 'ray' are queued; pool 'small' has 3 slots, but the members of the gang need 4")
    }
    house.queue("workers.2")
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    assert house.holds() == []
    assert lab.held == {}


def fill(house: House, lab: HoldingSite, cpus: float = 2) -> None:
    """Another job runs, which ends with ``lab.end("other-r")``."""
    house.queue("other", gang=None, cpus=cpus)
    del house.to_come["other", -1]
    house.tick(4)
    assert house.states()["other"] == RUNNING


def states_of_gang(house: House) -> set[str]:
    return {state for name, state in house.states().items() if name != "other"}


def test_a_gang_without_room_for_all_holds_nothing_and_sleeps(house: House, lab: HoldingSite) -> None:
    fill(house, lab)
    house.queue("head", "workers.0", "workers.1", "workers.2")
    house.tick(4)
    assert states_of_gang(house) == {ATTEMPTED}
    assert (house.holds(), lab.held, len(lab.dropped)) == ([], {}, 1)
    job = house.jobs()["head"]
    assert "attempt 1 of 5 found no room for gang 'ray' (lab: no room for 1 of 3 jobs of task 'workers')" in str(
        told(job.reason)
    )
    assert "UTC, or earlier: as soon as finished jobs leave room for all of it, or when somebody wakes it" in str(
        told(job.reason)
    )
    house.tick(3)
    assert states_of_gang(house) == {ATTEMPTED}, "nothing has ended"
    house.sleep(900)
    house.tick(3)
    assert "attempt 2 of 5 found no room" in str(told(house.jobs()["head"].reason))


def test_the_end_of_another_job_wakes_a_gang(house: House, lab: HoldingSite) -> None:
    fill(house, lab)
    house.queue("head", "workers.0", "workers.1", "workers.2")
    house.tick(4)
    assert states_of_gang(house) == {ATTEMPTED}
    [sleeping] = [each for each in house.gangs() if each.name == "ray"]
    lab.end("other-r")
    house.tick(6)
    assert states_of_gang(house) == {RUNNING}
    [started] = [each for each in house.gangs() if each.name == "ray"]
    assert (sleeping.attempt, started.attempt) == (1, 1), "what its end has started is no attempt of its own"


def test_an_end_that_leaves_too_little_wakes_nothing(house: House, lab: HoldingSite) -> None:
    fill(house, lab, cpus=4)
    house.queue("small", gang=None, cpus=1)
    del house.to_come["small", -1]
    house.tick(4)
    house.queue("head", "workers.0", cpus=4)
    house.tick(4)
    lab.end("other-r")
    house.tick(4)
    assert house.states()["head"] == ATTEMPTED


@pytest.mark.parametrize("lies", ["refused", None])
def test_a_gang_that_was_refused_is_tried_again_after_each_minute(
    house: House, lab: HoldingSite, lies: str | None
) -> None:
    lab.lies = "refused"
    house.queue("head", "workers.0")
    house.tick(12)
    asked = len(told(lab.refused))
    assert (set(house.states().values()), asked) == ({ATTEMPTED}, 1)
    assert "when jobs that end" not in str(told(house.jobs()["head"].reason))
    lab.lies = lies
    for _ in range(3):  # minutes
        house.sleep(60)
        house.tick(6)
    assert set(house.states().values()) == ({RUNNING} if lies is None else {ATTEMPTED})
    assert len(told(lab.refused)) == (1 if lies is None else 4), "there is one look after each minute"


def test_a_gang_that_asks_for_more_than_its_site_can_ever_give_fails_at_once(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", "workers.1", "workers.2", "workers.3")
    house.tick(3)
    assert set(house.states().values()) == {State.FAILED.value}
    assert told(house.jobs()["head"].reason) == (
        "gang 'ray' can never start together: its 5 jobs request 10 cpus in total, and site 'lab' can never "
        "provide more than 8 cpus; request less, or name a site that has more"
    )
    assert house.jobs()["head"].unreported


def test_members_of_which_too_few_go_on_each_machine_fail_at_once(house: House, lab: HoldingSite) -> None:
    lab.there["m3"] = Location("lab-m3", Resources(2, 4096), site="lab")
    lab._see()
    house.queue("workers.0", "workers.1", "workers.2", cpus=3)
    house.tick(3)
    [words] = {told(job.reason) for job in house.jobs().values()}
    assert words == (
        "gang 'ray' can never start together: the 3 jobs of task 'workers' request 9 cpus, 300 MiB memory in total "
        "(3 cpus, 100 MiB memory each), and site 'lab' can never hold more than 2 of them: lab has 2 × 4 cpus, 4 "
        "GiB memory; request less, or name a site that has more"
    )


def test_what_a_site_can_ever_give_is_not_known_before_it_has_answered(house: House, lab: HoldingSite) -> None:
    lab.trouble = "it is away"
    house.queue("head", "workers.0", "workers.1", "workers.2", "workers.3")
    house.tick(3)
    assert State.FAILED.value not in house.states().values()


@pytest.mark.parametrize(("count", "state"), [(2, RUNNING), (3, State.FAILED.value)])
def test_members_of_a_gang_that_is_spread_share_no_location(
    house: House, lab: HoldingSite, count: int, state: str
) -> None:
    house.queue("head", *(f"workers.{number}" for number in range(count - 1)), cpus=1, spread=True)
    house.tick(6)
    assert set(house.states().values()) == {state}
    assert len(set(lab.at.values())) == len(lab.at)
    if state != RUNNING:
        assert "its 3 jobs need a location each (spread), and site 'lab' can never provide more than 2" in str(
            told(house.jobs()["head"].reason)
        )


def test_it_is_woken_by_hand(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=3)
    lab.lies = "refused"
    house.tick(3)
    assert set(house.states().values()) == {ATTEMPTED}
    lab.lies = None
    with Session(house.engine) as session:
        assert rows.wake(session, "d", name="other") == 0
        assert rows.wake(session, "d", "r", "ray") == 1
        session.commit()
    house.tick(5)
    assert set(house.states().values()) == {RUNNING}


def test_the_page_asks_for_an_attempt(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0")
    lab.lies = "refused"
    house.tick(3)
    with Session(house.engine) as session:
        with pytest.raises(LookupError, match="job 'nobody' is not sleeping; valid: the id of a job that sleeps"):
            request_rows.ask(session, RequestKind.WAKE, "nobody", "somebody")
        request_rows.ask(session, RequestKind.WAKE, "workers0-r", "somebody")
        session.commit()
    lab.lies = None
    house.controller.requests.next_look = 0.0
    house.tick(5)
    assert set(house.states().values()) == {RUNNING}
    with Session(house.engine) as session:
        [done] = request_rows.latest(session, 0.0, 10)
        assert done.outcome == "it searches for room now"


def test_after_the_last_attempt_it_fails(house: House, lab: HoldingSite) -> None:
    lab.lies = "refused"
    house.queue("head", "workers.0", attempts=AttemptSchedule((60,), 2))
    house.tick(2)
    house.sleep(60)
    house.tick(2)
    assert set(house.states().values()) == {State.FAILED.value}
    assert "no room was found, tried 2 times" in str(told(house.jobs()["head"].reason))
    assert house.jobs()["head"].unreported
    house.tick(1)
    assert house.gangs() == []


def test_a_site_says_how_often_it_is_tried_where_the_hints_do_not(house: House, lab: HoldingSite) -> None:
    lab.config = SiteConfig(kind="fake", accept_untargeted=True, attempts={"pauses": ["90s"], "count": 3})  # type: ignore[arg-type]
    lab.lies = "refused"
    house.queue("head", "workers.0")
    house.queue("own", gang=None, attempts=AttemptSchedule(count=2))
    del house.to_come["own", -1]
    house.tick(2)
    reasons = {name: str(told(job.reason)) for name, job in house.jobs().items()}
    assert "attempt 1 of 3" in reasons["head"]
    assert "attempt 1 of 2" in reasons["own"]


def test_partial_starts_what_has_room_and_tries_the_others_alone(house: House, lab: HoldingSite) -> None:
    house.queue("a", "b", "c", cpus=4, partial=True)
    house.tick(6)
    assert house.states() == {"a": RUNNING, "b": RUNNING, "c": ATTEMPTED}
    lab.end("a-r")
    house.sleep(900)
    house.tick(6)
    assert house.states()["c"] == RUNNING


def test_partial_starts_those_members_of_a_mapped_task_that_have_room(house: House, lab: HoldingSite) -> None:
    house.queue("work.0", "work.1", "work.2", "work.3", cpus=4, partial=True)
    house.tick(6)
    assert [*house.states().values()] == [RUNNING, RUNNING, ATTEMPTED, ATTEMPTED]
    assert "no room for the job of task 'work[2]'" in str(told(house.jobs()["work2"].reason))
    lab.end("work0-r")
    house.tick(6)
    lab.end("work1-r")
    house.sleep(900)
    house.tick(6)
    states = house.states()
    assert (states["work2"], states["work3"]) == (RUNNING, RUNNING)


@pytest.mark.parametrize(
    ("site", "words"),
    [
        ("nowhere", "there is no site 'nowhere'; the sites are: lab"),
        ("batch", "site 'batch' cannot hold room for a gang; valid: sites with machines, and batch sites with mode"),
    ],
)
def test_a_site_where_no_gang_can_be_is_named(
    tmp_path: Path, house: House, lab: HoldingSite, site: str, words: str
) -> None:
    house.sites = [lab, FakeSite("batch", tmp_path)]
    house.begin()
    house.queue("head", "workers.0", sites=("lab", site))
    house.tick(2)
    assert words in str(told(house.jobs()["head"].reason))


def test_a_job_with_attempts_is_a_gang_of_one(house: House, lab: HoldingSite) -> None:
    house.queue("big", gang=None, cpus=4, attempts=AttemptSchedule())
    house.queue("bigger", gang=None, cpus=5, attempts=AttemptSchedule())
    house.tick(5)
    house.queue("other", gang=None, cpus=4, attempts=AttemptSchedule())
    house.queue("waits", gang=None, cpus=4, attempts=AttemptSchedule())
    house.tick(5)
    assert house.states() == {"big": RUNNING, "bigger": State.FAILED.value, "other": RUNNING, "waits": ATTEMPTED}
    assert "more than any site can ever give" in str(told(house.jobs()["bigger"].reason))


@pytest.mark.parametrize(("on_failure", "other"), [("cancel", "its cancellation"), ("leave", None)])
def test_a_member_that_fails_later(house: House, lab: HoldingSite, on_failure: str, other: str | None) -> None:
    house.queue("head", "workers.0", on_failure=on_failure)
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    house.to_come["workers", 0] = "failed"
    lab.end("workers0-r", "error")
    house.tick(3)
    words = house.jobs()["head"].cancel
    assert (words is not None) == (other is not None)
    if other is not None:
        assert "the job of task 'workers' in its gang 'ray' failed" in str(words)
        assert lab.cancelled == {"head-r": words}


def test_retries_of_all_start_together_again(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0")
    house.tick(6)
    lab.end("workers0-r", "error")
    house.tick(2)
    lab.end("head-r", "cancelled")
    house.tick(2)
    assert house.gangs() == []
    with Session(house.engine) as session:
        for job in session.scalars(select(JobRow)):
            job.token = f"old-{job.token}"
        session.commit()
    house.queue("head")
    house.tick(2)
    assert house.states()["head"] == QUEUED
    house.queue("workers.0")
    house.tick(6)
    assert {house.states()["head"], house.states()["workers0"]} == {RUNNING}


def test_a_member_that_was_deferred_comes_back_alone(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0")
    house.tick(6)
    house.to_come["workers", 0] = "deferred"
    lab.end("workers0-r")
    house.tick(2)
    with Session(house.engine) as session:
        session.scalars(select(JobRow).where(JobRow.token == "workers0-r")).one().token = "before-r"
        session.commit()
    house.queue("workers.0")
    house.tick(5)
    assert house.states() == {"before": State.SUCCEEDED.value, "head": RUNNING, "workers0": RUNNING}
    house.to_come["head", -1] = "failed"
    lab.end("head-r", "error")
    house.tick(2)
    assert "the job of task 'head' in its gang 'ray' failed" in str(house.jobs()["workers0"].cancel)


class Shop(FakeElasticSite, Holding):
    """A site that launches what a gang needs."""

    holds = True

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        """Nothing is up."""

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("is_late", [False, True])
def test_a_gang_waits_a_minute_for_a_site_that_does_not_say_yet_what_it_can_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, house: House, is_late: bool
) -> None:
    monkeypatch.setattr(tick.Tick, "seconds_until_answered", 0.0 if is_late else 600.0)
    shop = Shop("shop", tmp_path)
    market, shop.says = shop.says, None
    house.sites = [shop]
    house.begin()
    house.queue("head", "workers.0", cpus=4)
    house.tick(3)
    assert set(house.states().values()) == {ATTEMPTED if is_late else QUEUED}
    shop.says = market
    house.tick(3)
    assert bool(shop.ordered) is not is_late


@pytest.mark.parametrize("lies", ["refused", "silence"])
def test_a_site_that_lies_or_hangs_costs_the_gang_its_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, house: House, lab: HoldingSite, lies: str
) -> None:
    from lading.executors.store.gangs.tables import HoldRow

    def keep_silence() -> None:
        """Let time pass for what a site was asked for."""
        with Session(house.engine) as session:
            asked_at = HoldRow.created_at - 2 * tick.Tick.seconds_until_answered
            session.execute(update(HoldRow).values(created_at=asked_at))
            session.commit()

    other = HoldingSite("other", tmp_path)
    house.sites = [lab, other]
    house.begin()
    lab.lies = lies
    house.queue("head", "workers.0")
    house.tick(2)
    keep_silence()
    house.tick(3)
    keep_silence()
    house.tick(8)
    assert set(house.states().values()) == {RUNNING}
    assert (len(other.at), len(lab.at)) == (2, 0)
    assert house.holds() == []


def test_members_are_spread_over_sites_where_none_has_room_for_all(
    tmp_path: Path, house: House, lab: HoldingSite
) -> None:
    other = HoldingSite("other", tmp_path)
    house.sites = [lab, other]
    house.begin()
    house.queue(*(f"workers.{number}" for number in range(4)), cpus=4)
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    assert (len(lab.at), len(other.at)) == (2, 2)


def test_a_rule_lets_a_partition_have_less_where_no_place_has_all(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=6, soft=Soft({"cpus": 3.0}).as_text())
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    jobs = house.jobs()
    assert [(job.cpus, job.rule) for job in jobs.values()] == [(3.0, "less")] * 2
    assert "by rule 'less'" in str(jobs["head"].placed_because)
    assert (house.holds(), lab.held) == ([], {})


def test_other_jobs_get_nothing_of_what_is_held(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=4)
    lab.lies = "silence"
    house.tick(2)
    assert [row.state for row in house.holds()] == ["asked"]
    with Session(house.engine) as session:
        single = {"token": "single-r", "gang": None, "gang_terms": None, "task_id": "single", "queued_at": 1.0}
        values = {column.key: getattr(house.jobs()["head"], column.key) for column in JobRow.__table__.columns}
        store.add_job(session, **{**values, **single, "cpus": 3.0})
        store.add_job(session, **{**values, **single, "cpus": 3.0, "token": "another-r"})
        session.commit()
    house.tick(1)
    with Session(house.engine) as session:
        placed = session.scalars(
            select(JobRow.location).where(JobRow.gang.is_(None), JobRow.state != State.QUEUED)
        ).all()
    taken = house.holds()[0].location
    assert placed.count(taken) <= 1, "one may be prefetched to its location, and does not begin"
    assert len(set(placed) - {taken}) == 1


def test_room_that_is_lost_before_the_start_is_looked_for_again(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=4)
    house.tick(2)
    [first] = [token for token, hold in lab.held.items() if hold.job == "head-r"]
    del lab.held[first]
    lab.say("hold_lost", first, reason="nobody has asked for it again")
    house.tick(8)
    assert set(house.states().values()) == {RUNNING}
    assert (house.holds(), lab.held) == ([], {})


def test_another_controller_goes_on_wherever_the_first_one_was(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", "workers.1", "workers.2")
    for _ in range(8):
        house.begin()
        house.tick(1)
        at_work = {token for token, state in house.states().items() if state not in (QUEUED, ATTEMPTED)}
        assert len(at_work) in (0, 4), "never a part of it"
    house.tick(2)
    assert set(house.states().values()) == {RUNNING}
    assert (house.holds(), lab.held) == ([], {})


def test_a_member_that_is_not_wanted_any_more_gives_back_what_is_held(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=4)
    house.tick(2)
    assert lab.held
    with Session(house.engine) as session:
        for job in session.scalars(select(JobRow)):
            job.state = State.CANCELLED
        session.commit()
    house.tick(2)
    assert (house.holds(), lab.held, house.gangs()) == ([], {}, [])


def test_fifty_gangs_with_room_for_three_all_get_their_turn(house: House, lab: HoldingSite) -> None:
    lab.there = {f"m{number}": Location(f"lab-m{number}", Resources(4, 4096), site="lab") for number in range(3)}
    lab._see()
    attempts = AttemptSchedule((4,), 1000)
    for number in range(50):
        house.to_come = {}
        house.queue("head", "workers.0", run=f"r{number}", attempts=attempts)
    house.to_come = {}
    begun: set[str] = set()
    for _ in range(120):
        house.tick(1)
        for token, location in list(lab.at.items()):
            begun.add(token)
            assert location
        pairs = {token.rpartition("-")[2] for token in lab.at}
        for run in pairs:
            assert {f"head-{run}", f"workers0-{run}"} <= lab.at.keys(), "no half of a gang"
            for token in (f"head-{run}", f"workers0-{run}"):
                lab.end(token)
        house.sleep(1)
        if len(begun) == 100:
            break
    assert len(begun) == 100
    assert (house.holds(), lab.held) == ([], {})


def with_file(house: House, folder: Path, file: str) -> None:
    """A controller with these tables in its sites file."""
    path = folder / "sites.toml"
    path.write_text(f'[sites.lab]\nkind = "fake"\n{file}')
    house.settings = replace(house.settings, sites_file=path)
    house.begin()


def reasons(house: House) -> dict[str, str | None]:
    return {token: job.reason_code for token, job in house.jobs().items() if job.state == State.QUEUED}


def test_a_gang_waits_while_its_share_has_what_it_may_have(house: House, lab: HoldingSite, tmp_path: Path) -> None:
    with_file(house, tmp_path, '[[shares]]\ndag = "d"\ncpus = 4\nborrow = false\n')
    house.queue("a.0", "a.1", "b.0", gang="ray", cpus=2)
    house.tick(6)
    assert (set(house.states().values()), lab.held) == ({QUEUED}, {}), "it needs 6 of 4 cpus"
    assert {str(job.reason) for job in house.jobs().values()} == {
        "waits: its 3 jobs request 6 cpus, 300 MiB memory in total, more than their share can use at any one site "
        "now: share Dags d uses 0 of the 4 cpus reserved for it, and cannot use more (borrow = false)"
    }, "what it would have with some of them counts for nothing"
    [gang] = house.gangs()
    assert (gang.stage, gang.attempt) == ("gathering", 0), "which costs it no attempt"
    house.drop_jobs()
    house.to_come.clear()
    house.queue("c.0", "c.1", cpus=2, run="s")
    house.queue("c.0", "c.1", cpus=2, run="t")
    house.tick(6)
    assert sorted(lab.at) == ["c0-s", "c1-s"], "all that its share may have"
    said = {str(job.reason) for token, job in house.by_token().items() if token.endswith("-t")}
    assert len(said) == 1
    assert "its 2 jobs request 4 cpus" in (text := said.pop())
    assert "share Dags d uses 4 of the 4 cpus" in text
    for token in ("c0-s", "c1-s"):
        lab.end(token)
    house.tick(6)
    assert sorted(lab.at) == ["c0-t", "c1-t"]


def test_a_gang_that_its_share_may_have_at_several_sites_alone_is_told_so(
    house: House, lab: HoldingSite, tmp_path: Path
) -> None:
    house.sites.append(HoldingSite("other", tmp_path))
    path = tmp_path / "sites.toml"
    kept = "sites = {lab = {cpus = 4}, other = {cpus = 5}}"
    path.write_text(
        f'[sites.lab]\nkind = "fake"\n[sites.other]\nkind = "fake"\n[[shares]]\ndag = "d"\n{kept}\nborrow = false\n'
    )
    house.settings = replace(house.settings, sites_file=path)
    house.begin()
    house.queue("workers.0", "workers.1", "workers.2", cpus=2)
    house.tick(6)
    assert (set(house.states().values()), lab.held) == ({QUEUED}, {})
    assert {str(job.reason) for job in house.jobs().values()} == {
        "waits: its 3 jobs request 6 cpus, 300 MiB memory in total, more than their share can use at any one site "
        "now: site 'lab': share Dags d uses 0 of the 4 cpus reserved for it, and cannot use more "
        "(borrow = false); site 'other': "
        "share Dags d uses 0 of the 5 cpus reserved for it, and cannot use more (borrow = false)"
    }


def test_a_gang_whose_cpu_hours_are_used_waits_for_its_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, house: House, lab: HoldingSite
) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[sites.lab]\nkind = "fake"\n[[budgets]]\ndag = "d"\ncpu_hours = 1\n')
    house.settings = replace(house.settings, sites_file=path)
    house.begin()
    house.queue("head", "workers.0")
    house.queue("used", gang=None)
    del house.to_come["used", -1]
    spent = {"state": State.SUCCEEDED, "started_at": time.time() - 3600, "ended_at": time.time()}
    with Session(house.engine) as session:
        session.execute(update(JobRow).where(JobRow.token == "used-r").values(**spent))
        session.commit()
    house.tick(4)
    jobs = house.jobs()
    assert {jobs[name].state for name in ("head", "workers0")} == {QUEUED}
    assert {jobs[name].reason_code for name in ("head", "workers0")} == {"budget_spent_cpu_hours"}
    assert lab.held == {}
    with Session(house.engine) as session:
        request_rows.ask(session, RequestKind.LIFT, "Dags d", "ann")
        session.commit()
    house.controller.requests.next_look = 0.0
    house.tick(6)
    assert {house.states()[name] for name in ("head", "workers0")} == {RUNNING}
