"""`lading plan`: which instances jobs would be launched on, and what goes where."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from lading.hooks.files import text_file
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.plan_output import print_json, print_plan
from lading.plugin.offline.watch import INTERRUPTED, Watch
from lading.scheduling import catalogue
from lading.scheduling.catalogue import Catalogue, Overhead
from lading.scheduling.plan import Objective
from lading.scheduling.planner import plan
from lading.scheduling.simulation import trace
from lading.scheduling.text import tables
from lading.scheduling.text.printable import printable, shortened
from lading.scheduling.text.tables import TableError

# So much of a file is split into lines at once, in characters.
PART = 2**16


def read_text(path: str) -> str:
    try:
        return text_file.read(path)
    except text_file.FileError as error:
        raise TableError(path, 1, str(error)) from None


def read_table(path: str, required: Sequence[str], optional: Sequence[str] = ()) -> Iterator[str]:
    """The lines of a table. Columns that it has besides are named on stderr, for one of them may be misspelt."""
    text = read_text(path)
    if others := tables.unread(split(text), path, required, optional):
        valid = ", ".join(dict.fromkeys((*required, *optional)))
        print(printable(f"{path}:1: not read: {shortened(', '.join(others))}; valid: {valid}"), file=sys.stderr)
    return split(text)


def split(text: str) -> Iterator[str]:
    """Its lines, some at a time: a million of them at once take more memory than a plan for them."""
    begin = 0
    while begin < len(text):
        end = text.find("\n", begin + PART) + 1 or len(text)
        yield from text[begin:end].splitlines(keepends=True)
        begin = end


@dataclass(frozen=True, slots=True)
class Market:
    """What can be launched, and what is known of types that cannot."""

    offered: Catalogue
    known: Catalogue


def market(args: argparse.Namespace) -> Market:
    """The catalogue that the options describe: disks added, overheads taken off, types selected."""
    if args.catalogue is None:
        found = catalogue.bundled()
    elif args.catalogue.endswith(".toml"):
        found = catalogue.parse_toml(read_text(args.catalogue), args.catalogue)
    else:
        lines = read_table(args.catalogue, catalogue.REQUIRED, catalogue.COLUMNS)
        found = catalogue.parse_csv(lines, args.catalogue)
    found = found.with_ebs(int(args.ebs_gib * catalogue.GIB)).less(Overhead(memory=args.overhead_memory))
    try:
        return Market(found.select(args.types, args.exclude_types), found)
    except ValueError as error:
        raise UsageError(f"--types, --exclude-types: {error}") from None


@contextmanager
def uncollected() -> Iterator[None]:
    """Look for no circles of references: a plan has none, and looking takes a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def run_plan(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    """Plan what the options describe and print it; the exit status."""
    if args.dag is not None or args.conf is not None:
        if args.jobs is not None or args.dag is None:
            raise UsageError("--dag takes no --jobs, and --conf belongs to --dag: give --jobs FILE, or --dag DAG")
        from lading.plugin.offline import dag_cost  # which imports Airflow

        return dag_cost.run(args, out or sys.stdout)
    if args.jobs is None:
        raise UsageError("nothing is given to plan; give --jobs FILE, or --dag DAG")
    goods = market(args)
    jobs = trace.parse_jobs(read_table(args.jobs, trace.REQUIRED, trace.OPTIONAL), args.jobs, goods.known)
    running = []
    if args.running is not None:
        running = trace.parse_running(read_table(args.running, trace.RUNNING), args.running, goods.known)
    begin = time.perf_counter()
    with Watch(shown=args.progress) as watch, watch.interruptible():
        result = plan(
            jobs.jobs,
            running,
            goods.offered,
            jobs.limits(args.max_instances),
            args.policy,
            effort=args.effort,
            objective=Objective(args.per_instance_cost, args.horizon_hours),
            going=watch,
        )
    seconds = time.perf_counter() - begin
    for refused in result.refusals:
        raise jobs.fault(refused)
    show = print_json if args.output == "json" else print_plan
    show(result, running, jobs, seconds, goods.offered, out or sys.stdout)
    if watch.stopped:
        print("Ctrl-C: this plan is not finished; it is the best one so far", file=sys.stderr)
        return INTERRUPTED
    return 0
