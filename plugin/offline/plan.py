"""`lading plan`: which instances would be launched for jobs, which jobs run on each, which wait, and what it costs."""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import chain, islice, repeat, starmap
from json.encoder import encode_basestring_ascii
from typing import IO, TYPE_CHECKING

from lading.plugin.offline.inputs import market, read_table
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.simulation import trace
from lading.plugin.offline.watch import INTERRUPTED, ProgressWatch
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FilledMachines, Objective, Plan, Wait
from lading.scheduling.provisioning.planner import plan, planning_missing
from lading.scheduling.text.printable import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# The most lines of a table, and the most job names in a line.
MOST_LINES = 1000
MOST_NAMES = 50
# How many lines of JSON to write at once: if the output is unbuffered, each write is a system call.
AT_ONCE = 10_000


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn off garbage collection: a plan has no reference cycles, and searching for them takes a tenth of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@uncollected()
def run_plan(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    if missing := planning_missing():
        raise UsageError(f"lading plan {missing}")
    if (
        args.workflow is not None
        or (args.frontier and args.dag is None)
        or (args.plot is not None and not args.frontier)
    ):
        if args.workflow is None or not args.frontier or args.jobs is not None or args.dag is not None:
            raise UsageError(
                "--frontier needs a workflow or a Dag, and --workflow and --plot need --frontier: give --workflow FILE "
                "--frontier, or --dag DAG --frontier; for the cost of one run, use lading simulate --workflow FILE"
            )
        from lading.plugin.offline import frontier

        return frontier.run(args, market(args).offered, out or sys.stdout)
    if args.dag is not None or args.conf is not None:
        if args.jobs is not None or args.dag is None:
            raise UsageError(
                "--dag cannot be combined with --jobs, and --conf needs --dag: give --jobs FILE, or --dag DAG"
            )
        from lading.plugin.offline import dag_cost  # which imports Airflow

        return dag_cost.run(args, out or sys.stdout)
    if args.jobs is None:
        raise UsageError("there is nothing to plan; give --jobs FILE, or --dag DAG")
    offline_market = market(args)
    jobs = trace.parse_jobs(read_table(args.jobs, trace.REQUIRED, trace.OPTIONAL), args.jobs, offline_market.known)
    running = []
    if args.running is not None:
        running = trace.parse_running(read_table(args.running, trace.RUNNING), args.running, offline_market.known)
    begin = time.perf_counter()
    with ProgressWatch(shown=args.progress) as watch, watch.interruptible():
        result = plan(
            jobs.jobs,
            running,
            offline_market.offered,
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
    show(result, running, jobs, seconds, offline_market.offered, out or sys.stdout)
    if watch.stopped:
        print("Ctrl-C: stopped early; this is the best plan so far", file=sys.stderr)
        return INTERRUPTED
    return 0


# A million waiting jobs share a few reasons.
text_of = lru_cache(1000)(str)


def filled(result: Plan, running: Sequence[Location]) -> dict[FilledMachines, int]:
    """Count the instances with the same jobs. Running ones come first, in their order."""
    order = {location.name: number for number, location in enumerate(running)}
    there = sorted(
        (each for each in result.filled if each.location in order), key=lambda each: order[each.location or ""]
    )
    alike: dict[FilledMachines, int] = {}
    for each in chain(there, (each for each in result.filled if each.location is None)):
        one = each._replace(number=1)
        alike[one] = alike.get(one, 0) + each.number
    return alike


class JobNames:
    """Gives each planned job the name of its row. Rows with equal requests were planned as one job."""

    def __init__(self, jobs: trace.TraceJobs) -> None:
        self.left = {job: iter(names) for job, names in jobs.names.items()}

    def machines(self, alike: Mapping[FilledMachines, int]) -> Iterator[tuple[FilledMachines, int]]:
        """Yield machines with the names of their jobs, and how many there are of each."""
        for filling, number in alike.items():
            if self.left.keys().isdisjoint(job for job, _ in filling.jobs):
                yield filling, number
            else:
                for _ in range(number):
                    yield filling._replace(jobs=tuple(chain.from_iterable(starmap(self.names_of, filling.jobs)))), 1

    def names_of(self, job: str, count: int) -> Iterator[tuple[str, int]]:
        """Yield the next ``count`` names of jobs that were planned as one, and how many jobs have each name."""
        return islice(zip(self.left[job], repeat(1)), count) if job in self.left else iter([(job, count)])

    def json(self, alike: Mapping[FilledMachines, int]) -> Iterator[str]:
        """Yield the machines as JSON, fast enough to write a million names in a second."""
        for filling, number in alike.items():
            columns = []
            jobs = []
            for job, count in filling.jobs:
                if job in self.left:
                    columns += [map(encode_basestring_ascii, self.left[job])] * count
                    jobs += ["%s: 1"] * count
                else:
                    jobs.append(f"{json.dumps(job)}: {count}".replace("%", "%%"))
            machine = {
                "count": 1 if columns else number,
                "instance_type": filling.instance_type,
                "usd_per_hour": filling.usd_per_hour,
                "instance": filling.location,
            }
            line = f'{json.dumps(machine)[:-1].replace("%", "%%")}, "jobs": {{{", ".join(jobs)}}}}}'
            yield from map(line.__mod__, islice(zip(*columns, strict=False), number) if columns else [()])

    def waits(self, waits: Iterable[Wait]) -> Iterator[Wait]:
        """Yield the waiting jobs by name. Call this last: the names that the machines have not taken are left over."""
        for wait in waits:
            for name, count in self.names_of(wait.job, wait.count):
                yield Wait(name, count, wait.reason)


def print_json(
    result: Plan, running: Sequence[Location], jobs: trace.TraceJobs, seconds: float, offered: Catalogue, out: IO[str]
) -> None:
    answer: dict[str, object] = {
        "policy": result.policy,
        "effort": result.effort,
        "cost_usd_per_hour": result.cost,
        "objective_usd_per_hour": result.objective,
        "lower_bound_usd_per_hour": result.bound,
        "gap": result.gap,
        "plan_seconds": seconds,
    }
    names = JobNames(jobs)
    waiting = (
        json.dumps({"job": each.job, "count": each.count, "reason": text_of(each.reason), "code": each.reason.code})
        for each in names.waits(result.waits)
    )
    lines = chain(
        [f'{json.dumps(answer)[:-1]}, "instances": ['],
        separated(names.json(filled(result, running))),
        ['\n], "waiting": ['],
        separated(waiting),
        ["\n]}\n"],
    )
    while text := "".join(islice(lines, AT_ONCE)):
        out.write(text)
    print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)


def separated(items: Iterator[str]) -> Iterator[str]:
    """Yield the items of a JSON list, one per line."""
    yield f"\n {next(items, '')}"
    yield from map(",\n {}".format, items)


def print_plan(
    result: Plan, running: Sequence[Location], jobs: trace.TraceJobs, seconds: float, offered: Catalogue, out: IO[str]
) -> None:
    """Print a table of the instances. Those with the same jobs share a line."""
    from rich.console import Console
    from rich.table import Table

    console, names = Console(file=out, highlight=False, markup=False, emoji=False), JobNames(jobs)
    table = Table("Instances", "Instance", "Type", "USD/h each", "Jobs on each")
    machines = names.machines(filled(result, running))
    for (name, kind, price, contents, _), number in islice(machines, MOST_LINES):
        table.add_row(str(number), printable(name or "new"), printable(kind), f"{price:.4f}", contents_text(contents))
    print_table(console, table, machines)
    table = Table("Waiting", "Jobs", "Reason")
    waits = names.waits(result.waits)
    for wait in islice(waits, MOST_LINES):
        table.add_row(printable(wait.job), str(wait.count), printable(text_of(wait.reason)))
    print_table(console, table, waits)
    for line in summary(result, seconds, offered):
        console.print(printable(line), soft_wrap=True)


def contents_text(contents: Sequence[tuple[str, int]]) -> str:
    named = [f"{job} × {count}" if count > 1 else job for job, count in contents[:MOST_NAMES]]
    more = f" and {len(contents) - MOST_NAMES:,} more" if len(contents) > MOST_NAMES else ""
    return printable(", ".join(named) + more)


def print_table(console: Console, table: Table, rest: Iterator[object]) -> None:
    """Print a table if it has rows, and how many rows it leaves out, as a terminal cannot show thousands of lines."""
    if table.row_count:
        console.print(table)
    if more := sum(1 for _ in rest):
        console.print(f"and {more:,} more lines; --output json has all of them", soft_wrap=True)


def summary(result: Plan, seconds: float, offered: Catalogue) -> list[str]:
    gap = "" if result.gap is None else f", gap {result.gap:.2%}"
    once = "" if result.objective == result.cost else f" ({result.objective:.4f} with the one-off cost of launches)"
    effort = f", {result.effort}" if result.policy != "greedy" else ""
    number = len(result.launches)
    return [
        f"{number} instance{'s' * (number != 1)} to launch, {result.cost:.4f} USD/h{once}",
        f"No plan costs less than {result.bound or 0.0:.4f} USD/h{gap}.",
        f"Planned by {result.policy}{effort} in {seconds:.2f} s. Prices: {'; '.join(offered.sources)}",
    ]
