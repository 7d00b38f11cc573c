"""``airflow lading cost``: what the runs of a Dag or the tasks of a run took and cost, or who is charged."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.accounting.bills import BillKey, bill, oldest, running
from lading.executors.store import JobRow, LocationRow
from lading.executors.store.jobs import usd_until
from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.subcommands.console import complain, format_length, show, with_unit
from lading.plugin.subcommands.records import unknown
from lading.plugin.ui.queries.runs import idle_shares, totals_by_run, totals_by_task
from lading.scheduling.accounting.bill import BillParts, total
from lading.scheduling.accounting.chargeback import charges
from lading.scheduling.accounting.periods import Period, begin
from lading.scheduling.text.units import format_count, format_usd


def cost(host: Host, args: Namespace) -> None:
    """Print a row per run, per task of a run, or per team, Dag, owner or site; exits with status 1 if there is none."""
    if args.by is not None:
        if args.dag_id is not None:
            complain("--by covers all Dags; give either a Dag or --by")
            sys.exit(1)
        charge(host, args)
        return
    if args.dag_id is None or args.since is not None or args.until is not None:
        complain("give a Dag, or --by team, dag, owner or site; --from and --to need --by")
        sys.exit(1)
    of = short_amounts if args.output in ("table", "plain") else amounts
    with reading_store(host) as session:
        now = time.time()
        if args.run_id is None:
            rows = [
                {"run_id": name, **of(found, *idle_shares(session, args.dag_id, name))}
                for name, found in totals_by_run(session, args.dag_id, args.limit, now)
            ]
        else:
            rows = []
            for task, site, each in totals_by_task(session, args.dag_id, args.run_id, now):
                more = idle_shares(session, args.dag_id, args.run_id, JobRow.task_id == task, JobRow.site == site)
                rows.append({"task_id": task, "site": site, **of(each, *more)})
        if not rows:
            complain(unknown(host, session, args.dag_id, args.run_id, now))
            sys.exit(1)
        runs = [args.run_id] if args.run_id is not None else [row["run_id"] for row in rows]
        ran = (JobRow.dag_id == args.dag_id, JobRow.run_id.in_(runs), JobRow.started_at.is_not(None))
        query = select(JobRow.site).distinct().where(*ran, JobRow.site.is_not(None), usd_until(now).is_(None))
        why = unpriced(session, map(str, session.scalars(query)))
    show(host, rows, args.output)
    if why is not None and any(row["usd"] is None and row["cpu_hours"] not in (0, "0") for row in rows):
        complain(why)


def charge(host: Host, args: Namespace) -> None:
    """Print the charges of a period by team, Dag, owner or site; exits with status 1 if there are none."""
    now = time.time()
    since = begin(now, Period.MONTH).timestamp() if args.since is None else args.since
    until = min(now, now if args.until is None else args.until)
    if since >= until:
        complain(f"--from {day(since)} has to be before --to {day(until)}, and in the past")
        sys.exit(1)
    with reading_store(host) as session:
        billed = bill(session, since, until)
        found = charges(by_name(billed, args.by))
        why = unpriced(session, [key.site for key, parts in billed.items() if key.site and not parts.is_priced])
        going_on, known = total(running(session, now).values()).usd, oldest(session)
    if known is not None and known > since:
        complain(f"There are no records from before {day(known)}.")
    if going_on:
        complain(f"Not included: {format_usd(going_on)} USD so far for running jobs and machines.")
    if not found:
        complain(f"Nothing was billed from {day(since)} to {day(until)}.")
        sys.exit(1)
    priced = [row.usd for row in found if row.usd is not None]
    if why is not None and len(priced) < len(found):
        complain(why)
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
    show(host, columns, args.output)
    if priced and args.output in ("table", "plain"):
        complain(f"{sum(priced):.2f} USD in all, from {day(since)} to {day(until)}")


def unpriced(session: Session, sites: Iterable[str]) -> str | None:
    """Say why jobs have no cost; None: there are no such jobs.

    :param sites: where they ran
    """
    names = set(sites)
    if not names:
        return None
    query = select(LocationRow.site).distinct().where(LocationRow.usd_per_cpu_hour.is_not(None))
    still = sorted(names.difference(session.scalars(query)))
    said = "Rows without USD: these jobs ran while their site had no price, so they never get a cost."
    return f"{said} For later jobs, set usd_per_hour or usd_per_cpu_hour of {', '.join(still)}." if still else said


def by_name(found: Mapping[BillKey, BillParts], by: str) -> dict[str | None, BillParts]:
    """Sum up a bill by the names that are charged.

    :param by: ``team``, ``dag``, ``owner`` or ``site``
    """
    sums: dict[str | None, BillParts] = {}
    for key, parts in found.items():
        name = {"team": key.team, "dag": key.dag_id, "owner": key.owner, "site": key.site}[by]
        sums.setdefault(name or None, BillParts()).add(parts)
    return sums


def day(at: float) -> str:
    """Format epoch seconds as a day in UTC, with the time of day unless it is midnight."""
    moment = datetime.fromtimestamp(at, timezone.utc)
    return f"{moment:%Y-%m-%d}" if at % 86400 == 0 else f"{moment:%Y-%m-%d %H:%M} UTC"


def amounts(found: dict[str, Any], idle: float = 0.0, of_which: Mapping[str, float] | None = None) -> dict[str, Any]:
    """Return the columns of a run or task, with times in hours and money in USD.

    :param idle: its share of what machines cost while no job used them
    :param of_which: the parts of ``usd`` and ``idle`` that paid for something else than machines, by name
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


def short_amounts(
    found: dict[str, Any], idle: float = 0.0, of_which: Mapping[str, float] | None = None
) -> dict[str, Any]:
    """Return the columns of a run or task for a table; the parameters are those of :func:`amounts`."""
    row = amounts(found, idle, of_which)
    return {
        "jobs": row["jobs"],
        "failed": row["failed"],
        "waited": format_length(found["wait_seconds"]),
        "cpu_hours": format_count(found["cpu_hours"]),
        "cpu_hours_used": format_count(found["cpu_hours_used"]),
        "usd": with_unit(found["usd"], format_usd),
        "usd_idle": None if found["usd"] is None else format_usd(idle),
        "of_which": format_parts(row["of_which"]),
    }


def format_parts(parts: Mapping[str, float]) -> str:
    """Format sums by name, for example ``volumes 0.0012``."""
    return ", ".join(f"{name} {usd:.4f}" for name, usd in parts.items())
