"""Times of other clocks, by ours."""

from __future__ import annotations

import math
import time

import pytest

from lading.hooks.polling.outside_clock import SAME_TIME, between, by_our_clock, least_ahead, seconds_ahead, to_epoch
from tests.services.outside_clocks import off

NOW = 1_000_000.0


@off
def test_how_far_a_clock_is_ahead_is_measured_by_its_answer(ahead: float) -> None:
    assert seconds_ahead(NOW + 1 + ahead, NOW, NOW + 2) == ahead
    assert seconds_ahead(NOW + ahead + SAME_TIME, NOW, NOW, ahead) == ahead, "what is known stays while it fits"
    assert seconds_ahead(NOW + 1.5, NOW, NOW + 1) == 0.0, "they agree"
    assert seconds_ahead(NOW + 15, NOW, NOW + 30) == 0.0, "an answer that took long"


@off
def test_an_event_between_two_looks_is_brought_between_them(ahead: float) -> None:
    event = {"event": "finished", "at": NOW + ahead, "started_at": NOW + ahead - 40}
    found = between(event, NOW - 2, NOW + 1)
    assert NOW - 2 <= found["at"] <= NOW + 1
    assert found["at"] - found["started_at"] == pytest.approx(40)
    assert by_our_clock(event, ahead)["at"] == NOW


def test_what_fits_stays() -> None:
    for event in ({"at": NOW}, {"at": NOW, "started_at": None}, {"event": "waiting"}):
        assert between(event, NOW - 1, NOW) == event
    assert between({"at": NOW - 1800}, -math.inf, NOW) == {"at": NOW - 1800}
    assert least_ahead(NOW, NOW - 1, NOW + 1) == 0


def test_a_moment_is_reported_by_how_long_ago_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)
    monkeypatch.setattr(time, "monotonic", lambda: 50.0)
    assert (to_epoch(40.0), to_epoch(None)) == (NOW - 10, -math.inf)
