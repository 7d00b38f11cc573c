"""What the controller counts."""

from __future__ import annotations

from typing import Any

import pytest

from lading.executors.controller import metrics
from lading.executors.controller.metrics import Metrics
from lading.executors.store import Change, State


class Recorder:
    """Takes the place of Airflow's ``Stats``."""

    def __init__(self) -> None:
        self.told: list[tuple[str, float, dict[str, str]]] = []

    def incr(self, name: str, tags: dict[str, str] | None = None) -> None:
        self.told.append((name, 1, tags or {}))

    def timing(self, name: str, value: float, tags: dict[str, str]) -> None:
        self.told.append((name, value, tags))

    gauge = timing


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, dict[str, str]]]:
    recorder = Recorder()
    monkeypatch.setattr(metrics, "Stats", recorder)
    return recorder.told


def test_a_job_is_counted_once_when_it_starts_and_once_when_it_ends(told: list[Any]) -> None:
    ended = {"state": State.FAILED, "cause": "out_of_memory", "cpu_seconds": 1.5}
    for values in ({"state": State.PLACED}, {"reason": "waits"}, {"state": State.RUNNING}, ended):
        Metrics().count([Change("a", values)])
    tags = {"state": "failed", "cause": "out_of_memory"}
    assert told == [("lading.jobs.started", 1, {}), ("lading.jobs.ended", 1, tags), ("lading.jobs.cpu", 1500, tags)]


def test_the_gauge_goes_back_to_zero(told: list[Any]) -> None:
    gauges = Metrics()
    gauges.gauge({("local", "running"): 3})
    gauges.gauge({})
    tags = {"site": "local", "state": "running"}
    assert told == [("lading.jobs.live", 3, tags), ("lading.jobs.live", 0, tags)]
