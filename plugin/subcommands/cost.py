"""``airflow lading cost``: what the runs of a Dag took and cost, or the tasks of one of them."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from airflow.utils import cli as airflow_cli
from airflow.utils.providers_configuration_loader import providers_configuration_loaded
from sqlalchemy import select
from sqlalchemy.orm import Session

from lading.executors.settings import Settings
from lading.executors.store import JobRow
from lading.plugin.database import reading_store
from lading.plugin.subcommands.console import complain, show
from lading.plugin.ui.queries.runs import beside, of_runs, of_tasks

# An error names so many that there are.
MOST_NAMES = 10


@airflow_cli.suppress_logs_and_warning
@providers_configuration_loaded
def cost(args: Namespace) -> None:
    """Print a row per run, or per task of one run; status 1 if nothing is known of it."""
    with reading_store() as session:
        now = time.time()
        if args.run_id is None:
            rows = [
                {"run_id": name, **amounts(found, *beside(session, args.dag_id, name))}
                for name, found in of_runs(session, args.dag_id, args.limit, now)
            ]
        else:
            rows = []
            for task, site, each in of_tasks(session, args.dag_id, args.run_id, now):
                more = beside(session, args.dag_id, args.run_id, JobRow.task_id == task, JobRow.site == site)
                rows.append({"task_id": task, "site": site, **amounts(each, *more)})
        if not rows:
            complain(unknown(session, args.dag_id, args.run_id, now))
            sys.exit(1)
    if args.output in ("table", "plain"):
        rows = [{**row, "of_which": format_parts(row["of_which"])} for row in rows]
    show(rows, args.output)
    if any(row["usd"] is None and row["cpu_hours"] for row in rows):
        complain("No USD: the site has no price. Give it one: usd_per_hour or usd_per_cpu_hour in its table.")


def amounts(found: dict[str, Any], idle: float = 0.0, of_which: Mapping[str, float] | None = None) -> dict[str, Any]:
    """What is printed of a run or task; times in hours, money in USD.

    :param idle: its part of what machines cost while nobody used them
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
    kept = f"Jobs are kept for {Settings.load().job_retention_days} days ([lading] job_retention_days)."
    if run_id is not None and (runs := of_runs(session, dag_id, MOST_NAMES, now)):
        known = ", ".join(name for name, _ in runs)
        return f"No job of run {run_id!r} of Dag {dag_id!r} is known; its youngest runs: {known}. {kept}"
    query = select(JobRow.dag_id).distinct().where(JobRow.dag_id.is_not(None)).order_by(JobRow.dag_id).limit(MOST_NAMES)
    known = ", ".join(map(str, session.scalars(query))) or "none"
    return f"No job of Dag {dag_id!r} is known; Dags with jobs: {known}. {kept}"
