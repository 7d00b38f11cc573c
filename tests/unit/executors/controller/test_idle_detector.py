"""A lull: no job is there and no site says anything new, so few ticks look and decide."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import site_threads
from lading.executors.controller.controller import Controller
from lading.executors.decisions import Decision
from lading.executors.store import JobRow, State
from lading.plugin.host import AirflowHost
from tests.clusters.sites import FINISHED, FakeSite, make_settings, rest


class House:
    """A controller of one site in a lull that begins at once, if there is any."""

    def __init__(self, site: FakeSite, engine: Engine, folder: Path) -> None:
        self.site, self.engine = site, engine
        self.controller = Controller(
            AirflowHost(), {"a": site}, lambda *_: "jwt", make_settings(folder), False, lambda changes: None
        )
        self.decisions = 0
        decide = self.controller.decide

        def count(*of: Any) -> Decision:
            self.decisions += 1
            return decide(*of)

        self.controller.decide = count  # type: ignore[method-assign]

    def tick(self, count: int = 1) -> int:
        """How often is decided meanwhile."""
        before = self.decisions
        for _ in range(count):
            self.controller.tick()
            rest(self.controller.threads)
        return self.decisions - before

    def add(self, token: str) -> None:
        amounts = {"cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "priority": 0}
        what = {"kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "queued_at": time.time()}
        with Session(self.engine) as session:
            store.add_job(session, token=token, **amounts, **what)
            session.commit()

    def state(self, token: str) -> State:
        with Session(self.engine) as session:
            return State(session.query(JobRow).filter_by(token=token).one().state)


@pytest.fixture
def house(airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    made = House(FakeSite("a", tmp_path / "a", known=True), airflow_database, tmp_path)
    made.controller.idle_detector.seconds_until_lull = 0.0
    made.controller.idle_detector.seconds_between_decisions = 1000.0
    made.tick(5)
    yield made
    made.controller.leadership.leads_until = 0.0
    made.controller.threads.end()


def test_a_site_is_looked_at_now_and_then_alone(house: House) -> None:
    looks = house.site.looks
    assert house.tick(5) == 0
    assert house.site.looks == looks
    house.controller.idle_detector.seconds_between_decisions = 0.0
    assert house.tick(5) == 5


def test_a_tick_in_it_sends_one_statement(house: House) -> None:
    house.controller.housekeeping.next_round = house.controller.leadership.renew_at = math.inf
    sent: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        sent.append(statement)

    event.listen(house.engine, "before_cursor_execute", note)
    assert house.tick(5) == 0
    assert len(sent) == 5
    assert all(each.startswith("SELECT") for each in sent)


def test_it_does_not_begin_as_soon_as_nothing_happens(house: House) -> None:
    house.controller.idle_detector.seconds_until_lull = 1000.0
    assert house.tick(5) == 5


def test_a_job_ends_it_at_once_and_for_as_long_as_it_is_there(house: House) -> None:
    house.add("t")
    house.tick()
    assert house.state("t") in {State.PLACED, State.RUNNING}
    assert house.tick(5) == 5
    house.site.events = [FINISHED]
    house.tick(2)
    assert house.state("t") == State.FAILED
    house.tick(3)
    assert house.tick(5) == 0


def test_what_a_site_has_found_is_stored_at_once(house: House) -> None:
    assert house.tick(3) == 0
    with Session(house.engine) as session:
        house.add("t")
        session.execute(update(JobRow).values(state=State.RUNNING, site="a", location="here", placed_at=time.time()))
        session.commit()
    assert house.tick(3) == 0
    house.site.events = [FINISHED]
    house.controller.threads.request_observations()
    rest(house.controller.threads)
    house.tick()
    assert house.state("t") == State.FAILED


def test_a_site_that_cannot_be_asked_is_asked_as_often_as_ever(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    house.site.trouble = OSError("away")
    house.controller.threads.request_observations()
    rest(house.controller.threads)
    assert house.tick(5) == 5
    house.site.trouble = None
    house.tick(3)
    assert house.tick(5) == 0
