"""`lading plan`: which instances jobs would be launched on, and what goes where."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from lading.plugin.offline.inputs import market, read_table
from lading.plugin.offline.options import UsageError
from lading.plugin.offline.plan_output import print_json, print_plan
from lading.plugin.offline.watch import INTERRUPTED, ProgressWatch
from lading.scheduling.plan import Objective
from lading.scheduling.provisioning.planner import plan
from lading.scheduling.simulation import trace


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
    if (
        args.workflow is not None
        or (args.frontier and args.dag is None)
        or (args.plot is not None and not args.frontier)
    ):
        if args.workflow is None or not args.frontier or args.jobs is not None or args.dag is not None:
            raise UsageError(
                "--frontier is for a workflow or a Dag, and --workflow and --plot are for it: give --workflow FILE "
                "--frontier, or --dag DAG --frontier; lading simulate --workflow FILE says what one run costs"
            )
        from lading.plugin.offline import frontier

        return frontier.run(args, market(args).offered, out or sys.stdout)
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
    with ProgressWatch(shown=args.progress) as watch, watch.interruptible():
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
