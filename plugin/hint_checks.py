"""Checks of hints against what the sites can ever give, so that impossible requests are errors when a Dag is parsed.

Every Airflow process loads this (by :mod:`lading.plugin.policies`), so it imports little.
"""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from lading.hooks.files.addresses import staging_refusal
from lading.scheduling.hints.hints import LAYOUT_HINTS, HintError, Hints
from lading.scheduling.hints.places import Target
from lading.scheduling.matching import admission
from lading.scheduling.matching.bindings import FILTERS, Binding
from lading.scheduling.matching.wishes import MatchedMachine, lacking, too_many_nodes
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources, format_resources
from lading.scheduling.model.site_names import is_named
from lading.scheduling.text.nearest import nearest_first
from lading.scheduling.text.units import format_count, format_memory

if TYPE_CHECKING:
    from airflow.sdk import BaseOperator
    from airflow.sdk.definitions.mappedoperator import MappedOperator

    from lading.hooks.batch.system import BatchSystem, Profile
    from lading.plugin.published import PublishedSite

log = logging.getLogger(__name__)


def check(hints: Hints, dag_id: str, team: str | None = None) -> None:
    """Check hints against what the sites can ever give, as far as that is known, and which Dags they admit.

    :param team: the team of the Dag; None: it has none
    :raises HintError: the named site does not exist; no site takes tasks that name none, or admits this Dag; the hints
        request more than any site has; or a hint needs a batch site
    """
    check_sites(hints, *known_sites(), dag_id, team)


def check_sites(
    hints: Hints, known: Mapping[str, PublishedSite], defaults: Resources, dag_id: str, team: str | None = None
) -> None:
    """Check hints against the given sites.

    :param defaults: what a task without hints requests
    :raises HintError: see :func:`check`
    """
    if not known:
        return
    if hints.targets:
        check_targets(hints, dag_id, team, known)
        return
    if hints.site is not None:
        its_own = {name: site for name, site in known.items() if is_named(name, hints.site)}
        if not its_own:
            raise HintError(f"hint site: there is no site {hints.site!r}; valid: {nearest_first(hints.site, known)}")
        check_at(open_to(dag_id, team, its_own), hints)
        return
    takers = {name: site for name, site in known.items() if site.accept_untargeted}
    try:
        if not takers:
            raise HintError("no site takes tasks that name no site")
        takers = open_to(dag_id, team, takers)
        check_at(takers, hints)
        if hints == Hints() and not any(site.suits(PlannedJob("", defaults)) for site in takers.values()):
            raise HintError(without_hints(defaults, takers))
    except HintError as error:
        others = [
            name for name in known if name not in takers and is_possible({name: known[name]}, hints, dag_id, team)
        ]
        if not others:
            raise
        may = f"only {', '.join(takers)} can" if takers else "no site can"
        raise HintError(
            f"{error}; the task names no site, and {may} run "
            f"such tasks: give it the hint site, valid: {', '.join(others)}; or set accept_untargeted = true in the "
            "table of one of these"
        ) from error


def is_possible(known: Mapping[str, PublishedSite], hints: Hints, dag_id: str, team: str | None) -> bool:
    """Return whether the sites admit a Dag, and one of them suits hints."""
    try:
        check_at(open_to(dag_id, team, known), hints)
    except HintError:
        return False
    return True


def check_targets(hints: Hints, dag_id: str, team: str | None, known: Mapping[str, PublishedSite]) -> None:
    """Check that hints suit at least one of the targets of a task.

    :raises HintError: a site or binding filter does not exist, or no target suits
    """
    faults = []
    for target in map(Target.parse, hints.targets):
        named = {name: site for name, site in known.items() if is_named(name, target.site)}
        if not named:
            raise HintError(
                f"hint targets: there is no site {target.site!r}; valid: {nearest_first(target.site, known)}"
            )
        its_own = replace(hints, targets=(), filters=(), matching=())
        try:
            open_ones = open_to(dag_id, team, named)
            site = next(iter(open_ones.values()))
            if target.within is not None and site.dialect is not None:
                its_own = replace(its_own, queue=target.within)
            elif target.within is not None and site.locations:
                open_ones = {name: each.of_types(target.within) for name, each in open_ones.items()}
            check_at(open_ones, its_own)
        except HintError as error:
            faults.append(f"target {str(target)!r}: {error}")
    if len(faults) == len(hints.targets):
        raise HintError("hint targets: no target suits the task: " + "; ".join(faults))
    if hints.filters and set(hints.filters) - FILTERS.keys():
        from lading.plugin.manager import (
            binding_filters,
        )  # imported here because few tasks use filters of third parties

        if unknown := [name for name in hints.filters if name not in (there := binding_filters())]:
            raise HintError(f"hint filters: there is no filter {unknown[0]!r}; valid: {', '.join(sorted(there))}")


