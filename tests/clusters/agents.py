"""A site whose agent starts what it has been given as real ones do; time passes when a test says so."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lading.hooks.site import ObservedLocation
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import QueuedJob, next_starts
from tests.clusters.sites import FakeSite


class AgentSite(FakeSite):
    """A machine of eight cpus; its jobs run until :meth:`advance` is called.

    :ivar ended: the tokens of jobs in the order in which they have ended
    """

    def __init__(self, name: str, folder: Path, cpus: float = 8) -> None:
        super().__init__(name, folder, known=True)
        self.location = replace(self.location, capacity=Resources(cpus=cpus, memory=1_000_000))
        self.inbox: dict[str, Envelope] = {}
        self.ended: list[str] = []
        self.overtaken: dict[str, float] = {}

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for each in envelopes["here"]:
            if each.token not in self.jobs:
                self.inbox[each.token] = each
        self._start()

    def advance(self) -> None:
        """Let all that runs end, and what comes next begin."""
        for token in [*self.jobs]:
            del self.jobs[token]
            self.ended.append(token)
            end = {"exit_code": 0, "cause": None, "reason": None, "peak_memory": None, "cpu_seconds": None}
            self.events.append({"event": "finished", "token": token, "at": time.time(), **end})
        self._start()

    @property
    def kept(self) -> Resources:
        """What is held for upcoming jobs."""
        return Resources()

    @property
    def now(self) -> float:
        """The time by which jobs have waited; by this one none ever has for its patience."""
        return 0.0

    def _start(self) -> None:
        since = self.overtaken
        waiting = [
            QueuedJob(
                each.token, each.resources, each.priority, each.queued_at, since.get(each.token), each.rest, each.turn
            )
            for each in self.inbox.values()
        ]
        waiting.sort(key=lambda job: job.rank)
        used = sum((each.resources for each in self.jobs.values()), self.kept)
        capacity = self.location.capacity
        decision = next_starts(waiting, capacity - used, capacity, now=self.now, patience=60.0)
        since |= dict.fromkeys(decision.overtaken, self.now)
        for token in decision.starts:
            self.jobs[token] = self.inbox.pop(token)
            self.events.append({"event": "started", "token": token, "at": time.time()})
        # What waits for its turn is there as well.
        known = frozenset(self.jobs) | frozenset(self.inbox)
        self.locations = [ObservedLocation(self.location, known=known)]
