"""The command `lading`: what can be done on paper, before anything is launched or submitted. Imports no Airflow.

`lading plan` and `lading simulate` are here, `lading script` is in :mod:`lading.plugin.offline.script`.

The options are in :mod:`lading.plugin.offline.options`, so that `airflow lading` offers the same ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, NoReturn

from lading.hooks.files import text_file
from lading.plugin.offline.options import COMMANDS, UsageError
from lading.scheduling import catalogue as catalogues
from lading.scheduling.catalogue import Catalogue, Overhead
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import Launch, Limits, Location, Objective, Plan
from lading.scheduling.planner import plan
from lading.scheduling.printable import printable, shortened
from lading.scheduling.scale_in import ScaleIn
from lading.scheduling.simulation import trace
from lading.scheduling.simulation.report import Report
from lading.scheduling.simulation.simulator import Conditions, NoEnd, simulate
from lading.scheduling.tables import TableError

if TYPE_CHECKING:
    from rich.console import Console

# Simulating so many jobs takes long enough to show how far it is.
LONG_TRACE = 20_000
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
        found = catalogues.bundled()
    elif args.catalogue.endswith(".toml"):
        found = catalogues.parse_toml(read_text(args.catalogue), args.catalogue)
    else:
        found = catalogues.parse_csv(read_lines(args.catalogue), args.catalogue)
    found = found.with_ebs(int(args.ebs_gib * catalogues.GIB)).less(Overhead(memory=args.overhead_memory))
    try:
        return Market(found.select(args.types, args.exclude_types), found)
    except ValueError as error:
        raise UsageError(f"--types, --exclude-types: {error}") from None


def run_plan(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    """Plan what the options describe and print it; the exit status."""
    goods = market(args)
    jobs = trace.parse_jobs(read_lines(args.jobs), args.jobs, goods.known)
    running = trace.parse_running(read_lines(args.running), args.running, goods.known) if args.running else []
    import scipy.optimize
    import scipy.sparse  # noqa: F401 (so that the clock below runs for planning alone)

    begin = time.perf_counter()
    result = plan(
        jobs.jobs,
        running,
        goods.offered,
        Limits(instances=args.max_instances),
        args.policy,
        effort=args.effort,
        objective=Objective(args.per_instance_cost, args.horizon_hours),
    )
    seconds = time.perf_counter() - begin
    for refused in result.refusals:
        raise jobs.fault(refused.job, f"job {shortened(refused.job)} {refused.reason}")
    if args.output == "json":
        print_json(result, running, seconds, goods.offered, out or sys.stdout)
    else:
        print_plan(result, running, seconds, goods.offered, out or sys.stdout)
    return 0


def filled(result: Plan, running: Sequence[Location]) -> list[tuple[str | None, str, float, dict[str, int]]]:
    """Every instance that gets jobs: its name if it runs already, type, USD per hour, and how many of which job."""
    jobs: dict[str, dict[str, int]] = {}
    for placement in result.placements:
        here = jobs.setdefault(placement.location, {})
        here[placement.job] = here.get(placement.job, 0) + placement.count
    machines: list[tuple[str | None, str, Location | Launch]] = [
        (location.name, location.instance_type or "", location) for location in running if location.name in jobs
    ]
    machines += [(None, launch.instance_type, launch) for launch in result.launches]
    return [(name, kind, machine.usd_per_hour, jobs[machine.name]) for name, kind, machine in machines]


def print_json(result: Plan, running: Sequence[Location], seconds: float, offered: Catalogue, out: IO[str]) -> None:
    answer = {
        "policy": result.policy,
        "effort": result.effort,
        "cost_usd_per_hour": result.cost,
        "objective_usd_per_hour": result.objective,
        "lower_bound_usd_per_hour": result.bound,
        "gap": result.gap,
        "plan_seconds": seconds,
    }
    instances = (
        {"instance_type": kind, "usd_per_hour": price, "instance": name, "jobs": jobs}
        for name, kind, price, jobs in filled(result, running)
    )
    waiting = ({"job": wait.job, "count": wait.count, "reason": wait.reason} for wait in result.waits)
    # There may be a million of them, so each is a line and none is kept.
    out.write(json.dumps(answer)[:-1])
    for name, entries in (("instances", instances), ("waiting", waiting)):
        out.write(f', "{name}": [')
        for number, entry in enumerate(entries):
            out.write((",\n " if number else "\n ") + json.dumps(entry))
        out.write("\n]")
    out.write("}\n")
    print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)


def print_plan(result: Plan, running: Sequence[Location], seconds: float, offered: Catalogue, out: IO[str]) -> None:
    """A table of the instances, those that are filled alike on one line."""
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    alike: dict[tuple[str, str, float, tuple[tuple[str, int], ...]], int] = {}
    for name, kind, price, jobs in filled(result, running):
        line = (name or "new", kind, price, tuple(jobs.items()))
        alike[line] = alike.get(line, 0) + 1
    table = Table("Instances", "Instance", "Type", "USD/h each", "Jobs on each")
    for (name, kind, price, contents), number in islice(alike.items(), MOST_LINES):
        table.add_row(str(number), printable(name), printable(kind), f"{price:.4f}", contents_text(contents))
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
    return [
        f"{len(result.launches)} instances to launch, {result.cost:.4f} USD/h{once}",
        f"No plan costs less than {result.bound or 0.0:.4f} USD/h{gap}.",
        f"Planned by {result.policy}{effort} in {seconds:.2f} s. Prices: {'; '.join(offered.sources)}",
    ]


def run_simulate(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    """Simulate the trace under each policy and print what came of it; the exit status."""
    goods = market(args)
    jobs, arrivals = trace.parse_trace(read_lines(args.jobs), args.jobs, goods.known)
    for refused in pose(jobs.jobs, [], goods.offered, Limits(), Objective(), 0.0, None).refusals:
        raise jobs.fault(refused.job, f"job {shortened(refused.job)} {refused.reason}")
    total = sum(job.count for job in jobs.jobs)
    reports = []
    for policy in args.compare:
        with progress_bar(policy, total) as progress, ending(args):
            reports.append(
                simulate(
                    arrivals,
                    goods.offered,
                    Limits(instances=args.max_instances),
                    policy,
                    effort=args.effort,
                    objective=Objective(args.per_instance_cost, args.horizon_hours),
                    scale_in=ScaleIn(args.idle_seconds, args.billing_seconds, min_instances=args.min_instances),
                    conditions=Conditions(
                        boot_seconds=args.boot_seconds,
                        capacity_errors=args.capacity_errors,
                        reclaims_per_hour=args.reclaims_per_hour,
                        tick_seconds=args.tick_seconds,
                        seed=args.seed,
                    ),
                    progress=progress,
                )
            )
    print_reports(reports, goods.offered, args.output, out or sys.stdout)
    return 0


@contextmanager
def ending(args: argparse.Namespace) -> Iterator[None]:
    """Say which options keep a simulation from its end, where they do."""
    try:
        yield
    except NoEnd as error:
        raise UsageError(
            f"--capacity-errors {args.capacity_errors:g}, --reclaims-per-hour {args.reclaims_per_hour:g}: {error}; "
            "lower one of them"
        ) from None


@contextmanager
def progress_bar(policy: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal, for traces that take a while; nothing where stderr is a file."""
    if total < LONG_TRACE or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(policy, total=total)
        yield lambda done: bar.update(task, completed=done)


