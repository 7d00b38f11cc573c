"""What the controller has published of the sites, which is what the check at Dag parse goes by."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lading.executors.settings import Settings
from lading.scheduling.resources import Resources


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a site.

    :param capacity: the largest job that it can ever run; None: not known
    :param instance_types: what a job can ask for there; None: not known
    :param dialect: of a batch site, see :meth:`Site.dialect`; None: it is none; empty: that is not known
    :param takes_unnamed: whether it takes tasks that name no site
    :param burst_after: seconds of trouble after which these go to another one; None: they wait
    :param has_sites_file: whether its jobs can read the sites file
    :param rules: the parameters of :class:`lading.hooks.batch.site_rules.SiteRules`
    """

    capacity: Resources | None
    instance_types: frozenset[str] | None = frozenset()
    dialect: Mapping[str, Any] | None = field(default=None, compare=False)
    takes_unnamed: bool = field(default=True, compare=False)
    burst_after: int | None = field(default=None, compare=False)
    has_sites_file: bool = field(default=False, compare=False)
    rules: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def suits(self, asked: Resources, instance_type: str | None) -> bool:
        """Whether a job may be able to run there."""
        fits = self.capacity is None or asked.fits(self.capacity)
        return fits and (instance_type is None or self.instance_types is None or instance_type in self.instance_types)


def published(settings: Settings) -> dict[str, Known]:
    """What a controller has published of each site, in the order of the sites file.

    :raises FileNotFoundError: none has run yet
    :raises OSError: the file cannot be read
    """
    sites = json.loads(settings.published_sites.read_text())["sites"]
    return {name: known(site) for name, site in sites.items()}


def edition(settings: Settings) -> str | None:
    """The edition of the sites file by which the controller of this machine goes; None: that is not known."""
    try:
        found = json.loads(settings.published_sites.read_text()).get("edition")
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


def known(site: Mapping[str, Any]) -> Known:
    """One site as it was published; an older controller has said less of it."""
    dialect = site.get("dialect", {})
    return Known(
        Resources(**site["capacity"]) if site["capacity"] is not None else None,
        None if (types := site.get("instance_types", ())) is None else frozenset(types),
        dialect,
        site.get("takes_unnamed", True),
        site.get("burst_after"),
        site.get("has_sites_file", dialect is None),
        site.get("rules", {}),
    )
