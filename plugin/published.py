"""What the controller has published of the sites, which is what the check at Dag parse goes by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lading.executors.settings import Settings
from lading.scheduling.plan import Job, Location
from lading.scheduling.resources import Resources


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a site.

    :param locations: all that it has and could have; empty: that is not known
    :param dialect: of a batch site, see :meth:`Site.dialect`; None: it is none
    :param takes_unnamed: whether it takes tasks that name no site
    :param burst_after: seconds that these wait for room here before another site may have them
    :param has_sites_file: whether its jobs can read the sites file
    :param rules: the parameters of :class:`lading.hooks.batch.site_rules.SiteRules`
    """

    locations: tuple[Location, ...] = ()
    dialect: Mapping[str, Any] | None = field(default=None, compare=False)
    takes_unnamed: bool = field(default=True, compare=False)
    burst_after: int = field(default=0, compare=False)
    has_sites_file: bool = field(default=False, compare=False)
    rules: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def suits(self, asked: Resources, instance_type: str | None) -> bool:
        """Whether a job may be able to run there."""
        job = Job("", asked, instance_type=instance_type)
        return not self.locations or any(location.suits(job) for location in self.locations)

    @property
    def instance_types(self) -> set[str]:
        """What a job can ask for there, as far as it is known."""
        return {each.instance_type for each in self.locations if each.instance_type}

    def closest(self, asked: Resources, instance_type: str | None = None) -> Resources | None:
        """The capacity of the location, of a type if one is asked for, that lacks least; None: that is not known."""
        rooms = [each.capacity for each in self.locations if instance_type in (None, each.instance_type)]
        return min(rooms, key=lambda room: len(asked.lacking(room)), default=None)


def published(settings: Settings) -> dict[str, Known]:
    """What a controller has published of each site, in the order of the sites file.

    :raises FileNotFoundError: none of this version has run yet
    :raises OSError: the file cannot be read
    """
    sites = json.loads(settings.published_sites.read_text())["sites"]
    if not all("locations" in site for site in sites.values()):
        raise FileNotFoundError(f"{settings.published_sites} was written by another version of Lading")
    return {name: known(site) for name, site in sites.items()}


def edition(settings: Settings) -> str | None:
    """The edition of the sites file by which the controller of this machine goes; None: that is not known."""
    try:
        found = json.loads(settings.published_sites.read_text()).get("edition")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def known(site: Mapping[str, Any]) -> Known:
    """One site as it was published."""
    amounts = ("cpus", "memory", "disk", "gpus")
    locations = (
        Location("", Resources(*(each[name] for name in amounts)), instance_type=each["instance_type"])
        for each in site["locations"]
    )
    return Known(
        tuple(locations),
        site["dialect"],
        site["takes_unnamed"],
        site["burst_after"],
        site["has_sites_file"],
        site["rules"],
    )
