"""A site of EC2 as tests drive it: a controller's side without decisions, which does what a test says."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from lading.hooks.ec2.site import EC2Site
from lading.hooks.site import LocationState, Observation, Order
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch
from tests.clusters.driven import asking
from tests.services.processes import wait_until

KIND, ZONE = "m5.large", "us-east-1b"
PATIENCE = 240.0


class Drive:
    """A controller's side of the site, and the events of the site."""

    def __init__(self, site: EC2Site) -> None:
        self.site = site
        self.events: list[dict[str, Any]] = []
        self.last: Observation | None = None

    def look(self) -> dict[str, LocationState]:
        """A look, and the states of the machines."""
        try:
            self.last = self.site.observe()
        except OSError:
            return {}
        self.events += self.last.events
        self.last.acknowledge()
        return {each.name: each.state for each in self.last.locations}

    def answered(self) -> EC2Site:
        """The site when AWS has answered it for the first time, which may take long on a busy machine: until then a
        controller learns that it could not be asked.
        """
        self.until(lambda _: self.last is not None)
        return self.site

    def selling(self) -> EC2Site:
        """The site when it has said for the first time what it can launch."""
        self.until(lambda _: self.last is not None and self.last.market is not None)
        return self.site

    def until(self, reached: Callable[[dict[str, LocationState]], bool], seconds: float = PATIENCE) -> None:
        assert wait_until(lambda: reached(self.look()), seconds, 0.1), (self.last, self.events)

    def events_of(self, kind: str) -> dict[str, dict[str, Any]]:
        return {event["token"]: event for event in self.events if event["event"] == kind}

    def order(self, count: int = 1, **changes: Any) -> list[str]:
        values = {"zone": ZONE, "usd_per_hour": 0.096, **changes}
        launch = Launch(values.pop("kind", KIND), Resources(2, 7000), 3600, (), **values)
        orders = [Order(f"L{uuid.uuid4().hex[:14]}", launch) for _ in range(count)]
        self.site.launch(orders)
        self.site.launch(orders)  # twice is once
        return [each.name for each in orders]

    def up(self, count: int = 1, **changes: Any) -> list[str]:
        names = self.order(count, **changes)
        self.until(lambda states: all(states.get(name) is LocationState.UP for name in names))
        return names

    def give(self, name: str, count: int = 1) -> list[str]:
        now, asked = time.time(), Resources(1, 300)
        tokens = [str(uuid.uuid4()) for _ in range(count)]
        jobs = [Envelope(each, asking(), asked, None, None, 0, now, now + 3600) for each in tokens]
        self.site.put({name: jobs})
        return tokens

    def wait_for(self, kind: str, *tokens: str, seconds: float = PATIENCE) -> list[dict[str, Any]]:
        self.until(lambda _: set(tokens) <= self.events_of(kind).keys(), seconds)
        return [self.events_of(kind)[token] for token in tokens]
