"""`lading simulate`: what a trace of jobs would have cost under each policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import IO, Any, TypeAlias

from lading.plugin.offline import chart
from lading.plugin.offline.frontier import BOOT_SECONDS
from lading.plugin.offline.inputs import OfflineMarket, market, read_table, read_workflow, with_requests
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.share_simulation import simulate_shares
from lading.plugin.offline.simulation import trace, wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.fixed_fleet import SLACK, CheapestFleets, EqualMachines, reference
from lading.plugin.offline.simulation.frontier import TICK
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import NoEnd, simulate
from lading.plugin.offline.simulation.sized_tries import SizedTries, earlier_runs
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths, run_at
from lading.plugin.offline.watch import ProgressWatch
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.plan import ASKED, AUTO, FORECAST, InstanceLimits, Objective
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.packing.problem import pose
from lading.scheduling.provisioning.planner import planning_missing
from lading.scheduling.provisioning.scale_in import ScaleIn
from lading.scheduling.text.printable import printable

# Draws reports as a chart.
Form: TypeAlias = Callable[[Sequence[Report]], str]
# The runs that are simulated if --runs is not given.
RUNS = (1, 2, 10)
REPORT_LINES = {
    "jobs": "jobs",
    "unplaced": "jobs that were not placed",
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
    "peak_instances": "instances at once, peak",
    "capacity_errors": "failed launches",
    "reclaims": "instances reclaimed",
    "restarts": "jobs restarted",
    "lost_usd": "cost of reclaims, USD",
    "plans": "plans",
}
# Additional rows with --sizes.
SIZED_LINES = {"short": "tries that fell short", "of_cost": "cost / asked", "of_makespan": "makespan / asked"}
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

    :param tick_seconds: the time between plans; None: it depends on the number of jobs
    :param boot_seconds: from a launch until its first job starts
    :param lengths: the predicted durations of jobs, by their names
    :param references: the cheapest fleets of equal machines for each workflow, by its file
    """

    arrivals: Sequence[Arrival]
    limits: InstanceLimits
    policies: Sequence[str]
    tick_seconds: float | None
    boot_seconds: float
    lengths: Mapping[str, Prediction] = field(default_factory=dict)
    references: Mapping[str, CheapestFleets] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """One of the simulations that are compared.

    :param sizes: what its tasks request, one of :data:`lading.scheduling.model.plan.SIZES`; None: as in the trace
    :param number: with ``auto``, which run of the workflow it is, from 1
    :param asked: the report of the same simulation with the requests of the authors; None: it is not compared
    """

    report: Report
    sizes: str | None = None
    number: int | None = None
    asked: Report | None = None

    @property
    def title(self) -> str:
        run = "" if self.number is None else f", run {self.number}"
        return self.report.policy if self.sizes is None else f"{self.report.policy}, {self.sizes}{run}"

    @property
    def short(self) -> int:
        return self.report.short

    @property
    def of_cost(self) -> float | None:
        """Its cost divided by the cost with the requests of the authors."""
        return None if self.asked is None or not self.asked.cost else self.report.cost / self.asked.cost

    @property
    def of_makespan(self) -> float | None:
        return None if self.asked is None or not self.asked.makespan else self.report.makespan / self.asked.makespan


def sizes_compared(args: argparse.Namespace) -> list[tuple[str | None, int | None]]:
    """Return, for each simulation, what tasks request and which run of the workflow it is.

    :raises UsageError: an option has no effect without another one, or a run number is not valid
    """
    if args.runs is not None and AUTO not in (args.sizes or ()):
        raise UsageError(f"--runs needs --sizes {AUTO}; add it, or leave --runs out")
    if args.sizes is None:
        return [(None, None)]
    if args.runs is not None and 0 in args.runs:
        raise UsageError("--runs 0: runs are counted from 1")
    numbers: dict[str, Sequence[int | None]] = {AUTO: args.runs or RUNS}
    return [(sizes, number) for sizes in args.sizes for number in numbers.get(sizes, (None,))]


def run_simulate(args: argparse.Namespace, out: IO[str] | None = None) -> int:
    if missing := planning_missing():
        raise UsageError(f"lading simulate {missing}")
    form = None if args.plot is None else chart.form(args.plot, chart.svg)
    target = out or sys.stdout
    if args.dag is not None:
        return simulate_dag(args, form, target)
    offline_market = market(args)
    given = read_jobs(args, offline_market) if args.workflow is None else read_workflows(args, offline_market)
    if args.shares is not None:
        if args.workflow is not None:
            raise UsageError("--shares cannot be combined with --workflow; give --jobs FILE instead")
        number = args.max_instances
        return simulate_shares(given.arrivals, args.shares, number, offline_market.offered, args.output, target)
    simulate_each(args, given, offline_market.offered, form, target)
    return 0


