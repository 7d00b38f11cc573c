"""The market of a site: the instance types that can be launched, with prices, minus those EC2 has no capacity for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from lading.hooks.ec2 import boot
from lading.hooks.ec2.bills import Bills, EndedInstance
from lading.hooks.ec2.client import EC2, EC2Error, EC2Instance
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.ec2.machine import EC2Machine
from lading.hooks.ec2.pace import Shortages
from lading.hooks.ec2.prices import Prices, chosen, with_file
from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically
from lading.hooks.polling.rounds import Poller
from lading.hooks.site import join
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.catalogue import GIB, Catalogue, InstanceType, Overhead, bundled
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import ON_DEMAND, SPOT
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.text.nesting import parse_json

# The price of a GiB of gp3 per month in us-east-1, USD, the hours of such a month, and the price of a public IPv4
# address in all regions, USD per hour: https://aws.amazon.com/ebs/pricing/ https://aws.amazon.com/vpc/pricing/
USD_PER_GIB_MONTH = 0.08
HOURS_PER_MONTH = 730
USD_PER_ADDRESS = 0.005
# The largest root volume that an image can have, MiB:
# https://docs.aws.amazon.com/ebs/latest/userguide/volume_constraints.html
LARGEST_VOLUME = 64 * 2**20
ROOTS = "roots.json"


class EC2Offers(Poller):
    """What can be launched. ``round`` waits for AWS, so it has a thread of its own and delays no machine.

    :param folder: for prices, which outlive this process
    :param report: called with an event for each bill
    """

    def __init__(
        self,
        config: EC2Config,
        ec2: EC2,
        folder: Path,
        report: Callable[[dict[str, Any]], None] = lambda event: None,
        limits: EC2Limits = EC2Limits(),
    ) -> None:
        self.config, self.ec2, self.folder, self.limits = config, ec2, folder, limits
        self.bills = Bills(ec2, report)
        self.note: str | None = None
        """What is wrong with the prices, as text; None: nothing."""
        self._volumes: str | None = None
        """Why the price of volumes is unknown, as text; None: it is known."""
        self._volumes_of: dict[str, tuple[float, float]] = {}
        """By architecture: the size of the root volume, and of all volumes, GiB."""
        self._ids: dict[str, str] = {}
        """By architecture: the id of its image, if known."""
        self._prices: Prices | None = None
        self._catalogue: Catalogue | None = None

    def pause(self) -> float:
        return self.limits.between_offers

    def round(self) -> None:
        """Update the catalogue, with the full cost of each machine, and compute pending bills.

        :raises OSError: AWS did not report the zones, or the prices for a bill
        """
        zones = tuple(self.ec2.zones())
        if self._prices is None or self._prices.zones != zones:
            self._prices = Prices(self.config, self.ec2, zones, self.folder, self.limits.spot_age)
        self._look_at_images()
        try:
            found = self._prices.catalogue(time.time())
        except ValueError as error:  # an invalid prices file of the user, or an invalid pattern
            self.note, self._catalogue = str(error), None
        else:
            self.note, self._catalogue = (
                join(self._prices.trouble, self._volumes, self._unknown()),
                self._whole(usable(found, self.config, self.roots)),
            )
        self.bills.round()

    def bill(self, name: str, instance: EC2Instance, ended_at: float) -> None:
        """Request a bill for a terminated spot instance, because its price may have changed over time.

        No bill is needed if the user's file sets the price.
        """
        kind, zone, launched_at = self.specified(instance.kind), instance.zone, instance.launched_at
        named = {each.zone for each in kind.offerings if each.capacity_type == SPOT} if kind is not None else set()
        if instance.capacity_type == SPOT and launched_at is not None and named.isdisjoint({zone, None}):
            more = sum(usd for _, usd in self.surcharges(kind.arch if kind is not None else None))
            self.bills.add(EndedInstance(name, instance.kind, zone, launched_at, ended_at, more))

    def specified(self, kind: str) -> InstanceType | None:
        """Return the specification of a type; None if it has none."""
        return self._specified.types.get(kind)

    @cached_property
    def _specified(self) -> Catalogue:
        with suppress(ValueError):  # reported where prices are read
            return with_file(bundled(), self.config.prices)
        return bundled()

    @property
    def catalogue(self) -> Catalogue | None:
        """The site's types with their full cost where they are available; None: unknown."""
        return self._catalogue

    @property
    def roots(self) -> dict[str, int]:
        """The sizes of the known root volumes by architecture, MiB."""
        return {arch: int(root * GIB) for arch, (root, _) in self._volumes_of.items()}

    def asked(self) -> Catalogue | None:
        """Return the catalogue after trying to update it."""
        with suppress(OSError):
            self.round()
        return self._catalogue

    def surcharges(self, arch: str | None) -> tuple[tuple[str, float], ...]:
        """Return what a machine costs in addition to its own price, by name, USD per hour.

        :param arch: its architecture
        """
        _, gib = self._volumes_of.get(arch or "", (0.0, 0.0))
        found = {"volumes": gib * USD_PER_GIB_MONTH / HOURS_PER_MONTH}
        if self.config.address == "public":
            found["public IPv4"] = USD_PER_ADDRESS
        return tuple((name, usd) for name, usd in sorted(found.items()) if usd)

    def charge(self, machines: Iterable[EC2Machine]) -> None:
        """Update the cost of machines: spot prices change, and the price of an adopted machine may be unknown."""
        known = {} if self._catalogue is None else self._catalogue.types
        for machine in machines:
            name, zone, capacity_type = machine.offering
            machine.surcharges = self.surcharges(machine.arch)
            if capacity_type == SPOT or machine.usd_per_hour is None:
                offerings = known[name].offerings if name in known else ()
                usd = (
                    it.usd_per_hour for it in offerings if (it.zone or zone, it.capacity_type) == machine.offering[1:]
                )
                machine.usd_per_hour = next(usd, machine.usd_per_hour)
                machine.priced_at = self._prices.changed_at(name, zone) if self._prices is not None else None

    def market(self, shortages: Shortages, there: int = 0) -> MachineMarket | None:
        """Return what can be launched now; None if that is unknown.

        :param there: the number of machines that have answered
        """
        if self._catalogue is None:
            return None
        config = self.config
        types = self._catalogue.types
        if shortages.any:
            types = {name: _short(kind, shortages) for name, kind in types.items()}
        most = dict.fromkeys(types, config.max_per_type) if config.max_per_type else {}
        limits = InstanceLimits(
            min(config.max_instances, there + 1) if shortages.is_in_doubt else config.max_instances,
            {name: number for name, number in most.items() if number is not None},
            usd_per_hour=config.max_usd_per_hour,
            vcpus={f"{name} {each}": most for name, most in config.max_vcpus.items() for each in (ON_DEMAND, SPOT)},
        )
        return MachineMarket(
            Catalogue(types),
            limits,
            config.buying,
            config.idle_seconds,
            config.min_instances,
            config.expected_boot_time,
            shortages.reason,
            {arch: boot.mark(config, self._ids.get(arch, said)) for arch, said in config.ami.items()},
            hurry=config.hurry,
        )

    def _whole(self, found: Catalogue) -> Catalogue:
        """Add surcharges to the prices, so that they cover the full cost of a machine."""
        types = {}
        for name, kind in found.types.items():
            more = sum(usd for _, usd in self.surcharges(kind.arch))
            offerings = (replace(each, usd_per_hour=each.usd_per_hour + more) for each in kind.offerings)
            types[name] = replace(kind, offerings=tuple(offerings))
        return Catalogue(types)

    def _look_at_images(self) -> None:
        """Update the images and the sizes of their volumes, because an SSM parameter can point to a new image."""
        before, self._volumes = self.roots, None
        for arch in self.config.ami:
            try:
                self._ids[arch] = image = self.ec2.image(arch)
                self._volumes_of = {**self._volumes_of, arch: self.ec2.volumes(image)}
            except (EC2Error, LookupError) as error:  # nothing is launched with such an image anyway
                so = "is that of the last known image" if arch in self._volumes_of else "is not counted"
                self._volumes = f"the cost of volumes {so} because the image for {arch} is unknown: {error}"
        if self.roots != before:
            keep_roots(self.folder, self.config, self.roots)

    def _unknown(self) -> str | None:
        """Return which subnets of the table do not exist, as text; None if all do."""
        unknown = self.ec2.unknown_subnets()
        message = f"there is no {' or '.join(unknown)} in {self.ec2.region}, so nothing is launched there"
        return f"{message}: correct `subnets` of the table" if unknown else None


