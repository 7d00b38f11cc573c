"""``airflow lading jobs``: lists the jobs in the store."""

from __future__ import annotations

import time
from argparse import Namespace
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session, load_only

from lading.executors.starts.expected_starts import NoStart, show_starts
from lading.executors.store import JobRow, State
from lading.executors.store.gangs.rows import held_for
from lading.executors.store.gangs.terms import GangTerms
from lading.executors.store.leases import controller_now
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.subcommands.console import complain, format_length, show, with_unit, without_empty
from lading.plugin.subcommands.records import has_records, unknown
from lading.plugin.subcommands.sites import on_nodes, tables, with_overhead
from lading.plugin.ui.queries.now import remedies
from lading.scheduling.model.resources import Resources, format_resources
from lading.scheduling.starts.expected_starts import ExpectedStart
from lading.scheduling.text.units import format_memory, format_moment

# Kinds of jobs that are tries of an Airflow task or a Snakemake rule.
OF_TASKS = ("ExecuteTask", "Command", JOB_SCRIPT)


def jobs(host: Host, args: Namespace) -> None:
    """Print the newest jobs in the store, and on stderr how many older ones there are."""
    chosen = (args.state, args.dag_id, args.run_id, args.team)
    with reading_store(host) as session:
        if args.dag_id and not has_records(session, args.dag_id, args.run_id):
            complain(unknown(host, session, args.dag_id, args.run_id, time.time()))
        if args.groups:
            groups = group_rows(session.scalars(all_youngest_first(conditions(*chosen))))
            show(host, groups[: args.limit], args.output)
            if (older := len(groups) - args.limit) > 0:
                complain(f"and {older} older groups: --limit {len(groups)} shows all")
            return
        rows, older = youngest(session, args.limit, *chosen)
        # Tables are for people with narrow terminals; programs get all columns.
        held, expected = held_for(session), show_starts(session, rows, controller_now(session))
        whole = [(row, held.get(row.token), expected.get(row.token)) for row in rows]
        if args.output in ("table", "plain"):
            overheads = {name: site.memory_overhead for name, site in tables(host).items()}
            table = [short_job_row(*each, overheads.get(each[0].site or "", 0)) for each in whole]
            show(host, without_empty([for_users(host, row) for row in table]), args.output)
        else:
            advice = remedies(session, rows)
            rows_of_all = [job_row(*each) | {"remedy": advice.get(each[0].token)} for each in whole]
            show(host, [for_users(host, each) for each in rows_of_all], args.output)
    if older:
        complain(f"and {older} older: --limit {args.limit + older} shows all")


def youngest(
    session: Session,
    limit: int,
    states: Sequence[str] | None = None,
    dag_id: str | None = None,
    run_id: str | None = None,
    team: str | None = None,
) -> tuple[Sequence[JobRow], int]:
    """Return the newest jobs that match, at most ``limit``, and how many older ones match."""
    wanted = conditions(states, dag_id, run_id, team)
    rows = session.scalars(
        select(JobRow).where(*wanted).order_by(JobRow.queued_at.desc(), JobRow.token).limit(limit)
    ).all()
    if len(rows) < limit:
        return rows, 0
    return rows, (session.scalar(select(func.count()).select_from(JobRow).where(*wanted)) or 0) - len(rows)


def conditions(
    states: Sequence[str] | None, dag_id: str | None, run_id: str | None, team: str | None
) -> list[ColumnElement[bool]]:
    """Return the SQL conditions of the given filters. None matches any job."""
    named = ((JobRow.dag_id, dag_id), (JobRow.run_id, run_id), (JobRow.team, team))
    wanted: list[ColumnElement[bool]] = [] if not states else [JobRow.state.in_(states)]
    return wanted + [column == value for column, value in named if value]


def all_youngest_first(wanted: Sequence[ColumnElement[bool]]) -> Select[JobRow]:
    """Select the columns by which jobs are grouped, for all matching jobs; there can be very many."""
    columns = ("dag_id", "run_id", "task_id", "kind", "state", "max_jobs", "max_instances", *Resources.__slots__)
    query = select(JobRow).options(load_only(*(getattr(JobRow, name) for name in columns)))
    order = (JobRow.queued_at.desc(), JobRow.token)
    return query.where(*wanted).order_by(*order).execution_options(yield_per=1000)


