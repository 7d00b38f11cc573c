"""Shares and budgets where machines are bought: what is launched for whom, on a clock that is moved."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import request_rows, store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.request_rows import RequestKind
from lading.executors.store import JobRow, State
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from tests.clusters.bought import BoughtSite, Clock
from tests.clusters.sites import StoreHost, make_settings, make_store, rest
from tests.services.at_once import AtOnce
from tests.services.packing import catalogue

TICK, BOOT, IDLE, HOUR = 10.0, 60.0, 60.0, 3600.0
MINUTES = 300.0
TYPES = catalogue(small=(2, 4096, 0.36))


class House:
    """A controller with one site of machines of two cpus, at 0.36 USD per hour."""

    def __init__(self, folder: Path, engine: Engine, file: str, policy: str, **limits: Any) -> None:
        self.engine, self.clock, self.lengths = engine, Clock(), dict[str, float]()
        market = MachineMarket(
            TYPES, policy=policy, idle_seconds=IDLE, boot_seconds=BOOT, limits=InstanceLimits(**limits)
        )
        self.site = BoughtSite(folder, market, self.clock, self.lengths, policy)
        path = folder / "sites.toml"
        path.write_text(f'[sites.cloud]\nkind = "bought"\n{file}')
        self.folder, self.path = folder, path

    def begin(self) -> None:
        settings = make_settings(self.folder, sites_file=self.path)
        self.made = Controller(
            StoreHost(self.engine), {"cloud": self.site}, lambda subject, seconds: "", settings, False, lambda _: None
        )
        self.made.durations.seconds_until_stale = self.made.placing.waits.seconds_until_stale = 0.0
        self.made.housekeeping.due = lambda *_: False  # type: ignore[method-assign]  # it asks Airflow's tables

    def queue(self, *names: str, seconds: float = 10 * HOUR, **columns: Any) -> None:
        """Jobs each of which takes a machine, of the team that their names begin with."""
        with Session(self.engine) as session:
            for name in names:
                self.lengths[name] = seconds
                known: dict[str, Any] = {
                    "kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 0,
                    "queued_at": self.clock.now, "cpus": 2.0, "memory": 512, "disk": 0, "gpus": 0.0,
                    "dag_id": f"dag_{name[0]}", "run_id": "run", "task_id": name, "map_index": int(name[1:]),
                    "team": name[0], "time_limit": seconds,
                }  # fmt: skip
                store.add_job(session, token=name, **{**known, **columns})
            session.commit()

    def run(self, seconds: float) -> None:
        until = self.clock.now + seconds
        while self.clock.now < until:
            self.clock.now += TICK
            self.site.advance()
            self.made.threads.request_observations()
            rest(self.made.threads)
            self.made.tick()
            rest(self.made.threads)

    def job(self, name: str) -> JobRow:
        with Session(self.engine, expire_on_commit=False) as session:
            return session.scalars(select(JobRow).where(JobRow.token == name)).one()

    def ask(self, kind: RequestKind, target: str) -> None:
        with Session(self.engine) as session:
            request_rows.ask(session, kind, target, "ann")
            session.commit()

    @property
    def plans(self) -> int:
        """How often was planned."""
        return self.made.site_plans.plans["cloud"].planner.plans

    @property
    def begun(self) -> set[str]:
        return set(self.site.diary.begun)


@pytest.fixture
def made(tmp_path: Path) -> Iterator[list[House]]:
    """Where a test puts its house, whose threads end with it."""
    houses: list[House] = []
    yield houses
    for each in houses:
        each.made.threads.end()
        each.made.site_plans.close()


def house(
    made: list[House], folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, policy: str = "forecast", **limits: Any
) -> House:
    engine = make_store(folder)
    found = House(folder, engine, file, policy, **limits)
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr(AirflowOrchestrator, "note", lambda self, session, notes: None)
    monkeypatch.setattr(time, "time", found.clock)
    monkeypatch.setattr(time, "monotonic", found.clock)
    monkeypatch.setattr(leadership, "seconds_ahead", lambda *_: 0.0)
    found.begin()
    found.made.site_plans.threads = AtOnce()  # however slow the machine is
    made.append(found)
    return found


def test_for_whose_usd_are_spent_nothing_more_is_launched_until_the_next_period_or_a_lift(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(made, tmp_path, monkeypatch, '[[budgets]]\nteam = "b"\nusd = 0.02\nper = "month"\n')
    here.queue("b0", seconds=MINUTES, task_id="t")
    here.run(MINUTES + 3 * BOOT + IDLE)
    assert here.job("b0").state == State.SUCCEEDED
    assert (here.begun, here.site.machines) == ({"b0"}, {}), "what ran went on to its end, for 0.03 USD"
    here.queue("b1", "b2", "a1", task_id="t")
    here.run(5 * BOOT)
    assert here.begun == {"b0", "a1"}
    assert len(here.site.diary.launches) == 2
    for name in ("b1", "b2"):
        reason = here.job(name).reason
        assert reason is not None
        assert reason.code == "budget_spent"
        assert "0.03 of the 0.02 USD of budget team b are spent: no more machines are launched until 1970-02-01" in str(
            reason
        )
        assert "airflow lading budgets --lift NAME" in reason.meaning.remedy
    here.ask(RequestKind.LIFT, "team b")
    here.run(5 * BOOT)
    assert here.begun == {"b0", "a1", "b1", "b2"}
    here.queue("b3")
    here.ask(RequestKind.RESTORE, "team b")
    here.run(5 * BOOT)
    assert "b3" not in here.begun, "it holds again"
    assert {"b1", "b2"} <= {token for each in here.site.machines.values() for token in each.ends}, "these go on"


def test_whose_usd_are_spent_may_use_what_is_there_and_paid_for(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(made, tmp_path, monkeypatch, '[[budgets]]\nteam = "b"\nusd = 0.02\nper = "month"\n')
    here.queue("b0", seconds=MINUTES)
    here.run(MINUTES)
    here.queue("b1", "a1")
    here.run(BOOT + 20 * TICK)
    assert here.job("b0").state == State.SUCCEEDED
    assert here.begun == {"b0", "a1", "b1"}
    assert len(here.site.diary.launches) == 2, "for b0 and for a1"


@pytest.mark.parametrize("policy", ["greedy", FORECAST])
@pytest.mark.parametrize("table", ["", '[[shares]]\nteam = "a"\n[[shares]]\nteam = "b"\n'])
def test_of_the_machines_that_there_may_be_each_share_has_its_part(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, table: str, policy: str
) -> None:
    here = house(made, tmp_path, monkeypatch, table, policy, instances=4)
    here.queue(*(f"a{n}" for n in range(8)))
    here.clock.now += 1
    here.queue(*(f"b{n}" for n in range(8)))
    here.run(10 * BOOT)
    assert len(here.site.diary.launches) == 4
    assert {name[0] for name in here.begun} == {"a", "b"}
    assert sum(name[0] == "a" for name in here.begun) == 2


def test_what_a_budget_does_not_pay_for_is_planned_once_and_launched_as_soon_as_it_does(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = house(made, tmp_path, monkeypatch, "", FORECAST)
    here.queue("b0", max_usd=0.04)
    here.run(2 * BOOT)
    here.queue("b1", "b2", max_usd=0.04)
    here.run(4 * BOOT)
    before = here.plans
    here.run(60 * TICK)
    assert (here.begun, here.plans) == ({"b0"}, before)
    reason = here.job("b1").reason
    assert reason is not None
    assert reason.code == "max_usd"
    with Session(here.engine) as session:
        session.execute(update(JobRow).values(max_usd=40.0))
        store.tell(session, session.scalars(select(JobRow.token)).all())
        session.commit()
    here.run(BOOT + 3 * TICK)
    assert here.begun == {"b0", "b1", "b2"}


def test_what_is_launched_for_others_is_not_for_those_for_which_no_budget_pays(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one is launched after the other until all of these have one."""
    here = house(made, tmp_path, monkeypatch, "", FORECAST)
    here.queue("b0", max_usd=0.04)
    here.run(2 * BOOT)
    here.queue("b1", "b2", "b3", max_usd=0.04)
    here.queue("c0")
    here.run(4 * BOOT)
    assert here.begun == {"b0", "c0"}
    assert len(here.site.diary.launches) == 2


def test_what_a_bound_of_its_share_holds_is_in_no_plan_until_there_is_room_for_it(
    made: list[House], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = '[[shares]]\nteam = "b"\ncpus = 2\nborrow = false\n[[shares]]\nteam = "a"\n'
    here = house(made, tmp_path, monkeypatch, table, FORECAST)
    here.queue("b0", seconds=MINUTES)
    here.queue("b1", "b2")
    here.queue("a0")
    here.run(3 * BOOT)
    before, launched = here.plans, len(here.site.diary.launches)
    assert here.begun == {"b0", "a0"}
    here.run(10 * TICK)
    assert (here.begun, here.plans, len(here.site.diary.launches)) == ({"b0", "a0"}, before, launched)
    here.run(MINUTES)
    assert here.begun == {"b0", "a0", "b1"}
    before = here.plans
    here.run(60 * TICK)
    assert here.plans <= before + 1, "what runs takes longer than was expected"
    assert len(here.site.machines) == 2
