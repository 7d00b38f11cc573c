"""What it costs the controller to request room ahead for tasks that no plan covers, in milliseconds of CPU. There are
50 runs of 100 tasks: one task runs, and the others follow in gangs of ten, one gang after the other.

    python -m benchmarks.ahead [--dag-runs 50] [--tasks 100]
"""

from __future__ import annotations

import argparse
import logging
import time

from benchmarks.executor import machine
from benchmarks.gangs import measure, void
from lading.executors.forecast.ahead_requests import MOST_RUNS_PER_TICK, AheadRequests
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, RoomRequest
from lading.scheduling.forecast.forecast import RoomWait
from lading.scheduling.location import Location
from lading.scheduling.matching.market import Market
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.prediction import Prediction
from lading.scheduling.resources import Resources

NODE = Resources(16, 65536)
# Tasks of a gang.
WIDTH = 10
JOB = WaitingJob(name="t", resources=Resources(4, 8192), time=600.0)


def run(number: int, tasks: int, now: float) -> ComingRun:
    """A run whose first task is running; all other tasks are upcoming."""
    name, length = f"d r{number}", Prediction(600.0)
    known = {"t0": ComingTask([ComingJob(f"{name} t0 -1", length, "hpc", JOB, begun=now, location="i1")])}
    for each in range(1, tasks):
        row = (each - 1) // WIDTH
        before = [f"t{1 + other}" for other in range(WIDTH * (row - 1), WIDTH * row)] if row else ["t0"]
        job = ComingJob(f"{name} t{each} -1", length, room_wait=RoomWait(1800.0))
        known[f"t{each}"] = ComingTask([job], before, gang=f"g{row}", ahead=True, request=RoomRequest("hpc", JOB))
    return ComingRun(name, now, known)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("dag-runs", 50), ("tasks", 100)):
        parser.add_argument(f"--{name}", type=int, default=number)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"machine: {machine()}")
    market = Market(NODE, 0, 14400.0, 3600.0, 100, whole=True)
    there = Location("i1", NODE, Resources(4, 8192))
    sites = [SiteView(name="hpc", possible=[Location("node", NODE)], market=market, launched=[there])]
    now = time.time()
    runs = [run(number, options.tasks, now) for number in range(options.dag_runs)]
    ahead = AheadRequests(lambda run: {f"t{number}": JOB for number in range(options.tasks)})

    def tick() -> int:
        nonlocal now
        now += 1.0
        ahead.update(runs, sites, {}, now)
        return sum(map(len, ahead.wanted(sites, {}, now).values()))

    what, ticks = f"{options.dag_runs} runs of {options.tasks} tasks", -(-options.dag_runs // MOST_RUNS_PER_TICK)
    measure(f"{what}, ticks that look at some of them first", ticks, lambda: void(tick()))
    measure(f"{what}, ticks that look at some of them again", ticks, lambda: void(tick()))
    print(f"jobs for which room is requested ahead: {tick()}")


if __name__ == "__main__":
    main()
