"""The catalogue of instance types: their capacity, features and prices.

A catalogue comes from the user's CSV or TOML file, from a saved price list, or from the bundled snapshot;
:meth:`Catalogue.over` combines them in that order. A type without a price is omitted, never treated as free.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from importlib import resources as package_data
from typing import Any

from lading.scheduling.model.gpus import not_supported, with_types
from lading.scheduling.model.machine_traits import DEFAULT_ARCH, ON_DEMAND, SPOT, parse_arch, valid_types
from lading.scheduling.model.quotas import baseline, is_burstable, names_burstable
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from lading.scheduling.text import csv_tables
from lading.scheduling.text.printable import shortened

COLUMNS = (
    "instance_type",
    "vcpus",
    "memory_gib",
    "arch",
    "gpus",
    "gpu_name",
    "local_storage_gb",
    "usd_per_hour",
)
REQUIRED = ("instance_type", "vcpus", "memory_gib", "usd_per_hour")
BUNDLED_DATE = "2026-07-20"
BUNDLED_SOURCE = f"bundled snapshot of EC2 Linux on-demand prices in us-east-1 of {BUNDLED_DATE}"
GIB = 1024
# EC2 has fewer than a thousand types, and each is compared with all jobs.
MOST_TYPES = 10_000
MOST_GIB = csv_tables.MOST // GIB
LEAST_USD, MOST_USD = 1e-6, 1_000_000
# A size written as a decimal can miss a whole MiB by less than this.
ROUNDING = 1e-3


@dataclass(frozen=True, slots=True)
class Offering:
    """A price at which a type can be launched.

    :param usd_per_hour: USD per hour, above zero
    :param capacity_type: ``on-demand`` or ``spot``
    :param zone: the zone to which the price applies; None: every zone
    :param unavailable_until: epoch seconds before which it is not launched; None: it can be launched now
    :param unavailable_because: why it is unavailable, if that is known
    """

    usd_per_hour: float
    capacity_type: str = ON_DEMAND
    zone: str | None = None
    unavailable_until: float | None = None
    unavailable_because: Reason | None = None


@dataclass(frozen=True, slots=True)
class InstanceType:
    """A type of machine that can be launched.

    :param capacity: what jobs can use of it; the cpus of a burstable type are its baseline
    :param features: names that jobs can request, such as the model of its GPU
    :param source: where the prices come from, with their date if known
    :param ebs_only: whether it has no local disk
    """

    name: str
    capacity: Resources
    offerings: tuple[Offering, ...]
    arch: str = DEFAULT_ARCH
    features: frozenset[str] = frozenset()
    source: str = ""
    ebs_only: bool = False


@dataclass(frozen=True, slots=True)
class Overhead:
    """What the operating system and the node agent use of every instance; jobs get the rest.

    :param memory: MiB
    :param disk: MiB
    :param memory_share: an additional fraction of the memory, 0 to 1
    :param disk_share: an additional fraction of the disk, 0 to 1
    """

    memory: int = 0
    disk: int = 0
    memory_share: float = 0.0
    disk_share: float = 0.0

    def subtract_from(self, capacity: Resources) -> Resources:
        return replace(
            capacity,
            memory=max(0, int(capacity.memory * (1 - self.memory_share)) - self.memory),
            disk=max(0, int(capacity.disk * (1 - self.disk_share)) - self.disk),
        )


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Instance types by name, each with at least one price."""

    types: dict[str, InstanceType]

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind.source for kind in self.types.values()))

    def over(self, other: Catalogue) -> Catalogue:
        """This catalogue, plus the types of ``other`` that it lacks."""
        return Catalogue({**other.types, **self.types})

    def select(self, patterns: Sequence[str] = (), excluded: Sequence[str] = ()) -> Catalogue:
        """Only the types that match one of ``patterns`` (shell wildcards; no patterns: all types) and none of
        ``excluded``.

        A burstable type is kept only if a pattern names its family (:func:`.quotas.names_burstable`): under
        load such types cost more than their price, or deliver less than their vCPUs promise.

        :raises ValueError: a pattern matches no type, or no type is left
        """
        for pattern in (*patterns, *excluded):
            if not any(fnmatchcase(name, pattern) for name in self.types):
                valid = valid_types(pattern, self.types)
                raise ValueError(f"{pattern!r} matches none of the {len(self.types)} instance types; {valid}")
        named = [pattern for pattern in patterns if names_burstable(pattern)]
        kept = {
            name: kind
            for name, kind in self.types.items()
            if any(fnmatchcase(name, pattern) for pattern in (named if is_burstable(name) else patterns or "*"))
            and not any(fnmatchcase(name, pattern) for pattern in excluded)
        }
        if not kept:
            message = f"{', '.join((*patterns, *excluded))!r} leaves none of the {len(self.types)} instance types"
            if any(map(is_burstable, self.types)):
                message += (
                    "; burstable types are only selected by a pattern that begins with their family, such as 't3.*'"
                )
            raise ValueError(message)
        return Catalogue(kept)

    def with_ebs(self, disk: int) -> Catalogue:
        """The same catalogue, with a disk of ``disk`` MiB for every type that has no local disk."""
        return Catalogue(
            {
                name: replace(kind, capacity=replace(kind.capacity, disk=disk)) if kind.ebs_only else kind
                for name, kind in self.types.items()
            }
        )

    def without_overhead(self, overhead: Overhead) -> Catalogue:
        return Catalogue(
            {name: replace(kind, capacity=overhead.subtract_from(kind.capacity)) for name, kind in self.types.items()}
        )


