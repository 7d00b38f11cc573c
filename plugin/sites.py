"""Loads the sites that ``[lading] sites_file`` declares, and this machine unless the file disables it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from lading.executors.controller import sites_file
from lading.executors.settings import Settings
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.deployment.deployment import Deployment
from lading.hooks.files import table_model
from lading.hooks.files.sites_file import LOCAL, SitesError, read_sites, read_sites_document
from lading.hooks.site import RemoteConfig, Site, SiteConfig, sites_accepting_untargeted
from lading.plugin.manager import policies, rules, site_kinds
from lading.plugin.published import PublishedSite, known, published
from lading.scheduling.hints.places import SITE_NAME
from lading.scheduling.model.site_names import declared_name
from lading.scheduling.placing.policies import BUILT_IN
from lading.scheduling.provisioning.planner import planning_missing
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

# The table of this machine if the sites file has none.
IMPLICIT = {"kind": "local"}
# Options of all kinds, which are listed last in errors.
COMMON = frozenset(SiteConfig.model_fields) - {"kind"}


def load_sites(settings: Settings, deployment: Deployment = AIRFLOW) -> dict[str, Site[Any]]:
    """Load the sites by name, in the order of the file, with ``accept_untargeted`` resolved for each.

    :raises SitesError: the file cannot be read or is not valid
    """
    where = settings.sites_file or "the default"
    kinds = site_kinds()
    tables = declared(settings, kinds)
    # A cluster with several accounts has a table for each.
    errors = [
        error for name, table in tables.items() for error in faults(declared_name(name), table, kinds, deployment)
    ]
    if errors:
        raise SitesError(f"{where}: " + "; ".join(dict.fromkeys(errors)))
    tables = {
        name: with_own_work_dir(table, kinds[table["kind"]].config_model, deployment) for name, table in tables.items()
    }
    models = {kind: site.config_model for kind, site in kinds.items()}
    # Other sections, such as shares and budgets, refer to sites by name, so no sites are implied next to them.
    if settings.sites_file and read_sites_document(settings.sites_file).keys() == {"sites"}:
        implied = deployment.implied_sites(tables, models)
        tables |= {name: table for name, table in implied.items() if not faults(name, table, kinds, deployment)}
    context = {"deployment": deployment}
    configs = {name: models[table["kind"]].model_validate(table, context=context) for name, table in tables.items()}
    configs = {name: config for name, config in configs.items() if getattr(config, "enabled", True)}
    if not configs:
        raise SitesError(f"{where} leaves no site: [sites.{LOCAL}] is disabled, and there is no other site")
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
    """Return the tables of all sites. That of this machine comes first, unless the file has a site that includes it.

    :raises SitesError: the file cannot be read
    """
    tables = read_sites(settings.sites_file) if settings.sites_file else {}
    used = {
        table["kind"] for table in tables.values() if isinstance(table, dict) and isinstance(table.get("kind"), str)
    }
    if LOCAL in tables or any(kinds[kind].has_sites_file for kind in used & kinds.keys()):
        return tables
    return {LOCAL: IMPLICIT, **tables}


def with_own_work_dir(table: Mapping[str, Any], model: type[SiteConfig], deployment: Deployment) -> Mapping[str, Any]:
    """Return a valid table with the deployment's own folder as its ``work_dir``, where deployments share machines."""
    if not (issubclass(model, RemoteConfig) and model.machines_are_shared):
        return table
    return {**table, "work_dir": deployment.own_work_dir(table["work_dir"])}


def faults(name: str, table: Any, kinds: dict[str, type[Site[Any]]], deployment: Deployment = AIRFLOW) -> list[str]:
    if not SITE_NAME.fullmatch(name):
        return [f"site name {shortened(name)} is not valid; valid: up to 64 letters, digits, - and _"]
    if not isinstance(table, dict):
        return [f"[sites.{name}] is not a table"]
    kind = table.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        return [
            f"[sites.{name}] kind = {shortened(kind)} is unknown; the kinds are: {nearest_first(kind, sorted(kinds))}"
        ]
    model = kinds[kind].config_model
    try:
        config = model.model_validate(table, context={"deployment": deployment})
        if config.policy not in (valid := (*model.built_in_policies, *policies())):
            words = "is not a policy of this kind of site" if config.policy in BUILT_IN else "is unknown"
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
    """Return, as text, which exclusive resources several sites use."""
    owners: dict[tuple[str, str], str] = {}
    problems = []
    for name, config in configs.items():
        for key, called in kinds[config.kind].exclusive(config).items():
            owner = owners.setdefault((config.kind, key), name)
            if owner != name:
                problems.append(
                    f"[sites.{name}] has {called}, which [sites.{owner}] has already; a machine can be in one site only"
                )
    return problems


def describe_fault(fault: Any, model: Any) -> str:
    """Describe an error of pydantic in a sentence."""
    table = table_model.table_of(fault, model)
    return table_model.describe_fault(fault, keys(table) if table is model else table.model_fields)


def keys(model: type[SiteConfig]) -> list[str]:
    """Return the keys of a table: required ones first, then other keys of its kind, then keys common to all kinds."""
    fields, own = model.model_fields, {"kind", *model.__annotations__}
    written = [name for name, field in fields.items() if not field.exclude]
    return sorted(written, key=lambda name: (name in COMMON, not fields[name].is_required(), name not in own))


def known_sites(settings: Settings, deployment: Deployment = AIRFLOW) -> dict[str, PublishedSite]:
    """Return what is known of each site.

    The controller publishes what it sees. If there is no published file, because no controller has run on this machine,
    the declarations of the sites file count, and for this machine all of its resources, which is at least what the
    controller can use.

    :raises SitesError: the sites file is not valid
    :raises OSError: the published file cannot be read
    """
    try:
        return published(settings)
    except FileNotFoundError:
        return {name: known(sites_file.declared(site)) for name, site in load_sites(settings, deployment).items()}
