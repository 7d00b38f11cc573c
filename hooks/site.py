"""A site: a place that can run jobs. Each kind of site is one class derived from ``Site``.

The interface is bulk by its types: one ``observe``, one ``put`` and one ``cancel`` per tick, whatever the number of
jobs. A site never decides anything and knows nothing of Airflow's database.

A controller has a thread for each site, in which it calls all that asks the site or does something there, one call
after the other. A call that takes long delays what else is to be done at this site, and nothing elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import Field, StrictBool

from lading.hooks.files.table_model import DurationOrZero, TableModel, Texts
from lading.hooks.spool.spool import Envelope
from lading.scheduling.plan import Location
from lading.scheduling.printable import shortened
from lading.scheduling.resources import Resources


class SiteConfig(TableModel):
    """What every kind of site takes from its table in the sites file."""

    kind: str
    takes_unnamed: StrictBool | None = Field(
        None,
        description="Whether tasks that name no site may run here; without it those do at the first site of the file "
        "alone.",
    )
    burst_after: DurationOrZero = Field(
        0,
        description="How long a task that names no site, and finds no room here, waits before it may go to the next "
        "site that takes such tasks.",
    )
    allowed_dags: Texts | None = Field(
        None,
        description="A list of patterns of Dag ids (`*`, `?`, `[...]`): only these may run here; without it every Dag.",
    )


def taking_unnamed(configs: Mapping[str, SiteConfig], is_implicit: bool = False) -> frozenset[str]:
    """The sites that take tasks which name none: those that say so, and the first one unless it says no.

    :param is_implicit: whether the first is this machine without a table; it gives way to a site that says so
    """
    said = {name: config.takes_unnamed for name, config in configs.items()}
    if not (is_implicit and True in said.values()):
        said |= {first: takes is not False for first, takes in list(said.items())[:1]}
    return frozenset(name for name, takes in said.items() if takes)


@dataclass(frozen=True, slots=True)
class AllocationSeen:
    """A batch job in which a site packs jobs.

    :param native_id: None: the batch system has not said it yet
    :param state: ``waiting``, ``running``, ``ending``
    :param node: as the batch system calls it; None: it waits
    :param jobs: how many are in it
    """

    native_id: str | None
    state: str
    node: str | None
    jobs: int
    capacity: Resources


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
class Seen:
    """A location as its site sees it now. One that a site no longer names is gone for good, and its jobs with it.

    :param location: what it is; what is on it is Lading's own to know
    :param known: the tokens of all jobs that it has, waiting or running; None: it could not be asked, which changes
        nothing for them. Another location is not what it is for that
    :param note: what is wrong with it, or worth knowing, in words; None: nothing
    :param allocations: of a batch site that packs jobs into some
    """

    location: Location
    state: LocationState = LocationState.UP
    known: frozenset[str] | None = field(default=None, compare=False)
    note: str | None = None
    allocations: tuple[AllocationSeen, ...] = ()

    def __post_init__(self) -> None:
        """:raises TypeError: a field is of another type, which would be found out only where all sites are compared"""
        if self.known is not None and not _are(str, self.known, frozenset):
            raise TypeError(f"known is {shortened(self.known)}; valid: a frozenset of tokens, or None")
        if self.note is not None and not isinstance(self.note, str):
            raise TypeError(f"note is {shortened(self.note)}; valid: a text, or None")
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
    valid: dict[str, Any] = {"name": str, "capacity": Resources, "features": frozenset, "hints": frozenset}
    valid |= {"instance_type": (str, type(None)), "max_jobs": (int, type(None)), "ends_at": (int, float, type(None))}
    for name, kind in valid.items():
        if not isinstance(value := getattr(location, name), kind):
            raise TypeError(f"{name} of location {shortened(location.name)} is {shortened(value)}")


def join(*notes: str | None) -> str | None:
    """Several notes as one; None: there are none."""
    return "; ".join(note for note in notes if note) or None


@dataclass(frozen=True, slots=True)
class Check:
    """What a check of a site found.

    :param what: what was checked
    :param good: whether all is well
    :param words: the details, or what is wrong and what to do
    :param warns: whether all is well but could be better, or could not be looked at
    """

    what: str
    good: bool
    words: str
    warns: bool = False


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What was removed at a site of one sort of things that were left behind.

    :param kind: the sort, in words: ``runs``, ``logs``
    :param number: how many were removed, or would be
    :param mib: MiB that they took
    :param trouble: what could not be removed, and why, in words; None: nothing
    """

    kind: str
    number: int
    mib: float
    trouble: str | None = None


@dataclass(frozen=True, slots=True)
class Observation:
    """What a site answered.

    :param locations: all that it has
    :param events: what happened to jobs, in order (see the spool's journal)
    :param acknowledge: to be called when the events have been stored: they need not be told again
    """

    locations: Sequence[Seen]
    events: Sequence[dict[str, Any]] = ()
    acknowledge: Callable[[], None] = field(default=lambda: None)

    def __post_init__(self) -> None:
        """:raises TypeError: a field is of another type"""
        if not _are(Seen, self.locations, (list, tuple)):
            raise TypeError(f"locations is {shortened(self.locations)}; valid: a list or a tuple of Seen")
        object.__setattr__(self, "locations", tuple(self.locations))  # a site may go on changing its own list
        names = [each.name for each in self.locations]
        if twice := {name for name in names if names.count(name) > 1}:
            raise TypeError(f"locations has {', '.join(map(shortened, sorted(twice)))} twice; valid: unique names")
        if not isinstance(self.events, (list, tuple)):
            raise TypeError(f"events is {shortened(self.events)}; valid: a list or a tuple of dicts")


