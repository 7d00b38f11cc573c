"""What it costs the controller to plan requests ahead for gangs at a cluster, in milliseconds of CPU. There are 50 runs
of 100 tasks: one task runs, and the others follow in gangs of ten, one gang after the other.

    python -m benchmarks.ahead [--dag-runs 50] [--tasks 100]
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future

from benchmarks.executor import machine
from benchmarks.gangs import measure
from lading.executors.forecast.allocation_work import AllocationWork
from lading.executors.forecast.site_plan import PlanningInput, SitePlan, chosen
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask
from lading.scheduling.forecast.fleet_work import Fleet
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import decide
from lading.scheduling.provisioning.allocation_plan import SECONDS_PAID

NODE = Resources(16, 65536)
# Tasks of a gang.
WIDTH = 10
JOB = PlannedJob("t", Resources(4, 8192), time=600.0, instance_type="any")


def run(number: int, tasks: int, now: float) -> ComingRun:
    """A run whose first task is running; all other tasks are upcoming."""
    name, length = f"d r{number}", Prediction(600.0)
    known = {"t0": ComingTask([ComingJob(f"{name} t0 -1", length, "hpc", JOB, begun=now, location="i1")])}
    for each in range(1, tasks):
        row = (each - 1) // WIDTH
        before = [f"t{1 + other}" for other in range(WIDTH * (row - 1), WIDTH * row)] if row else ["t0"]
        job = ComingJob(f"{name} t{each} -1", length, "hpc", JOB)
        known[f"t{each}"] = ComingTask([job], before, gang=f"g{row}", ahead=True, at_once=True)
    return ComingRun(name, now, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("dag-runs", 50), ("tasks", 100)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"machine: {machine()}")
    market = Market(NODE, 0, 14400.0, 3600.0, 1000, whole=True, queue_seconds=1800.0)
    there = Location("i1", NODE, Resources(4, 8192), instance_type="any")
    site = SiteView(name="hpc", possible=[Location("node", NODE)], market=market, launched=[there])
    now = time.time()
    runs = [run(number, options.tasks, now) for number in range(options.dag_runs)]
    waits, known = QueueWaits(), [each.name for each in runs]
    searches = list[Future[Fleet | None]]()

    def search(here: PlanningInput, fleets: Sequence[Fleet]) -> Future[Fleet | None]:
        """Search outside of the ticks, as the controller does."""
        searches.append(Future())
        begun = time.process_time()
        searches[-1].set_result(chosen(here, fleets, lambda: None))
        print(f"search for the best fleet, next to the ticks: {1000 * (time.process_time() - begun):.0f} ms of CPU")
        return searches[-1]

    work = AllocationWork(SitePlan(MachineMarket(Catalogue({})), search, lambda: None, most_boot_paid=SECONDS_PAID))

    def tick() -> int:
        nonlocal now
        now += 1.0
        plan = work.next_plan(runs, site, market, waits, known, now, pools={}, turns={}, is_blind=False)
        return len(decide([], site.launched, market, now=now, foreseen=plan).launches)

    tick()  # with the search
    measure(f"{options.dag_runs} runs of {options.tasks} tasks, a tick", 10, tick)
    print(f"allocations that are requested ahead: {tick()}")


if __name__ == "__main__":
    main()
