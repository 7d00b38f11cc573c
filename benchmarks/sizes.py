"""Jobs that all have different requests: cost over the bound of the linear program, for five workloads of 1,000 jobs.

python -m benchmarks.sizes                     all workloads, both efforts, one seed
python -m benchmarks.sizes lognormal --seeds 3 --effort fast
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.machine_hours import modern
from benchmarks.packing import machine
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan

GIB = 1024


def lognormal(number: int, seed: int) -> list[PlannedJob]:
    """Median 2.2 cpus and 7 GiB; 0.25 to 16 cpus, 256 MiB to 120 GiB."""
    chance = random.Random(seed)
    return [
        PlannedJob(
            f"j{i}",
            Resources(
                round(max(0.25, min(16, chance.lognormvariate(0.8, 0.8))), 3),
                int(max(256, min(120 * GIB, GIB * chance.lognormvariate(2, 1)))),
            ),
            arch="x86_64",
        )
        for i in range(number)
    ]


def uniform(number: int, seed: int) -> list[PlannedJob]:
    """0.5 to 16 cpus, 500 MiB to 120 GiB."""
    chance = random.Random(seed)
    return [
        PlannedJob(f"j{i}", Resources(round(chance.uniform(0.5, 16), 3), chance.randint(500, 120 * GIB)), arch="x86_64")
        for i in range(number)
    ]


def mixed(number: int, seed: int) -> list[PlannedJob]:
    """Log-normal sizes; a tenth of the jobs need gpus as well, and three in ten run on arm."""
    chance = random.Random(seed)
    found = []
    for job in lognormal(number, seed):
        kind = chance.random()
        gpus = chance.choice([1, 1, 1, 2, 4]) if kind < 0.1 else 0
        asked = replace(job.resources, gpus=gpus)
        found.append(replace(job, resources=asked, arch="aarch64" if 0.1 <= kind < 0.4 else "x86_64"))
    return found


def lab() -> Catalogue:
    rows = (("fat", 128, 1024, 4.0), ("thin", 24, 96, 0.7), ("old", 12, 48, 0.2))
    return Catalogue(
        {
            name: InstanceType(name, Resources(cpus, gib * GIB), (Offering(usd),), arch="x86_64")
            for name, cpus, gib, usd in rows
        }
    )


# Jobs, types, and what fast and best are to reach.
WORKLOADS: dict[
    str, tuple[Callable[[int, int], list[PlannedJob]], Callable[[], Catalogue], dict[str, float | None]]
] = {
    "lognormal": (lognormal, modern, {"fast": 1.02, "best": 1.01}),
    "uniform": (uniform, modern, {"fast": 1.015, "best": 1.01}),
    "catalogue": (lognormal, bundled, {"fast": 1.07, "best": 1.05}),
    "mixed": (mixed, bundled, {"fast": 1.03, "best": 1.025}),
    "lab": (lognormal, lab, {"fast": None, "best": None}),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workloads", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)} (all)")
    parser.add_argument("--effort", default="fast,best")
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args(argv)
    print(machine())
    for name in args.workloads or WORKLOADS:
        jobs, goods, limits = WORKLOADS[name]
        for seed in range(1, args.seeds + 1):
            for effort in args.effort.split(","):
                waiting, offered = jobs(1_000, seed), goods()
                begin = time.process_time()
                result = plan(waiting, (), offered, policy="priced", effort=effort)
                seconds = time.process_time() - begin
                if result.refusals:
                    raise RuntimeError(f"{len(result.refusals)} jobs fit no type, so the figure would be of the others")
                print(
                    f"{name}, seed {seed}, {effort}: {1 + (result.gap or 0.0):.4f} × bound in {seconds:.1f} s of one "
                    f"core (to reach: {limits[effort] or '-'})",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
