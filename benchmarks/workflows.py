"""What recorded workflows cost: each policy on the runs in ``benchmarks/data``, USD over the best fleet of one type.

    python -m benchmarks.workflows                          all runs, lengths known, by task and unknown, as recorded
    python -m benchmarks.workflows --scale 20 --lengths task
    python -m benchmarks.workflows --compare greedy,hours,forecast rnaseq hic
    python -m benchmarks.workflows --hurry 0                beside the cheapest fleet without a bound on time
    python -m benchmarks.workflows --starts 0 300 600 900   four runs, beside four times one

Boot time 60 s, billing by the second with the least of 60 s, machines of the other policies are released at once when
they are empty. The reference knows all lengths and takes at most 1.25 × the critical path. ``run`` is the makespan
without a boot over the critical path.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.packing import machine
from lading.scheduling.catalogue import Catalogue, bundled
from lading.scheduling.plan import FORECAST, LENGTHS, InstanceLimits
from lading.scheduling.simulation import wfformat
from lading.scheduling.simulation.conditions import Conditions
from lading.scheduling.simulation.fixed_fleet import reference
from lading.scheduling.simulation.simulator import simulate
from lading.scheduling.simulation.workflow import expected_lengths, run_at

DATA = Path(__file__).parent / "data"
FAMILIES = ("c6i", "m6i", "r6i", "c7i", "m7i", "r7i", "c6a", "m6a", "r6a")
BOOT = 60.0


def goods() -> Catalogue:
    """Machines of nine families with up to 64 cpus."""
    found = bundled().select([f"{family}.*" for family in FAMILIES], ["*.metal*"])
    return Catalogue({name: kind for name, kind in found.types.items() if kind.capacity.cpus <= 64})


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in DATA.glob("*.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--compare", default=FORECAST, help="policies")
    parser.add_argument("--lengths", choices=LENGTHS, help="what is known of lengths (each in turn)")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--hurry", type=float, default=1.0)
    parser.add_argument("--starts", type=float, nargs="+", default=[0.0], help="seconds")
    args = parser.parse_args(argv)
    catalogue = goods()
    print(machine())
    for lengths in (args.lengths,) if args.lengths else LENGTHS:
        for policy in args.compare.split(","):
            sums: Counter[str] = Counter()
            for name in args.names or names:
                path = DATA / f"{name}.json"
                workflow = wfformat.read(path.read_text(encoding="utf-8"), name, scale=args.scale)
                best = reference(wfformat.as_forecast(workflow), catalogue, BOOT)
                beside = best.cheapest if args.hurry == 0 else best.in_time
                trace = [each for number, at in enumerate(args.starts) for each in run_at(workflow, str(number), at)]
                begin = time.perf_counter()
                report = simulate(
                    trace,
                    catalogue,
                    InstanceLimits(),
                    policy,
                    conditions=Conditions(boot_seconds=BOOT, tick_seconds=0.1),
                    hurry=args.hurry,
                    lengths=expected_lengths(trace, lengths),
                )
                assert beside is not None
                usd = beside.usd * len(args.starts)
                sums["usd"] += report.cost
                sums["beside"] += usd
                run = (report.makespan - max(args.starts) - BOOT) / best.critical_path
                print(
                    f"{lengths:8}{policy:9}{name:18}{report.cost:9.4f} USD, {report.cost / usd:.3f} × the reference, "
                    f"run {run:.3f}, {report.launches} launches, {report.plans} plans in "
                    f"{time.perf_counter() - begin:.1f} s",
                    flush=True,
                )
            print(f"{lengths:8}{policy:9}sum {sums['usd']:.4f} USD, {sums['usd'] / sums['beside']:.3f} × the reference")
    return 0


if __name__ == "__main__":
    sys.exit(main())
