"""How many jobs are prefetched to a location."""

from __future__ import annotations

import pytest

from lading.executors.controller import site_memory
from lading.executors.controller.site_memory import Throughput
from lading.executors.store import Change
from lading.scheduling.model.reasons import free_text


def test_as_many_as_have_ended_there_lately(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(site_memory.time, "monotonic", lambda: now)
    ends = Throughput(2.0)
    assert not ends.prefetchable()
    ends.note([("a", 7.0, 8.0), ("b", 7.0, 8.0), ("a", 8.0, 9.0)])
    now += 1.0
    ends.note([("b", 8.0, 9.0)])
    assert ends.prefetchable() == {"a": 2, "b": 2}
    now += 1.0 + 0.1
    assert ends.prefetchable() == {"b": 1}


@pytest.mark.parametrize(
    ("spans", "prefetchable"),
    [
        ([(0.0, 1.0)] * 8, 48),
        ([(0.0, 1.0)] * 8 + [(3.0, 4.0)] * 8, 48),
        ([(0.0, 4.0), (1.0, 2.0), (3.5, 5.0)], 4),
        ([(0.0, 4.0), (0.5, 4.5), (4.0, 8.0)], 3),
        ([(0.0, 0.1)], 1),
        ([(0.0, 0.1), (0.2, 0.3)], 4),
        ([(9.0, 9.0), (9.0, 8.0)], 2),
    ],
    ids=["a second of eight at once", "idle in between", "overlapping", "all the time", "one", "two", "no time at all"],
)
def test_a_location_that_ran_out_of_jobs_gets_what_it_could_have_run(
    spans: list[tuple[float, float]], prefetchable: int
) -> None:
    ends = Throughput(6.0)
    ends.note(("a", *span) for span in spans)
    assert ends.prefetchable() == {"a": prefetchable}


def test_only_short_jobs_that_have_just_ended_count() -> None:
    changes = [
        Change("short", {"started_at": 97.0, "ended_at": 99.0}),
        Change("long", {"started_at": 9.0, "ended_at": 99.0}),
        Change("old news", {"started_at": 9.0, "ended_at": 10.0}),
        Change("never began", {"started_at": None, "ended_at": 99.0}),
        Change("failed", {"started_at": 97.0, "ended_at": 99.0, "cause": "error"}),
        Change("began", {"started_at": 99.0}),
        Change("waits", {"reason": free_text("for room")}),
    ]
    assert site_memory.short(changes, 100.0) == {"short": (97.0, 99.0)}