def simulate_each(
    args: argparse.Namespace, given: SimulationInputs, offered: Catalogue, form: Form | None, out: IO[str]
) -> None:
    refuse_idle_options(args, given.policies)
    compared = sizes_compared(args)
    total = sum(each.job.count for each in given.arrivals)
    runs: list[SimulatedRun] = []
    for policy, (sizes, number) in product(given.policies, compared):
        tries = None
        if sizes is not None:
            known = earlier_runs(given.arrivals, (number or 1) - 1, args.seed)
            tries = SizedTries(given.arrivals, sizes, offered, known)
        with ProgressWatch(shown=args.progress) as watch, ending(args):
            runs.append(
                SimulatedRun(
                    simulate(
                        given.arrivals,
                        offered,
                        given.limits,
                        policy,
                        effort=args.effort,
                        objective=Objective(args.per_instance_cost, args.horizon_hours),
                        scale_in=ScaleIn(args.idle_seconds, args.billing_seconds, min_instances=args.min_instances),
                        conditions=Conditions(
                            boot_seconds=given.boot_seconds,
                            capacity_errors=args.capacity_errors,
                            reclaims_per_hour=args.reclaims_per_hour,
                            tick_seconds=given.tick_seconds,
                            plan_seconds=args.plan_seconds,
                            seed=args.seed,
                        ),
                        hurry=1.0 if args.hurry is None else args.hurry,
                        lengths=given.lengths,
                        tries=tries,
                        progress=partial(show, watch, policy, total),
                    ),
                    sizes,
                    number,
                )
            )
    asked = {each.report.policy: each.report for each in runs if each.sizes == ASKED}
    runs = [replace(each, asked=asked.get(each.report.policy)) for each in runs]
    print_runs(runs, given.references, offered, args.output, out)
    if form is not None:
        chart.draw(form([replace(each.report, policy=each.title) for each in runs]), args.plot)


def simulate_dag(args: argparse.Namespace, form: Form | None, out: IO[str]) -> int:
    """Simulate runs of a Dag like its last runs, at each site that launches machines; returns the exit status.

    :raises UsageError: another input is given, too, or the Dag does not exist
    """
    refuse_options(args, ("sizes", "runs", "requests"), "--workflow FILE")
    others = ("jobs", "workflow", "shares", "catalogue", "types", "exclude_types", "overhead_memory", "ebs_gib")
    for name in others:
        if getattr(args, name):
            flag = name.replace("_", "-")
            raise UsageError(
                f"--dag cannot be combined with --{flag}, because the sites define the machines; leave one of them out"
            )
    from lading.plugin.offline import dag_cost  # which imports Airflow

    found = dag_cost.workflows(args.dag)
    if len(found) > 1 and (form is not None or args.output == "json"):
        raise UsageError(f"--dag {args.dag}: its tasks go to {len(found)} sites; leave out --plot and --output json")
    for name, (workflow, on_sale) in found.items():
        if len(found) > 1:
            print(printable(f"Site {name}:"), file=out)
        boot = on_sale.boot_seconds if args.boot_seconds is None else args.boot_seconds
        scaled = [replace(each, duration=each.duration * (args.scale or 1.0)) for each in workflow]
        limits = on_sale.limits if args.max_instances is None else InstanceLimits(instances=args.max_instances)
        given = runs_of({args.dag: scaled}, args, on_sale.catalogue, limits, boot)
        simulate_each(args, given, on_sale.catalogue, form, out)
    return 0


def read_jobs(args: argparse.Namespace, offline_market: OfflineMarket) -> SimulationInputs:
    """Read the table of jobs.

    :raises UsageError: it is not given, or an option is for workflows only
    """
    refuse_options(args, ("starts", "scale", "lengths"), "--workflow FILE or --dag DAG")
    refuse_options(args, ("sizes", "runs", "requests"), "--workflow FILE")
    policies = args.compare or (FORECAST,)
    if args.jobs is None:
        raise UsageError("there is nothing to simulate; give --jobs FILE, --workflow FILE or --dag DAG")
    lines = read_table(args.jobs, (*trace.REQUIRED, *trace.TRACE), trace.OPTIONAL)
    jobs, arrivals = trace.parse_trace(lines, args.jobs, offline_market.known)
    for refused in pose(jobs.jobs, [], offline_market.offered, InstanceLimits(), Objective(), 0.0, None).refusals:
        raise jobs.fault(refused)
    limits = jobs.limits(args.max_instances)
    return SimulationInputs(arrivals, limits, policies, args.tick_seconds, boot_seconds(args))


def refuse_options(args: argparse.Namespace, names: Sequence[str], instead: str) -> None:
    """Refuse options that are for workflows only.

    :param instead: the option that they need
    :raises UsageError: one of them is given
    """
    for name in names:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name} needs {instead}; add that, or leave this option out")


def read_workflows(args: argparse.Namespace, offline_market: OfflineMarket) -> SimulationInputs:
    """Read the runs of all workflow files.

    :raises UsageError: a file is not a recorded run, or a task fits none of the offered types
    """
    if args.jobs is not None:
        raise UsageError("--workflow cannot be combined with --jobs; give one of them")
    offered = offline_market.offered
    workflows = {path: read_workflow(path, offered, args.scale or 1.0) for path in args.workflow}
    if args.requests is not None:
        workflows = with_requests(workflows, args.requests, offered)
    return runs_of(workflows, args, offered, InstanceLimits(instances=args.max_instances), boot_seconds(args))


