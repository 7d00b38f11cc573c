"""Gangs where what they need is launched: real ticks over a store, and allocations that are driven by a test."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import pytest
from airflow.models.log import Log
from sqlalchemy import update
from sqlalchemy.orm import Session

from lading.executors import request_rows
from lading.executors.controller import site_threads
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.request_rows import RequestKind
from lading.executors.store import JobRow, State
from lading.hooks.site import Holding
from lading.hooks.spool.hold import Hold
from lading.scheduling.hints.gang_hints import AttemptSchedule
from lading.scheduling.model.reasons import because
from tests.clusters.gangs import House
from tests.clusters.sites import FakeElasticSite, make_settings, make_store


class Cluster(FakeElasticSite, Holding):
    """Allocations of 4 cpus that hold room."""

    holds = True

    def __init__(self, name: str, folder: Path, most: int = 4) -> None:
        super().__init__(name, folder, most)
        self.held: set[str] = set()

    def hold(self, holds: Mapping[str, Sequence[Hold]]) -> None:
        for hold in (each for here in holds.values() for each in here if each.token not in self.held):
            self.held.add(hold.token)
            self.tell("held", hold.token, at=time.time())

    def drop(self, tokens: Mapping[str, Collection[str]]) -> None:
        self.held -= {each for here in tokens.values() for each in here}


@pytest.fixture
def hpc(tmp_path: Path) -> Cluster:
    return Cluster("hpc", tmp_path)


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hpc: Cluster) -> House:
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.0)
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    engine = make_store(tmp_path)
    Log.__table__.create(engine)
    return House(engine, make_settings(tmp_path / "state"), [hpc])


def begin(hpc: Cluster) -> None:
    """All that was ordered is up."""
    for name in list(hpc.there):
        hpc.see(name)


def places(house: House) -> dict[str, str]:
    return {name: str(job.location) for name, job in house.jobs().items()}


@pytest.mark.parametrize(("spread", "machines"), [(False, 1), (True, 3)])
def test_members_that_are_spread_get_an_allocation_each(
    house: House, hpc: Cluster, *, spread: bool, machines: int
) -> None:
    house.queue("head", "workers.0", "workers.1", cpus=1, spread=spread)
    for _ in range(8):
        house.tick(3)
        begin(hpc)
    assert set(house.states().values()) == {State.RUNNING.value}
    assert (len(hpc.ordered), len(set(places(house).values()))) == (machines, machines)


def test_what_has_a_part_of_the_room_is_no_reason_to_launch_too_little(house: House, hpc: Cluster) -> None:
    hpc.see("there")
    house.queue("workers.0", "workers.1", "workers.2", cpus=2)
    for _ in range(6):
        house.tick(3)
        begin(hpc)
    assert set(house.states().values()) == {State.RUNNING.value}
    assert len(hpc.ordered) == 1


@pytest.mark.parametrize("end", ["cancelled", "timeout"])
def test_what_waits_in_its_queue_for_a_gang_that_is_dropped_is_cancelled_at_once(
    house: House, hpc: Cluster, end: str
) -> None:
    house.queue("head", "workers.0", cpus=4, attempts=AttemptSchedule(timeout=10_000))
    house.tick(4)
    first = {order.name for order in hpc.ordered}
    assert first
    assert hpc.let_go == {}
    if end == "cancelled":
        house.drop_jobs()
    else:
        house.let_time_out()
    house.tick(3)
    assert {*hpc.let_go} == first
    assert set(hpc.let_go.values()) == {because("gang_gone")}


def test_for_a_gang_whose_usd_are_spent_nothing_is_launched_until_the_budget_is_lifted(
    house: House, hpc: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(AirflowOrchestrator, "note", lambda self, session, notes: None)
    path = tmp_path / "sites.toml"
    path.write_text('[sites.hpc]\nkind = "fake"\n[[budgets]]\nname = "d"\ndag = "d"\nusd = 1\n')
    house.settings = make_settings(house.settings.state_folder, sites_file=path)
    house.begin()
    house.queue("old", gang=None, run="before")
    house.to_come.clear()
    with Session(house.engine) as session:
        ended = {"state": State.SUCCEEDED, "started_at": time.time() - 9, "ended_at": time.time(), "usd": 5.0}
        session.execute(update(JobRow).values(**ended, gang=None))
        session.commit()
    house.queue("workers.0", "workers.1", cpus=2)
    for _ in range(3):
        house.tick(2)
        begin(hpc)
    waiting = [job for job in house.by_token().values() if job.state == State.QUEUED]
    assert (hpc.ordered, {job.reason_code for job in waiting}) == ([], {"budget_spent"})
    with Session(house.engine) as session:
        request_rows.ask(session, RequestKind.LIFT, "d", "ann")
        session.commit()
    house.controller.requests.next_look = 0.0
    for _ in range(6):
        house.tick(3)
        begin(hpc)
    assert len(hpc.ordered) == 1
    assert sum(job.state == State.RUNNING for job in house.by_token().values()) == 2
