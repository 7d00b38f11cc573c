"""The sites as published by the controller, for the checks when a Dag is parsed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from typing import Any

from lading.executors.settings import Settings
from lading.hooks.files import sites_file
from lading.scheduling.hints.hints import HintError
from lading.scheduling.matching.admission import Admission
from lading.scheduling.matching.bindings import Binding
from lading.scheduling.matching.wishes import default_arch, resolved
from lading.scheduling.model.job import NOTHING, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.machine_traits import valid_types
from lading.scheduling.model.resources import Resources


@dataclass(frozen=True, slots=True)
class PublishedSite:
    """What is known of a site.

    :param locations: all that it has or could have; empty: unknown
    :param dialect: of a batch site, see :meth:`Site.dialect`; None: it is not a batch site
    :param accept_untargeted: whether it takes tasks that name no site
    :param burst_after: seconds that such tasks wait for room here before they can go to another site
    :param has_sites_file: whether its jobs can read the sites file
    :param rules: the parameters of :class:`lading.hooks.batch.site_config.SiteRules`
    :param arch: the architecture of tasks that name none; None: any machine of the site suits them
    :param needs_files: whether its policy uses the addresses of the input files of its jobs
    :param needs_inputs: whether plugins use the input values of its jobs
    :param stage_schemes: the URL schemes of object stores from which it stages files; None: unknown
    :param holds: whether it holds room for gangs; None: unknown
    :param launches: whether it launches its locations, each as often as needed
    :param memory_overhead: see :attr:`Site.memory_overhead`
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
    memory_overhead: int = field(default=0, compare=False)

    @property
    def admission(self) -> Admission:
        return Admission.published(self.rules)

    def suits(self, job: PlannedJob) -> bool:
        """Whether a job could run at the site, as far as is known."""
        asked = resolved(job, self.arch)
        return not self.locations or any(location.suits(asked) for location in self.locations)

    def has_nodes(self, job: PlannedJob) -> bool:
        """Whether a job can ever have as many nodes as it requests, as far as is known."""
        return not self.locations or any(each.has_nodes(job) for each in self.locations)

    def widest(self, job: PlannedJob) -> Location:
        return max(self.locations, key=lambda each: each.nodes_for(job) or 0)

    def at_once(self, asked: Resources) -> int | None:
        """Return how many jobs with this request can run at the same time; None: it depends on launches or on the batch
        system.
        """
        if self.launches or self.dialect is not None or not self.locations:
            return None
        return sum(int(asked.copies(each.capacity)) for each in self.locations)

    def scarcest(self, asked: Resources) -> str:
        total = NOTHING.with_all([each.capacity for each in self.locations])
        amounts = {field.name: getattr(asked, field.name) for field in fields(asked)}
        return min((name for name in amounts if amounts[name]), key=lambda name: getattr(total, name) / amounts[name])

    def of_types(self, pattern: str) -> PublishedSite:
        """Return the site with only the locations whose instance type matches a pattern (``*``, ``?``, ``[...]``).

        :raises HintError: no instance type matches
        """
        types = {each.instance_type for each in self.locations if each.instance_type is not None}
        found = {each for each in types if fnmatchcase(each, pattern)}
        if not found:
            raise HintError(f"there is no instance type {pattern!r}, {valid_types(pattern, types)}")
        return replace(self, locations=tuple(each for each in self.locations if each.instance_type in found))

    def closest(self, job: PlannedJob) -> Resources | None:
        """Return the capacity of the suitable location that lacks least for a job; None: there is none."""
        asked = resolved(job, self.arch)
        rooms = [each.capacity for each in self.locations if each.kind.grants(asked.wish)]
        return min(rooms, key=job.resources.shortfall, default=None)


def published(settings: Settings) -> dict[str, PublishedSite]:
    """Read the sites that a controller has published, in the order of the sites file.

    :raises FileNotFoundError: no controller of this version has run yet
    :raises OSError: the file cannot be read
    """
    sites = json.loads(settings.published_sites.read_text())["sites"]
    if not all("locations" in site and "arch" in site for site in sites.values()):
        raise FileNotFoundError(f"{settings.published_sites} was written by another version of Lading")
    return {name: known(site) for name, site in sites.items()}


def most_nodes(settings: Settings) -> dict[str, tuple[tuple[str, int], ...]]:
    """Return, by batch site, the most nodes that a job can have (:class:`lading.scheduling.model.location.Location`).

    Only controllers query batch systems, so the result is empty if none has published the limits.
    """
    try:
        sites = published(settings)
    except (OSError, ValueError, AttributeError):
        return {}
    return {name: most for name, site in sites.items() for each in site.locations if (most := each.most_nodes)}


def bindings(settings: Settings) -> list[Binding]:
    """Read the bindings that a controller has published, or those of the sites file if no controller has run yet.

    :raises ValueError: the bindings are not valid
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
    """Return the edition of the sites file that the controller of this machine uses; None: unknown."""
    return _published_text(settings, "edition")


def sites_file_in_use(settings: Settings) -> str | None:
    """Return the path of the sites file that the controller of this machine uses; empty: none; None: unknown."""
    return _published_text(settings, "sites_file")


def _published_text(settings: Settings, key: str) -> str | None:
    try:
        found = json.loads(settings.published_sites.read_text()).get(key)
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def known(site: Mapping[str, Any]) -> PublishedSite:
    """Parse a published site."""
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
        site.get("memory_overhead", 0),
    )
