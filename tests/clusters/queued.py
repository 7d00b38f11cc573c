"""A mock cluster whose allocations wait in a queue, run jobs for as long as the test says, and end as agents do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lading.hooks.site import LocationState, Observation, ObservedLocation, Order
from lading.scheduling.matching.market import Market
from lading.scheduling.model.location import Location
from tests.clusters.bought import BoughtSite, Clock, Machine


class QueuedSite(BoughtSite):
    """
    :param queue: seconds for which each allocation waits
    :param node_boots: seconds from its start until its agent has begun
    """

    def __init__(
        self,
        folder: Path,
        market: Market,
        clock: Clock,
        seconds: Mapping[str, float],
        queue: float,
        node_boots: float = 0.0,
    ) -> None:
        super().__init__(folder, market, clock, seconds, "greedy")
        self.queue, self.node_boots = queue, node_boots
        self.cpus: list[float] = []
        """Of each allocation, in the order of their launches."""
        self.busy_at: dict[str, float] = {}
        """When a job last ran in an allocation."""

    @property
    def offered(self) -> Market:
        assert isinstance(self.on_sale, Market)
        return self.on_sale

    def potential(self) -> list[Location]:
        return [Location(self.name, self.offered.capacity)]

    def launch(self, orders: Sequence[Order]) -> None:
        for order in orders:
            launch, starts = order.launch, self.clock.now + self.queue
            location = Location(
                order.name, launch.capacity, instance_type=launch.kind, ends_at=starts + launch.seconds, site=self.name
            )
            self.machines[order.name] = Machine(order, location, starts + self.node_boots)
            self.names.append(order.name)
            self.cpus.append(launch.capacity.cpus)
            self.diary.launches.append((self.clock.now, launch.kind, ""))

    def advance(self) -> None:
        were_busy = {name for name, each in self.machines.items() if each.ends}
        super().advance()
        for name, each in list(self.machines.items()):
            launch, now = each.order.launch, self.clock.now
            idle = self.offered.idle_seconds if launch.idle_seconds is None else launch.idle_seconds
            if name in were_busy or each.ends or now <= each.ready_at:
                self.busy_at[name] = max(now, each.ready_at)
            if now >= each.ready_at - self.node_boots + launch.seconds or now - self.busy_at.get(name, now) >= idle:
                assert not each.ends, "jobs would be cut"
                self._note_end(name)
                self._go(name)

    def _note_end(self, name: str) -> None:
        self.diary.released.setdefault(self.names.index(name), self.clock.now)

    def observe(self) -> Observation:
        found, now = super().observe(), self.clock.now
        return replace(found, locations=[self._as_of_now(each, now) for each in found.locations])

    def _as_of_now(self, seen: ObservedLocation, now: float) -> ObservedLocation:
        """One that is still in its queue lasts as if it began now."""
        if seen.state != LocationState.BOOTING:
            return seen
        seconds = self.machines[seen.location.name].order.launch.seconds
        return replace(seen, location=replace(seen.location, ends_at=now + seconds))
