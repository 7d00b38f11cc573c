"""Gangs in the controller: real ticks over a store and sites that a test leads by the hand."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import controller, housekeeping, site_thread
from lading.executors.controller.controller import Controller
from lading.executors.controller.life import process
from lading.executors.gangs.roster import Roster, Wanted
from lading.executors.gangs.terms import Terms
from lading.executors.settings import Settings
from lading.executors.store import Job, State
from lading.executors.store.gangs import rows
from lading.executors.store.gangs.tables import GangRow, HoldRow
from lading.hooks.site import Holding, Seen, SiteConfig
from lading.hooks.spool.hold import Hold
from lading.hooks.spool.spool import Envelope
from lading.scheduling.gangs.attempts import Attempts
from lading.scheduling.location import Location
from lading.scheduling.resources import Resources
from tests.clusters.sites import FakeSite, make_settings, make_store, rest


class HoldingSite(FakeSite, Holding):
    """A fake site with two machines of four cpus that holds room.

    :param lies: what it answers to holds: the truth, ``refused``, or nothing
    """

    holds = True

    def __init__(self, name: str, folder: Path, machines: Sequence[str] = ("m1", "m2"), cpus: float = 4) -> None:
        super().__init__(name, folder, known=True)
        self.config = SiteConfig(kind="fake", takes_unnamed=True)
        self.there = {each: Location(f"{name}-{each}", Resources(cpus, 4096), site=name) for each in machines}
        self.lies: str | None = None
        self.held: dict[str, Hold] = {}
        self.dropped: list[str] = []
        self.at: dict[str, str] = {}
        self._see()

    def _see(self) -> None:
        self.locations = [
            Seen(each, known=frozenset(token for token, where in self.at.items() if where == each.name))
            for each in self.there.values()
        ]

    def potential(self) -> list[Location]:
        return list(self.there.values())

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        self._perhaps_hang("hold")
        for hold in (each for here in holds.values() for each in here):
            if self.lies == "silence" or hold.token in self.held:
                continue
            if self.lies == "refused":
                self.say("refused", hold.token, reason="the machine is full")
            else:
                self.held[hold.token] = hold
                self.say("held", hold.token)

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        for token in (each for here in tokens.values() for each in here):
            self.held.pop(token, None)
            self.dropped.append(token)

    def say(self, event: str, token: str, **more: Any) -> None:
        self.events.append({"event": event, "token": token, "at": time.time(), **more})

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        self._perhaps_hang("put")
        for location, here in envelopes.items():
            for each in here:
                self.at[each.token] = location
                self.held = {token: hold for token, hold in self.held.items() if hold.job != each.token}
                self.say("started", each.token)
        self._see()

    def end(self, token: str, cause: str | None = None) -> None:
        """Let a job end."""
        del self.at[token]
        self._see()
        end = {"exit_code": None, "message": None, "peak_memory": None, "cpu_seconds": None}
        self.say("finished", token, cause=cause, **end)


@dataclass
class House:
    """A controller with its sites and its store, a clock, and what Airflow knows of gangs."""

    engine: Engine
    settings: Settings
    sites: Sequence[HoldingSite]
    monkeypatch: pytest.MonkeyPatch
    to_come: dict[tuple[str, int], str] = field(default_factory=dict)
    ahead: float = 0.0
    hindrance: str = ""

    def __post_init__(self) -> None:
        self.settings.state_folder.mkdir(exist_ok=True)
        self.begin()

    def begin(self) -> None:
        """A controller, another one after the last."""
        by_name = {site.name: site for site in self.sites}
        self.controller = Controller(by_name, lambda subject, seconds: "", self.settings, True, lambda _: None)

        def read_roster(_: Session, wanted: Mapping[str, Wanted]) -> dict[str, Roster]:
            coming, failed = (
                frozenset(key for key, its_own in self.to_come.items() if its_own == state)
                for state in ("coming", "failed")
            )
            return dict.fromkeys(wanted, Roster(coming, failed, self.hindrance))

        self.controller.gangs.read_roster = read_roster

    def tick(self, times: int = 1) -> None:
        """Whole turns of the controller, with the answers of the sites."""
        for _ in range(times):
            here = self.controller
            here.leadership.leads_until = time.monotonic() + 20
            rest(here.threads)
            here.threads.look()
            rest(here.threads)
            seen = here.observe()
            any_wait = here.any_wait()
            decision = here.decide(seen, any_wait)
            here.record(decision, any_wait, time.time())
            here.act(decision)
            rest(here.threads)

    def sleep(self, seconds: float) -> None:
        """Let time pass for gangs."""
        with Session(self.engine) as session:
            for row in session.scalars(select(GangRow)):
                row.wake_at = None if row.wake_at is None else row.wake_at - seconds
            session.commit()

    def queue(self, *tasks: str, gang: str | None = "ray", cpus: float = 2, run: str = "r", **terms: Any) -> None:
        """Let Airflow queue members; those with an index are mapped (``workers.3``)."""
        known = dict.fromkeys((task.partition(".")[0] for task in [*tasks, *(key for key, _ in self.to_come)]), ())
        made = Terms(gang, tasks=known, **terms)
        for number, name in enumerate(tasks):
            task, _, index = name.partition(".")
            key = task, int(index or -1)
            self.to_come[key] = "coming"
            with Session(self.engine) as session:
                store.add_job(
                    session,
                    token=f"{name.replace('.', '')}-{run}",
                    kind="ExecuteTask",
                    subject="s",
                    workload="{}",
                    dag_id="d",
                    run_id=run,
                    task_id=task,
                    map_index=key[1],
                    try_number=1,
                    priority=1,
                    queued_at=1000.0 + number,
                    unreported=False,
                    news=0,
                    state=State.QUEUED,
                    cpus=cpus,
                    memory=100,
                    disk=0,
                    gpus=0.0,
                    gang=f"gang-{gang or name}-{run}",
                    gang_terms=made.to_json(),
                )
                session.commit()

    def jobs(self) -> dict[str, Job]:
        with Session(self.engine) as session:
            found = {each.token.rpartition("-")[0]: each for each in session.scalars(select(Job))}
            session.expunge_all()
            return found

    def states(self) -> dict[str, str]:
        return {token: str(job.state) for token, job in sorted(self.jobs().items())}

    def gangs(self) -> list[GangRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(GangRow).order_by(GangRow.token)))

    def holds(self) -> list[HoldRow]:
        with Session(self.engine) as session:
            return list(session.scalars(select(HoldRow)))


@pytest.fixture
def lab(tmp_path: Path) -> HoldingSite:
    return HoldingSite("lab", tmp_path)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: HoldingSite) -> House:
    monkeypatch.setattr(site_thread, "SECONDS_AFTER_TROUBLE", 0.0)
    engine = make_store(tmp_path, monkeypatch, controller, process, housekeeping)
    return House(engine, make_settings(tmp_path / "state"), [lab], monkeypatch)


RUNNING, ATTEMPTED, QUEUED = State.RUNNING.value, State.ATTEMPTED.value, State.QUEUED.value


def test_members_start_together(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", "workers.1")
    house.to_come["workers", 2] = "coming"
    house.hindrance = "its pool 'small' has 3 slots, and all of them take 4"
    house.tick(3)
    assert set(house.states().values()) == {QUEUED}
    assert lab.held == {}
    words = {job.reason for job in house.jobs().values()}
    assert words == {f"waits: 3 of 4 members of gang 'ray' are queued; {house.hindrance}"}
    house.queue("workers.2")
    house.tick(6)
    assert set(house.states().values()) == {RUNNING}
    assert house.holds() == []
    assert lab.held == {}


def test_a_gang_without_room_for_all_holds_nothing_and_sleeps(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", "workers.1", "workers.2", "workers.3")
    house.tick(4)
    assert set(house.states().values()) == {ATTEMPTED}
    assert (house.holds(), lab.held, len(lab.dropped)) == ([], {}, 1)
    job = house.jobs()["head"]
    assert "attempt 1 of 5 has found no room for gang 'ray' (lab: no room for 1 of 4 jobs of task 'workers')" in str(
        job.reason
    )
    lab.there["m3"] = Location("lab-m3", Resources(4, 4096), site="lab")
    lab._see()
    house.tick(3)
    assert set(house.states().values()) == {ATTEMPTED}, "it is woken by its clock alone"
    house.sleep(900)
    house.tick(5)
    assert set(house.states().values()) == {RUNNING}


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


def test_after_the_last_attempt_it_fails(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", attempts=Attempts((60,), 2), cpus=5)
    house.tick(2)
    house.sleep(60)
    house.tick(2)
    assert set(house.states().values()) == {State.FAILED.value}
    assert "no room was found, tried 2 times" in str(house.jobs()["head"].reason)
    assert house.jobs()["head"].unreported
    house.tick(1)
    assert house.gangs() == []


def test_partial_starts_what_has_room_and_tries_the_others_alone(house: House, lab: HoldingSite) -> None:
    house.queue("a", "b", "c", cpus=4, partial=True)
    house.tick(6)
    assert house.states() == {"a": RUNNING, "b": RUNNING, "c": ATTEMPTED}
    lab.end("a-r")
    house.sleep(900)
    house.tick(6)
    assert house.states()["c"] == RUNNING


def test_a_job_with_attempts_is_a_gang_of_one(house: House, lab: HoldingSite) -> None:
    house.queue("big", gang=None, cpus=4, attempts=Attempts())
    house.queue("bigger", gang=None, cpus=5, attempts=Attempts())
    house.tick(5)
    assert house.states() == {"big": RUNNING, "bigger": ATTEMPTED}


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
        assert "the job of task 'workers' has failed" in str(words)
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
        for job in session.scalars(select(Job)):
            job.token = f"old-{job.token}"
        session.commit()
    house.queue("head")
    house.tick(2)
    assert house.states()["head"] == QUEUED
    house.queue("workers.0")
    house.tick(6)
    assert {house.states()["head"], house.states()["workers0"]} == {RUNNING}


@pytest.mark.parametrize("lies", ["refused", "silence"])
def test_a_site_that_lies_or_hangs_costs_the_gang_its_time_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, house: House, lab: HoldingSite, lies: str
) -> None:
    from lading.executors.gangs import turn

    monkeypatch.setattr(turn, "SECONDS_UNTIL_ANSWERED", 0.2)
    other = HoldingSite("other", tmp_path)
    house.sites = [lab, other]
    house.begin()
    lab.lies = lies
    house.queue("head", "workers.0")
    house.tick(2)
    time.sleep(0.3)
    house.tick(3)
    time.sleep(0.3)
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


def test_other_jobs_get_nothing_of_what_is_held(house: House, lab: HoldingSite) -> None:
    house.queue("head", "workers.0", cpus=4)
    lab.lies = "silence"
    house.tick(2)
    assert [row.state for row in house.holds()] == ["asked"]
    with Session(house.engine) as session:
        single = {"token": "single-r", "gang": None, "gang_terms": None, "task_id": "single", "queued_at": 1.0}
        values = {column.name: getattr(house.jobs()["head"], column.name) for column in Job.__table__.columns}
        store.add_job(session, **{**values, **single, "cpus": 3.0})
        store.add_job(session, **{**values, **single, "cpus": 3.0, "token": "another-r"})
        session.commit()
    house.tick(1)
    with Session(house.engine) as session:
        placed = session.scalars(select(Job.location).where(Job.gang.is_(None), Job.state != State.QUEUED)).all()
    taken = house.holds()[0].location
    assert placed.count(taken) <= 1, "the store of its location may take one, which does not begin"
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
        for job in session.scalars(select(Job)):
            job.state = State.CANCELLED
        session.commit()
    house.tick(2)
    assert (house.holds(), lab.held, house.gangs()) == ([], {}, [])


def test_fifty_gangs_with_room_for_three_all_get_their_turn(house: House, lab: HoldingSite) -> None:
    lab.there = {f"m{number}": Location(f"lab-m{number}", Resources(4, 4096), site="lab") for number in range(3)}
    lab._see()
    attempts = Attempts((1,), 1000)
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
