"""`lading simulate`: what a trace of jobs would have cost under each policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

from lading.plugin.offline import chart
from lading.plugin.offline.inputs import OfflineMarket, market, read_table, read_workflow
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.share_simulation import simulate_shares
from lading.plugin.offline.watch import ProgressWatch
from lading.scheduling.catalogue import Catalogue
from lading.scheduling.packing.problem import pose
from lading.scheduling.plan import FORECAST, InstanceLimits, Objective
from lading.scheduling.prediction import Prediction
from lading.scheduling.provisioning.planner import planning_missing
from lading.scheduling.scale_in import ScaleIn
from lading.scheduling.simulation import trace, wfformat
from lading.scheduling.simulation.conditions import Conditions
from lading.scheduling.simulation.fixed_fleet import SLACK, CheapestFleets, EqualMachines, reference
from lading.scheduling.simulation.frontier import TICK
from lading.scheduling.simulation.report import Report
from lading.scheduling.simulation.simulator import NoEnd, simulate
from lading.scheduling.simulation.trace import Arrival
from lading.scheduling.simulation.workflow import expected_lengths, run_at
from lading.scheduling.text.printable import printable

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


@dataclass(frozen=True, slots=True)
class SimulationInputs:
    """What is simulated.

    :param limits: how many instances there may be
    :param policies: that are compared
    :param tick_seconds: between plans; None: by the number of jobs
    :param lengths: how long jobs are expected to run, by their names
    :param references: of each workflow, by its file
    """

    arrivals: Sequence[Arrival]
    limits: InstanceLimits
    policies: Sequence[str]
    tick_seconds: float | None
    lengths: Mapping[str, Prediction] = field(default_factory=dict)
    references: Mapping[str, CheapestFleets] = field(default_factory=dict)


def run_simulate(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    """Simulate the trace under each policy and print the result; returns the exit status."""
    if missing := planning_missing():
        raise UsageError(f"lading simulate {missing}")
    form = None if args.plot is None else chart.form(args.plot, chart.svg)
    offline_market = market(args)
    given = read_jobs(args, offline_market) if args.workflow is None else read_workflows(args, offline_market)
    if args.shares is not None:
        if args.workflow is not None:
            raise UsageError("--shares is for a table of jobs; give --jobs FILE in the place of --workflow")
        target = out or sys.stdout
        number = args.max_instances
        return simulate_shares(given.arrivals, args.shares, number, offline_market.offered, args.output, target)
    refuse_idle_options(args, given.policies)
    total = sum(each.job.count for each in given.arrivals)
    reports = []
    for policy in given.policies:
        with ProgressWatch(shown=args.progress) as watch, ending(args):
            reports.append(
                simulate(
                    given.arrivals,
                    offline_market.offered,
                    given.limits,
                    policy,
                    effort=args.effort,
                    objective=Objective(args.per_instance_cost, args.horizon_hours),
                    scale_in=ScaleIn(args.idle_seconds, args.billing_seconds, min_instances=args.min_instances),
                    conditions=Conditions(
                        boot_seconds=args.boot_seconds,
                        capacity_errors=args.capacity_errors,
                        reclaims_per_hour=args.reclaims_per_hour,
                        tick_seconds=given.tick_seconds,
                        seed=args.seed,
                    ),
                    hurry=1.0 if args.hurry is None else args.hurry,
                    lengths=given.lengths,
                    progress=partial(show, watch, policy, total),
                )
            )
    print_reports(reports, given.references, offline_market.offered, args.output, out or sys.stdout)
    if form is not None:
        chart.draw(form(reports), args.plot)
    return 0


def read_jobs(args: argparse.Namespace, offline_market: OfflineMarket) -> SimulationInputs:
    """The table of jobs.

    :raises UsageError: there is none, or an option is for workflows
    """
    for name in ("starts", "scale", "lengths"):
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} is for workflows; give --workflow FILE, or leave it out")
    policies = args.compare or ("hours",)
    if FORECAST in policies:
        raise UsageError(f"--compare {FORECAST} is for workflows; give --workflow FILE, or leave it out")
    if args.jobs is None:
        raise UsageError("nothing is given to simulate; give --jobs FILE, or --workflow FILE")
    lines = read_table(args.jobs, (*trace.REQUIRED, *trace.TRACE), trace.OPTIONAL)
    jobs, arrivals = trace.parse_trace(lines, args.jobs, offline_market.known)
    for refused in pose(jobs.jobs, [], offline_market.offered, InstanceLimits(), Objective(), 0.0, None).refusals:
        raise jobs.fault(refused)
    return SimulationInputs(arrivals, jobs.limits(args.max_instances), policies, args.tick_seconds)


def read_workflows(args: argparse.Namespace, offline_market: OfflineMarket) -> SimulationInputs:
    """The runs of all workflow files.

    :raises UsageError: a file is none, or a task fits nothing
    """
    if args.jobs is not None:
        raise UsageError("--workflow takes no --jobs: give one of them")
    arrivals: list[Arrival] = []
    references = {}
    for number, path in enumerate(args.workflow):
        workflow = read_workflow(path, offline_market.offered, args.scale or 1.0)
        references[path] = reference(wfformat.as_forecast(workflow), offline_market.offered, args.boot_seconds)
        for again, begin in enumerate(args.starts or (0.0,)):
            arrivals += run_at(workflow, f"{number}.{again}", begin)
    if len(arrivals) > trace.MOST_SIMULATED:
        raise UsageError(f"there are {len(arrivals):,} tasks; valid: at most {trace.MOST_SIMULATED:,}")
    return SimulationInputs(
        arrivals,
        InstanceLimits(instances=args.max_instances),
        args.compare or ("greedy", "hours", FORECAST),
        args.tick_seconds or TICK,
        expected_lengths(arrivals, args.lengths or "task"),
        references,
    )


def refuse_idle_options(args: argparse.Namespace, policies: Sequence[str]) -> None:
    """Refuse what none of the policies goes by.

    :raises UsageError: naming the option
    """
    if args.hurry is not None and FORECAST not in policies:
        raise UsageError(f"--hurry is for the policy {FORECAST}; compare it, or leave it out")
    unused = {"--min-instances": args.min_instances, "--per-instance-cost": args.per_instance_cost}
    for name, value in unused.items():
        if value and FORECAST in policies:
            raise UsageError(f"{name} means nothing to the policy {FORECAST}; compare others, or leave it out")


def show(watch: ProgressWatch, policy: str, total: int, ended: int) -> None:
    """Show how many jobs have ended."""
    watch(policy, ended / max(1, total))


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


def print_reports(
    reports: Sequence[Report], references: Mapping[str, CheapestFleets], offered: Catalogue, output: str, out: IO[str]
) -> None:
    """One column per policy, or a JSON object with the list ``runs``; of workflows also what they are compared with."""
    if output == "json":
        found: dict[str, Any] = {"runs": [named(report) for report in reports]}
        if references:
            found["workflows"] = [{"file": path} | as_json(each) for path, each in references.items()]
        json.dump(found, out, indent=1)
        out.write("\n")
        print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table("", *(report.policy for report in reports))
    for name, heading in REPORT_LINES.items():
        table.add_row(heading, *(shown(getattr(report, name)) for report in reports))
    console.print(table)
    for path, fleets in references.items():
        console.print(
            printable(
                f"{path}: critical path {fleets.critical_path:,.0f} s; with equal machines and lengths that are known "
                f"{format_fleet(fleets.in_time)} within {SLACK:g} × of it, {format_fleet(fleets.cheapest)} at least"
            ),
            soft_wrap=True,
        )
    console.print(printable(f"Prices: {'; '.join(offered.sources)}"), soft_wrap=True)


def format_fleet(fleet: EqualMachines | None) -> str:
    if fleet is None:
        return "none ends"
    return f"{fleet.usd:,.4f} USD ({fleet.machines} × {fleet.instance_type}, {fleet.seconds:,.0f} s)"


def as_json(found: CheapestFleets) -> dict[str, Any]:
    """What a workflow is compared with, as JSON names it."""

    def named(fleet: EqualMachines | None) -> dict[str, Any] | None:
        return (
            None
            if fleet is None
            else {
                "instance_type": fleet.instance_type,
                "machines": fleet.machines,
                "cost_usd": fleet.usd,
                "makespan_seconds": fleet.seconds,
            }
        )

    return {
        "critical_path_seconds": found.critical_path,
        "reference": named(found.in_time),
        "cheapest": named(found.cheapest),
    }


def named(report: Report) -> dict[str, Any]:
    """A report as JSON names it."""
    return {"policy": report.policy} | {JSON_NAMES.get(name, name): getattr(report, name) for name in REPORT_LINES}


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
