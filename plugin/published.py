"""What the controller has published of the sites, which is what the check at Dag parse goes by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from lading.executors.settings import Settings
from lading.hooks.files import sites_file
from lading.scheduling.hints.hints import HintError
from lading.scheduling.job import NOTHING, PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.machine_traits import valid_types
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.bindings import Binding
from lading.scheduling.matching.wishes import default_arch, resolved
from lading.scheduling.resources import Resources


@dataclass(frozen=True, slots=True)
class PublishedSite:
    """What is known of a site.

    :param locations: all that it has and could have; empty: that is not known
    :param holds: whether room is held there for gangs; None: that is not known
    :param launches: whether its locations are launched, of each as many as it takes
    :param dialect: of a batch site, see :meth:`Site.dialect`; None: it is none
    :param accept_untargeted: whether it takes tasks that name no site
    :param burst_after: seconds that these wait for room here before another site may have them
    :param has_sites_file: whether its jobs can read the sites file
    :param arch: the architecture of tasks that name none; None: any of its machines will do for them
    :param needs_files: whether its policy asks which files its jobs read
    :param needs_inputs: whether plugins ask for the values of the inputs of its jobs
    :param stage_schemes: of the object stores from which it takes files that tasks stage; None: that is not known
    :param rules: the parameters of :class:`lading.hooks.batch.site_config.SiteRules`
    """

    locations: tuple[Location, ...] = ()
    dialect: Mapping[str, Any] | None = field(default=None, compare=False)
    accept_untargeted: bool = field(default=True, compare=False)
    burst_after: int = field(default=0, compare=False)
    has_sites_file: bool = field(default=False, compare=False)
    rules: Mapping[str, Any] = field(default_factory=dict, compare=False)
    arch: str | None = None
    needs_files: bool = field(default=False, compare=False)
    needs_inputs: bool = field(default=False, compare=False)
    stage_schemes: tuple[str, ...] | None = field(default=None, compare=False)
    holds: bool | None = field(default=None, compare=False)
    launches: bool = field(default=False, compare=False)

    @property
    def admission(self) -> Admission:
        """Whose jobs it takes."""
        return Admission.published(self.rules)

    def suits(self, job: PlannedJob) -> bool:
        """Whether a job may be able to run there."""
        asked = resolved(job, self.arch)
        return not self.locations or any(location.suits(asked) for location in self.locations)

    def has_nodes(self, job: PlannedJob) -> bool:
        """Whether a job can ever have as many nodes there as it asks for, as far as that is known."""
        return not self.locations or any(each.has_nodes(job) for each in self.locations)

    def widest(self, job: PlannedJob) -> Location:
        """The location where a job can have the most nodes."""
        return max(self.locations, key=lambda each: each.nodes_for(job) or 0)

    def at_once(self, asked: Resources) -> int | None:
        """How many jobs that ask for so much run there at the same time; None: as many as it launches machines for, or
        as its batch system allows.
        """
        if self.launches or self.dialect is not None or not self.locations:
            return None
        return sum(int(asked.copies(each.capacity)) for each in self.locations)

    def scarcest(self, asked: Resources) -> str:
        """The resource of which it has least, as jobs that ask for so much need it."""
        total = NOTHING.with_all([each.capacity for each in self.locations])
        amounts = {field.name: getattr(asked, field.name) for field in fields(asked)}
        return min((name for name in amounts if amounts[name]), key=lambda name: getattr(total, name) / amounts[name])

    def of_types(self, pattern: str) -> PublishedSite:
        """The same site with no machines but those whose instance type matches a pattern (``*``, ``?``, ``[...]``).

        :raises HintError: there are none
        """
        types = {each.instance_type for each in self.locations if each.instance_type is not None}
        found = {each for each in types if fnmatchcase(each, pattern)}
        if not found:
            raise HintError(f"no instance type is {pattern!r}, {valid_types(pattern, types)}")
        return replace(self, locations=tuple(each for each in self.locations if each.instance_type in found))

    def closest(self, job: PlannedJob) -> Resources | None:
        """The capacity of the location that lacks least of those which are what a job asks for; None: none is known."""
        asked = resolved(job, self.arch)
        rooms = [each.capacity for each in self.locations if each.kind.grants(asked.wish)]
        return min(rooms, key=job.resources.shortfall, default=None)


def published(settings: Settings) -> dict[str, PublishedSite]:
    """What a controller has published of each site, in the order of the sites file.

    :raises FileNotFoundError: none of this version has run yet
    :raises OSError: the file cannot be read
    """
    sites = json.loads(settings.published_sites.read_text())["sites"]
    if not all("locations" in site and "arch" in site for site in sites.values()):
        raise FileNotFoundError(f"{settings.published_sites} was written by another version of Lading")
    return {name: known(site) for name, site in sites.items()}


def most_nodes(settings: Settings) -> dict[str, tuple[tuple[str, int], ...]]:
    """By batch site, how many nodes a job can ever have there, see :class:`lading.scheduling.location.Location`.

    Only a controller asks batch systems; empty where none has published what they say.
    """
    try:
        sites = published(settings)
    except (OSError, ValueError, AttributeError):
        return {}
    return {name: most for name, site in sites.items() for each in site.locations if (most := each.most_nodes)}


def bindings(settings: Settings) -> list[Binding]:
    """The bindings that a controller has published; before the first one has run, those of the sites file.

    :raises ValueError: they are not valid
    :raises OSError: the file cannot be read
    """
    try:
        published = json.loads(settings.published_sites.read_text()).get("bindings")
    except FileNotFoundError:
        published = None
    if published is None:
        tables = sites_file.read_sites_document(settings.sites_file).get("bindings", []) if settings.sites_file else []
        return [Binding.from_table(each) for each in tables]
    return [Binding.from_table(each) for each in published]


def edition(settings: Settings) -> str | None:
    """The edition of the sites file by which the controller of this machine goes; None: that is not known."""
    try:
        found = json.loads(settings.published_sites.read_text()).get("edition")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def known(site: Mapping[str, Any]) -> PublishedSite:
    """One site as it was published."""
    amounts = ("cpus", "memory", "disk", "gpus")
    locations = tuple(
        Location(
            "",
            Resources(*(location[name] for name in amounts)),
            instance_type=location["instance_type"],
            arch=location["arch"],
            os=location["os"],
            features=frozenset(location["features"]),
            capacity_type=location["capacity_type"],
            most_nodes=tuple(location["most_nodes"].items()) if location.get("most_nodes") is not None else None,
        )
        for location in site["locations"]
        for _ in range(location.get("count", 1))
    )
    return PublishedSite(
        locations,
        site["dialect"],
        site["accept_untargeted"],
        site["burst_after"],
        site["has_sites_file"],
        site["rules"],
        default_arch(site["arch"], locations),
        site.get("needs_files", False),
        site.get("needs_inputs", False),
        None if (schemes := site.get("stage_schemes")) is None else tuple(schemes),
        site.get("holds"),
        site.get("launches", False),
    )