def keep_roots(folder: Path, config: EC2Config, roots: Mapping[str, int]) -> None:
    """Store the sizes of root volumes, so that a site knows them before it asks AWS."""
    with suppress(OSError):  # they can be requested again
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomically(folder / ROOTS, json.dumps({"ami": config.ami, "roots": roots}))


def kept_roots(folder: Path, config: EC2Config) -> dict[str, int]:
    """Return the stored sizes of a site's images; empty if there are none."""
    with suppress(OSError, NotReadable, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        found: Any = parse_json(read_regular(folder / ROOTS, 2**16))
        if found["ami"] == config.ami:
            return {str(arch): int(mib) for arch, mib in found["roots"].items() if int(mib) > 0}
    return {}


def usable(found: Catalogue, config: EC2Config, roots: Mapping[str, int]) -> Catalogue:
    """Return the types that have an image, with the capacity that jobs can use according to their specification.

    The disk of jobs is the root volume. Instance storage counts only if the table sets ``scratch``, whose folder can be
    on it; nothing mounts it automatically.

    :param roots: the size of the root volume by architecture, MiB; if missing, ``disk`` of the table
    """
    types = {}
    for name, kind in found.types.items():
        if kind.arch in config.ami:
            root = config.disk or roots.get(kind.arch, 0)
            disk = kind.capacity.disk if config.scratch and not kind.ebs_only else root
            types[name] = replace(kind, capacity=replace(kind.capacity, disk=disk))
    return Catalogue(types).without_overhead(Overhead(memory=config.reserve_memory))


def launchable(config: EC2Config, roots: Mapping[str, int]) -> list[Location]:
    """Return a machine of each type and capacity type that the site can ever launch, without asking AWS.

    :param roots: see :func:`usable`; an unknown image can have a volume of any size
    :raises ValueError: the user's prices cannot be read, or a pattern matches no type
    """
    found = chosen(with_file(bundled(), config.prices), config)
    types = usable(found, config, {**dict.fromkeys(config.ami, LARGEST_VOLUME), **roots}).types.values()
    return [
        Location(
            f"{kind.name} {capacity_type}",
            kind.capacity,
            instance_type=kind.name,
            capacity_type=capacity_type,
            arch=kind.arch,
            features=kind.features,
        )
        for kind in types
        for capacity_type in config.capacity_types
    ]


def _short(kind: InstanceType, shortages: Shortages) -> InstanceType:
    """Mark the offerings of a type that EC2 has no capacity for, with the reason and how long that lasts."""
    found = [(each, shortages.shortage_of((kind.name, each.zone, each.capacity_type))) for each in kind.offerings]
    if all(shortage is None for _, shortage in found):
        return kind
    offerings = tuple(
        each if shortage is None else replace(each, unavailable_until=shortage.until, unavailable_because=shortage.why)
        for each, shortage in found
    )
    return replace(kind, offerings=offerings)
