"""A controller that buys by a forecast: real Dags in real tables, machines of paper, a clock that is moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import FORECAST
from lading.scheduling.model.resources import Resources
from tests.clusters.workflow_runs import WorkflowRuns
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
MARKET = MachineMarket(GOODS, policy=FORECAST, idle_seconds=120.0, boot_seconds=60.0)


def task(name: str, seconds: float, *parents: str, time: float | None = None, cpus: float = 2) -> Arrival:
    return Arrival(PlannedJob(name, Resources(cpus, 1024), time=time), 0.0, seconds, parents)


def test_a_chain_has_one_machine_for_its_time_alone(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = [task("a", 100), task("b", 50, "a"), task("c", 25, "b")]
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {"d": chain}, MARKET, tmp_path, patch)
        first = house.run([(0.0, "d", "r1")])
        second = house.run([(0.0, "d", "r2")])
        house.close()
    assert second.launches == 1
    assert second.seconds == pytest.approx(60 + 175, abs=5)
    assert second.usd == pytest.approx((60 + 175) * 0.0001, rel=0.05)
    assert first.launches >= 1


def test_a_second_run_is_cheaper_for_lengths_are_known(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time each of the three that follow is expected to be long, so that they do not share a machine; the
    second time they do."""
    some = [task(f"m{number}", 5, "a", time=1800.0) for number in range(3)]
    wide = [task("a", 400, time=1800.0), *some]
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {"d": wide}, MARKET, tmp_path, patch)
        first, second = house.run([(0.0, "d", "r1")]), house.run([(0.0, "d", "r2")])
        house.close()
    assert second.usd < 0.9 * first.usd
    assert second.launches < first.launches
    conditions, lengths = Conditions(boot_seconds=60.0, tick_seconds=0.1), expected_lengths(wide, "known")
    paper = simulate(wide, GOODS, policy=FORECAST, conditions=conditions, lengths=lengths)
    assert second.usd == pytest.approx(paper.cost, rel=0.05), "as the simulator has it"
    assert second.seconds == pytest.approx(paper.makespan, rel=0.05)
    assert second.launches == paper.launches


def test_jobs_without_a_dag_have_machines_too(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {"d": [task("a", 30)]}, MARKET, tmp_path, patch)
        house.add_alone("x", Resources(2, 1024), 40.0)
        found = house.run([(0.0, "d", "r1")])
        house.close()
    assert house.site.diary.begun.keys() >= {"x"}
    assert found.launches in (1, 2)


def test_what_is_prefetched_takes_no_room_of_what_comes_a_moment_later(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps of the chain its cpu is free for a moment, in which the agent could begin another job."""
    chain = [task("a", 60, cpus=1), task("b", 60, "a", cpus=1), task("c", 60, "b", cpus=1)]
    others = [task(f"o{number}", 20, cpus=1) for number in range(8)]
    short = [task(f"s{number}", 0.2, cpus=1) for number in range(12)]
    wide = [*chain, *others, *short]
    with monkeypatch.context() as patch:
        house = WorkflowRuns(airflow_database, {"d": wide}, MARKET, tmp_path, patch, lag=0.5, latency=0.5)
        house.run([(0.0, "d", "r1")])
        second = house.run([(0.0, "d", "r2")])
        house.close()
    conditions, lengths = Conditions(60.0, 0.5, 0.5, tick_seconds=0.1), expected_lengths(wide, "known")
    paper = simulate(wide, GOODS, policy=FORECAST, conditions=conditions, lengths=lengths)
    assert second.usd == pytest.approx(paper.cost, rel=0.05), "as the simulator has it, which prefetches nothing"
    assert second.seconds == pytest.approx(paper.makespan, rel=0.05)