def open_to(dag_id: str, team: str | None, known: Mapping[str, PublishedSite]) -> dict[str, PublishedSite]:
    """Return the sites that admit a Dag.

    :param team: the team of the Dag; None: it has none
    :raises HintError: no site does
    """
    names = admission.admitted(((name, site.admission) for name, site in known.items()), dag_id, team)
    found = {name: known[name] for name in names}
    if known and not found:
        which = [(name, site.admission) for name, site in known.items()]
        raise HintError(str(admission.refusal(which, dag_id, team)))
    return found


def check_stage(hints: Hints, sources: Mapping[str, Any], dag_id: str, team: str | None = None) -> None:
    """Check that the sites of a task can stage its input files, as far as the Dag file has their addresses.

    :param sources: where the task's inputs come from, see ``lading.operators.scattering.input_sources``
    :raises HintError: none of the sites takes files from one of the addresses
    """
    from lading.executors.sizing.file_sizes import named_files

    every = {**sources.get("fixed", {}), **sources.get("mapped", {})}
    literal = [every[name].get("value") for name in hints.stage if name in every]
    known, _ = known_sites()
    names = [hints.site] if hints.site is not None else [Target.parse(each).site for each in hints.targets]
    taking = {
        name: site
        for name, site in known.items()
        if (any(is_named(name, each) for each in names) if names else site.accept_untargeted)
    }
    rules = {name: site.stage_schemes for name, site in open_to(dag_id, team, taking).items()}
    if not rules:
        return
    for address, _ in named_files(literal, schemes=None):
        faults = {
            name: None if schemes is None else staging_refusal(address, schemes) for name, schemes in rules.items()
        }
        if all(faults.values()):
            raise HintError("hint stage: " + "; ".join(f"at site {name!r}, {fault}" for name, fault in faults.items()))


def check_script(task: BaseOperator | MappedOperator) -> None:
    """Check the site and the properties of a job script, as far as the Dag file has them.

    :raises HintError: the site does not admit the Dag, or refuses a directive
    """
    given = task.partial_kwargs if hasattr(task, "partial_kwargs") else vars(task)
    name, properties = given.get("site"), given.get("properties")
    named = {each: site for each, site in known_sites()[0].items() if isinstance(name, str) and is_named(each, name)}
    if not named:
        return  # the name is a template, or the sites are not known yet
    from lading.hooks.batch.site_config import NotAllowed, SiteRules
    from lading.hooks.dags.teams import team_of_task
    from lading.plugin.manager import batch_systems

    site = next(iter(open_to(task.dag_id, team_of_task(task), named).values()))
    system = batch_systems().get((site.dialect or {}).get("system", ""))
    if system is None or not isinstance(properties, Mapping):
        return
    try:
        SiteRules.from_table(site.rules).check_script(properties, system)
    except NotAllowed as error:
        raise HintError(f"properties: at site {name!r}, {error}") from error


def check_at(known: Mapping[str, PublishedSite], hints: Hints) -> None:
    """Check that hints suit at least one of the sites.

    :raises HintError: no site suits
    """
    asked = as_job(hints, hints.minimum(hints.resources(Resources())))
    granting = {name: site for name, site in known.items() if site.suits(as_job(hints, Resources()))}
    if known and not granting:
        machines = [MatchedMachine(name, each, site.arch) for name, site in known.items() for each in site.locations]
        raise HintError(str(lacking(asked, machines)))
    known = granting
    if hints.is_native:
        check_native(hints, known)
        known = {name: site for name, site in known.items() if site.dialect is not None}
    known = check_request(hints, known) if hints.layout is None else check_layout(hints, known)
    if known and not any(site.suits(asked) for site in known.values()):
        capacities = {name: room for name, site in known.items() if (room := site.closest(asked))}
        raise HintError(too_much(asked, capacities, "ppn × threads" if hints.layout else "cpus"))


