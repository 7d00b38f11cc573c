"""``snakemake-lading plan``: what a run of a Snakefile costs for each time in which it may end, before it begins.

Snakemake reads the Snakefile and its own options, and builds the graph of jobs that ``snakemake --d3dag`` prints; here
each of them has what it asks for. The rest is the frontier of ``lading plan --frontier``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeAlias

from lading.scheduling.insight.right_size import NOTHING_KNOWN
from snakemake_executor_plugin_lading.engine import (
    dag_id_of,
    name_of,
    number_of,
    planned_jobs,
    read_sizes,
    sized_tasks,
)
from snakemake_executor_plugin_lading.needs import DEFAULT_RESOURCES, forecast_hints

# Of ``lading plan``: what these commands have in common.
SHARED = (
    "--catalogue", "--types", "--exclude-types", "--max-instances", "--overhead-memory", "--ebs-gib", "--progress",
    "--output", "--plot",
)  # fmt: skip
# The last option of Snakemake's by which it prints the graph of jobs, and runs none of them.
PRINT = "--d3dag"
# So many runs of a rule say how long its jobs take, the last ones.
MOST_RUNS = 1000
# Asks the store about earlier runs: an answer by rule, empty where there is none.
Past: TypeAlias = Callable[[Callable[[Any], dict[str, Any]]], dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    from lading.plugin.offline.options import MOST, PLAN_OPTIONS, number

    for option in PLAN_OPTIONS:
        if option.flags[0] in SHARED:
            parser.add_argument(*option.flags, **option.settings)
    parser.add_argument(
        "--seconds",
        type=number(most=MOST),
        help="how long a job runs whose rule has not run here yet and gives no runtime",
    )
    parser.add_argument(
        "snakemake", nargs=argparse.REMAINDER, help="-- and what snakemake is given: targets, --snakefile, --configfile"
    )


def print_frontier(args: argparse.Namespace, past: Past, out: IO[str] | None = None) -> int:
    """Print the frontier of a workflow; the exit status."""
    from lading.plugin.offline.command import guarded

    return guarded(lambda given: _print_frontier(given, past, out or sys.stdout))(args)


def _print_frontier(args: argparse.Namespace, past: Past, out: IO[str]) -> int:
    from lading.plugin.offline import frontier
    from lading.plugin.offline.inputs import check_sizes, market
    from lading.plugin.offline.options import UsageError
    from lading.scheduling.plan import InstanceLimits
    from lading.scheduling.provisioning.planner import planning_missing

    if missing := planning_missing():
        raise UsageError(f"snakemake-lading plan {missing}")
    offered = market(args).offered
    given = args.snakemake[1:] if args.snakemake[:1] == ["--"] else args.snakemake
    workflow = planned_arrivals(job_graph(given, past), past(median_durations), args.seconds)
    if not workflow:
        raise UsageError("nothing of this workflow is left to do; snakemake's --forceall plans all of it")
    check_sizes(workflow, "the workflow", offered)
    frontier.show(args, workflow, offered, frontier.BOOT_SECONDS, InstanceLimits(instances=args.max_instances), out)
    return 0


def job_graph(arguments: Sequence[str], past: Past) -> list[tuple[Any, list[Any], dict[str, Any]]]:
    """The jobs of a workflow that are to run: each with those that it waits for, and what it asks for as hints.

    :param arguments: the options and targets that Snakemake is given
    :raises lading.plugin.offline.options.UsageError: Snakemake does not take them, or the workflow
    """
    from snakemake import cli, dag
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    from lading.plugin.offline.options import UsageError

    found: list[tuple[Any, list[Any], dict[str, Any]]] = []

    def collect(self: Any, *_: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # what there is to say of them was said
            _, parsed = cli.parse_args(arguments)
        options = ExecutorPluginRegistry().get_plugin("lading").get_settings(parsed)
        names = sized_tasks(self.needrun_jobs(), self.workflow, options)
        fitted = past(lambda session: read_sizes(session, dag_id_of(self.workflow), names)) if names else {}
        # Without an executor all of them are local for Snakemake.
        local = self.workflow._localrules
        for job, before in planned_jobs(self, lambda job: job.rule.norun or job.rule.name in local).items():
            size = fitted.get(name_of(job), NOTHING_KNOWN)
            found.append((job, list(before), forecast_hints(job, self.workflow, options, None, size)))

    printed = dag.DAG.d3dag
    dag.DAG.d3dag = collect
    try:
        with contextlib.redirect_stdout(sys.stderr):
            cli.main([*arguments, PRINT])
    except SystemExit as end:
        if end.code:
            raise UsageError("Snakemake has not taken the workflow; what it has said is above") from None
    finally:
        dag.DAG.d3dag = printed
    return found


def planned_arrivals(
    jobs: Sequence[tuple[Any, Sequence[Any], Mapping[str, Any]]], lengths: Mapping[str, float], otherwise: float | None
) -> list[Any]:
    """The same as the tasks of a workflow that is simulated.

    :param lengths: by rule, how long its jobs run, seconds
    :param otherwise: the same of rules that are not among them and give no runtime; None: there is to be none
    :raises lading.plugin.offline.options.UsageError: it is not known how long a job runs
    """
    from lading.plugin.offline.options import UsageError
    from lading.scheduling.hints.hints import Hints
    from lading.scheduling.job import PlannedJob
    from lading.scheduling.machine_traits import DEFAULT_ARCH
    from lading.scheduling.simulation.run_cost import LEAST_SECONDS
    from lading.scheduling.simulation.trace import Arrival

    names = {id(job): f"{name_of(job)}[{number_of(job)}]" for job, *_ in jobs}
    arrivals = []
    for job, before, config in jobs:
        rule, hints = name_of(job), Hints.from_config(dict(config))
        seconds = lengths.get(rule, hints.limits().time)
        if seconds is None and (seconds := otherwise) is None:
            raise UsageError(
                f"rule {rule}: no run of it is known here, and it gives no runtime; "
                "give resources: runtime, or --seconds S"
            )
        planned = PlannedJob(names[id(job)], hints.resources(DEFAULT_RESOURCES), arch=DEFAULT_ARCH, task=rule, run="")
        waits = tuple(sorted(names[id(each)] for each in before if id(each) in names))
        arrivals.append(Arrival(planned, 0.0, max(float(seconds), LEAST_SECONDS), waits))
    return arrivals


def median_durations(session: Any) -> dict[str, float]:
    """How long the jobs of each rule have run here: the median of the last ones, seconds."""
    from sqlalchemy import select

    from lading.executors.store import JobRow, State

    columns = JobRow.task_id, JobRow.started_at, JobRow.ended_at
    ran = JobRow.state == State.SUCCEEDED, JobRow.started_at.is_not(None), JobRow.ended_at.is_not(None)
    found: dict[str, list[float]] = {}
    for rule, started, ended in session.execute(select(*columns).where(*ran).order_by(JobRow.ended_at.desc())):
        if len(known := found.setdefault(rule, [])) < MOST_RUNS:
            known.append(ended - started)
    return {rule: statistics.median(known) for rule, known in found.items()}
