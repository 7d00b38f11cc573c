"""`lading plan`: which instances jobs would be launched on, and what goes where."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import IO, TYPE_CHECKING

from lading.hooks.files import text_file
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.watch import INTERRUPTED, Watch
from lading.scheduling import catalogue
from lading.scheduling.catalogue import Catalogue, Overhead
from lading.scheduling.location import Location
from lading.scheduling.plan import Filled, Objective, Plan
from lading.scheduling.planner import plan
from lading.scheduling.simulation import trace
from lading.scheduling.text.printable import printable, shortened
from lading.scheduling.text.tables import TableError

if TYPE_CHECKING:
    from rich.console import Console

# A table shows so many lines, and so many jobs in each.
MOST_LINES = 1000
MOST_NAMES = 50


def read_text(path: str) -> str:
    try:
        return text_file.read(path)
    except text_file.FileError as error:
        raise TableError(path, 1, str(error)) from None


def read_lines(path: str) -> list[str]:
    return read_text(path).splitlines(keepends=True)


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
        found = catalogue.parse_csv(read_lines(args.catalogue), args.catalogue)
    found = found.with_ebs(int(args.ebs_gib * catalogue.GIB)).less(Overhead(memory=args.overhead_memory))
    try:
        return Market(found.select(args.types, args.exclude_types), found)
    except ValueError as error:
        raise UsageError(f"--types, --exclude-types: {error}") from None


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
    jobs = trace.parse_jobs(read_lines(args.jobs), args.jobs, goods.known)
    running = trace.parse_running(read_lines(args.running), args.running, goods.known) if args.running else []
    import scipy.optimize
    import scipy.sparse  # noqa: F401 (so that the clock below runs for planning alone)

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
        raise jobs.fault(refused.job, f"job {shortened(refused.job)} {refused.reason}")
    if args.output == "json":
        print_json(result, running, seconds, goods.offered, out or sys.stdout)
    else:
        print_plan(result, running, seconds, goods.offered, out or sys.stdout)
    if watch.stopped:
        print("Ctrl-C: this plan is not finished; it is the best one so far", file=sys.stderr)
        return INTERRUPTED
    return 0


def filled(result: Plan, running: Sequence[Location]) -> dict[Filled, int]:
    """The instances that get jobs, running ones first in their order, and how many are filled alike."""
    order = {location.name: number for number, location in enumerate(running)}
    there = sorted(
        (each for each in result.filled if each.location in order), key=lambda each: order[each.location or ""]
    )
    alike: dict[Filled, int] = {}
    for each in chain(there, (each for each in result.filled if each.location is None)):
        one = each._replace(number=1)
        alike[one] = alike.get(one, 0) + each.number
    return alike


def print_json(result: Plan, running: Sequence[Location], seconds: float, offered: Catalogue, out: IO[str]) -> None:
    answer: dict[str, object] = {
        "policy": result.policy,
        "effort": result.effort,
        "cost_usd_per_hour": result.cost,
        "objective_usd_per_hour": result.objective,
        "lower_bound_usd_per_hour": result.bound,
        "gap": result.gap,
        "plan_seconds": seconds,
    }
    if result.why:
        answer["why"] = result.why
    # Equal machines are one line, and all is written at once: where the output has no buffer each write is a call.
    instances = ",\n ".join(
        json.dumps(
            {
                "count": count,
                "instance_type": each.instance_type,
                "usd_per_hour": each.usd_per_hour,
                "instance": each.location,
                "jobs": dict(each.jobs),
            }
        )
        for each, count in filled(result, running).items()
    )
    waiting = ",\n ".join(
        json.dumps({"job": wait.job, "count": wait.count, "reason": wait.reason}) for wait in result.waits
    )
    out.write(f'{json.dumps(answer)[:-1]}, "instances": [\n {instances}\n], "waiting": [\n {waiting}\n]}}\n')
    print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)


def print_plan(result: Plan, running: Sequence[Location], seconds: float, offered: Catalogue, out: IO[str]) -> None:
    """A table of the instances, those that are filled alike on one line."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    alike = filled(result, running)
    table = Table("Instances", "Instance", "Type", "USD/h each", "Jobs on each")
    for (name, kind, price, contents, _), number in islice(alike.items(), MOST_LINES):
        table.add_row(str(number), printable(name or "new"), printable(kind), f"{price:.4f}", contents_text(contents))
    if alike:
        console.print(table)
        print_rest(console, len(alike))
    if result.waits:
        waiting = Table("Waiting", "Jobs", "Reason")
        for wait in result.waits[:MOST_LINES]:
            waiting.add_row(printable(wait.job), str(wait.count), printable(wait.reason))
        console.print(waiting)
        print_rest(console, len(result.waits))
    for line_text in summary(result, seconds, offered):
        console.print(printable(line_text), soft_wrap=True)


def contents_text(contents: Sequence[tuple[str, int]]) -> str:
    """The jobs on a machine, by name."""
    named = [f"{job} × {count}" if count > 1 else job for job, count in contents[:MOST_NAMES]]
    more = f" and {len(contents) - MOST_NAMES:,} more" if len(contents) > MOST_NAMES else ""
    return printable(", ".join(named) + more)


def print_rest(console: Console, number: int) -> None:
    """Say that a table is not all, since a terminal is no place for thousands of lines."""
    if number > MOST_LINES:
        console.print(f"and {number - MOST_LINES:,} more lines; --output json has all of them", soft_wrap=True)


def summary(result: Plan, seconds: float, offered: Catalogue) -> list[str]:
    gap = "" if result.gap is None else f", gap {result.gap:.2%}"
    once = "" if result.objective == result.cost else f" ({result.objective:.4f} with what launches cost once)"
    effort = f", {result.effort}" if result.policy != "greedy" else ""
    why = [f"Why: {result.why}."] if result.why else []
    return [
        f"{len(result.launches)} instances to launch, {result.cost:.4f} USD/h{once}",
        f"No plan costs less than {result.bound or 0.0:.4f} USD/h{gap}.",
        *why,
        f"Planned by {result.policy}{effort} in {seconds:.2f} s. Prices: {'; '.join(offered.sources)}",
    ]