def as_job(hints: Hints, asked: Resources) -> PlannedJob:
    return PlannedJob(
        "",
        asked,
        instance_type=hints.instance_type,
        arch=hints.arch,
        os=hints.os,
        features=hints.features,
        capacity_type=hints.capacity_type,
        queue=hints.queue,
        native=json.dumps(dict(hints.native)) if hints.native else None,
    )


def check_native(hints: Hints, known: Mapping[str, PublishedSite]) -> None:
    """Check the hints ``queue`` and ``native`` against the batch sites of a task.

    :raises HintError: there is no batch site, or one of them refuses a directive
    """
    sites = {name: site for name, site in known.items() if site.dialect is not None}
    if known and not sites:
        given = "queue" if hints.queue is not None else "native"
        raise HintError(f"hint {given}: only batch sites have queues and native directives, and {are_none(known)}")
    if not hints.native:
        return
    # Imported here because few tasks have native directives.
    from lading.hooks.batch.native import refuse
    from lading.hooks.batch.site_config import SiteRules

    ask(
        sites,
        "native",
        lambda system, profile, site: refuse(hints.native, system, profile, SiteRules.from_table(site.rules)),
    )


def ask(
    sites: Mapping[str, PublishedSite], hint: str, check: Callable[[BatchSystem, Profile, PublishedSite], object]
) -> None:
    """Check a hint at batch sites, as far as their batch systems are installed here.

    :param check: raises ValueError if a site refuses the hint
    :raises HintError: a site refuses it
    """
    from lading.hooks.batch.system import Profile
    from lading.plugin.manager import batch_systems

    systems = batch_systems()
    for name, site in sites.items():
        dialect = site.dialect or {}
        if (system := systems.get(dialect.get("system", ""))) is None:
            continue
        try:
            check(system, Profile(**dialect["profile"]), site)
        except ValueError as error:
            advice = "" if len(sites) == 1 else "; to use it at another site only, set the hint site"
            raise HintError(f"hint {hint}: at site {name!r}, {error}{advice}") from error


def are_none(known: Mapping[str, PublishedSite]) -> str:
    """Return the text that none of the sites is a batch site."""
    return f"site {next(iter(known))!r} is not one" if len(known) == 1 else f"none of {', '.join(known)} is one"


def without_hints(defaults: Resources, takers: Mapping[str, PublishedSite]) -> str:
    """Return the text that a task without hints requests more than the sites have."""
    rooms = {name: site.closest(PlannedJob("", defaults)) for name, site in takers.items()}
    most = "; ".join(f"site {name} has {format_resources(room)}" for name, room in rooms.items() if room)
    return f"a task without hints requests {format_resources(defaults)}, more than {most}; see [lading] default_*"


def check_layout(hints: Hints, known: Mapping[str, PublishedSite]) -> dict[str, PublishedSite]:
    """Check the layout of a task on nodes, and return the sites that support it.

    :raises HintError: no site submits each task as its own batch job, has enough nodes, or has options for the layout
    """
    assert hints.layout is not None
    # Older versions did not publish ``takes_layouts``.
    taking = {
        name: site
        for name, site in known.items()
        if (site.dialect or {}).get("takes_layouts", site.dialect is not None)
    }
    given = next(name for name in LAYOUT_HINTS if getattr(hints, name) is not None)
    if known and not taking:
        least = hints.least.get("nodes", hints.layout.nodes)
        one = f" (a task there has 1 node, but this one requests {least})" if least > 1 else ""
        raise HintError(
            f"hint {given}: only a batch site with mode = 'job' has {', '.join(LAYOUT_HINTS)}, and {are_none(known)}"
            f"{one}; valid elsewhere: cpus"
        )
    from lading.hooks.batch.system import BatchJobRequest

    request = BatchJobRequest(**asdict(hints.layout), gpus=math.ceil(hints.gpus or 0) or None)
    ask(taking, given, lambda system, profile, site: system.directives(request, profile))
    asked = replace(as_job(hints, Resources()), nodes=hints.least.get("nodes", hints.layout.nodes))
    having = {name: site for name, site in taking.items() if site.has_nodes(asked)}
    if taking and not having:
        too_many = too_many_nodes(asked, {n: s.widest(asked) for n, s in taking.items()})
        raise HintError(f"hint nodes: it {too_many.sentence}")
    return having


