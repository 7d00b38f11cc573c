"""The sites file as a controller has read it: what is published about each site, and whether the file has changed."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lading.hooks.batch.site_config import SiteRules
from lading.hooks.files import safe_files
from lading.hooks.files.sites_file import SitesError, read_sites_document
from lading.hooks.site import Site, rules
from lading.hooks.site.rules import parse_bindings
from lading.hooks.site.share_tables import parse_budgets, parse_shares
from lading.scheduling.accounting.budgets import PeriodBudget
from lading.scheduling.accounting.share_table import Shares
from lading.scheduling.matching.bindings import Binding
from lading.scheduling.matching.rules import Relax, Rule
from lading.scheduling.model.location import Location
from lading.scheduling.model.site_names import declared_name
from lading.scheduling.placing.policies import BUILT_IN, DATA_LOCALITY
from lading.scheduling.placing.rooms import within_stacks
from lading.scheduling.text import toml


def edition(path: Path | None) -> str:
    """Return a hash of the contents of a sites file, regardless of comments and white space.

    :param path: None: no file is configured
    :raises ValueError: the file cannot be read, or is not valid TOML
    """
    document = toml.parse(safe_files.read_text(path)) if path else {}
    return hashlib.sha256(json.dumps(document, default=str).encode()).hexdigest()


def edition_now(path: Path | None) -> str | None:
    """Return :func:`edition`, or None if the file cannot be read."""
    try:
        return edition(path)
    except ValueError:
        return None


def difference(read: str | None, path: Path | None) -> str | None:
    """Return how the sites file differs from the edition that a controller has read, as text; None: it does not.

    :param read: None: unknown
    """
    if read is None:
        return None
    try:
        now = edition(path)
    except ValueError as error:
        return f"{path} can no longer be read: {error}"
    return None if now == read else f"{path or '[lading] sites_file'} has changed"


def bindings_of(path: Path | None, sites: Collection[str]) -> list[Binding]:
    """Read the bindings of a sites file.

    :param path: None: no file is configured
    :param sites: the names of all sites
    :raises SitesError: the file cannot be read, or its bindings are not valid; the message names the file
    """
    tables = read_sites_document(path).get("bindings", []) if path else []
    try:
        # Bindings can also name a site's table; if a cluster has only accounts, that name is not a site of its own.
        return parse_bindings(tables, [*dict.fromkeys([*sites, *map(declared_name, sites)])])
    except ValueError as error:
        raise SitesError(f"{path}: {error}") from error


def rules_of(path: Path | None, plugins: Mapping[str, Relax]) -> Sequence[Rule]:
    """Read the rules of a sites file; without any, return the default rules.

    :param path: None: no file is configured
    :param plugins: the rules of plugins, by their names
    :raises SitesError: the file cannot be read, or its rules are not valid; the message names the file
    """
    try:
        return rules.parse_rules(read_sites_document(path).get("rules") if path else None, plugins)
    except SitesError:
        raise
    except ValueError as error:
        raise SitesError(f"{path}: {error}") from error


def shares_of(path: Path | None, sites: Collection[str], half_life: float) -> Shares:
    """Read the shares of a sites file; without any, each Dag has a share of its own.

    :param path: None: no file is configured
    :param sites: the names of all sites
    :param half_life: seconds after which usage counts half
    :raises SitesError: the file cannot be read, or its shares are not valid; the message names the file
    """
    tables = read_sites_document(path).get("shares", []) if path else []
    try:
        return parse_shares(tables, sites, half_life)
    except ValueError as error:
        raise SitesError(f"{path}: {error}") from error


def budgets_of(path: Path | None) -> list[PeriodBudget]:
    """Read the budgets of a sites file.

    :param path: None: no file is configured
    :raises SitesError: the file cannot be read, or its budgets are not valid; the message names the file
    """
    tables = read_sites_document(path).get("budgets", []) if path else []
    try:
        return parse_budgets(tables)
    except ValueError as error:
        raise SitesError(f"{path}: {error}") from error


def possible(potential: Sequence[Location], seen: Sequence[Location]) -> tuple[Location, ...]:
    """Return all locations that a site has or could have. An observed location replaces the possible one of its name.

    A stacked location has at most the capacity of the location that it lies in.

    :param potential: empty: unknown, whatever has been observed
    :returns: empty: unknown
    """
    if not potential:
        return ()
    names = {each.name for each in seen}
    return within_stacks((*seen, *(each for each in potential if each.name not in names)))


def published_site(
    site: Site[Any], locations: Sequence[Location], dialect: Mapping[str, Any] | None, *, needs_inputs: bool = False
) -> dict[str, Any]:
    """Return what is published about a site.

    :param locations: all that it has and could have; empty: unknown
    :param needs_inputs: whether plugins need the input values of all jobs
    """
    alike = Counter(json.dumps(described(each), sort_keys=True) for each in locations)
    return {
        "locations": [{**json.loads(each), "count": count} for each, count in sorted(alike.items())],
        "holds": site.holds,
        "launches": site.launches,
        "arch": site.arch,
        "dialect": dialect,
        "accept_untargeted": bool(site.config.accept_untargeted),
        "burst_after": site.config.burst_after,
        "has_sites_file": site.has_sites_file,
        "needs_files": site.config.policy not in BUILT_IN or site.config.policy == DATA_LOCALITY,
        "needs_inputs": needs_inputs or site.config.policy not in BUILT_IN,
        "memory_overhead": site.memory_overhead,
        "stage_schemes": list(site.config.stage_schemes),
        "rules": asdict(SiteRules.from_table(site.config)),
    }


def described(location: Location) -> dict[str, Any]:
    return {
        **asdict(location.capacity),
        "instance_type": location.instance_type,
        "arch": location.arch,
        "os": location.os,
        "features": sorted(location.features),
        "capacity_type": location.capacity_type,
        "most_nodes": nodes_of(location),
    }


def nodes_of(location: Location) -> dict[str, int] | None:
    """Return the most nodes that one job can have at a location, by queue; None: unknown."""
    if location.most_nodes is not None:
        return dict(location.most_nodes)
    return None if location.nodes is None else {"": location.nodes}


def declared(site: Site[Any]) -> dict[str, Any]:
    """Return what is published about a site when only its table in the sites file has been read."""
    return published_site(site, site.potential(), site.dialect())
