"""A controller that buys by a forecast: real Dags in real tables, machines of paper, a clock that is moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from lading.scheduling.job import PlannedJob
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.plan import FORECAST
from lading.scheduling.resources import Resources
from lading.scheduling.simulation.trace import Arrival
from tests.clusters.workflow_runs import WorkflowRuns
from tests.services.packing import catalogue

GOODS = catalogue(small=(2, 4096, 0.36), large=(8, 16384, 1.44))
MARKET = MachineMarket(GOODS, policy=FORECAST, idle_seconds=120.0, boot_seconds=60.0)


def task(name: str, seconds: float, *parents: str, cpus: float = 2) -> Arrival:
    return Arrival(PlannedJob(name, Resources(cpus, 1024)), 0.0, seconds, parents)


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
