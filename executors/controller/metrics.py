"""What Lading tells Airflow's metrics backend, as ``lading.*``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from airflow.providers.common.compat.sdk import Stats

from lading.executors.store import ENDED, Change, State


class Metrics:
    """Counters, gauges and timers of the controller. Ids go into tags, never into names."""

    def __init__(self) -> None:
        self.shown: set[tuple[str | None, str]] = set()

    @contextlib.contextmanager
    def tick(self) -> Iterator[None]:
        """Time one tick: ``lading.tick.duration``."""
        with Stats.timer("lading.tick.duration"):
            yield

    def count(self, changes: Iterable[Change]) -> None:
        """Count jobs that started or ended: ``lading.jobs.started``, ``lading.jobs.ended`` by state and cause."""
        for change in changes:
            state = change.values.get("state")
            if state in ENDED:
                tags = {"state": str(state.value), "cause": change.values.get("cause") or "none"}
                Stats.incr("lading.jobs.ended", tags=tags)
                if change.values.get("cpu_seconds") is not None:
                    Stats.timing("lading.jobs.cpu", change.values["cpu_seconds"] * 1000, tags=tags)
            elif state == State.RUNNING:
                Stats.incr("lading.jobs.started")

    def gauge(self, live: Mapping[tuple[str | None, str], int]) -> None:
        """Show the jobs that have not ended: ``lading.jobs.live`` by site and state."""
        self.shown |= live.keys()
        for site, state in self.shown:  # what is gone is 0: a gauge keeps its last value
            Stats.gauge("lading.jobs.live", live.get((site, state), 0), tags={"site": site or "none", "state": state})
