"""A node agent on a spot machine that is taken away; its jobs are functions instead of Airflow tasks."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.scheduling.model.resources import Resources
from tests.services.agent import NodeAgent
from tests.services.ec2_imds import Metadata, serving

NAME = "i-0a1b2c3d"
MODULE = "lading.executors.agent.ending"
# Of jobs' time from the notice on, and of their machine's after that, seconds.
LEFT, BEFORE = 6.0, 12.0


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    NodeAgent.clean_up()


def test_a_machine_that_is_taken_away_starts_nothing_more_and_asks_its_jobs_to_end_in_time(tmp_path: Path) -> None:
    metadata = Metadata(lambda name: None)
    metadata.values[NAME] = {}
    node = NodeAgent(tmp_path)
    node.configure(capacity=Resources(4, 4096), kill_grace=60, is_spot=True)
    with serving(metadata) as url:
        constants = {"ENDPOINT": f"{url}/{NAME}", "INTERVAL": 0.1, "BEFORE": BEFORE, "TIME_TO_REPORT": BEFORE - 1}
        node.start(constants={f"{MODULE}.{name}": value for name, value in constants.items()})
        told = node.spool.ends_at
        node.put("short", "sleep", seconds=1.5)
        node.put("long", "sleep", seconds=600)
        node.put("deaf", "sleep_deaf", seconds=600, started=str(tmp_path / "started"))
        node.wait((tmp_path / "started").exists)
        for each in ("short", "long"):
            node.wait_for(each, "started")
        metadata.notices[NAME] = at = time.time() + LEFT + BEFORE
        node.wait(told.exists)
        assert float(told.read_text()) == pytest.approx(at - BEFORE, abs=1.5)  # both are whole seconds
        node.put("late", "succeed")

        assert node.wait_for("short")["cause"] is None
        long, deaf = node.wait_for("long"), node.wait_for("deaf")
        assert long["cause"] == deaf["cause"] == "preempted"
        assert "AWS reclaims the spot instance at" in str(long["reason"])
        assert at - BEFORE - 1.5 < long["at"] < at
        assert deaf["at"] < at, "there is time to report it"
        assert node.events_of("late", "started") == []
        assert node.spool.envelope("late").exists(), "the controller takes it back"
        assert node.stop() == 0