def job_row(job: JobRow, held: str | None = None, start: ExpectedStart | NoStart | None = None) -> dict[str, Any]:
    """Return the columns of a job for programs.

    :param held: where room is held for it, as ``site/location``
    :param start: when it is expected to start, or what holds it up
    """
    ended = job.ended_at or time.time()
    return {
        "team": job.team,
        "dag_id": job.dag_id,
        "run_id": job.run_id,
        "task_id": job.task_id if job.kind in OF_TASKS else job.kind,
        "map_index": job.map_index,
        "try_number": job.try_number,
        "state": job.state,
        "cause": job.cause,
        "reason": None if job.reason is None else str(job.reason),
        "reason_code": job.reason_code,
        "reason_limit": job.reason_limit,
        "remedy": job.remedy,
        "cpus": job.cpus,
        "memory_mib": job.memory,
        "disk_mib": job.disk,
        "gpus": job.gpus,
        "site": job.site,
        "location": job.location,
        "gang": GangTerms.from_json(job.gang_terms).name if job.gang_terms else None,
        "held": held,
        "batch_job": job.native_id,
        "node": job.node,
        "queued_at": job.queued_at,
        "started_at": job.started_at,
        "starts_from": start.since if isinstance(start, ExpectedStart) else None,
        "starts_at": start.at if isinstance(start, ExpectedStart) else None,
        "starts_until": start.until if isinstance(start, ExpectedStart) else None,
        "starts_by": None if start is None else start.text,
        "ended_at": job.ended_at,
        "wait_seconds": round((job.started_at or ended) - job.queued_at, 3),
        "duration_seconds": round(ended - job.started_at, 3) if job.started_at else None,
        "peak_memory_mib": job.peak_memory,
        "cpu_seconds": job.cpu_seconds,
        "token": job.token,
    }


def short_job_row(
    job: JobRow, held: str | None = None, start: ExpectedStart | NoStart | None = None, overhead: int = 0
) -> dict[str, Any]:
    """Return the columns of a job for a table; the first parameters are those of :func:`job_row`.

    :param overhead: the memory that its site adds to the request on each node, MiB
    """
    # A job script runs without Airflow's supervisor, so its request gets no overhead.
    row, asked = job_row(job), with_overhead(job.resources, 0 if job.kind == JOB_SCRIPT else overhead)
    index = f"[{job.map_index}]" if job.map_index >= 0 else ""
    return {
        **({"team": job.team} if job.team is not None else {}),
        "task": f"{row['dag_id']}.{row['task_id']}{index}" if job.dag_id else row["task_id"],
        "try": job.try_number,
        "state": f"{job.state}: {job.cause}" if job.cause else job.state,
        "asked": on_nodes(job.nodes, asked) if (job.nodes or 1) > 1 else asked,
        "location": job.location if held is None else f"held: {held}",
        "batch job": job.native_id,
        "node": job.node,
        "waited": with_unit(row["wait_seconds"], format_length),
        "starts": None if start is None else start_text(start),
        "ran": with_unit(row["duration_seconds"], format_length),
        "peak memory": with_unit(job.peak_memory, format_memory),
        "cpu time": with_unit(job.cpu_seconds, format_length),
        "reason": None if job.reason is None else str(job.reason),
    }


def for_users(host: Host, row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a job with its reason and remedy in the words of the host's users."""
    return row | {name: host.for_users(row[name]) for name in ("reason", "remedy") if row.get(name) is not None}


def start_text(start: ExpectedStart | NoStart) -> str:
    if isinstance(start, NoStart):
        return f"held: {start.text}"
    return f"{format_moment(start.since)} to {format_moment(start.until)}"


def group_rows(jobs: Iterable[JobRow]) -> list[dict[str, Any]]:
    """Return a row for all jobs of a task and run with equal requests, in the order of the first job of each group."""
    groups: dict[tuple[Any, ...], Counter[State]] = {}
    limits: dict[tuple[Any, ...], tuple[Any, Any]] = {}
    for job in jobs:
        key = (job.dag_id, job.run_id, job.task_id or job.kind, job.resources)
        groups.setdefault(key, Counter())[State(job.state)] += 1
        limits.setdefault(key, (job.max_jobs, job.max_instances))
    return [
        {
            "dag_id": dag_id,
            "run_id": run_id,
            "task_id": task_id,
            "asked": format_resources(resources),
            "jobs": sum(states.values()),
            **{state.value: states[state] for state in State},
            **dict(zip(("max_jobs", "max_instances"), limits[dag_id, run_id, task_id, resources], strict=True)),
        }
        for (dag_id, run_id, task_id, resources), states in groups.items()
    ]
