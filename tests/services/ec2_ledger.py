"""What a fake EC2 bills: each instance by the second, at least a minute, at the price of the moment.

As in EC2 all times are whole seconds, and they are the ones that it reports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from typing import Any

from moto.ec2.models.instances import Instance

from lading.scheduling.model.catalogue import Catalogue, bundled
from tests.services.ec2_faults import Request

LEAST_SECONDS = 60.0
# A GiB of volumes for an hour, and a public address; an image of moto has so many GiB.
USD_PER_GIB, USD_PER_ADDRESS, IMAGE_GIB = 0.08 / 730, 0.005, 15
# Of the price on demand, where no test says another; the zones differ a little.
SPOT_SHARE = 0.35
ZONE_SHARES = {"a": 1.0, "b": 1.1, "c": 0.9}
# The first letters of the types in a quota: https://docs.aws.amazon.com/ec2/latest/instancetypes/ec2-instance-quotas.html
FAMILIES = {"standard": "acdhimrtz", "g": "g", "p": "p", "x": "x", "u": "u", "f": "f", "inf": "inf", "trn": "trn"}


@dataclass
class Entry:
    """An instance. ``prices``: USD per hour since epoch seconds, oldest first; ``more``: its volumes and
    address; ``born``: when it was launched, of which the bill knows the second."""

    id: str
    type: str
    zone: str
    capacity_type: str
    vcpus: float
    launched: float
    prices: list[tuple[float, float]]
    hidden_until: float = 0.0
    more: float = 0.0
    born: float = field(default_factory=time.time)
    ended: float | None = None
    began: float | None = None
    """When it began to run: what is pending is not billed."""


@dataclass
class Ledger:
    """All instances that there were, and what they cost."""

    entries: dict[str, Entry] = field(default_factory=dict)
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)
    changes: list[tuple[float, str, str | None, str | None, float]] = field(default_factory=list)
    least_seconds: float = LEAST_SECONDS
    catalogue: Catalogue = field(default_factory=bundled)

    def price(self, type: str, zone: str, capacity_type: str) -> float:
        """USD per hour now."""
        return self.priced(type, zone, capacity_type)[1]

    def priced(self, type: str, zone: str, capacity_type: str) -> tuple[float, float]:
        """Since when a price holds, epoch seconds; and USD per hour."""
        return self.history(type, zone, capacity_type)[-1]

    def history(self, type: str, zone: str, capacity_type: str) -> list[tuple[float, float]]:
        """All prices that there were, oldest first: since when each held, epoch seconds; and USD per hour."""
        usd = self.catalogue.types[type].offerings[0].usd_per_hour
        share = 1.0 if capacity_type == "on-demand" else SPOT_SHARE * ZONE_SHARES.get(zone[-1:], 1.0)
        return [(0.0, round(usd * share, 6))] + [
            (at, usd)
            for at, pattern, its_zone, its_kind, usd in self.changes
            if fnmatchcase(type, pattern) and its_zone in (None, zone) and its_kind in (None, capacity_type)
        ]

    def set_price(
        self, now: float, type: str, usd_per_hour: float, zone: str | None, capacity_type: str | None
    ) -> None:
        """What runs on spot pays the new price from now on; on demand only what is launched later."""
        self.changes.append((now := math.floor(now), type, zone, capacity_type, usd_per_hour))
        for each in self.living():
            if each.capacity_type == "spot":
                usd = self.price(each.type, each.zone, each.capacity_type)
                if usd != each.prices[-1][1]:
                    each.prices.append((now, usd))

    def launch(self, instance: Instance, request: Request, hidden_until: float) -> None:
        capacity_type = request.capacity_type
        now = math.floor(instance.launch_time.replace(tzinfo=timezone.utc).timestamp())
        more = USD_PER_GIB * int(request.form.get("BlockDeviceMapping.1.Ebs.VolumeSize", IMAGE_GIB))
        if request.form.get("NetworkInterface.1.AssociatePublicIpAddress") == "true":
            more += USD_PER_ADDRESS
        type, zone = instance.instance_type, str(instance.placement.zone)
        usd = self.price(type, zone, capacity_type)
        vcpus = self.catalogue.types[type].capacity.cpus
        self.entries[instance.id] = Entry(
            instance.id, type, zone, capacity_type, vcpus, now, [(now, usd)], hidden_until, more
        )

    def end(self, instance: Instance, now: float, by: str = "User") -> None:
        """:param by: who has ended it, as EC2 says that; empty: it does not, and not when that was either"""
        entry = self.entries[instance.id]
        if entry.ended is None:
            entry.ended = math.floor(now)
            at = datetime.fromtimestamp(entry.ended, timezone.utc)
            instance._reason = f"{by} initiated ({at:%Y-%m-%d %H:%M:%S} GMT)" if by else ""

    def living(self) -> Iterator[Entry]:
        return (each for each in list(self.entries.values()) if each.ended is None)

    def room(self, request: Request, wanted: int) -> tuple[int, str | None]:
        """How many of the instances that are wanted the quota of their family admits, and what refuses the others."""
        family = family_of(request.type)
        most = self.quotas.get((family, request.capacity_type))
        if most is None or request.type not in self.catalogue.types:
            return wanted, None
        used = sum(
            each.vcpus
            for each in self.living()
            if family_of(each.type) == family and each.capacity_type == request.capacity_type
        )
        number = min(wanted, int((most - used) // self.catalogue.types[request.type].capacity.cpus))
        why = "spot quota" if request.capacity_type == "spot" else "quota"
        return max(0, number), why if number < wanted else None

    def read(self, now: float) -> list[dict[str, Any]]:
        """A line for each instance, oldest first; what lives is billed until now."""
        return [
            {
                "id": each.id,
                "type": each.type,
                "zone": each.zone,
                "capacity_type": each.capacity_type,
                "launched": each.launched,
                "ended": each.ended,
                "usd": usd(each, now, self.least_seconds),
            }
            for each in self.entries.values()
        ]


def usd(entry: Entry, now: float, least_seconds: float = LEAST_SECONDS) -> float:
    """What an instance has cost since it began to run: whole seconds, at least a minute."""
    if entry.began is None:
        return 0.0
    end = max(now if entry.ended is None else entry.ended, entry.began + least_seconds)
    starts = [at for at, _ in entry.prices[1:]] + [end]
    return entry.more * (end - entry.began) / 3600 + sum(
        price * max(0.0, until - max(since, entry.began)) / 3600
        for (since, price), until in zip(entry.prices, starts, strict=True)
    )


def family_of(type: str) -> str:
    """The quota of a type."""
    longest = sorted(FAMILIES.items(), key=lambda item: -len(item[1]) if item[0] in ("inf", "trn") else 0)
    for name, letters in longest:
        if name in ("inf", "trn"):
            if type.startswith(letters):
                return name
        elif type[:1] in letters:
            return name
    return "standard"
