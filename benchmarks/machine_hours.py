"""What machines cost over time: each policy on the traces of :mod:`benchmarks.traces`, USD over the bound of hours.

    python -m benchmarks.machine_hours                      all traces, one seed
    python -m benchmarks.machine_hours --seeds 3 known      three seeds of one trace
    python -m benchmarks.machine_hours --compare alone,forecast --modern
    python -m benchmarks.machine_hours --reclaims 0.1 --capacity-errors 0.1 known
    python -m benchmarks.machine_hours --losses --compare forecast known        what is lost, and why

Boot time is 60 s, billing is by the second, and empty machines are released at once. With reclaims, all machines are
spot instances at on-demand prices. Jobs that lose their machine start again, so their lost work is paid for, but not in
the bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from benchmarks.losses import watched
from benchmarks.packing import general_purpose, machine
from benchmarks.traces import UNKNOWN, bursts, poisson, scatters
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.catalogue import Catalogue, bundled
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.plan import EFFORTS, FORECAST, InstanceLimits, Objective
from lading.scheduling.packing.bound import bound_of_hours, relax
from lading.scheduling.packing.problem import pose

# The tenth part of the seconds for which one instance per job lets the jobs of a burst wait.
LATE = 6.3
# What each trace is to reach over the bound with the policy "forecast"; None: one instance per job.
TRACES: dict[str, tuple[str, float | None, Callable[[int], list[Arrival]]]] = {
    "known": ("2,000 a day, times known", 1.10, lambda seed: poisson(seed=seed)),
    "estimated": ("2,000 a day, estimates off by 0.5", 1.13, lambda seed: poisson(error=0.5, seed=seed)),
    "unknown": ("2,000 a day, times unknown", None, lambda seed: poisson(error=UNKNOWN, seed=seed)),
    "burst": ("2,000 at once, times known", 1.03, lambda seed: bursts(seed=seed)),
    "scatters": ("600 a day and four scatters of 350, times known", 1.12, lambda seed: scatters(seed=seed)),
    "thin": ("300 a day, times known", None, lambda seed: poisson(300, seed=seed)),
    "many": ("20,000 a day, times known", 1.07, lambda seed: poisson(20_000, seed=seed)),
}


def modern() -> Catalogue:
    return bundled().select(["c7i.*", "m7i.*", "r7i.*"], ["*.metal*"])


def on_spot(goods: Catalogue) -> Catalogue:
    """The same machines at the same prices, which may be reclaimed."""
    return Catalogue(
        {
            name: replace(kind, offerings=tuple(replace(each, capacity_type=SPOT) for each in kind.offerings))
            for name, kind in goods.types.items()
        }
    )


def least_at_once(trace: Sequence[Arrival], goods: Catalogue, boot: float, late: float = 0.0) -> float:
    """Below which times the bound of hours nothing costs that runs a burst. Machines are cut into fractions.

    What runs together at any time is paid for while it boots as well. At t seconds after the first jobs have begun only
    those do not run that are shorter than t, and may have ended, and those that wait for longer than t. Each job counts
    by its worth in the linear program, whose prices hold for any part of the jobs. Were all that wait worth as much as
    the one that is worth most, their waits could make up for so much of the worth until enough has ended, and no more.

    :param late: seconds that jobs may wait on average for others to end; 0: all begin together
    """
    problem = pose([each.job for each in trace], [], goods, InstanceLimits(), Objective(), 0.0, None)
    found = relax(problem, problem.counts(), 0.0, [])
    worth_of = {
        job.name: float(worth) for members, worth in zip(problem.members, found.worth, strict=True) for job in members
    }
    shortest = sorted((each.duration, worth_of[each.job.name]) for each in trace)
    waits = late * len(trace) * max(worth_of.values())
    passed = ended = spent = 0.0  # seconds, worth of what has ended by then, that worth times the seconds since
    missing = found.value
    for seconds, worth in shortest:
        spent += ended * (seconds - passed)
        passed, ended = seconds, ended + worth
        if ended * passed - spent >= waits:
            missing = (waits + spent) / passed
            break
    hours = [(each.job, each.duration / 3600) for each in trace]
    return 1 + (found.value - missing) * boot / 3600 / bound_of_hours(hours, goods)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", metavar="TRACE", help=f"of {', '.join(TRACES)} (all)")
    parser.add_argument("--compare", default="alone,greedy,priced,forecast", help="policies")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--modern", action="store_true", help="c7i, m7i and r7i instead of five generations")
    parser.add_argument("--reclaims", type=float, default=0.0, help="how often per hour a machine is reclaimed")
    parser.add_argument("--capacity-errors", type=float, default=0.0, help="the probability that a launch fails")
    parser.add_argument("--effort", choices=EFFORTS, default="fast", help="how thoroughly the policies search")
    parser.add_argument("--losses", action="store_true", help="show the losses by boots and by room that stays free")
    args = parser.parse_args(argv)
    if args.losses and (args.reclaims or args.capacity_errors):
        parser.error("--losses is for machines that do not fail: leave out --reclaims and --capacity-errors")
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
                least, later = (least_at_once(trace, goods, conditions.boot_seconds, late) for late in (0.0, LATE))
                print(
                    f"{words}, seed {seed}: at least {least:.4f} × bound where all begin together, {later:.4f} where "
                    f"jobs wait for others, for {LATE} s on average",
                    flush=True,
                )
            for policy in args.compare.split(","):
                begin = time.perf_counter()
                if args.losses:
                    report, losses = watched(trace, goods, policy, args.effort)
                else:
                    report = simulate(trace, goods, policy=policy, effort=args.effort, conditions=conditions)
                print(
                    f"{words}, seed {seed}, {policy}: {1 + (report.gap or 0.0):.4f} × bound, mean wait "
                    f"{report.wait_mean:.1f} s, {report.launches:,} launches, {report.reclaims} reclaims, "
                    f"{report.restarts} restarts, {report.capacity_errors} capacity errors, simulated in "
                    f"{time.perf_counter() - begin:.0f} s ({FORECAST} to reach: {limit or 'alone'})",
                    flush=True,
                )
                if args.losses:
                    print(
                        f"    over the bound: boots {losses.boot:.4f}, empty machines {losses.empty:.4f}, room that "
                        f"was never used {losses.unfilled:.4f}, that was used for a part of the time "
                        f"{losses.partners:.4f}",
                        flush=True,
                    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
