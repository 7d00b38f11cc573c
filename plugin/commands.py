"""What the commands under ``airflow lading`` do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.cli.simple_table import AirflowConsole
from airflow.exceptions import AirflowConfigException
from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy import func, select

from lading.executors.settings import Settings
from lading.executors.store import Job, Location, State
from lading.plugin.clean import Outcome, clean_sites
from lading.plugin.published import Known
from lading.plugin.service import serve
from lading.plugin.site_checks import Finding, controller_finding, findings, reading_store
from lading.plugin.sites import SitesError, known_sites, load_sites
from lading.scheduling.resources import Resources
from lading.scheduling.text.printable import printable
from lading.scheduling.text.units import format_resources

if TYPE_CHECKING:
    from argparse import Namespace


def read_connections() -> None:
    """Let this process find connections in the database, as ``airflow connections test`` does."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def console() -> AirflowConsole:
    """Airflow's tables, in which what is in square brackets is a section of its configuration and no colour."""
    return AirflowConsole(markup=False, emoji=False)


def show(rows: list[dict[str, Any]], output: str) -> None:
    """Print rows as a table, or for programs: numbers as numbers, which Airflow's console would make into text.

    In a table what Dag authors and sites wrote is text and nothing else; JSON and YAML have escapes of their own.
    """
    data: Any = rows  # what its printers take, whatever they say
    if output == "json":
        console().print_as_json(data)
    elif output == "yaml":
        # YAML has no word for half a character (YAML 1.2, "Character Set"), and its emitter raises.
        console().print_as_yaml([{name: whole(each) for name, each in row.items()} for row in rows])  # type: ignore[arg-type]
    else:
        texts = [{name: each if each is None else printable(each) for name, each in row.items()} for row in rows]
        console().print_as(texts, output)


