"""What a site answers: its locations as they are now, and what has happened to jobs. It is checked when it is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.reasons import Reason
from lading.scheduling.resources import Resources
from lading.scheduling.text.printable import shortened

# The types of a location's fields, as far as a site says what is in them.
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
    """What a site can do with a location now."""

    BOOTING = "booting"
    """It comes up, and takes no jobs yet."""
    UP = "up"
    """It takes jobs."""
    DRAINING = "draining"
    """It takes no more jobs, and goes when those there have ended."""
    UNREACHABLE = "unreachable"
    """It takes no jobs as long as what its note says keeps it from them; it may be back."""


@dataclass(frozen=True, slots=True)
class ObservedLocation:
    """A location as its site sees it now. One that a site no longer names is gone for good, and its jobs with it.

    :param location: what it is; what is on it is Lading's own to know
    :param known: the tokens of all jobs that it has, waiting or running; None: it could not be asked, which changes
        nothing for them. Another location is not what it is for that
    :param note: what is wrong with it, or worth knowing, as text; None: nothing
    :param native_id: of an allocation: that of its batch job; None: there is none, or it is not known yet
    :param node: of an allocation: where it runs, as the batch system calls it
    :param billed_since: epoch seconds since when it is paid for, as its seller states, by our own clock; None: that
        is not known
    :param image: what it has booted from, as the images of a market are called; None: that of its architecture there
    :param waits: why it is not up yet, for the jobs that wait for it; None: its note says why, or nothing is known
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
        """:raises TypeError: a field is of another type, which would be found out only where all sites are compared"""
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
        """The location's name, unique within the site."""
        return self.location.name


def check_location(location: object) -> None:
    """Refuse what would be found to be wrong only where all sites are compared.

    :raises TypeError: it is no location, or a field of it is of another type
    """
    if not isinstance(location, Location):
        raise TypeError(f"location is {shortened(location)}; valid: a Location")
    for name, kind in OF_LOCATIONS.items():
        if not isinstance(value := getattr(location, name), kind):
            raise TypeError(f"{name} of location {shortened(location.name)} is {shortened(value)}")
    if not _are(str, location.features, frozenset):
        raise TypeError(f"features of location {shortened(location.name)} is {shortened(location.features)}")
    if location.stacked and location.wraps is None:
        raise TypeError(f"location {shortened(location.name)} is stacked, and wraps is None")


def check_stacks(locations: Sequence[Location]) -> None:
    """Refuse locations that lie in what is not there, or in themselves.

    :raises TypeError: one does
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
    """Refuse what would be found to be wrong only where all sites are compared.

    :raises TypeError: a field is of another type
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
    """Several notes as one; None: there are none."""
    return "; ".join(note for note in notes if note) or None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a site answered.

    :param locations: all that it has
    :param events: what happened to jobs, in order (see the spool's journal)
    :param acknowledge: to be called when the events have been stored: they need not be reported again
    :param market: what can be launched; None: nothing is
    :param trouble: why the whole site takes no jobs now; None: it does, or its locations have notes that say why not
    :param note: what is worth knowing of a site that launches its locations, as text; None: nothing
    :param barred: why it takes no jobs of a queue for now, by the queue's name, which is empty for jobs that name none;
        no job waits for it
    """

    locations: Sequence[ObservedLocation]
    events: Sequence[dict[str, Any]] = ()
    acknowledge: Callable[[], None] = field(default=lambda: None)
    market: Market | MachineMarket | None = None
    trouble: Reason | None = None
    note: str | None = None
    barred: Mapping[str, Reason] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """:raises TypeError: a field is of another type"""
        if not _are(ObservedLocation, self.locations, (list, tuple)):
            raise TypeError(f"locations is {shortened(self.locations)}; valid: a list or a tuple of Seen")
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
        """Whether the other one says the same of the site and its locations."""
        said, its = ((each.trouble, each.note, each.barred) for each in (self, other))
        return said == its and alike(self.locations, other.locations)


def alike(some: Sequence[ObservedLocation], others: Sequence[ObservedLocation]) -> bool:
    """Whether locations are the same but for their ends: that of one that has not begun is later at each look."""
    pairs = zip(some, others, strict=False)
    return len(some) == len(others) and all(a == b or _endless(a) == _endless(b) for a, b in pairs)


def _endless(seen: ObservedLocation) -> ObservedLocation:
    return replace(seen, location=replace(seen.location, ends_at=None))


def _are(kind: type, found: object, collection: type | tuple[type, ...]) -> bool:
    return isinstance(found, collection) and all(isinstance(each, kind) for each in found)  # type: ignore[attr-defined]
