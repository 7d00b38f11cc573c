"""What a site reports: its current locations, and what happened to jobs. The types are checked on construction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from lading.scheduling.text.printable import shortened

# The types of those fields of a location that a site sets.
OF_LOCATIONS: Mapping[str, Any] = {
    "name": str,
    "capacity": Resources,
    "features": frozenset,
    "hints": frozenset,
    "os": str,
    "stacked": bool,
    **dict.fromkeys(("instance_type", "arch", "capacity_type", "wraps"), (str, type(None))),
    **dict.fromkeys(("max_jobs", "nodes", "idle_nodes"), (int, type(None))),
    "most_nodes": (tuple, type(None)),
    "ends_at": (int, float, type(None)),
}


class LocationState(str, Enum):
    """Whether a location takes jobs now."""

    BOOTING = "booting"
    """It is starting, and takes no jobs yet."""
    UP = "up"
    """It takes jobs."""
    DRAINING = "draining"
    """It takes no more jobs, and is removed once its jobs have finished."""
    UNREACHABLE = "unreachable"
    """It takes no jobs for the reason in its note; it can recover."""


@dataclass(frozen=True, slots=True)
class ObservedLocation:
    """A location as its site sees it now. A location that its site stops reporting is gone for good, with its jobs.

    :param location: its properties, without its load, which Lading tracks itself
    :param known: the tokens of all jobs that it has, waiting or running; None: it could not be asked, so nothing
        changes for them. Ignored when locations are compared
    :param note: what is wrong with it, or worth knowing, as text; None: nothing
    :param native_id: of an allocation: the id of its batch job; None: it has none, or none yet
    :param node: of an allocation: where it runs, as the batch system names it
    :param billed_since: when its billing started according to its provider, converted to our own clock: epoch
        seconds; None: unknown
    :param image: what it was booted from, under the name that its market uses; None: the market's image for its
        architecture
    :param waits: why it is not up yet, shown for the jobs that wait for it; None: see its note, or unknown
    """

    location: Location
    state: LocationState = LocationState.UP
    known: frozenset[str] | None = field(default=None, compare=False)
    note: str | None = None
    native_id: str | None = None
    node: str | None = None
    billed_since: float | None = None
    image: str | None = None
    waits: Reason | None = None

    def __post_init__(self) -> None:
        """:raises TypeError: a field has the wrong type, which would otherwise show only when sites are compared"""
        if self.known is not None and not _are(str, self.known, frozenset):
            raise TypeError(f"known is {shortened(self.known)}; valid: a frozenset of tokens, or None")
        for field_name in ("note", "native_id", "node", "image"):
            if not isinstance(value := getattr(self, field_name), (str, type(None))):
                raise TypeError(f"{field_name} is {shortened(value)}; valid: a text, or None")
        if not isinstance(self.waits, (Reason, type(None))):
            raise TypeError(f"waits is {shortened(self.waits)}; valid: a Reason, or None")
        if not isinstance(self.state, LocationState):
            raise TypeError(f"state is {shortened(self.state)}; valid: a LocationState")
        check_location(self.location)

    @property
    def name(self) -> str:
        return self.location.name


def check_location(location: object) -> None:
    """Reject a location with wrong types early, before it is compared with those of other sites.

    :raises TypeError: it is not a location, or one of its fields has the wrong type
    """
    if not isinstance(location, Location):
        raise TypeError(f"location is {shortened(location)}; valid: a Location")
    for name, kind in OF_LOCATIONS.items():
        if not isinstance(value := getattr(location, name), kind):
            raise TypeError(f"{name} of location {shortened(location.name)} is {shortened(value)}")
    if not _are(str, location.features, frozenset):
        raise TypeError(f"features of location {shortened(location.name)} is {shortened(location.features)}")
    if location.stacked and location.wraps is None:
        raise TypeError(f"location {shortened(location.name)} is stacked, but wraps is None")


def check_stacks(locations: Sequence[Location]) -> None:
    """Check that each stacked location wraps one that exists, and that there is no cycle.

    :raises TypeError: a location wraps a missing one, or itself
    """
    wraps = {each.name: each.wraps for each in locations if each.wraps is not None}
    names = {each.name for each in locations}
    for name, first in wraps.items():
        if first not in names:
            raise TypeError(f"location {shortened(name)} wraps {shortened(first)}, which is not among the locations")
        above, beneath = {name}, wraps.get(name)
        while beneath is not None and beneath not in above:
            above.add(beneath)
            beneath = wraps.get(beneath)
        if beneath is not None:
            raise TypeError(f"location {shortened(name)} wraps {shortened(beneath)}, which wraps it in turn")


def check_market(market: Market | MachineMarket) -> None:
    """Reject a market with wrong types early, before it is compared with those of other sites.

    :raises TypeError: a field has the wrong type
    """
    number, nothing = (int, float), type(None)
    valid: dict[str, Any] = {"idle_seconds": number, "held": (Reason, nothing)}
    if isinstance(market, MachineMarket):
        valid |= {
            "catalogue": Catalogue,
            "limits": InstanceLimits,
            "policy": str,
            "min_instances": int,
            "boot_seconds": number,
        }
        valid |= {"images": Mapping}
    else:
        valid |= {"capacity": Resources, "overhead": int, "most": int}
        valid |= dict.fromkeys(("seconds", "unlimited", "grace"), number)
        valid |= {"memory_limit": (int, nothing), "time_limit": (*number, nothing)}
    for name, kind in valid.items():
        if not isinstance(value := getattr(market, name), kind):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            valid_kinds = " or ".join("None" if each is nothing else each.__name__ for each in kinds)
            raise TypeError(f"{name} of the market is {shortened(value)}; valid: {valid_kinds}")


def join(*notes: str | None) -> str | None:
    return "; ".join(note for note in notes if note) or None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a site reported.

    :param locations: all its locations
    :param events: what happened to jobs, in order (see the spool's journal)
    :param acknowledge: called once the events are stored, so that the site need not report them again
    :param market: what can be launched; None: nothing
    :param trouble: why the whole site takes no jobs now; None: it does, or the notes of its locations say why not
    :param note: something worth knowing about a site that launches its locations, as text; None: nothing
    :param barred: why a queue takes no jobs for now, by queue name; the empty name is for jobs that name no queue. No
        job waits for such a queue
    """

    locations: Sequence[ObservedLocation]
    events: Sequence[dict[str, Any]] = ()
    acknowledge: Callable[[], None] = field(default=lambda: None)
    market: Market | MachineMarket | None = None
    trouble: Reason | None = None
    note: str | None = None
    barred: Mapping[str, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """:raises TypeError: a field has the wrong type"""
        if not _are(ObservedLocation, self.locations, (list, tuple)):
            raise TypeError(f"locations is {shortened(self.locations)}; valid: a list or a tuple of ObservedLocation")
        object.__setattr__(self, "locations", tuple(self.locations))  # a site may change its own list later
        names = Counter(each.name for each in self.locations)
        if twice := [name for name, times in names.items() if times > 1]:
            raise TypeError(f"locations has {', '.join(map(shortened, sorted(twice)))} twice; valid: unique names")
        check_stacks([each.location for each in self.locations])
        if not isinstance(self.events, (list, tuple)):
            raise TypeError(f"events is {shortened(self.events)}; valid: a list or a tuple of dicts")
        valid: dict[str, tuple[type, ...]] = {"market": (Market, MachineMarket), "trouble": (Reason,), "note": (str,)}
        for name, kinds in valid.items():
            if not isinstance(value := getattr(self, name), (*kinds, type(None))):
                raise TypeError(f"{name} is {shortened(value)}; valid: a {kinds[0].__name__}, or None")
        if not (
            isinstance(self.barred, dict)
            and _are(str, [*self.barred], list)
            and _are(Reason, [*self.barred.values()], list)
        ):
            raise TypeError(f"barred is {shortened(self.barred)}; valid: a dict of Reasons by the names of queues")
        if self.market is not None:
            check_market(self.market)

    def looks_like(self, other: Observation) -> bool:
        """Check whether both observations report the same state of the site and its locations."""
        said, its = ((each.trouble, each.note, each.barred) for each in (self, other))
        return said == its and alike(self.locations, other.locations)


def alike(some: Sequence[ObservedLocation], others: Sequence[ObservedLocation]) -> bool:
    """Check whether locations are equal except for ``ends_at``, which moves with each poll until a location starts."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a == b or _endless(a) == _endless(b) for a, b in pairs)


def _endless(seen: ObservedLocation) -> ObservedLocation:
    return replace(seen, location=replace(seen.location, ends_at=None))


def _are(kind: type, found: object, collection: type | tuple[type, ...]) -> bool:
    return isinstance(found, collection) and all(isinstance(each, kind) for each in found)  # type: ignore[attr-defined]