def runs_of(
    workflows: Mapping[str, Sequence[Arrival]],
    args: argparse.Namespace,
    offered: Catalogue,
    limits: InstanceLimits,
    boot: float,
) -> SimulationInputs:
    """Start runs of the workflows at the times of ``--starts``.

    :param boot: seconds from a launch until its first job starts
    :raises UsageError: they have too many tasks
    """
    arrivals: list[Arrival] = []
    references = {}
    for number, (name, workflow) in enumerate(workflows.items()):
        references[name] = reference(wfformat.as_forecast(workflow), offered, boot)
        for again, begin in enumerate(args.starts or (0.0,)):
            arrivals += run_at(workflow, f"{number}.{again}", begin)
    if len(arrivals) > trace.MOST_SIMULATED:
        raise UsageError(f"there are {len(arrivals):,} tasks; valid: at most {trace.MOST_SIMULATED:,}")
    return SimulationInputs(
        arrivals,
        limits,
        args.compare or ((FORECAST,) if args.sizes else ("greedy", FORECAST)),
        args.tick_seconds or TICK,
        boot,
        expected_lengths(arrivals, args.lengths or "task"),
        references,
    )


def boot_seconds(args: argparse.Namespace) -> float:
    return BOOT_SECONDS if args.boot_seconds is None else float(args.boot_seconds)


def refuse_idle_options(args: argparse.Namespace, policies: Sequence[str]) -> None:
    """Refuse options that have no effect on a policy.

    :raises UsageError: one is given
    """
    if args.hurry is not None and FORECAST not in policies:
        raise UsageError(f"--hurry needs the policy {FORECAST}; add it to --compare, or leave --hurry out")
    if args.plan_seconds is not None and FORECAST not in policies:
        raise UsageError(
            f"--plan-seconds needs the policy {FORECAST}; add it to --compare, or leave --plan-seconds out"
        )
    if args.per_instance_cost and FORECAST in policies:
        raise UsageError(
            f"--per-instance-cost has no effect on the policy {FORECAST}; compare other policies, or leave it out"
        )


def show(watch: ProgressWatch, policy: str, total: int, ended: int) -> None:
    watch(policy, ended / max(1, total))


@contextmanager
def ending(args: argparse.Namespace) -> Iterator[None]:
    """If a simulation cannot finish, name the options that keep it from finishing."""
    try:
        yield
    except NoEnd as error:
        raise UsageError(
            f"--capacity-errors {args.capacity_errors:g}, --reclaims-per-hour {args.reclaims_per_hour:g}: {error}; "
            "lower one of them"
        ) from None


def print_runs(
    runs: Sequence[SimulatedRun],
    references: Mapping[str, CheapestFleets],
    offered: Catalogue,
    output: str,
    out: IO[str],
) -> None:
    """Print a column per simulation, or a JSON object with the list ``runs``.

    Workflows are also compared with fleets of equal machines.
    """
    if output == "json":
        found: dict[str, Any] = {"runs": [named(each) for each in runs]}
        if references:
            found["workflows"] = [{"file": path} | as_json(each) for path, each in references.items()]
        json.dump(found, out, indent=1)
        out.write("\n")
        print(printable(f"prices: {'; '.join(offered.sources)}"), file=sys.stderr)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console(file=out, highlight=False, markup=False, emoji=False)
    table = Table("", *(each.title for each in runs))
    for name, heading in REPORT_LINES.items():
        table.add_row(heading, *(shown(getattr(each.report, name)) for each in runs))
    for name, heading in SIZED_LINES.items() if runs[0].sizes is not None else ():
        table.add_row(heading, *(shown(getattr(each, name)) for each in runs))
    console.print(table)
    for path, fleets in references.items():
        console.print(
            printable(
                f"{path}: critical path {fleets.critical_path:,.0f} s; on equal machines, with all durations known: "
                f"{format_fleet(fleets.in_time)} within {SLACK:g} × of it; at least {format_fleet(fleets.cheapest)}"
            ),
            soft_wrap=True,
        )
    console.print(printable(f"Prices: {'; '.join(offered.sources)}"), soft_wrap=True)


def format_fleet(fleet: EqualMachines | None) -> str:
    if fleet is None:
        return "no fleet finishes"
    return f"{fleet.usd:,.4f} USD ({fleet.machines} × {fleet.instance_type}, {fleet.seconds:,.0f} s)"


def as_json(found: CheapestFleets) -> dict[str, Any]:

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


def named(run: SimulatedRun) -> dict[str, Any]:
    found = {JSON_NAMES.get(name, name): getattr(run.report, name) for name in REPORT_LINES}
    sized = {} if run.sizes is None else {"sizes": run.sizes, "run": run.number}
    sized |= {} if run.sizes is None else {name: getattr(run, name) for name in SIZED_LINES}
    return {"policy": run.report.policy} | sized | found


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.3f}"