def _are(kind: type, found: object, collection: type | tuple[type, ...]) -> bool:
    return isinstance(found, collection) and all(isinstance(each, kind) for each in found)  # type: ignore[attr-defined]


Config = TypeVar("Config", bound=SiteConfig)


class Site(ABC, Generic[Config]):
    """A place that can run jobs.

    :param name: its name in the sites file
    :param config: its validated table
    :param folder: a folder for its state, which outlives this process
    """

    kind: ClassVar[str]
    config_model: ClassVar[type[SiteConfig]]
    has_sites_file: ClassVar[bool] = False
    """Whether its jobs can read the sites file, for they run on the machine that has it."""
    jwt_seconds: float = 600.0
    """How long the JWT of a job that is sent there is valid; the controller renews it while the job waits."""

    def __init__(self, name: str, config: Config, folder: Path) -> None:
        self.name = name
        self.config = config
        self.folder = folder

    def trial(self, folder: Path) -> Site[Config]:
        """The same site as nobody else uses it, for a trial job; ``close`` removes all traces of it but the folder.

        :param folder: of its own
        """
        return type(self)(self.name, self.config, folder / "spool")

    def trial_sizes(self) -> list[int]:
        """How many trial jobs are given together, by submission; where the site has arrays, several are one."""
        return [1]

    def failing(self) -> str | None:
        """Why a trial job will not end well here, where that is known before it has ended; None: it may."""
        return None

    def diagnosis(self, event: Mapping[str, Any] | None, timeout: float) -> str:
        """Why a trial job has failed or has not ended, and what to change.

        :param event: that tells its end; None: the time is over
        :param timeout: seconds that it had
        """
        if event is not None:
            return str(event["message"])
        return f"the trial job did not end within {timeout:g} s; give more time: --timeout {max(600, 2 * int(timeout))}"

    def checks(self) -> Iterator[Check]:
        """What can be looked at before a trial job, in the order in which it is needed."""
        yield from ()

    def clean(self, older_than: float, keep: Collection[str], dry_run: bool) -> Iterator[Cleaned]:
        """Remove what is left behind, at the site and of it on this machine; never what a live job needs.

        A controller may work with the site at the same time, from another object.

        :param older_than: seconds, at least an hour, for which nothing has changed in it, by the site's own clock
        :param keep: the tokens of all that Airflow has there: jobs of this site, runs of job scripts
        :param dry_run: only tell what would be removed
        :raises OSError: the site could not be asked; nothing is concluded from that
        """
        yield from ()

    @classmethod
    def refuse(cls, config: Config) -> None:
        """Check what the model of the table cannot know.

        :raises ValueError: a value is not valid for this kind; the message names it and what to do
        """

    def dialect(self) -> dict[str, Any] | None:
        """By what hints in the words of a batch system are checked; None: this is no batch site, and takes none.

        :returns: ``system``, the name of the batch system, ``profile``, that of the site, and ``takes_layouts``:
            whether each job is a batch job of its own, which may have nodes, ppn and threads; all of it JSON
        """
        return None

    def script(self, envelope: Envelope) -> str | None:
        """The script that would be submitted now if this were the only job; None: nothing is ever submitted here.

        Nobody asks the site, and nothing is changed.

        :raises ValueError: the batch system does not take such a job; the message says why
        """
        return None

    @abstractmethod
    def potential(self) -> Sequence[Location]:
        """All that could ever be there, known without asking; empty: that is not known.

        A job that nothing of this can hold is refused, so it has to cover all that may appear. What has been seen of a
        location counts in the place of the one of its name.
        """

    @abstractmethod
    def observe(self) -> Observation:
        """Ask the site what there is and what has happened.

        :raises OSError: it could not be asked; nothing is concluded from that
        """

    @abstractmethod
    def put(self, envelopes: Mapping[str, Sequence[Envelope]]) -> None:
        """Give jobs to locations; one that a location has already is not started twice.

        :param envelopes: by the name of the location
        :raises OSError: it could not be done; the jobs are given again
        """

    @abstractmethod
    def cancel(self, messages: Mapping[str, Mapping[str, str]]) -> None:
        """End jobs, waiting or running.

        :param messages: by the name of the location, the reason in words of each token
        :raises OSError: it could not be done; it is asked again
        """

    @abstractmethod
    def close(self, how: str, timeout: float) -> None:
        """Let go of the site within ``timeout`` seconds.

        :param how: ``cancel`` ends its jobs; ``leave`` lets those run that have started, and nothing is left behind
            when they have ended; ``hand_over`` leaves everything to the next controller
        """
