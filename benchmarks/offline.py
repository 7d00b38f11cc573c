"""The commands `lading plan` and `lading simulate` as a user runs them, and first plans: CPU seconds and peak MiB.

    python -m benchmarks.offline                      all commands and first plans
    python -m benchmarks.offline simulate             only those whose name contains the word
    python -m benchmarks.offline --steps 50000 jobs   one first plan: of single jobs, or of five tasks ("tasks")

The time of a command includes its start. Standard output has no buffer, as in containers (PYTHONUNBUFFERED). The first
run, which compiles modules and the inner loop where that was not done yet, is not counted. Each row is measured in a
process of its own. The machine is printed with the figures.

* The fan has 1,000 tasks with log-normal lengths around 7 minutes and one cpu each (``benchmarks.graphs``); the
  commands choose from the whole catalogue.
* The day is that of ``benchmarks.traces``, with and without stated times.
* A first plan is made from nothing: it reads the upcoming work, chooses a fleet of the families of
  ``benchmarks.workflows``, and plans each step. The steps are single jobs whose lengths all differ, or the jobs of five
  tasks, each job after the one with its index in the task before. The spread of lengths is 0.5.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.graphs import fan
from benchmarks.packing import FAMILIES, different, machine, pipeline
from benchmarks.traces import KNOWN, UNKNOWN, poisson
from benchmarks.workflows import BOOT, goods
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.forecast.coming import ComingJob, ComingRun, ComingTask, parts_at, site_forecast
from lading.scheduling.forecast.policy import Planner
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.machine_traits import DEFAULT_ARCH
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import pose
from tests.services.planned import planned_actions

# Printed by the process itself: what the system counts for a child has in it what its parent had.
CODE = """
import sys, time
from lading.plugin.offline.command import main
status = main(sys.argv[1:])
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(time.process_time(), int(peak) / 1024, file=sys.stderr)
sys.exit(status)
"""
# The lengths of the steps of first plans: the median, seconds, and the spread of their logarithms.
MEDIAN, SPREAD = 300.0, 0.5
# Cpus and MiB of single jobs, and how many tasks have the other steps.
SHAPES, TASKS = ((1, 2048), (2, 4096), (4, 30_000), (8, 16_384)), 5


def counted(jobs: Sequence[PlannedJob]) -> str:
    """A table with a row for each sort of jobs."""
    lines = (f"{job.name},{job.resources.cpus:g},{job.resources.memory},{job.count}" for job in jobs)
    return "\n".join(["name,cpus,memory_mib,count", *lines])


def single(jobs: Sequence[PlannedJob]) -> str:
    """A table with a row for each job, in no order."""
    sizes = [f"{job.resources.cpus:g},{job.resources.memory}" for job in jobs for _ in range(job.count)]
    random.Random(2).shuffle(sizes)
    return "\n".join(["name,cpus,memory_mib", *(f"job-{number},{size}" for number, size in enumerate(sizes))])


def day(trace: Sequence[Arrival]) -> str:
    """A trace as a table; times are empty where none is stated."""
    lines = (
        f"{each.job.name},{each.job.resources.cpus:g},{each.job.resources.memory},"
        f"{'' if each.job.time is None else each.job.time},{each.arrival},{each.duration}"
        for each in trace
    )
    return "\n".join(["name,cpus,memory_mib,time_seconds,arrival_seconds,duration_seconds", *lines])


def recorded(workflow: Sequence[Arrival]) -> str:
    """A workflow in WfFormat 1.5."""
    tasks = [{"id": each.job.name, "name": each.job.task, "parents": each.parents} for each in workflow]
    ran = [
        {"id": each.job.name, "runtimeInSeconds": each.duration, "coreCount": each.job.resources.cpus}
        for each in workflow
    ]
    return json.dumps({"workflow": {"specification": {"tasks": tasks}, "execution": {"tasks": ran}}})


def run(options: Sequence[str | Path]) -> list[float]:
    """CPU seconds and MiB of a command."""
    return measured(["-c", CODE, *options, "--output", "json"])


def measured(arguments: Sequence[str | Path]) -> list[float]:
    """CPU seconds and MiB, which a Python process prints as its last line."""
    done = subprocess.run(
        [sys.executable, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": ""},
    )
    return [float(word) for word in done.stderr.splitlines()[-1].split()]


def upcoming(number: int, kind: str) -> list[ComingRun]:
    """Runs with ``number`` steps at the site "cloud"; none of them has begun.

    :param kind: ``jobs`` or ``tasks``
    """
    chance = random.Random(1)

    def job(name: str, need: PlannedJob, index: int, *, waits: bool) -> ComingJob:
        expected = Prediction(chance.lognormvariate(0.0, SPREAD) * MEDIAN, SPREAD, number=20)
        return ComingJob(name, expected, "cloud", need, index, token=name if waits else None)

    if kind == "jobs":
        needs = [PlannedJob("", Resources(cpus, memory), arch=DEFAULT_ARCH) for cpus, memory in SHAPES]
        ones = (job(f"job {each}", chance.choice(needs), -1, waits=True) for each in range(number))
        return [ComingRun(each.name, 0.0, {"": ComingTask((each,))}) for each in ones]
    tasks: dict[str, ComingTask] = {}
    before: list[str] = []
    for name in map(str, range(TASKS)):
        need = PlannedJob("", Resources(1, 2048), arch=DEFAULT_ARCH, task=name)
        jobs = [job(f"{name}[{each}]", need, each, waits=not before) for each in range(number // TASKS)]
        tasks[name] = ComingTask(jobs, before, frozenset(before))
        before = [name]
    return [ComingRun("run", 0.0, tasks)]


def plan_first(number: int, kind: str) -> None:
    """Plan such runs, and print the CPU seconds of the plan and the MiB of this process to standard error."""
    runs, problem = upcoming(number, kind), pose([], [], goods(), InstanceLimits(), Objective(), 0.0, None)
    begin = time.process_time()
    its = site_forecast(parts_at(runs, "cloud", {}).values())
    planned_actions(Planner(BOOT), its.forecast, list(its.waiting), [], problem, now=0.0)
    seconds = time.process_time() - begin
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    peak = next(line.split()[1] for line in status if line.startswith("VmHWM"))
    print(seconds, int(peak) / 1024, file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("word", nargs="?", default="", help="measure only what contains it")
    parser.add_argument("--steps", type=int, help="make one first plan, and print its CPU seconds and MiB")
    args = parser.parse_args()
    if args.steps is not None:
        plan_first(args.steps, args.word or "jobs")
        return
    million, thousands, unlike = different(200, 5_000), pipeline(10_000), different(10_000)
    plan, simulate = "lading plan", "lading simulate"
    wide, known, unknown = recorded(fan(1_000, 420.0, 0.9, 26)), day(poisson(error=KNOWN)), day(poisson(error=UNKNOWN))
    table = Table("What", "Options", "To reach, s", "CPU seconds", "MiB")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "input"
        path.write_text(counted(unlike))
        run(["plan", "--jobs", path, "--effort", "fast", "--types", *FAMILIES])
        for name, text, options, limit in (
            (f"{plan}: nothing but the start", counted(million[:1]), "--policy greedy", ""),
            (f"{plan}: 10,000 jobs of 20 shapes", counted(thousands), "--effort fast", ""),
            (f"{plan}: 10,000 jobs all different", counted(unlike), "--effort fast", ""),
            (f"{plan}: 1,000,000 jobs of 200 shapes", counted(million), "--effort fast", "2.5"),
            (f"{plan}: 1,000,000 jobs of 200 shapes", counted(million), "--policy greedy", "2.5"),
            (f"{plan}: the same in 1,000,000 rows", single(million), "--effort fast", "6"),
            (f"{plan}: the same in 1,000,000 rows", single(million), "--policy greedy", "6"),
            (f"{simulate}: fan of 1,000 tasks", wide, "--compare greedy,forecast", "20"),
            (f"{simulate}: fan of 1,000 tasks", wide, "--compare forecast --max-instances 12", "20"),
            (f"{simulate}: fan of 1,000 tasks", wide, "--compare forecast --hurry cheap", "20"),
            (f"{simulate}: day of 2,000 jobs, times known", known, "--compare forecast", "60"),
            (f"{simulate}: day of 2,000 jobs, times unknown", unknown, "--compare forecast", "60"),
        ):
            if args.word not in name:
                continue
            path.write_text(text)
            its_kind = "--workflow" if text is wide else "--jobs"
            types = ["--types", *FAMILIES] if name.startswith(plan) else []
            seconds, memory = run([name.split()[1].strip(":"), its_kind, path, *options.split(), *types])
            table.add_row(name, options, limit, f"{seconds:.2f}", f"{memory:.0f}")
    for kind in ("tasks", "jobs"):
        for number, limit in ((1_000, "0.5"), (10_000, "3"), (50_000, "15")):
            if args.word in (name := f"first plan: {number:,} steps, {kind}"):
                seconds, memory = measured(["-m", "benchmarks.offline", "--steps", str(number), kind])
                table.add_row(name, "", limit, f"{seconds:.2f}", f"{memory:.0f}")
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(machine())
    console.print(table)


if __name__ == "__main__":
    main()
