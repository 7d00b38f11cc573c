"""``airflow lading sites``: sites and their locations, as last recorded by the controller."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select

from lading.executors.store import JobRow, LocationRow, State
from lading.plugin.command_host import as_command, host
from lading.plugin.database import reading_store
from lading.plugin.published import PublishedSite
from lading.plugin.sites import known_sites
from lading.plugin.subcommands.console import complain, show
from lading.plugin.subcommands.controller_state import controller_finding
from lading.scheduling.resources import Resources, format_resources


@as_command
def sites(args: Namespace) -> None:
    """Print the locations as last recorded by the controller, with what their jobs use."""
    with reading_store() as session:
        controller = controller_finding(host().settings())
        if not controller.good:
            complain(f"controller: {controller.message}")
        used = in_use(session)
        in_order = (LocationRow.site, LocationRow.name != LocationRow.site, LocationRow.name)
        rows = session.scalars(select(LocationRow).order_by(*in_order)).all()
        known = tables()
        found = [location_row(each, in_it(each, used), known.get(each.site)) for each in rows]
        # Tables are for people with narrow terminals; programs get all columns.
        show(short_rows(found) if args.output in ("table", "plain") else found, args.output)


def tables() -> dict[str, PublishedSite]:
    """Return the sites as declared in the sites file; empty if it cannot be read, which is reported on stderr."""
    try:
        return known_sites(host().settings())
    except (OSError, ValueError, KeyError, TypeError) as error:
        complain(f"The tables of the sites cannot be read: {error}")
        return {}


def location_row(location: LocationRow, used: tuple[int, Resources], known: PublishedSite | None) -> dict[str, Any]:
    count, resources = used
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
        "running_jobs": count,
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
        "note": location.note,
    }


def short_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return locations for a table, without columns that would be empty."""
    made = [
        {
            "site": row["site"],
            "kind": row["kind"],
            "location": row["location"],
            "state": row["state"],
            "batch job": row["batch_job"],
            "node": row["node"],
            "type": row["instance_type"],
            "features": row["features"],
            "in": row["wraps"],
            "nodes": row["nodes"],
            "idle nodes": row["idle_nodes"],
            "jobs": row["running_jobs"],
            "used": amounts(row, "_used"),
            "of": amounts(row),
            "note": row["note"],
        }
        for row in rows
    ]
    empty = {name for name in made[0] if all(row[name] is None for row in made)} if made else set()
    return [{name: value for name, value in row.items() if name not in empty} for row in made]


def amounts(row: Mapping[str, Any], of: str = "") -> str:
    """Format the capacity of a location, or with ``_used`` what its jobs use."""
    names = ("cpus", "memory_mib", "disk_mib", "gpus")
    return format_resources(Resources(*(row[f"{name}{of}"] for name in names)))


def in_it(location: LocationRow, used: Mapping[tuple[str, str], tuple[int, Resources]]) -> tuple[int, Resources]:
    """Return how many jobs run at a location and their resources. The row of a site covers all its locations."""
    if location.name != location.site:
        return used.get((location.site, location.name), (0, Resources()))
    found = [each for (site, _), each in used.items() if site == location.site]
    return sum(count for count, _ in found), sum((resources for _, resources in found), Resources())


def in_use(session: Any) -> dict[tuple[str, str], tuple[int, Resources]]:
    """Return how many jobs run at each location, and the sum of their resources."""
    amounts = (func.sum(JobRow.cpus), func.sum(JobRow.memory), func.sum(JobRow.disk), func.sum(JobRow.gpus))
    rows = session.execute(
        select(JobRow.site, JobRow.location, func.count(), *amounts)
        .where(JobRow.state == State.RUNNING)
        .group_by(JobRow.site, JobRow.location)
    )
    return {
        (site, location): (count, Resources(float(cpus), int(memory), int(disk), float(gpus)))
        for site, location, count, cpus, memory, disk, gpus in rows
    }
