"""A site of machines that are bought, on a clock of its own: what the engine decides there, and when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lading.hooks.site import ElasticSite, LocationState, Observation, ObservedLocation, Order, SiteConfig
from lading.hooks.spool.spool import Envelope
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.model.job import NOTHING
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources


@dataclass
class Clock:
    """Stands until it is moved."""

    now: float = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Machine:
    """What was launched.

    :param ends: when the jobs end that have begun, by their tokens; ``prefetched``: those that have not
    :param arrivals: when its agent has each of those that have not begun, by their tokens
    """

    order: Order
    location: Location
    ready_at: float
    ends: dict[str, float] = field(default_factory=dict)
    prefetched: list[Envelope] = field(default_factory=list)
    arrivals: dict[str, float] = field(default_factory=dict)
    used: Resources = NOTHING
    closing: bool = False


@dataclass
class Diary:
    """What was decided, machines by their number in the order of their launches; times on the clock.

    :param launches: when, and of which type and capacity type
    :param begun: of each job: on which machine it began, and when
    :param released: when each machine was let go
    """

    launches: list[tuple[float, str, str]] = field(default_factory=list)
    begun: dict[str, tuple[int, float]] = field(default_factory=dict)
    released: dict[int, float] = field(default_factory=dict)


class BoughtSite(ElasticSite[SiteConfig]):
    """Machines that boot, run jobs for as long as the test says, each with a mock agent, and terminate when released.

    :param seconds: for which each job runs, by its token
    :ivar lag: seconds until an agent has a job that was sent to it, and until what has happened is known
    """

    kind = "bought"
    config_model = SiteConfig

    def __init__(
        self, folder: Path, market: MachineMarket | Market, clock: Clock, seconds: Mapping[str, float], policy: str
    ) -> None:
        super().__init__("cloud", SiteConfig(kind="bought", policy=policy), folder)
        self.on_sale, self.clock, self.lengths = market, clock, seconds
        self.machines: dict[str, Machine] = {}
        self.names: list[str] = []
        """Of all that was launched, in that order."""
        self.needs: dict[str, Resources] = {}
        self.diary = Diary()
        self.events: list[dict[str, Any]] = []
        self.lag = 0.0

    @property
    def machines_on_sale(self) -> MachineMarket:
        assert isinstance(self.on_sale, MachineMarket)
        return self.on_sale

    def potential(self) -> list[Location]:
        types = self.machines_on_sale.catalogue.types.values()
        return [Location(each.name, each.capacity, instance_type=each.name, arch=each.arch) for each in types]

    def advance(self) -> None:
        """Let all happen that happens until now."""
        for name, machine in list(self.machines.items()):
            for token, at in sorted(machine.ends.items(), key=lambda end: end[1]):
                if at <= self.clock.now:
                    del machine.ends[token]
                    machine.used -= self.needs[token]
                    amounts = {"exit_code": 0, "reason": None, "peak_memory": 1, "cpu_seconds": 1.0}
                    began = at - self.lengths[token]
                    end = {"event": "finished", "token": token, "at": at, "started_at": began, "cause": None}
                    self.events.append(end | amounts)
            self._begin(name)
            if machine.closing and not machine.ends:
                self._go(name)

    def _begin(self, name: str) -> None:
        machine = self.machines[name]
        for each in [] if machine.ready_at > self.clock.now else list(machine.prefetched):
            if machine.arrivals[each.token] > self.clock.now:
                continue
            if not (machine.used + each.resources).fits(machine.location.capacity):
                return
            machine.prefetched.remove(each)
            machine.used += each.resources
            self.needs[each.token] = each.resources
            machine.ends[each.token] = self.clock.now + self.lengths[each.token]
            self.diary.begun[each.token] = self.names.index(name), self.clock.now
            self.events.append({"event": "started", "token": each.token, "at": self.clock.now})

    def _go(self, name: str) -> None:
        for each in self.machines.pop(name).prefetched:
            self.events.append({"event": "returned", "token": each.token, "location": name})
        event = {"event": "released", "token": name, "at": self.clock.now, "cause": None, "reason": "it is let go"}
        self.events.append(event)

    def news(self) -> list[dict[str, Any]]:
        """What is known now of what has happened, and was not observed yet."""
        return [each for each in self.events if each.get("at", 0.0) + self.lag <= self.clock.now]

    def due(self) -> list[float]:
        """When something happens next, or is known, epoch seconds."""
        found = [each["at"] + self.lag for each in self.events if each.get("at", 0.0) + self.lag > self.clock.now]
        for each in self.machines.values():
            found += [*each.ends.values(), each.ready_at]
            found += [each.arrivals[one.token] for one in each.prefetched]
        return [each for each in found if each > self.clock.now]

    def observe(self) -> Observation:
        told, unheard = self.news(), list[str]()
        if self.lag:
            unheard = [each["token"] for each in self.events if each["event"] == "finished" and each not in told]
        seen = []
        for name, each in self.machines.items():
            is_up = each.ready_at <= self.clock.now
            state = LocationState.UP if is_up else LocationState.BOOTING
            ended = (token for token in unheard if self.names[self.diary.begun[token][0]] == name)
            known = frozenset([*each.ends, *(one.token for one in each.prefetched), *ended])
            state = LocationState.DRAINING if each.closing else state
            seen.append(ObservedLocation(each.location, state, known, native_id=f"i-{name}"))

        def acknowledge() -> None:
            self.events = [each for each in self.events if each not in told]

        return Observation(seen, told, acknowledge, self.on_sale)

    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        for name, jobs in envelopes.items():
            machine = self.machines[name]
            machine.prefetched += jobs
            machine.arrivals |= {each.token: self.clock.now + self.lag for each in jobs}
            self._begin(name)

    def cancel(self, reasons: Mapping[str, Mapping[str, Reason]]) -> None:
        raise AssertionError(f"nothing is cancelled: {reasons}")

    def launch(self, orders: Sequence[Order]) -> None:
        for order in orders:
            launch, now = order.launch, self.clock.now
            ready_at = now + self.machines_on_sale.boot_seconds
            location = Location(
                order.name,
                launch.capacity,
                instance_type=launch.kind,
                capacity_type=launch.capacity_type,
                usd_per_hour=launch.usd_per_hour or 0.0,
                arch=self.machines_on_sale.catalogue.types[launch.kind].arch,
                launched_at=now,
                ready_at=ready_at,
                site=self.name,
            )
            self.machines[order.name] = Machine(order, location, ready_at)
            self.names.append(order.name)
            self.diary.launches.append((now, launch.kind, launch.capacity_type))

    def release(self, reasons: Mapping[str, str]) -> None:
        for name in reasons:
            if name in self.machines and not self.machines[name].closing:
                self.machines[name].closing = True
                self.diary.released[self.names.index(name)] = self.clock.now
                if not self.machines[name].ends:
                    self._go(name)

    def recall(self, tokens: Mapping[str, Sequence[str]]) -> None:
        for name, some in tokens.items():
            machine = self.machines[name]
            for each in [one for one in machine.prefetched if one.token in some]:
                machine.prefetched.remove(each)
                self.events.append({"event": "returned", "token": each.token, "location": name})

    def close(self, how: str, timeout: float) -> None:
        """Nothing is held."""
