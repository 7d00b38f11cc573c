"""``snakemake-lading``: Lading's commands that read the store, for the store of a workflow."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from lading.hooks.files.version import MixedVersions, check_versions
from snakemake_executor_plugin_lading import planning
from snakemake_executor_plugin_lading.state_folder import (
    FOLDER,
    STORE,
    StateFolder,
    StoreRemoved,
)

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.plugin.host import Command, Host


PROGRAM = "snakemake-lading"


class StoreError(Exception):
    """There is no store; the text says where it was searched for."""


def find_state_folder(text: str) -> StateFolder:
    """Find the state folder with a store.

    :param text: the folder of a workflow, a folder of ``--lading-state-folder``, the file of the store, or its URL
    :raises StoreError: it has no store
    """
    if "://" in text:
        url = urlsplit(text)
        if not url.scheme.startswith("sqlite") or url.netloc:
            raise StoreError(
                f"{text!r} is not a store; valid: a folder, or a URL such as sqlite:////data/lading/{STORE}"
            )
        text = url.path[1:]
    path = Path(text or ".").expanduser().absolute()
    looked_at = [path.parent] if path.name == STORE else [path / FOLDER, path]
    for folder in looked_at:
        if (folder / STORE).is_file():
            return StateFolder(folder)
    where = ", ".join(str(folder / STORE) for folder in looked_at)
    raise StoreError(
        f"there is no store ({where}); give the folder of the workflow or its --lading-state-folder with --store"
    )


def parser() -> argparse.ArgumentParser:
    from lading.plugin.subcommands import options

    top = argparse.ArgumentParser(prog=PROGRAM, description="Show what Lading does for a Snakemake workflow.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str, *given: Any) -> argparse.ArgumentParser:
        each = commands.add_parser(name, help=text, description=text)
        each.add_argument(
            "--store",
            default=".",
            help="The folder of the workflow, its --lading-state-folder, or the URL of its store (default: this "
            "folder)",
        )
        for option in given:
            each.add_argument(*option.flags, **option.settings)
        return each

    command(
        "jobs", "List jobs, newest first",
        options.STATE, options.RUN_ID, options.LIMIT, options.GROUPS, options.OUTPUT,
    )  # fmt: skip
    command("sites", "List sites and their locations", options.OUTPUT)
    cost = command(
        "cost", "Show what the runs of a workflow, or the rules of a run, took and cost", options.RUNS, options.OUTPUT
    )
    cost.add_argument(
        "run_id",
        nargs="?",
        type=options.utf8_name,
        help="Show the rules of this run (default: list the runs of the workflow that ran last)",
    )
    command("advice", "Show what the rules of the workflow that ran last should request", options.OUTPUT)
    explain = command("explain", "Explain step by step where a job runs, and why")
    explain.add_argument("task_id", metavar="rule", type=options.utf8_name, help="The rule")
    explain.add_argument(
        "map_index", metavar="job", nargs="?", type=options.map_index, help="The job ID that Snakemake shows"
    )
    explain.add_argument("--run-id", type=options.utf8_name, help="The run (default: the last one)")
    plan = command("plan", "Predict the cost of a run on EC2 against the time it takes")
    planning.add_options(plan)
    command("top", "Show what is running, what is waiting and why, until Ctrl-C", options.ONCE, options.SECONDS)
    return top


def complete(host: Host, args: argparse.Namespace) -> None:
    """Add arguments that users of Airflow give, but users of Snakemake need not: the workflow, and for ``explain`` the
    run and the number of the job.

    :raises SystemExit: there is no such job; the text lists the rules with jobs
    """
    from sqlalchemy import select

    from lading.executors.store import JobRow
    from lading.plugin.database import reading_store

    args.team = args.by = args.since = args.until = None
    args.verbose = False
    if args.command not in ("advice", "cost", "explain"):
        args.dag_id = None
        return
    run_id = getattr(args, "run_id", None)
    wanted = [JobRow.dag_id.is_not(None)]
    wanted += [JobRow.run_id == run_id] if run_id else []
    if args.command == "explain":
        wanted += [JobRow.task_id == args.task_id]
        wanted += [JobRow.map_index == args.map_index] if args.map_index is not None else []
    with reading_store(host) as session:
        youngest = select(JobRow).where(*wanted).order_by(JobRow.queued_at.desc(), JobRow.token).limit(1)
        if (job := session.scalars(youngest).first()) is None:
            known = session.scalars(select(JobRow.task_id).distinct().order_by(JobRow.task_id))
            rules = ", ".join(map(str, known)) or "none"
            asked = {
                "rule": getattr(args, "task_id", None),
                "job": getattr(args, "map_index", None),
                "run": run_id,
            }
            named = ", ".join(f"{name} {value}" for name, value in asked.items() if value is not None)
            raise SystemExit(f"there is no record of a job{f' of {named}' if named else ''}; rules with jobs: {rules}")
        args.dag_id = job.dag_id
        if args.command == "explain":
            args.run_id, args.map_index = job.run_id, job.map_index


def read_past(store: str) -> planning.Past:
    """Return a function that queries a store about earlier runs; without a store it returns an empty answer."""
    from sqlalchemy.exc import SQLAlchemyError

    from snakemake_executor_plugin_lading.host import SnakemakeHost

    try:
        state = find_state_folder(store)
    except StoreError:
        return lambda question: {}
    host = SnakemakeHost.connect(state, only_reads=True)

    def read(question: Callable[[Session], dict[str, Any]]) -> dict[str, Any]:
        try:
            with host.session() as session:
                return question(session)
        except SQLAlchemyError as error:
            sys.exit(f"{state.database} cannot be read: {error}")

    return read


def main(argv: Sequence[str] | None = None) -> None:
    """The console script ``snakemake-lading``."""
    try:
        check_versions()
    except MixedVersions as error:
        sys.exit(str(error))
    args = parser().parse_args(argv)
    if args.command == "plan":
        sys.exit(planning.print_frontier(args, read_past(args.store)))
    try:
        state = find_state_folder(args.store)
    except StoreError as error:
        sys.exit(str(error))
    from snakemake_executor_plugin_lading.host import SnakemakeHost

    host = SnakemakeHost.connect(state, only_reads=True)
    complete(host, args)
    run: Command = getattr(import_module(f"lading.plugin.subcommands.{args.command}"), args.command)
    try:
        host.run(run, args)
    except StoreRemoved as error:  # can happen while `top` is running
        sys.exit(str(error))


if __name__ == "__main__":
    main()