def check_request(hints: Hints, known: Mapping[str, PublishedSite]) -> Mapping[str, PublishedSite]:
    """Check the cpus and GPUs of a task that is its own batch job, and return the sites that have options for them.

    :raises HintError: no site has
    """
    cpus, gpus = math.ceil(hints.least.get("cpus", hints.cpus or 1)), math.ceil(hints.gpus or 0)
    if cpus <= 1 and not gpus:
        return known
    # Imported here because few tasks request more than a cpu.
    from lading.hooks.batch.system import BatchJobRequest, Profile
    from lading.plugin.manager import batch_systems

    faults: dict[str, ValueError] = {}
    for name, site in known.items():
        dialect = site.dialect or {}
        system = batch_systems().get(dialect.get("system", ""))
        if system is None or not dialect.get("takes_layouts"):
            continue
        native = {**dialect.get("native", {}), **(hints.native or {})}
        try:
            system.directives(
                BatchJobRequest(threads=cpus, gpus=gpus or None, native=native), Profile(**dialect["profile"])
            )
        except ValueError as error:
            faults[name] = error
    if known and len(faults) == len(known):
        name, fault = next(iter(faults.items()))
        raise HintError(f"hint {'cpus' if cpus > 1 else 'gpus'}: at site {name!r}, {fault}") from fault
    return {name: site for name, site in known.items() if name not in faults}


def too_much(job: PlannedJob, capacities: Mapping[str, Resources], cpus: str = "cpus") -> str:
    """Return a text with the hints that are more than the sites can ever give, and what they can give.

    :param cpus: the names of the hints that determine the cpus
    """
    asked = job.resources
    too_little = {name for room in capacities.values() for name in asked.lacking(room)}
    excess = [
        f"hint {written}: {format_memory(amount) if name in ('memory', 'disk') else format_count(amount)}"
        for name, written in (("cpus", cpus), ("memory", "memory"), ("disk", "disk"), ("gpus", "gpus"))
        if name in too_little and (amount := getattr(asked, name))
    ]
    sites = f"site {next(iter(capacities))!r}" if len(capacities) == 1 else "any one site"
    if job.instance_type is not None:
        sites = f"instance type {job.instance_type!r} of {sites}"
    most = "; ".join(f"{site} has {format_resources(room)}" for site, room in capacities.items())
    verb = "is" if len(excess) == 1 else "are"
    return (
        f"{', '.join(excess)} {verb} more than {sites} can ever give: {most}; to change what a site has, edit the "
        "sites file"
    )


def known_bindings() -> Sequence[Binding]:
    """Return the bindings that the controller has published; empty if they cannot be read."""
    return _read_bindings(_now())


def known_sites() -> tuple[Mapping[str, PublishedSite], Resources]:
    """Return what is known of each site, and what a task without hints requests.

    If that cannot be read, no sites are returned, so that no Dag breaks.
    """
    return _read_sites(_now())


def _now() -> int:
    """Return a number that changes when cached files have to be read again."""
    # The tasks of a Dag file are checked one after the other, so the capacities of the sites are read once for all.
    return int(time.monotonic() / 5.0)


@lru_cache(maxsize=1)
def _read_bindings(now: int) -> Sequence[Binding]:
    try:
        from lading.executors.settings import Settings
        from lading.plugin.published import bindings

        return bindings(Settings.load())
    except Exception as error:
        log.warning("Bindings are not applied, because they cannot be read: %s", error)
        return ()


@lru_cache(maxsize=1)
def _read_sites(now: int) -> tuple[Mapping[str, PublishedSite], Resources]:
    try:
        from lading.executors.settings import Settings
        from lading.plugin.published import published

        settings = Settings.load()
        try:
            known = published(settings)
        except FileNotFoundError:
            from lading.plugin import sites  # slow to import, and needed only until a controller has run

            known = sites.known_sites(settings)
        return known, settings.default_resources
    except Exception as error:
        log.warning("Hints are not checked against the sites, because the sites cannot be read: %s", error)
        return {}, Resources()
