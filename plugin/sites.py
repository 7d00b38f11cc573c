"""The sites: what ``[lading] sites_file`` declares, or this machine alone where there is none."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from lading.executors.settings import Settings
from lading.hooks.site import Site
from lading.plugin.manager import site_kinds
from lading.scheduling.hints import SITE_NAME
from lading.scheduling.resources import Resources

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT = {"local": {"kind": "local"}}


class SitesError(ValueError):
    """The sites file is wrong; the message names the file, the place and what is valid."""


def load_sites(settings: Settings) -> dict[str, Site[Any]]:
    """The sites by name, in the order of the file.

    :raises SitesError: the file cannot be read, or what it says is not valid
    """
    where = settings.sites_file or "the default"
    tables = read(settings.sites_file) if settings.sites_file else DEFAULT
    kinds = site_kinds()
    errors = [error for name, table in tables.items() for error in faults(name, table, kinds)]
    if errors:
        raise SitesError(f"{where}: " + "; ".join(errors))
    return {
        name: kinds[table["kind"]](name, kinds[table["kind"]].config_model(**table), settings.spool_folder / name)
        for name, table in tables.items()
    }


def read(path: Path) -> dict[str, Any]:
    """The tables below ``[sites]`` of a TOML file.

    :raises SitesError: there is no such file, it is no TOML, or has no site
    """
    try:
        document = tomllib.loads(path.read_text())
    except OSError as error:
        raise SitesError(f"[lading] sites_file cannot be read: {error}") from error
    except ValueError as error:
        raise SitesError(f"{path} is no valid TOML: {error}") from error
    unknown = sorted(set(document) - {"sites"})
    if unknown:
        raise SitesError(f"{path}: unknown table {', '.join(unknown)}; only [sites.NAME] tables are expected")
    tables = document.get("sites")
    if not isinstance(tables, dict) or not tables:
        raise SitesError(f'{path} declares no site; write a table such as [sites.local] with kind = "local"')
    return tables


def faults(name: str, table: Any, kinds: dict[str, type[Site[Any]]]) -> list[str]:
    """What is wrong with the table of one site, in words."""
    if not SITE_NAME.fullmatch(name):
        return [f"site name {name!r} is not valid: letters, digits, - and _ are, at most 64"]
    if not isinstance(table, dict):
        return [f"[sites.{name}] is no table"]
    kind = table.get("kind")
    if kind not in kinds:
        return [f"[sites.{name}] kind = {kind!r} is unknown; the kinds are: {', '.join(sorted(kinds))}"]
    model = kinds[kind].config_model
    try:
        kinds[kind].refuse(model(**table))
    except ValidationError as error:
        return [f"[sites.{name}] {words(each, model)}" for each in error.errors()]
    except ValueError as error:
        return [f"[sites.{name}] {error}"]
    return []


def words(fault: Any, model: Any) -> str:
    """One of pydantic's findings as a sentence."""
    place = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        return f"{place} is unknown; the keys are: {', '.join(model.model_fields)}"
    return f"{place} = {fault['input']!r}: {fault['msg'].removeprefix('Value error, ')}"


@dataclass(frozen=True, slots=True)
class Known:
    """What is known of a site.

    :param capacity: the largest job that it can ever run; None: not known
    :param instance_types: what a job can ask for there; None: not known
    :param dialect: of a batch site, see :meth:`Site.dialect`; None: it is none; empty: that is not known
    """

    capacity: Resources | None
    instance_types: frozenset[str] | None = frozenset()
    dialect: Mapping[str, Any] | None = field(default=None, compare=False)

    def suits(self, asked: Resources, instance_type: str | None) -> bool:
        """Whether a job may be able to run there."""
        fits = self.capacity is None or asked.fits(self.capacity)
        return fits and (instance_type is None or self.instance_types is None or instance_type in self.instance_types)


def known_sites(settings: Settings) -> dict[str, Known]:
    """What is known of each site.

    A controller publishes what it sees. Before the first one has run, and where the file does not reach, what the
    sites file declares counts, and for this machine all that it has, which is no less than what the controller may use.

    :raises SitesError: the sites file is wrong
    :raises OSError: the published file cannot be read
    """
    try:
        published = json.loads(settings.published_sites.read_text())["sites"]
        return {
            name: Known(
                Resources(**site["capacity"]) if site["capacity"] is not None else None,
                None if (types := site.get("instance_types", ())) is None else frozenset(types),
                site.get("dialect", {}),  # an older controller has said nothing of it
            )
            for name, site in published.items()
        }
    except FileNotFoundError:
        return {
            name: Known(site.declared_capacity(), site.declared_instance_types(), site.dialect())
            for name, site in load_sites(settings).items()
        }
