"""The sites: what ``[lading] sites_file`` declares, and this machine unless the file turns it off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lading.executors.controller import sites_file
from lading.executors.settings import Settings
from lading.hooks.deployment import current
from lading.hooks.files import table_model
from lading.hooks.files.sites_file import LOCAL, SitesError, read_sites, read_sites_document
from lading.hooks.site import Site, SiteConfig, sites_accepting_untargeted
from lading.plugin.manager import policies, rules, site_kinds
from lading.plugin.published import PublishedSite, known, published
from lading.scheduling.hints.places import SITE_NAME
from lading.scheduling.placing.policies import BUILT_IN
from lading.scheduling.provisioning.planner import planning_missing
from lading.scheduling.site_names import declared_name
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.printable import shortened

__all__ = [
    "LOCAL",
    "PublishedSite",
    "SitesError",
    "declared",
    "describe_fault",
    "faults",
    "known_sites",
    "load_sites",
    "read_sites",
]

# Its table where the sites file has none for this machine.
IMPLICIT = {"kind": "local"}
# Options that every kind takes are listed last.
COMMON = frozenset(SiteConfig.model_fields) - {"kind"}


def load_sites(settings: Settings) -> dict[str, Site[Any]]:
    """The sites by name, in the order of the file; of each is settled whether it takes tasks that name no site.

    :raises SitesError: the file cannot be read, or what it says is not valid
    """
    where = settings.sites_file or "the default"
    kinds = site_kinds()
    tables = declared(settings, kinds)
    # The table of a cluster is one for each of its accounts.
    errors = [error for name, table in tables.items() for error in faults(declared_name(name), table, kinds)]
    if errors:
        raise SitesError(f"{where}: " + "; ".join(dict.fromkeys(errors)))
    # Shares, budgets and the like are about the sites that they name.
    if settings.sites_file and read_sites_document(settings.sites_file).keys() == {"sites"}:
        models = {kind: site.config_model for kind, site in kinds.items()}
        implied = current.deployment().implied_sites(tables, models)
        tables |= {name: table for name, table in implied.items() if not faults(name, table, kinds)}
    configs = {name: kinds[table["kind"]].config_model(**table) for name, table in tables.items()}
    configs = {name: config for name, config in configs.items() if getattr(config, "enabled", True)}
    if not configs:
        raise SitesError(f"{where} leaves no site: [sites.{LOCAL}] is turned off, and there is no other")
    if shared := shared_by_several(configs, kinds):
        raise SitesError(f"{where}: " + "; ".join(shared))
    sites_file.bindings_of(settings.sites_file, configs)
    sites_file.rules_of(settings.sites_file, rules())
    sites_file.shares_of(settings.sites_file, configs, settings.share_half_life)
    sites_file.budgets_of(settings.sites_file)
    takers = sites_accepting_untargeted(configs, is_implicit=tables.get(LOCAL) is IMPLICIT)
    return {
        name: kinds[config.kind](
            name, config.model_copy(update={"accept_untargeted": name in takers}), settings.spool_folder / name
        )
        for name, config in configs.items()
    }


def declared(settings: Settings, kinds: Mapping[str, type[Site[Any]]]) -> dict[str, Any]:
    """The tables of all sites: those of the file, and before them this machine's, where none of them is this machine.

    :raises SitesError: the file cannot be read
    """
    tables = read_sites(settings.sites_file) if settings.sites_file else {}
    used = {
        table["kind"] for table in tables.values() if isinstance(table, dict) and isinstance(table.get("kind"), str)
    }
    if LOCAL in tables or any(kinds[kind].has_sites_file for kind in used & kinds.keys()):
        return tables
    return {LOCAL: IMPLICIT, **tables}


def faults(name: str, table: Any, kinds: dict[str, type[Site[Any]]]) -> list[str]:
    """What is wrong with the table of one site, as text."""
    if not SITE_NAME.fullmatch(name):
        return [f"site name {shortened(name)} is not valid: letters, digits, - and _ are, at most 64"]
    if not isinstance(table, dict):
        return [f"[sites.{name}] is no table"]
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        return [
            f"[sites.{name}] kind = {shortened(kind)} is unknown; the kinds are: {nearest_first(kind, sorted(kinds))}"
        ]
    model = kinds[kind].config_model
    try:
        config = model(**table)
        if config.policy not in (valid := (*model.built_in_policies, *policies())):
            words = "is none of such a site" if config.policy in BUILT_IN else "is unknown"
            raise ValueError(
                f"policy = {shortened(config.policy)} {words}; leave it out for {valid[0]!r}, or give one of "
                f"{', '.join(valid)}"
            )
        if config.needs_planning and (missing := planning_missing()):
            raise ValueError(f"{config.needs_planning} {missing}")
        kinds[kind].refuse(config)
    except ValidationError as error:
        return [f"[sites.{name}] {describe_fault(each, model)}" for each in table_model.errors_of(error)]
    except ValueError as error:
        return [f"[sites.{name}] {error}"]
    return []


def shared_by_several(configs: Mapping[str, SiteConfig], kinds: Mapping[str, type[Site[Any]]]) -> list[str]:
    """What several sites use that one alone may have, as text."""
    owners: dict[tuple[str, str], str] = {}
    problems = []
    for name, config in configs.items():
        for key, called in kinds[config.kind].exclusive(config).items():
            owner = owners.setdefault((config.kind, key), name)
            if owner != name:
                problems.append(
                    f"[sites.{name}] has {called}, which [sites.{owner}] has already; a machine is in one site"
                )
    return problems


def describe_fault(fault: Any, model: Any) -> str:
    """One of pydantic's findings as a sentence."""
    table = table_model.table_of(fault, model)
    return table_model.describe_fault(fault, keys(table) if table is model else table.model_fields)


def keys(model: type[SiteConfig]) -> list[str]:
    """The keys of a table: first those that must be given, then the others of its kind, then those of several kinds."""
    fields, own = model.model_fields, {"kind", *model.__annotations__}
    written = [name for name, field in fields.items() if not field.exclude]
    return sorted(written, key=lambda name: (name in COMMON, not fields[name].is_required(), name not in own))


def known_sites(settings: Settings) -> dict[str, PublishedSite]:
    """What is known of each site.

    A controller publishes what it sees. Before the first one has run, and where the file does not reach, what the
    sites file declares counts, and for this machine all that it has, which is no less than what the controller may use.

    :raises SitesError: the sites file is wrong
    :raises OSError: the published file cannot be read
    """
    try:
        return published(settings)
    except FileNotFoundError:
        return {name: known(sites_file.declared(site)) for name, site in load_sites(settings).items()}
