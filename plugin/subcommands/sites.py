"""``airflow lading sites``: sites and their locations, as last recorded by the controller."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from lading.executors import request_rows
from lading.executors.store import JobRow, LocationRow, State
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.published import PublishedSite
from lading.plugin.sites import known_sites
from lading.plugin.subcommands.console import complain, show, without_empty
from lading.plugin.subcommands.controller_state import controller_finding
from lading.scheduling.model.job import NOTHING
from lading.scheduling.model.resources import Resources, format_resources
from lading.scheduling.text.units import format_memory


@dataclass(frozen=True, slots=True)
class InUse:
    """What the running jobs of a location requested.

    :param nodes: the sum of their nodes, without those of job scripts, which get no overhead
    :param resources: on all of their nodes
    """

    jobs: int = 0
    nodes: int = 0
    resources: Resources = NOTHING

    def __add__(self, other: InUse) -> InUse:
        return InUse(self.jobs + other.jobs, self.nodes + other.nodes, self.resources + other.resources)


def sites(host: Host, args: Namespace) -> None:
    """Print the locations as last recorded by the controller, with what their jobs use."""
    with reading_store(host) as session:
        controller = controller_finding(host, host.settings())
        if not controller.good:
            complain(f"controller: {controller.message}")
        used, paused = in_use(session), request_rows.paused(session)
        in_order = (LocationRow.site, LocationRow.name != LocationRow.site, LocationRow.name)
        known = tables(host)
        found = [
            (each, in_it(each, used), known.get(each.site), paused.get(each.site))
            for each in session.scalars(select(LocationRow).order_by(*in_order))
        ]
        # Tables are for people with narrow terminals; programs get all columns.
        is_short = args.output in ("table", "plain")
        show(host, short_rows(found) if is_short else [location_row(*each) for each in found], args.output)


def tables(host: Host) -> dict[str, PublishedSite]:
    """Return the sites as declared in the sites file; empty if it cannot be read, which is reported on stderr."""
    try:
        return known_sites(host.settings(), host)
    except (OSError, ValueError, KeyError, TypeError) as error:
        complain(f"The tables of the sites cannot be read: {error}")
        return {}


def location_row(
    location: LocationRow, used: InUse, known: PublishedSite | None, paused_by: str | None = None
) -> dict[str, Any]:
    """Return the columns of a location for programs.

    :param paused_by: who has paused its site; None: it is not paused
    """
    resources = used.resources
    return {
        "site": location.site,
        "kind": location.kind,
        "location": location.name,
        "state": location.state,
        "batch_job": location.native_id,
        "node": location.node,
        "instance_type": location.instance_type,
        "capacity_type": location.capacity_type,
        "arch": location.arch,
        "os": location.os,
        "features": location.features,
        "nodes": location.nodes,
        "idle_nodes": location.idle_nodes,
        "wraps": location.wraps,
        "stacked": location.stacked,
        "running_jobs": used.jobs,
        "cpus": location.cpus,
        "cpus_used": resources.cpus,
        "memory_mib": location.memory,
        "memory_mib_used": resources.memory,
        "disk_mib": location.disk,
        "disk_mib_used": resources.disk,
        "gpus": location.gpus,
        "gpus_used": resources.gpus,
        "accept_untargeted": known and known.accept_untargeted,
        "burst_after": known and known.burst_after,
        "paused_by": paused_by,
        "note": location.note,
    }


def short_rows(
    found: Sequence[tuple[LocationRow, InUse, PublishedSite | None, str | None]],
) -> list[dict[str, Any]]:
    """Return locations for a table, without columns that would be empty."""
    return without_empty([short_row(*each) for each in found])


def short_row(
    location: LocationRow, used: InUse, known: PublishedSite | None, paused_by: str | None = None
) -> dict[str, Any]:
    """Return the columns of a location for a table; the parameters are those of :func:`location_row`."""
    overhead = 0 if known is None else known.memory_overhead * used.nodes
    # The row of a batch site has the capacity of one node, since no job without a layout gets more.
    is_queue = location.name == location.site and known is not None and known.dialect is not None
    capacity = format_resources(location.capacity)
    return {
        "site": location.site,
        "kind": location.kind,
        "location": location.name,
        "state": location.state,
        "batch job": location.native_id,
        "node": location.node,
        "type": location.instance_type,
        "features": location.features,
        "in": location.wraps,
        "nodes": location.nodes,
        "idle nodes": location.idle_nodes,
        "jobs": used.jobs,
        "used": with_overhead(used.resources, overhead),
        "of": on_nodes(location.nodes, capacity) if is_queue else capacity,
        "note": "; ".join(filter(None, [paused_by and f"its site is paused by {paused_by}", location.note])) or None,
    }


def with_overhead(resources: Resources, overhead: int) -> str:
    """Format what jobs take.

    :param overhead: the memory that they take in addition to their requests, MiB
    """
    return format_resources(resources) + (f" + {format_memory(overhead)} overhead" if overhead else "")


def on_nodes(nodes: int | None, amounts: str) -> str:
    """Format amounts on each of several nodes.

    :param nodes: None: unknown
    """
    return f"{amounts} per node" if nodes is None else f"{nodes} × ({amounts})"


def in_it(location: LocationRow, used: Mapping[tuple[str, str], InUse]) -> InUse:
    """Return what runs at a location. The row of a site covers all its locations."""
    if location.name != location.site:
        return used.get((location.site, location.name), InUse())
    return sum((each for (site, _), each in used.items() if site == location.site), InUse())


def in_use(session: Session) -> dict[tuple[str, str], InUse]:
    """Return what runs at each location, by site and location."""
    nodes = func.coalesce(JobRow.nodes, 1)
    with_overhead_on = case((JobRow.kind == JOB_SCRIPT, 0), else_=nodes)
    amounts = (func.sum(each * nodes) for each in (JobRow.cpus, JobRow.memory, JobRow.disk, JobRow.gpus))
    rows = session.execute(
        select(JobRow.site, JobRow.location, func.count(), func.sum(with_overhead_on), *amounts)
        .where(JobRow.state == State.RUNNING)
        .group_by(JobRow.site, JobRow.location)
    )
    return {
        (str(site), str(location)): InUse(jobs, int(nodes), Resources(float(cpus), int(memory), int(disk), float(gpus)))
        for site, location, jobs, nodes, cpus, memory, disk, gpus in rows
    }
