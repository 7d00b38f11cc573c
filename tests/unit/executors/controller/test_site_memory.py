"""How many jobs are prefetched to a location."""

from __future__ import annotations

import pytest

from lading.executors.controller import site_memory
from lading.executors.controller.site_memory import Throughput
from lading.executors.store import Change
from lading.scheduling.reasons import free_text


def test_as_many_as_have_ended_there_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(site_memory.time, "monotonic", lambda: now)
    ends = Throughput(2.0)
    assert not ends.prefetchable()
    ends.note(["a", "b", "a"])
    now += 1.0
    ends.note(["b"])
    assert ends.prefetchable() == {"a": 2, "b": 2}
    now += 1.0 + 0.1
    assert ends.prefetchable() == {"b": 1}


def test_only_short_jobs_that_have_just_ended_count() -> None:
    changes = [
        Change("short", {"started_at": 97.0, "ended_at": 99.0}),
        Change("long", {"started_at": 9.0, "ended_at": 99.0}),
        Change("old news", {"started_at": 9.0, "ended_at": 10.0}),
        Change("never began", {"started_at": None, "ended_at": 99.0}),
        Change("began", {"started_at": 99.0}),
        Change("waits", {"reason": free_text("for room")}),
    ]
    assert site_memory.short(changes, 100.0) == ["short"]
