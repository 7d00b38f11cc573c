"""``snakemake-lading plan``: predicts the cost of a run of a Snakefile against the time it takes.

Snakemake reads the Snakefile and its own options, and builds the graph of jobs that ``snakemake --d3dag`` prints. Here
each job also has its request. The rest is the frontier of ``lading plan --frontier``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, TypeAlias

from lading.scheduling.sizing.right_size import NOTHING_KNOWN
from snakemake_executor_plugin_lading.engine import (
    dag_id_of,
    name_of,
    number_of,
    planned_jobs,
    read_sizes,
    sized_tasks,
)
from snakemake_executor_plugin_lading.needs import DEFAULT_RESOURCES, forecast_hints

# The options that this command shares with ``lading plan``.
SHARED = (
    "--catalogue", "--types", "--exclude-types", "--max-instances", "--overhead-memory", "--ebs-gib", "--progress",
    "--output", "--plot",
)  # fmt: skip
# The option that makes Snakemake print the graph of jobs without running them.
PRINT = "--d3dag"
# How many of the last jobs of a rule the median duration is taken from.
MOST_RUNS = 1000
# Queries the store about earlier runs; the answer is by rule, and empty if there is no store.
Past: TypeAlias = Callable[[Callable[[Any], dict[str, Any]]], dict[str, Any]]


def add_options(parser: argparse.ArgumentParser) -> None:
    from lading.plugin.offline.options import MOST, PLAN_OPTIONS, number

    for option in PLAN_OPTIONS:
        if option.flags[0] in SHARED:
            parser.add_argument(*option.flags, **option.settings)
    parser.add_argument(
        "--seconds",
        type=number(most=MOST),
        help="the duration of jobs whose rule has not run here yet and has no runtime",
    )
    parser.add_argument(
        "snakemake",
        nargs=argparse.REMAINDER,
        help="--, followed by arguments for snakemake: targets, --snakefile, --configfile",
    )


def print_frontier(args: argparse.Namespace, past: Past, out: IO[str] | None = None) -> int:
    from lading.plugin.offline.command import guarded

    return guarded(lambda given: _print_frontier(given, past, out or sys.stdout))(args)


def _print_frontier(args: argparse.Namespace, past: Past, out: IO[str]) -> int:
    from lading.plugin.offline import frontier
    from lading.plugin.offline.inputs import check_sizes, market
    from lading.plugin.offline.options import UsageError
    from lading.scheduling.model.plan import InstanceLimits
    from lading.scheduling.provisioning.planner import planning_missing

    if missing := planning_missing():
        raise UsageError(f"snakemake-lading plan {missing}")
    offered = market(args).offered
    given = args.snakemake[1:] if args.snakemake[:1] == ["--"] else args.snakemake
    workflow = planned_arrivals(job_graph(given, past), past(median_durations), args.seconds)
    if not workflow:
        raise UsageError("this workflow has nothing left to do; to plan all of it, add snakemake's option --forceall")
    check_sizes(workflow, "the workflow", offered)
    frontier.show(args, workflow, offered, frontier.BOOT_SECONDS, InstanceLimits(instances=args.max_instances), out)
    return 0


def job_graph(arguments: Sequence[str], past: Past) -> list[tuple[Any, list[Any], dict[str, Any]]]:
    """Return the jobs of a workflow that have to run, each with the jobs that it waits for and with its hints.

    :param arguments: the options and targets for Snakemake
    :raises lading.plugin.offline.options.UsageError: Snakemake refuses them or the workflow
    """
    from snakemake import cli, dag
    from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

    from lading.plugin.offline.options import UsageError

    found: list[tuple[Any, list[Any], dict[str, Any]]] = []

    def collect(self: Any, *_: object) -> None:
        with contextlib.redirect_stderr(io.StringIO()):  # Snakemake has printed warnings about them already
            _, parsed = cli.parse_args(arguments)
        options = ExecutorPluginRegistry().get_plugin("lading").get_settings(parsed)
        names = sized_tasks(self.needrun_jobs(), self.workflow, options)
        fitted = past(lambda session: read_sizes(session, dag_id_of(self.workflow), names)) if names else {}
        # Without an executor, Snakemake takes all jobs for local ones.
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
            raise UsageError("Snakemake refused the workflow; see its output above") from None
    finally:
        dag.DAG.d3dag = printed
    return found


def planned_arrivals(
    jobs: Sequence[tuple[Any, Sequence[Any], Mapping[str, Any]]], lengths: Mapping[str, float], otherwise: float | None
) -> list[Any]:
    """Convert the jobs to the tasks of a workflow for the simulation.

    :param lengths: by rule, the duration of its jobs in seconds
    :param otherwise: the duration for rules that are not in ``lengths`` and have no runtime; None: they are an error
    :raises lading.plugin.offline.options.UsageError: the duration of a job is unknown
    """
    from lading.plugin.offline.options import UsageError
    from lading.plugin.offline.simulation.run_cost import LEAST_SECONDS
    from lading.plugin.offline.simulation.trace import Arrival
    from lading.scheduling.hints.hints import Hints
    from lading.scheduling.model.job import PlannedJob
    from lading.scheduling.model.machine_traits import DEFAULT_ARCH

    names = {id(job): f"{name_of(job)}[{number_of(job)}]" for job, *_ in jobs}
    arrivals = []
    for job, before, config in jobs:
        rule, hints = name_of(job), Hints.from_config(dict(config))
        seconds = lengths.get(rule, hints.limits().time)
        if seconds is None and (seconds := otherwise) is None:
            raise UsageError(
                f"rule {rule}: it has not run here yet, and it has no runtime; "
                "give it resources: runtime, or use --seconds S"
            )
        planned = PlannedJob(names[id(job)], hints.resources(DEFAULT_RESOURCES), arch=DEFAULT_ARCH, task=rule, run="")
        waits = tuple(sorted(names[id(each)] for each in before if id(each) in names))
        arrivals.append(Arrival(planned, 0.0, max(float(seconds), LEAST_SECONDS), waits))
    return arrivals


def median_durations(session: Any) -> dict[str, float]:
    """Return the median duration of the last jobs of each rule in the store, in seconds."""
    from sqlalchemy import select

    from lading.executors.store import JobRow, State

    columns = JobRow.task_id, JobRow.started_at, JobRow.ended_at
    ran = JobRow.state == State.SUCCEEDED, JobRow.started_at.is_not(None), JobRow.ended_at.is_not(None)
    found: dict[str, list[float]] = {}
    for rule, started, ended in session.execute(select(*columns).where(*ran).order_by(JobRow.ended_at.desc())):
        if len(known := found.setdefault(rule, [])) < MOST_RUNS:
            known.append(ended - started)
    return {rule: statistics.median(known) for rule, known in found.items()}
