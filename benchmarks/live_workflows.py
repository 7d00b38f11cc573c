"""What recorded workflows cost with the real engine: its controller and database, mock machines, a simulated clock.

    python -m benchmarks.live_workflows                    all recordings but those of more than 1,000 tasks
    python -m benchmarks.live_workflows rnaseq hic         these
    python -m benchmarks.live_workflows --scale 20 rnaseq
    python -m benchmarks.live_workflows --policy greedy rnaseq
    python -m benchmarks.live_workflows --queue 120 hic    in allocations of a cluster, which wait 120 s in its queue
    python -m benchmarks.live_workflows --lag 0.5 --latency 0.5 rnaseq
                                                           a job takes half a second to reach a machine, its end is
                                                           reported half a second later, and the next tasks are queued
                                                           half a second after that

Each runs twice as a Dag with the tasks of the recording: first with unknown durations, then with those of the first
run. The second run is compared with the simulator, which knows each duration. Boot time is 60 s; each machine is billed
by the second, and at least for a minute. Of the jobs that waited for 30 s or more and had a predicted start, it prints
how many started within the interval predicted first.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks.packing import machine
from benchmarks.workflows import BOOT, DATA, goods
from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import expected_lengths
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.resources import Resources
from tests.clusters.workflow_runs import SaidRuns
from tests.services.airflow_tables import create_database, in_airflows_place

MOST = 1_000
# A node of a cluster, and the longest walltime there, seconds.
NODE, SECONDS = Resources(64, 256 * 1024, 1_000_000), 86_400.0
POLICIES = ("greedy", FORECAST)


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in DATA.glob("*.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--hurry", type=float, default=1.0)
    parser.add_argument("--policy", choices=POLICIES, default=FORECAST)
    parser.add_argument(
        "--queue", type=float, metavar="SECONDS", help="use allocations that wait this long, instead of machines"
    )
    parser.add_argument("--lag", type=float, default=0.0, metavar="SECONDS")
    parser.add_argument("--latency", type=float, default=0.0, metavar="SECONDS")
    args = parser.parse_args(argv)
    logging.disable(logging.WARNING)
    print(machine())
    for name in args.names or names:
        workflow = wfformat.read((DATA / f"{name}.json").read_text(encoding="utf-8"), name, scale=args.scale)
        if args.names or len(workflow) <= MOST:
            compare(name, workflow, args.policy, args.hurry, args.queue, args.lag, args.latency)
    return 0


def compare(
    name: str,
    workflow: Sequence[Arrival],
    policy: str,
    hurry: float,
    queue: float | None,
    lag: float = 0.0,
    latency: float = 0.0,
) -> None:
    """Print what a workflow costs by the engine and by the simulator; in allocations how long it takes.

    :param queue: seconds for which allocations wait; None: machines are bought
    """
    lengths = expected_lengths(workflow, "known")
    conditions = Conditions(BOOT, lag, latency, tick_seconds=0.1)
    limits = InstanceLimits()
    paper = simulate(workflow, goods(), limits, policy, conditions=conditions, hurry=hurry, lengths=lengths)
    market: MachineMarket | Market
    if queue is None:
        market = MachineMarket(goods(), policy=policy, idle_seconds=120.0, boot_seconds=BOOT, hurry=hurry)
    else:
        # As a site has it: a job without a limit may take half of it.
        market = Market(NODE, 0, SECONDS, SECONDS / 2, most=20, idle_seconds=120, queue_seconds=queue, hurry=hurry)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        create_database(file := Path(folder, "airflow.db"))
        with in_airflows_place(file, patch) as engine:
            delays = {"queue": queue or 0.0, "lag": lag, "latency": latency}
            house = SaidRuns(engine, {"d": workflow}, market, Path(folder), patch, **delays)
            runs = []
            for number in (1, 2):
                since = house.clock.now
                runs.append((house.run([(0.0, "d", f"r{number}")]), house.accuracy(since)))
            house.close()
    took = time.perf_counter() - began
    for which, (its, accuracy) in zip(("first", "second"), runs, strict=True):
        usd = f"{its.usd:9.4f} USD, {its.usd / paper.cost:.3f} of the simulator's,"
        usd = usd if queue is None else f"{its.cpu_hours:9.2f} cpu-hours of allocations,"
        within = "".join(f"; {each.within} of {each.said} starts as said by {each.source.value}" for each in accuracy)
        print(
            f"{name:16}{policy:9}{which:7}{usd} {its.seconds:8.0f} s, {its.seconds / paper.makespan:.3f} of the "
            f"simulator's, {its.launches:4} launches{within}"
        )
    ticks = [1000 * each for its, _ in runs for each in its.ticks]
    print(
        f"{name:16}{policy:9}paper  {paper.cost:9.4f} USD {paper.makespan:8.0f} s {paper.launches:4} launches; ticks "
        f"{statistics.median(ticks):.0f} ms at the median, {max(ticks):.0f} ms at most, in {took:.0f} s",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
