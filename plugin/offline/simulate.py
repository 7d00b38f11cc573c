"""`lading simulate`: what a trace of jobs would have cost under each policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from lading.plugin.offline.options import UsageError
from lading.plugin.offline.plan import market, read_table
from lading.plugin.offline.watch import Watch
from lading.scheduling.catalogue import Catalogue
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import Limits, Objective
from lading.scheduling.scale_in import ScaleIn
from lading.scheduling.simulation import trace
from lading.scheduling.simulation.conditions import Conditions
from lading.scheduling.simulation.report import Report
from lading.scheduling.simulation.simulator import NoEnd, simulate
from lading.scheduling.text.printable import printable, shortened

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


def run_simulate(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    """Simulate the trace under each policy and print what came of it; the exit status."""
    form = None if args.plot is None else form_of(args.plot)
    goods = market(args)
    lines = read_table(args.jobs, (*trace.REQUIRED, *trace.TRACE), trace.OPTIONAL)
    jobs, arrivals = trace.parse_trace(lines, args.jobs, goods.known)
    for refused in pose(jobs.jobs, [], goods.offered, Limits(), Objective(), 0.0, None).refusals:
        raise jobs.fault(refused)
    total = sum(job.count for job in jobs.jobs)
    reports = []
    for policy in args.compare:
        with Watch(shown=args.progress) as watch, ending(args):
            reports.append(
                simulate(
                    arrivals,
                    goods.offered,
                    jobs.limits(args.max_instances),
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
                    progress=partial(tell, watch, policy, total),
                )
            )
    print_reports(reports, goods.offered, args.output, out or sys.stdout)
    if form is not None:
        draw(form(reports), args.plot)
    return 0


def tell(watch: Watch, policy: str, total: int, ended: int) -> None:
    """Show how many jobs have ended."""
    watch(policy, ended / max(1, total))


def form_of(path: str) -> Callable[[Sequence[Report]], str]:
    """What draws the chart over time, by the file's name."""
    from lading.plugin.offline import chart

    form = {".svg": chart.svg, ".html": chart.html}.get(Path(path).suffix)
    if form is None:
        raise UsageError(f"--plot {shortened(path)} has no form; valid: a name that ends in .svg or .html")
    return form


def draw(chart: str, path: str) -> None:
    try:
        Path(path).write_text(chart, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--plot {shortened(path)}: {error.strerror}") from None


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