def print_reports(reports: Sequence[Report], offered: Catalogue, output: str, out: IO[str]) -> None:
    """One column per policy, or a JSON object with the list ``runs``."""
    if output == "json":
        json.dump({"runs": [named(report) for report in reports]}, out, indent=1)
        out.write("\n")
        print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table("", *(report.policy for report in reports))
    for name, words in REPORT_LINES.items():
        table.add_row(words, *(shown(getattr(report, name)) for report in reports))
    console.print(table)
    console.print(printable(f"Prices: {'; '.join(offered.sources)}"), soft_wrap=True)


def named(report: Report) -> dict[str, Any]:
    """A report as JSON names it."""
    return {"policy": report.policy} | {JSON_NAMES.get(name, name): getattr(report, name) for name in REPORT_LINES}


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"


REPORT_LINES = {
    "jobs": "jobs",
    "unplaced": "jobs that found no place",
    "cost": "cost, USD",
    "bound": "lower bound, USD",
    "gap": "gap (cost / bound - 1)",
    "makespan": "makespan, s",
    "wait_mean": "wait, mean, s",
    "wait_median": "wait, median, s",
    "wait_p95": "wait, 95th percentile, s",
    "wait_max": "wait, longest, s",
    "cpu_utilisation": "cpu utilisation",
    "memory_utilisation": "memory utilisation",
    "instance_hours": "instance-hours",
    "launches": "instances launched",
    "peak_instances": "instances at once",
    "capacity_errors": "failed launches",
    "reclaims": "instances reclaimed",
    "restarts": "jobs restarted",
    "plans": "plans",
}
JSON_NAMES = {
    "cost": "cost_usd",
    "bound": "lower_bound_usd",
    "makespan": "makespan_seconds",
    "wait_mean": "wait_mean_seconds",
    "wait_median": "wait_median_seconds",
    "wait_p95": "wait_p95_seconds",
    "wait_max": "wait_max_seconds",
}


class OneLineParser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {printable(message)} (--help lists the options)\n")


def guarded(run: Callable[[argparse.Namespace], int]) -> Callable[[argparse.Namespace], int]:
    """``run`` with faults of the input as one line on stderr and status 2."""

    def guard(args: argparse.Namespace) -> int:
        try:
            return run(args)
        except (TableError, UsageError) as error:
            print(printable(" ".join(str(error).split("\n"))), file=sys.stderr)
            return 2

    return guard


def runner(command: str) -> Callable[[argparse.Namespace], int]:
    """What carries out a command."""
    # A job script needs nothing of the planner, and the planner nothing of batch systems.
    run: Callable[[argparse.Namespace], int] = getattr(import_module(COMMANDS[command].module), f"run_{command}")
    return guarded(run)


def parser() -> argparse.ArgumentParser:
    top = OneLineParser(prog="lading", description="Pack jobs on machines and render job scripts, on paper.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        each = commands.add_parser(name, help=command.text, description=command.text)
        for option in command.options:
            option.add_to(each)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """The console script `lading`."""
    args = parser().parse_args(argv)
    return runner(args.command)(args)


def airflow_plan(args: argparse.Namespace) -> None:
    """`airflow lading plan`."""
    sys.exit(runner("plan")(args))


def airflow_simulate(args: argparse.Namespace) -> None:
    """`airflow lading simulate`."""
    sys.exit(runner("simulate")(args))


def airflow_script(args: argparse.Namespace) -> None:
    """`airflow lading script`."""
    sys.exit(runner("script")(args))


if __name__ == "__main__":
    sys.exit(main())