def parse_csv(lines: Iterable[str], source: str) -> Catalogue:
    """Read a table with the columns :data:`REQUIRED` and optionally the other :data:`COLUMNS`.

    Storage is in GB of 10**9 bytes.

    :raises csv_tables.TableError: the table is invalid; the message names file, line and value
    """
    rows = csv_tables.read(lines, source, REQUIRED, MOST_TYPES)
    return build(csv_tables.unique(rows, "instance_type", instance_type), source)


def parse_toml(text: str, source: str) -> Catalogue:
    """Read ``[[instance_types]]`` tables, whose keys are the columns of the CSV and two more: ``features`` (a list of
    names) and, instead of ``usd_per_hour``, ``offerings`` (``[{usd_per_hour, capacity_type, zone}]``).

    :raises csv_tables.TableError: the file is invalid; the message names file, line and value
    """
    from lading.scheduling.text import toml  # few callers read TOML

    try:
        content = toml.parse(text)
    except toml.TomlError as error:
        raise csv_tables.TableError(source, error.line, f"not TOML: {error}") from None
    entries = content.get("instance_types")
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        raise csv_tables.TableError(source, 1, "there is no [[instance_types]] table")
    if len(entries) > MOST_TYPES:
        raise csv_tables.TableError(
            source, 1, f"there are {len(entries):,} instance types; valid: at most {MOST_TYPES:,}"
        )
    starts = [i for i, line in enumerate(text.splitlines(), 1) if line.strip().startswith("[[instance_types]]")]
    if len(starts) != len(entries):
        starts = [1] * len(entries)  # written in another notation, so the lines are unknown
    rows = [toml_row(entry, source, line) for entry, line in zip(entries, starts, strict=True)]
    following = iter(entries)
    return build(csv_tables.unique(rows, "instance_type", lambda row: toml_type(row, next(following))), source)


def toml_type(row: csv_tables.Row, entry: dict[str, Any]) -> InstanceType | None:
    """The instance type of one table; None if it has no price."""
    features, offerings = entry.get("features", []), entry.get("offerings")
    if not isinstance(features, list) or not all(isinstance(word, str) for word in features):
        raise row.fault(f"features {shortened(features)} is not a list of names")
    kind = instance_type(row) if offerings is None else bare_type(row)
    if offerings is not None and kind is not None:
        if not isinstance(offerings, list):
            raise row.fault(f"offerings {shortened(offerings)} is not a list of tables")
        kind = replace(kind, offerings=tuple(toml_offering(row, offering) for offering in offerings))
    return replace(kind, features=with_types(kind.features | frozenset(features))) if kind and kind.offerings else None


