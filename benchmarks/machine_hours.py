"""What machines cost over time: each policy on the traces of :mod:`benchmarks.traces`, USD over the bound of hours.

    python -m benchmarks.machine_hours                      all traces, one seed
    python -m benchmarks.machine_hours --seeds 3 known      three seeds of one trace
    python -m benchmarks.machine_hours --compare alone,hours --modern
    python -m benchmarks.machine_hours --reclaims 0.1 --capacity-errors 0.1 known

Boot time 60 s, billing by the second, empty machines are released at once. With reclaims all machines are spot, at the
prices of the others; jobs that lose their machine begin anew, so what they had run is paid for and not in the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.packing import general_purpose, machine
from benchmarks.traces import UNKNOWN, bursts, poisson, scatters
from lading.scheduling.catalogue import Catalogue, bundled
from lading.scheduling.hints.machine_words import SPOT
from lading.scheduling.packing.bound import bound_of_hours
from lading.scheduling.planner import plan
from lading.scheduling.simulation.conditions import Conditions
from lading.scheduling.simulation.simulator import simulate
from lading.scheduling.simulation.trace import Arrival

# What each trace is to reach over the bound with the policy "hours"; None: one instance per job.
TRACES: dict[str, tuple[str, float | None, Callable[[int], list[Arrival]]]] = {
    "known": ("2,000 a day, times known", 1.10, lambda seed: poisson(seed=seed)),
    "estimated": ("2,000 a day, estimates off by 0.5", 1.13, lambda seed: poisson(error=0.5, seed=seed)),
    "unknown": ("2,000 a day, times unknown", None, lambda seed: poisson(error=UNKNOWN, seed=seed)),
    "burst": ("2,000 at once, times known", 1.03, lambda seed: bursts(seed=seed)),
    "scatters": ("600 a day and four scatters of 350, times known", 1.12, lambda seed: scatters(seed=seed)),
    "many": ("20,000 a day, times known", 1.07, lambda seed: poisson(20_000, seed=seed)),
}


def modern() -> Catalogue:
    """The three families of one generation."""
    return bundled().select(["c7i.*", "m7i.*", "r7i.*"], ["*.metal*"])


def on_spot(goods: Catalogue) -> Catalogue:
    """The same machines at the same prices, which may be reclaimed."""
    return Catalogue(
        {
            name: replace(kind, offerings=tuple(replace(each, capacity_type=SPOT) for each in kind.offerings))
            for name, kind in goods.types.items()
        }
    )


def least_at_once(trace: Sequence[Arrival], goods: Catalogue, boot: float) -> float:
    """Below which times the bound of hours nothing costs that runs a burst without one job after another.

    What all jobs need together is paid for while it boots as well. Machines are cut into fractions for both.
    """
    together = plan([each.job for each in trace], (), goods, policy="greedy").bound or 0.0
    hours = [(each.job, each.duration / 3600) for each in trace]
    return 1 + together * boot / 3600 / bound_of_hours(hours, goods)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help=f"of {', '.join(TRACES)} (all)")
    parser.add_argument("--compare", default="alone,greedy,priced,hours", help="policies")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--modern", action="store_true", help="c7i, m7i and r7i instead of five generations")
    parser.add_argument("--reclaims", type=float, default=0.0, help="how often an hour a machine is reclaimed")
    parser.add_argument("--capacity-errors", type=float, default=0.0, help="the probability that a launch fails")
    args = parser.parse_args(argv)
    goods = modern() if args.modern else general_purpose()
    if args.reclaims:
        goods = on_spot(goods)
    conditions = Conditions(capacity_errors=args.capacity_errors, reclaims_per_hour=args.reclaims)
    print(machine())
    for name in args.traces or TRACES:
        words, limit, build = TRACES[name]
        for seed in range(1, args.seeds + 1):
            trace = build(seed)
            if len({each.arrival for each in trace}) == 1:
                least = least_at_once(trace, goods, conditions.boot_seconds)
                print(f"{words}, seed {seed}: at least {least:.4f} × bound where all begin together", flush=True)
            for policy in args.compare.split(","):
                begin = time.perf_counter()
                report = simulate(trace, goods, policy=policy, conditions=conditions)
                print(
                    f"{words}, seed {seed}, {policy}: {1 + (report.gap or 0.0):.4f} × bound, mean wait "
                    f"{report.wait_mean:.1f} s, {report.launches:,} launches, {report.reclaims} reclaims, "
                    f"{report.restarts} restarts, {report.capacity_errors} capacity errors, simulated in "
                    f"{time.perf_counter() - begin:.0f} s (hours to reach: {limit or 'alone'})",
                    flush=True,
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