def whole(value: Any) -> Any:
    """Text without lone surrogates, which are written as escapes; anything else as it is."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def complain(words: str) -> None:
    """Print a line to the standard error."""
    print(printable(words), file=sys.stderr)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def check(args: Namespace) -> None:
    """Print a finding per line; status 1 if one is bad."""
    if args.policy:
        policies(args.site)
        return
    read_connections()
    found = []
    for finding in findings(args.site, args.timeout):
        found.append(finding)
        if not finding.good:
            complain(f"{finding.what}: {finding.words}")
    show(list(map(finding_row, found)), args.output)
    if not all(finding.good for finding in found):
        sys.exit(1)


def policies(only: Sequence[str]) -> None:
    """Print what the accounts of sites must be allowed; status 1 if a site is unknown or none has an account.

    :param only: the names of the sites; empty: all
    """
    try:
        known = load_sites(Settings.load())
    except SitesError as error:
        complain(str(error))
        sys.exit(1)
    if unknown := sorted(set(only) - known.keys()):
        complain(f"There is no site {unknown[0]!r}; the sites are: {', '.join(known)}.")
        sys.exit(1)
    found = [each.policy() for name, each in known.items() if not only or name in only]
    if not any(found):
        complain("None of these sites has an account whose rights could be printed; sites of kind ec2 have.")
        sys.exit(1)
    for text in filter(None, found):
        print(text)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def jobs(args: Namespace) -> None:
    """Print the jobs that the store knows."""
    query = select(Job).order_by(Job.queued_at.desc(), Job.token).limit(args.limit)
    if args.state:
        query = query.where(Job.state.in_(args.state))
    if args.dag_id:
        query = query.where(Job.dag_id == args.dag_id)
    if args.run_id:
        query = query.where(Job.run_id == args.run_id)
    with reading_store() as session:
        rows = session.scalars(query).all()
        # A person reads the tables, and a terminal is narrow; programs get everything.
        mapper = short_job_row if args.output in ("table", "plain") else job_row
        show(group_rows(rows) if args.groups else list(map(mapper, rows)), args.output)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def sites(args: Namespace) -> None:
    """Print the locations as the controller saw them last, with what is in use."""
    with reading_store() as session:
        controller = controller_finding(Settings.load())
        if not controller.good:
            complain(f"controller: {controller.words}")
        used = in_use(session)
        in_order = (Location.site, Location.name != Location.site, Location.name)
        rows = session.scalars(select(Location).order_by(*in_order)).all()
        known = tables()
        show([location_row(each, in_it(each, used), known.get(each.site)) for each in rows], args.output)


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def clean(args: Namespace) -> None:
    """Remove what is left behind and print it; status 1 if that could not be done everywhere."""
    read_connections()
    found, good = [], True
    for outcome in clean_sites(args.site, args.older_than, args.dry_run):
        if outcome.trouble is not None:
            good = False
            complain(f"site {outcome.site}: {outcome.trouble}")
        if outcome.number:
            found.append(outcome)
    show(list(map(outcome_row, found)), args.output)
    if args.dry_run:
        complain("Nothing was removed, for --dry-run was given.")
    if not good:
        sys.exit(1)


@providers_configuration_loaded
def controller(args: Namespace) -> None:
    """Run a controller until it is told to end."""
    serve(managed=False)


def finding_row(finding: Finding) -> dict[str, Any]:
    result = "warning" if finding.good and finding.warns else "ok" if finding.good else "BAD"
    return {"check": finding.what, "result": result, "details": finding.words}


def outcome_row(outcome: Outcome) -> dict[str, Any]:
    return {"site": outcome.site, "kind": outcome.kind, "number": outcome.number, "mib": round(outcome.mib, 1)}


def job_row(job: Job) -> dict[str, Any]:
    ended = job.ended_at or time.time()
    return {
        "dag_id": job.dag_id,
        "run_id": job.run_id,
        "task_id": job.task_id if job.kind == "ExecuteTask" else job.kind,
        "map_index": job.map_index,
        "try_number": job.try_number,
        "state": job.state,
        "cause": job.cause,
        "reason": job.reason,
        "cpus": job.cpus,
        "memory_mib": job.memory,
        "disk_mib": job.disk,
        "gpus": job.gpus,
        "site": job.site,
        "location": job.location,
        "batch_job": job.native_id,
        "node": job.node,
        "queued_at": job.queued_at,
        "started_at": job.started_at,
        "ended_at": job.ended_at,
        "wait_seconds": round((job.started_at or ended) - job.queued_at, 3),
        "duration_seconds": round(ended - job.started_at, 3) if job.started_at else None,
        "peak_memory_mib": job.peak_memory,
        "cpu_seconds": job.cpu_seconds,
        "token": job.token,
    }


def short_job_row(job: Job) -> dict[str, Any]:
    row = job_row(job)
    index = f"[{job.map_index}]" if job.map_index >= 0 else ""
    return {
        "task": f"{row['dag_id']}.{row['task_id']}{index}" if job.dag_id else row["task_id"],
        "try": job.try_number,
        "state": f"{job.state}: {job.cause}" if job.cause else job.state,
        "asked": format_resources(job.resources),
        "location": job.location,
        "batch job": job.native_id,
        "node": job.node,
        "wait": row["wait_seconds"],
        "duration": row["duration_seconds"],
        "peak MiB": job.peak_memory,
        "cpu s": job.cpu_seconds,
        "reason": job.reason,
    }


def group_rows(jobs: Iterable[Job]) -> list[dict[str, Any]]:
    """The jobs of one task and run that ask for the same as one row, in the order of the first of each."""
    groups: dict[tuple[Any, ...], list[Job]] = {}
    for job in jobs:
        key = (job.dag_id, job.run_id, job.task_id or job.kind, job.resources)
        groups.setdefault(key, []).append(job)
    return [
        {
            "dag_id": dag_id,
            "run_id": run_id,
            "task_id": task_id,
            "asked": format_resources(resources),
            "jobs": len(members),
            **{state.value: sum(job.state == state for job in members) for state in State},
            "max_jobs": members[0].max_jobs,
            "max_instances": members[0].max_instances,
        }
        for (dag_id, run_id, task_id, resources), members in groups.items()
    ]


def tables() -> dict[str, Known]:
    """What is known of each site by its table; nothing where that cannot be read, as ``airflow lading check`` says."""
    try:
        return known_sites(Settings.load())
    except (AirflowConfigException, OSError, ValueError, KeyError, TypeError) as error:
        complain(f"What the tables of the sites say cannot be read: {error}")
        return {}


def location_row(location: Location, used: tuple[int, Resources], known: Known | None) -> dict[str, Any]:
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
        "running_jobs": count,
        "cpus": location.cpus,
        "cpus_used": resources.cpus,
        "memory_mib": location.memory,
        "memory_mib_used": resources.memory,
        "disk_mib": location.disk,
        "disk_mib_used": resources.disk,
        "gpus": location.gpus,
        "gpus_used": resources.gpus,
        "takes_unnamed": known and known.takes_unnamed,
        "burst_after": known and known.burst_after,
        "note": location.note,
    }


def in_it(location: Location, used: Mapping[tuple[str, str], tuple[int, Resources]]) -> tuple[int, Resources]:
    """How many jobs run at a location, and the sum of their resources; the row of a site is for all that it has."""
    if location.name != location.site:
        return used.get((location.site, location.name), (0, Resources()))
    found = [each for (site, _), each in used.items() if site == location.site]
    return sum(count for count, _ in found), sum((resources for _, resources in found), Resources())


def in_use(session: Any) -> dict[tuple[str, str], tuple[int, Resources]]:
    """How many jobs run at each location, and the sum of their resources."""
    amounts = (func.sum(Job.cpus), func.sum(Job.memory), func.sum(Job.disk), func.sum(Job.gpus))
    rows = session.execute(
        select(Job.site, Job.location, func.count(), *amounts)
        .where(Job.state == State.RUNNING)
        .group_by(Job.site, Job.location)
    )
    return {
        (site, location): (count, Resources(float(cpus), int(memory), int(disk), float(gpus)))
        for site, location, count, cpus, memory, disk, gpus in rows
    }