def toml_row(entry: dict[str, Any], source: str, line: int) -> csv_tables.Row:
    valid = (*COLUMNS, "features", "offerings")
    for key in entry:
        if key not in valid:
            raise csv_tables.TableError(source, line, f"{shortened(key)} is not one of {', '.join(valid)}")
    for key, value in entry.items():
        if key not in ("features", "offerings") and isinstance(value, (dict, list)):
            raise csv_tables.TableError(source, line, f"{key} {shortened(value)} is neither text nor a number")
    cells = {key: str(value) for key, value in entry.items() if key not in ("features", "offerings")}
    return csv_tables.Row(source, line, cells)


def toml_offering(row: csv_tables.Row, entry: Any) -> Offering:
    if not isinstance(entry, dict) or set(entry) - {"usd_per_hour", "capacity_type", "zone"}:
        raise row.fault(f"offering {shortened(entry)} has other keys than usd_per_hour, capacity_type, zone")
    cells = csv_tables.Row(row.source, row.line, {key: str(value) for key, value in entry.items()})
    capacity_type = cells.text("capacity_type", ON_DEMAND)
    if capacity_type not in (ON_DEMAND, SPOT):
        raise row.fault(f"capacity_type {shortened(capacity_type)} is neither {ON_DEMAND} nor {SPOT}")
    return Offering(price(cells), capacity_type, cells.text("zone", "") or None)


def build(types: Iterable[InstanceType | None], source: str) -> Catalogue:
    catalogue = Catalogue({kind.name: kind for kind in types if kind is not None})
    if not catalogue.types:
        raise csv_tables.TableError(source, 1, "no instance type has a price in usd_per_hour")
    return catalogue


def instance_type(row: csv_tables.Row) -> InstanceType | None:
    """The instance type of one row; None if it has no price."""
    kind = bare_type(row)
    if not row.cells.get("usd_per_hour"):
        return None
    return replace(kind, offerings=(Offering(price(row)),))


def bare_type(row: csv_tables.Row) -> InstanceType:
    storage = row.number("local_storage_gb", 0.0, most=MOST_GIB)
    gpu, name = row.cells.get("gpu_name", ""), row.text("instance_type")
    return InstanceType(
        name=name,
        capacity=Resources(
            cpus=baseline(name, row.number("vcpus", most=999_999)),
            memory=int(row.number("memory_gib", most=MOST_GIB) * GIB + ROUNDING),
            disk=int(storage * 10**9 / 2**20 + ROUNDING),
            gpus=0.0 if not_supported([gpu]) else row.number("gpus", 0.0, most=999_999),
        ),
        offerings=(),
        arch=arch(row),
        features=with_types([gpu] if gpu else []),
        source=row.source,
        ebs_only=storage == 0,
    )


def arch(row: csv_tables.Row) -> str:
    """The architecture under the name that hints use for it: EC2's ``arm64`` is ``aarch64``."""
    if "arch" not in row.cells:
        return DEFAULT_ARCH
    try:
        return parse_arch(row.text("arch"))
    except ValueError as error:
        raise row.fault(f"arch {error}") from None


def price(row: csv_tables.Row) -> float:
    return row.number("usd_per_hour", least=LEAST_USD, most=MOST_USD, zero=False)


def bundled() -> Catalogue:
    """The bundled price snapshot; ``data/ec2_prices.md`` names its source."""
    text = (package_data.files("lading.scheduling") / "data" / "ec2_prices.csv").read_text(encoding="utf-8")
    return parse_csv(text.splitlines(), BUNDLED_SOURCE)
