"""Prices of EC2 instances: from the user's file, else from AWS's Price List, else from the snapshot that Lading ships.

The Price List and the zones of the types are requested once a day and stored on disk; if AWS does not answer, the
stored data stays in use and its date is shown. A type without a price is left out, and never treated as free. Spot
prices come from the price history.

Price List: https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any

from lading.hooks.ec2.client import EC2, listed, number, parse_rows, spot_price, text_of
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.limits import EC2Limits
from lading.hooks.files.json_model import JsonModel, Text, Within, checked
from lading.hooks.files.safe_files import FileError, NotReadable, read_regular, read_text, write_atomically
from lading.scheduling.model.catalogue import (
    LEAST_USD,
    MOST_USD,
    Catalogue,
    InstanceType,
    Offering,
    bundled,
    parse_csv,
    parse_toml,
)
from lading.scheduling.model.light_dataclasses import dataclass
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.text.nesting import parse_json

DAY = 86_400.0
FILTERS = {
    "serviceCode": "AmazonEC2",
    "preInstalledSw": "NA",
    "operatingSystem": "Linux",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}
# Lading launches with shared tenancy. The Price List has bare metal in a separate family. It lists some of those types
# only as dedicated, at the price that is charged for shared tenancy, too.
FAMILIES: tuple[dict[str, str], ...] = (
    {"productFamily": "Compute Instance", "tenancy": "Shared"},
    {"productFamily": "Compute Instance (bare metal)"},
)
Usd = Annotated[float, Within(LEAST_USD, MOST_USD)]


@dataclass(frozen=True, kw_only=True, slots=True)
class CachedPrices(JsonModel):
    """The prices stored on disk.

    :ivar at: epoch seconds of the answers
    :ivar usd: by type, USD per hour on demand; empty: AWS did not report them
    :ivar zones: by requested zone, the types that it offers
    """

    region: Text
    at: float
    usd: dict[str, Usd]
    zones: dict[str, list[str]]


class Prices:
    """The catalogue of a site, updated on access.

    :param zones: the zones in which machines can be launched
    :param folder: stores answers
    :param spot_age: the maximum age of spot prices in use, seconds
    """

    def __init__(
        self, config: EC2Config, ec2: EC2, zones: Sequence[str], folder: Path, spot_age: float = EC2Limits.spot_age
    ) -> None:
        self.config, self.ec2, self.zones, self.spot_age = config, ec2, zones, spot_age
        self._file = folder / f"prices-{ec2.region}.json"
        self._kept = load(self._file, ec2.region)
        is_whole = self._kept is not None and set(zones) <= self._kept.zones.keys() and bool(self._kept.usd)
        self._asked_at = self._kept.at if is_whole and self._kept is not None else 0.0
        self._spot: dict[tuple[str, str], tuple[float, float]] = {}
        """By type and zone: USD per hour, and since when, epoch seconds."""
        self._spot_at: float | None = None
        self._list_trouble: str | None = None
        self._spot_trouble: str | None = None

    @property
    def trouble(self) -> str | None:
        """Why AWS did not report prices when last asked, as text; None: it did."""
        return "; ".join(filter(None, (self._list_trouble, self._spot_trouble))) or None

    def catalogue(self, now: float) -> Catalogue:
        """Return the types that can be launched now.

        :raises ValueError: the user's file cannot be read or is not valid, or a pattern matches no type
        """
        self._refresh(now)
        types = (self._offered(kind) for kind in chosen(self._base(), self.config).types.values())
        return Catalogue({kind.name: kind for kind in types if kind.offerings})

    def changed_at(self, name: str, zone: str | None) -> float | None:
        """Return since when the spot price of a type in a zone is valid, epoch seconds; None: unknown."""
        return self._spot.get((name, str(zone)), (0.0, None))[1]

    def _base(self) -> Catalogue:
        """Return all types with on-demand prices and the source of each price.

        A type without a price in the region is not launched, because the snapshot's price is that of another region.
        """
        found = bundled()
        if self._kept is not None and self._kept.usd:
            source = f"AWS Price List of {time.strftime('%Y-%m-%d', time.gmtime(self._kept.at))}"
            usd = self._kept.usd
            types = {
                name: replace(kind, offerings=(Offering(usd[name]),) if name in usd else (), source=source)
                for name, kind in found.types.items()
            }
            found = Catalogue(types)
        return with_file(found, self.config.prices)

    def _offered(self, kind: InstanceType) -> InstanceType:
        own = [each for each in kind.offerings if each.capacity_type in self.config.capacity_types]
        fixed = {(each.capacity_type, each.zone) for each in own}
        found = []
        for offering in own:
            zones = [offering.zone] if offering.zone is not None else self._zones(kind.name)
            # A price for the zone itself takes precedence over one for all zones.
            found += [
                replace(offering, zone=zone)
                for zone in zones
                if zone == offering.zone or (offering.capacity_type, zone) not in fixed
            ]
        if SPOT in self.config.capacity_types:
            there = {each.zone for each in found if each.capacity_type == SPOT}
            found += [
                Offering(usd, SPOT, zone)
                for zone in self._zones(kind.name)
                if zone not in there and (usd := self._spot.get((kind.name, str(zone)), (None,))[0]) is not None
            ]
        return replace(kind, offerings=tuple(each for each in found if each.zone is None or each.zone in self.zones))

    def _zones(self, name: str) -> list[str]:
        """Return the zones that offer a type, or may offer it."""
        known = {} if self._kept is None else self._kept.zones
        return [zone for zone in self.zones if zone not in known or name in known[zone]]

    def _refresh(self, now: float) -> None:
        if now - self._asked_at >= DAY:
            try:
                self._kept = self._ask(now)
                # AWS has not answered, so it is asked again in an hour.
                self._asked_at = now if self._list_trouble is None else now - DAY + 3600.0
                self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_atomically(self._file, json.dumps(asdict(self._kept)))
            except Exception as error:  # an error of AWS, the network or the disk must not stop the site
                self._asked_at = now - DAY + 3600.0
                self._list_trouble = f"AWS's prices could not be read: {error}"
        is_old = self._spot_at is None or now - self._spot_at >= self.spot_age
        if SPOT in self.config.capacity_types and is_old:
            try:
                self._spot = dict(self._ask_spot(now))
                self._spot_trouble = None
            except Exception as error:
                self._spot_trouble = f"the spot prices could not be read: {error}"
            self._spot_at = now

    def _ask(self, now: float) -> CachedPrices:
        """Request the types of the zones and the prices of the region, and record what AWS does not report.

        :raises OSError: it does not report the types of the zones
        """
        zones, usd, at = self._ask_zones(), {}, now
        self._list_trouble = None
        try:
            usd = self._ask_usd()
        except Exception as error:  # prices may not be granted, but the zones are still of use
            self._list_trouble = f"AWS's prices could not be read: {error}"
        if not usd and self._kept is not None:
            usd, at = self._kept.usd, self._kept.at
        return CachedPrices(region=self.ec2.region, at=at, usd=usd, zones=zones)

    def _ask_usd(self) -> dict[str, float]:
        """:raises ValueError: the answers contain no prices"""
        usd: dict[str, float] = {}
        for family in FAMILIES:
            filters = [
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in {**FILTERS, **family, "regionCode": self.ec2.region}.items()
            ]
            found = listed(self.ec2.pricing, "get_products", "PriceList", ServiceCode="AmazonEC2", Filters=filters)
            usd |= dict(sorted(priced(found), key=lambda each: -each[1]))  # the cheapest wins: shared tenancy
        if not usd:
            raise ValueError(f"the Price List has no prices of {self.ec2.region}")
        return usd

    def _ask_zones(self) -> dict[str, list[str]]:
        asked = {
            "LocationType": "availability-zone",
            "Filters": [{"Name": "location", "Values": list(self.zones)}],
        }
        zones: dict[str, list[str]] = {zone: [] for zone in self.zones}
        found = listed(self.ec2.reader, "describe_instance_type_offerings", "InstanceTypeOfferings", **asked)
        for zone, name in parse_rows(found, lambda row: (text_of(row, "Location"), text_of(row, "InstanceType"))):
            zones.setdefault(zone, []).append(name)
        return {zone: sorted(types) for zone, types in zones.items()}

    def _ask_spot(self, now: float) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
        """Yield the last spot price of each type in each zone, and since when it is valid, epoch seconds."""
        names = sorted(chosen(self._base(), self.config).types)
        asked: dict[str, Any] = {"StartTime": now + self.ec2.clock_ahead, "ProductDescriptions": ["Linux/UNIX"]}
        # With more types than this, the prices of all types are requested.
        asked |= {"InstanceTypes": names} if len(names) <= 100 else {}
        found = listed(self.ec2.reader, "describe_spot_price_history", "SpotPriceHistory", **asked)
        for each in sorted(parse_rows(found, spot_price), key=lambda each: each.since):
            yield (each.kind, each.zone), (each.usd, each.since)


def with_file(found: Catalogue, file: str | None) -> Catalogue:
    """Return a catalogue in which the entries of the user's file replace others.

    :raises ValueError: see :func:`read_file`
    """
    return found if file is None else read_file(file).over(found)


def chosen(found: Catalogue, config: EC2Config) -> Catalogue:
    """Return the types of a catalogue that a site can launch.

    :raises ValueError: a pattern matches no type
    """
    return found.select(config.instance_types, config.exclude_types)


def specified(config: EC2Config) -> Catalogue:
    """Return the specifications of the types that a site can launch and has an image for.

    :raises ValueError: the user's prices cannot be read, or a pattern matches no type
    """
    found = chosen(with_file(bundled(), config.prices), config)
    return Catalogue({name: kind for name, kind in found.types.items() if kind.arch in config.ami})


def load(file: Path, region: str) -> CachedPrices | None:
    """Return the stored prices of a region; None if there are none that can be used."""
    try:
        found = CachedPrices(**checked(CachedPrices, parse_json(read_regular(file, 2**24))))
    except (OSError, NotReadable, ValueError):
        return None
    return found if found.region == region else None


def priced(products: Iterable[Any]) -> Iterator[tuple[str, float]]:
    """Yield types with their on-demand prices; invalid entries are skipped."""
    for text in products:
        try:
            product = json.loads(text) if isinstance(text, str) else text
            name = product["product"]["attributes"]["instanceType"]
            [term] = product["terms"]["OnDemand"].values()
            [dimension] = term["priceDimensions"].values()
            usd = number(dimension["pricePerUnit"]["USD"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        if isinstance(name, str) and usd is not None and str(dimension.get("unit", "Hrs")) == "Hrs":
            yield name, usd


def read_file(path: str) -> Catalogue:
    """Read the user's prices.

    :raises ValueError: the file cannot be read, or is not valid; the message names the file, the line and the value
    """
    try:
        text = read_text(path)
    except FileError as error:
        raise ValueError(f"{path} {error}") from None
    return parse_toml(text, path) if path.endswith(".toml") else parse_csv(text.splitlines(), path)
