"""``airflow lading cost``: what the runs of a Dag took and cost, or the tasks of one; or who is charged what."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow
from lading.executors.store.bills import BillKey, bill, oldest, running
from lading.plugin.command_host import as_command, host
from lading.plugin.database import reading_store
from lading.plugin.subcommands.console import complain, show
from lading.plugin.ui.queries.runs import idle_shares, totals_by_run, totals_by_task
from lading.scheduling.insight.bill import BillParts, total
from lading.scheduling.insight.chargeback import charges
from lading.scheduling.insight.periods import Period, begin
from lading.scheduling.text.units import format_usd

# An error names so many that there are.
MOST_NAMES = 10


@as_command
def cost(args: Namespace) -> None:
    """Print a row per run, per task of one run, or per team, Dag, owner or site; status 1 if nothing is known of it."""
    if args.by is not None:
        if args.dag_id is not None:
            complain("--by is about all Dags: give a Dag, or --by")
            sys.exit(1)
        charge(args)
        return
    if args.dag_id is None or args.since is not None or args.until is not None:
        complain("give a Dag, or --by team, dag, owner or site, which alone has --from and --to")
        sys.exit(1)
    with reading_store() as session:
        now = time.time()
        if args.run_id is None:
            rows = [
                {"run_id": name, **amounts(found, *idle_shares(session, args.dag_id, name))}
                for name, found in totals_by_run(session, args.dag_id, args.limit, now)
            ]
        else:
            rows = []
            for task, site, each in totals_by_task(session, args.dag_id, args.run_id, now):
                more = idle_shares(session, args.dag_id, args.run_id, JobRow.task_id == task, JobRow.site == site)
                rows.append({"task_id": task, "site": site, **amounts(each, *more)})
        if not rows:
            complain(unknown(session, args.dag_id, args.run_id, now))
            sys.exit(1)
    if args.output in ("table", "plain"):
        rows = [{**row, "of_which": format_parts(row["of_which"])} for row in rows]
    show(rows, args.output)
    if any(row["usd"] is None and row["cpu_hours"] for row in rows):
        complain("No USD: the site has no price. Give it one: usd_per_hour or usd_per_cpu_hour in its table.")


def charge(args: Namespace) -> None:
    """Print what each team, Dag, owner or site is charged within a time; status 1 if that is nothing at all."""
    now = time.time()
    since = begin(now, Period.MONTH).timestamp() if args.since is None else args.since
    until = min(now, now if args.until is None else args.until)
    if since >= until:
        complain(f"--from {day(since)} is not before --to {day(until)}; nothing is billed before it has been")
        sys.exit(1)
    with reading_store() as session:
        found = charges(by_name(bill(session, since, until), args.by))
        going_on, known = total(running(session, now).values()).usd, oldest(session)
    if known is not None and known > since:
        complain(f"Nothing is known of before {day(known)}.")
    if going_on:
        complain(
            f"In none of these: {format_usd(going_on)} USD until now of jobs that run and of machines that are up."
        )
    if not found:
        complain(f"Nothing was billed from {day(since)} to {day(until)}.")
        sys.exit(1)
    priced = [row.usd for row in found if row.usd is not None]
    if len(priced) < len(found):
        complain("Without USD: the site has no price. Give it one: usd_per_hour or usd_per_cpu_hour in its table.")
    columns = [
        {
            "kind": row.kind,
            args.by: row.name,
            "jobs": row.jobs,
            "failed": row.failed,
            "cpu_hours": round(row.cpu_hours, 3),
            "usd": row.usd,
        }
        for row in found
    ]
    if args.output in ("table", "plain"):
        columns = [{**row, "usd": None if row["usd"] is None else f"{row['usd']:.2f}"} for row in columns]
    show(columns, args.output)
    if priced and args.output in ("table", "plain"):
        complain(f"{sum(priced):.2f} USD in all, from {day(since)} to {day(until)}")


def by_name(found: Mapping[BillKey, BillParts], by: str) -> dict[str | None, BillParts]:
    """A bill by the names of those who are charged.

    :param by: ``team``, ``dag``, ``owner`` or ``site``
    """
    sums: dict[str | None, BillParts] = {}
    for key, parts in found.items():
        name = {"team": key.team, "dag": key.dag_id, "owner": key.owner, "site": key.site}[by]
        sums.setdefault(name or None, BillParts()).add(parts)
    return sums


def day(at: float) -> str:
    """A moment as a day in UTC, with its time where it is not the day's beginning."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    return f"{moment:%Y-%m-%d}" if at % 86400 == 0 else f"{moment:%Y-%m-%d %H:%M} UTC"


def amounts(found: dict[str, Any], idle: float = 0.0, of_which: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What is printed of a run or task; times in hours, money in USD.

    :param idle: its part of what machines cost while no job used them
    :param of_which: what of both is not the machines themselves, by name
    """
    usd = found["usd"]
    return {
        "jobs": found["jobs"],
        "failed": found["failed"],
        "wait_hours": round(found["wait_seconds"] / 3600, 3),
        "cpu_hours": round(found["cpu_hours"], 3),
        "cpu_hours_used": round(found["cpu_hours_used"], 3),
        "usd": None if usd is None else round(usd, 4),
        "usd_idle": None if usd is None else round(idle, 4),
        "of_which": {name: round(part, 4) for name, part in sorted((of_which or {}).items())},
    }


def format_parts(parts: Mapping[str, float]) -> str:
    """Sums by name, for people: ``volumes 0.0012``."""
    return ", ".join(f"{name} {usd:.4f}" for name, usd in parts.items())


def unknown(session: Session, dag_id: str, run_id: str | None, now: float) -> str:
    """Why there is nothing to print, and what there is."""
    kept = f"Jobs are kept for {host().settings().job_retention_days} days{host().option('job_retention_days')}."
    if run_id is not None and (runs := totals_by_run(session, dag_id, MOST_NAMES, now)):
        known = ", ".join(name for name, _ in runs)
        return f"No job of run {run_id!r} of Dag {dag_id!r} is known; its youngest runs: {known}. {kept}"
    query = select(JobRow.dag_id).distinct().where(JobRow.dag_id.is_not(None)).order_by(JobRow.dag_id).limit(MOST_NAMES)
    known = ", ".join(map(str, session.scalars(query))) or "none"
    return f"No job of Dag {dag_id!r} is known; Dags with jobs: {known}. {kept}"
