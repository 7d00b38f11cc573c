"""A site as tests drive it: a controller's side without a database, and the events of the site."""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

from lading.executors.agent.tasks import probe
from lading.executors.controller.site_driver import SiteDriver
from lading.hooks.site import Site
from lading.hooks.spool.spool import Envelope
from lading.scheduling.resources import Layout, Resources
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until

# What the jobs ask Airflow's execution API, and nothing else.
HEALTH = "/execution/health"

S = TypeVar("S", bound="Site[Any]")


class Driven(Generic[S]):
    """A site, and the events that it has reported."""

    patience: ClassVar[float] = 60.0
    """Seconds for which events are waited for."""
    pause: ClassVar[float] = 0.05
    """Seconds between two looks."""

    def __init__(self, site: S) -> None:
        self.site = site
        self.solo = SiteDriver(site)
        self.events: list[dict[str, Any]] = []

    def put(self, count: int, cpus: float = 1, layout: Layout | None = None) -> list[str]:
        tokens = [str(uuid.uuid4()) for _ in range(count)]
        now, asked = time.time(), Resources(cpus, 300)
        jobs = (Envelope(each, probe.workload(), asked, None, None, 0, now, now + 3600) for each in tokens)
        self.solo.put(replace(each, layout=layout) for each in jobs)
        return tokens

    def look(self) -> None:
        self.events += self.solo.tick()

    def events_of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {event["token"]: event for event in self.events if event["event"] == kind}

    def wait_for(self, kind: str, tokens: list[str], seconds: float | None = None) -> list[dict[str, Any]]:
        def there() -> bool:
            self.look()
            return set(tokens) <= self.events_of(kind).keys()

        assert wait_until(there, seconds or self.patience, self.pause), (self.events, self.solo.seen)
        return [self.events_of(kind)[token] for token in tokens]

    def take_over(self, other: Driven[S]) -> None:
        """Take over what the other site's controller had in its store."""
        for name in ("envelopes", "waiting", "given", "instances", "ordered_for"):
            setattr(self.solo, name, getattr(other.solo, name))


def asked(api: ExecutionApi) -> int:
    """How many jobs have run."""
    return sum(path == HEALTH for _, path, _ in api.requests)
