"""What recorded workflows cost: each policy on the runs in ``benchmarks/data``, USD over the best fleet of one type.

    python -m benchmarks.workflows                          all runs as recorded, durations known, by task, unknown
    python -m benchmarks.workflows --scale 20 --lengths task
    python -m benchmarks.workflows --compare greedy,forecast rnaseq hic
    python -m benchmarks.workflows --hurry 0                compared with the cheapest fleet without a bound on time
    python -m benchmarks.workflows --starts 0 300 600 900   four runs, compared with four times one run
    python -m benchmarks.workflows --machine 16             on one machine with 16 cpus, with each order of jobs
    python -m benchmarks.workflows --reclaims 10            on spot machines, each reclaimed ten times an hour
    python -m benchmarks.workflows --generated              generated workflows instead (``benchmarks.graphs``)
    python -m benchmarks.workflows --refusals               while EC2 has none of the types that would be launched

Boot time is 60 s, and billing is by the second, at least 60 s. Policies other than the forecast release machines as
soon as they are empty. The reference knows all durations and takes at most 1.25 × the critical path. ``run`` is the
makespan without a boot over the critical path. The next column is USD × seconds ** hurry over the least value that a
fleet of one type reaches, regardless of the critical path; both with a boot.

The allowed cost of reclaims is their direct cost: each machine since the start of the oldest work that was lost with
it, the rest of its minimum bill, and the boot of another such machine; the run can take longer by the same time. The
allowed cost of refusals is what the run costs if these types are not on sale at all.

On one machine, the rule of the node agent is tested (``lading.scheduling.starts.queueing``), with enough memory for all
jobs. Jobs are ordered by Airflow's priority weights (``downstream``, its default: 1 plus the number of jobs behind it;
``absolute``: all equal), and within one weight by arrival or by the longest remaining path. Makespans are relative to
the larger of the critical path and all cpu-seconds divided by the cpus.
"""

from __future__ import annotations

import argparse
import heapq
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter
from itertools import product
from pathlib import Path

from benchmarks.graphs import GENERATED
from benchmarks.packing import machine
from lading.plugin.offline.simulation import wfformat
from lading.plugin.offline.simulation.conditions import Conditions
from lading.plugin.offline.simulation.fixed_fleet import fleets, reference
from lading.plugin.offline.simulation.report import Report
from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.plugin.offline.simulation.workflow import Dependencies, expected_lengths, run_at
from lading.scheduling.model.catalogue import Catalogue, bundled
from lading.scheduling.model.machine_traits import SPOT
from lading.scheduling.model.plan import FORECAST, LENGTHS, InstanceLimits
from lading.scheduling.model.prediction import Prediction
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import QueuedJob, next_starts

DATA = Path(__file__).parent / "data"
FAMILIES = ("c6i", "m6i", "r6i", "c7i", "m7i", "r7i", "c6a", "m6a", "r6a")
BOOT = 60.0
# The sizes of the fleets of one type with which a plan is compared by USD and time.
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48)
# Reclaims come by chance: so many times each. What a spot machine costs of the price on demand.
SEEDS, SPOT_SHARE = 4, 0.35
# On one machine: the default of a site, the other order, and the length of what nothing is known of, seconds.
PATIENCE, CRITICAL_PATH, UNKNOWN = 60.0, "critical_path", 900.0


def goods() -> Catalogue:
    """Machines of nine families with up to 64 cpus."""
    found = bundled().select([f"{family}.*" for family in FAMILIES], ["*.metal*"])
    return Catalogue({name: kind for name, kind in found.types.items() if kind.capacity.cpus <= 64})


def read(name: str, scale: float) -> list[Arrival]:
    """Return a generated or recorded workflow whose lengths are all multiplied by ``scale``."""
    if name in GENERATED:
        return [replace(each, duration=each.duration * scale) for each in GENERATED[name]()]
    return wfformat.read((DATA / f"{name}.json").read_text(encoding="utf-8"), name, scale=scale)


def main(argv: Sequence[str] | None = None) -> int:
    names = sorted(path.stem for path in DATA.glob("*.json"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)} (all)")
    parser.add_argument("--compare", default=FORECAST, help="the policies to compare")
    parser.add_argument("--lengths", choices=LENGTHS, help="which durations are known (default: each option in turn)")
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--hurry", type=float, default=1.0)
    parser.add_argument(
        "--plan-seconds", type=float, default=0.0, metavar="S", help="how long each search for a fleet takes (0)"
    )
    parser.add_argument(
        "--starts", type=float, nargs="+", default=[0.0], help="when to start a run of each workflow, in seconds"
    )
    parser.add_argument(
        "--reclaims", type=float, metavar="N", help="reclaims per machine and hour; all machines are spot instances"
    )
    parser.add_argument("--refusals", action="store_true", help="EC2 refuses all types that would be launched")
    parser.add_argument("--machine", type=int, metavar="CPUS", help="run on one machine, with each order of jobs")
    parser.add_argument("--generated", action="store_true", help="run generated workflows, all or those named")
    args = parser.parse_args(argv)
    if args.generated:
        names = list(GENERATED)
    if args.machine is not None:
        print(machine())
        for lengths in (args.lengths,) if args.lengths else LENGTHS:
            by_orders(args.names or names, args.machine, lengths, args.scale, args.starts)
        return 0
    catalogue = goods()

    def worth(usd: float, seconds: float) -> float:
        """The logarithm of USD × seconds ** hurry."""
        return math.log(usd) + args.hurry * math.log(seconds)

    print(machine())
    if args.reclaims is not None or args.refusals:
        for lengths in (args.lengths,) if args.lengths else LENGTHS:
            for name in args.names or names:
                workflow = read(name, args.scale)
                expected = expected_lengths(workflow, lengths)
                if args.reclaims is not None:
                    with_reclaims(f"{lengths:8}{name:18}", workflow, expected, args.hurry, args.reclaims)
                if args.refusals:
                    with_refusals(f"{lengths:8}{name:18}", workflow, expected, args.hurry)
        return 0
    for lengths in (args.lengths,) if args.lengths else LENGTHS:
        for policy in args.compare.split(","):
            sums: Counter[str] = Counter()
            ratios: list[float] = []
            for name in args.names or names:
                workflow = read(name, args.scale)
                best = reference(wfformat.as_forecast(workflow), catalogue, BOOT)
                beside = best.cheapest if args.hurry == 0 else best.in_time
                trace = [each for number, at in enumerate(args.starts) for each in run_at(workflow, str(number), at)]
                begin = time.perf_counter()
                report = simulate(
                    trace,
                    catalogue,
                    InstanceLimits(),
                    policy,
                    conditions=Conditions(boot_seconds=BOOT, tick_seconds=0.1, plan_seconds=args.plan_seconds),
                    hurry=args.hurry,
                    lengths=expected_lengths(trace, lengths),
                )
                every = fleets(wfformat.as_forecast(workflow), catalogue, BOOT, SIZES)
                fair = min(worth(each.usd, each.seconds + BOOT) for each in every)
                ratios.append(worth(report.cost / len(args.starts), report.makespan - max(args.starts)) - fair)
                assert beside is not None
                usd = beside.usd * len(args.starts)
                sums["usd"] += report.cost
                sums["beside"] += usd
                run = (report.makespan - max(args.starts) - BOOT) / best.critical_path
                print(
                    f"{lengths:8}{policy:9}{name:18}{report.cost:9.4f} USD, {report.cost / usd:.3f} × the reference, "
                    f"{math.exp(ratios[-1]):.3f} × the best USD × seconds^{args.hurry:g}, run {run:.3f}, "
                    f"{report.launches} launches, {report.plans} plans in {time.perf_counter() - begin:.1f} s",
                    flush=True,
                )
            print(
                f"{lengths:8}{policy:9}sum {sums['usd']:.4f} USD, {sums['usd'] / sums['beside']:.3f} × the reference; "
                f"USD × seconds^{args.hurry:g}: mean {math.exp(math.fsum(ratios) / len(ratios)):.3f}, "
                f"worst {math.exp(max(ratios)):.3f} × the best"
            )
    return 0


def with_reclaims(
    name: str, workflow: Sequence[Arrival], expected: Mapping[str, Prediction], hurry: float, reclaims: float
) -> None:
    """Print the cost of runs with reclaims, compared with what the reclaims cost by themselves.

    :param reclaims: of a machine in an hour
    """
    catalogue, found = on_spot(goods()), []
    for rate, seed in ((0.0, 0), *((reclaims, seed) for seed in range(SEEDS))):
        conditions = Conditions(boot_seconds=BOOT, tick_seconds=0.1, reclaims_per_hour=rate, seed=seed)
        limits = InstanceLimits()
        found.append(
            simulate(workflow, catalogue, limits, FORECAST, conditions=conditions, hurry=hurry, lengths=expected)
        )
    without, *some = found
    for each in some:
        usd, seconds = without.cost + each.lost_usd, without.makespan + each.lost_seconds
        print(
            f"{name}{each.reclaims:3} reclaims, {each.restarts:3} jobs again: {without.cost:.4f} to {each.cost:.4f} "
            f"USD, {each.cost / usd:.3f} of what they may cost, {without.makespan:.0f} to {each.makespan:.0f} s, "
            f"{each.makespan / seconds:.3f}",
            flush=True,
        )


def with_refusals(name: str, workflow: Sequence[Arrival], expected: Mapping[str, Prediction], hurry: float) -> None:
    """Print what a workflow costs while launches of the types are refused on which it would run."""

    def run(catalogue: Catalogue, scarce: frozenset[str] = frozenset()) -> tuple[Report, frozenset[str]]:
        conditions = Conditions(boot_seconds=BOOT, tick_seconds=0.1, scarce=scarce)
        its = simulate(
            workflow, catalogue, InstanceLimits(), FORECAST, conditions=conditions, hurry=hurry, lengths=expected
        )
        return its, frozenset(its.launched)

    catalogue = goods()
    plain, best = run(catalogue)
    without, _ = run(Catalogue({name: kind for name, kind in catalogue.types.items() if name not in best}))
    refused, _ = run(catalogue, best)
    print(
        f"{name}{', '.join(sorted(best))}: {plain.cost:.4f} USD, {plain.makespan:.0f} s; without it {without.cost:.4f} "
        f"USD, {without.makespan:.0f} s; {refused.capacity_errors} times refused {refused.cost:.4f} USD, "
        f"{refused.makespan:.0f} s: {refused.cost / without.cost:.3f} and {refused.makespan / without.makespan:.3f}",
        flush=True,
    )


def on_spot(catalogue: Catalogue) -> Catalogue:
    """The same machines as spot ones, for a part of the price."""
    return Catalogue(
        {
            name: replace(
                kind,
                offerings=tuple(
                    replace(each, capacity_type=SPOT, usd_per_hour=SPOT_SHARE * each.usd_per_hour)
                    for each in kind.offerings
                ),
            )
            for name, kind in catalogue.types.items()
        }
    )


def by_orders(names: Sequence[str], cpus: int, lengths: str, scale: float, starts: Sequence[float]) -> None:
    """Print how long workflows take on one machine, by each order and by each way in which Airflow weighs tasks."""
    sums: Counter[tuple[str, str]] = Counter()
    for name in names:
        workflow = read(name, scale)
        trace = [each for number, at in enumerate(starts) for each in run_at(workflow, str(number), at)]
        expected = expected_lengths(trace, lengths)
        known = {each.job.name: each.duration for each in trace}
        critical = max(starts) + max(rests(workflow, {each.job.name: each.duration for each in workflow}).values())
        work = sum(each.job.resources.cpus * each.duration for each in trace) / cpus
        bound, found = max(critical, work), {}
        for weights, order in product(("absolute", "downstream"), ("priority", CRITICAL_PATH)):
            by_rest = (
                {}
                if order == "priority"
                else rests(trace, {name: getattr(expected.get(name), "seconds", UNKNOWN) for name in known})
            )
            found[weights, order] = makespan(trace, cpus, weights, by_rest)
            sums[weights, order] += found[weights, order] / bound
        cells = (f"{weights} {order} {seconds / bound:.3f}" for (weights, order), seconds in found.items())
        print(f"{lengths:8}{name:18}{bound:9.0f} s at least; {', '.join(cells)}", flush=True)
    means = (f"{weights} {order} {total / len(names):.3f}" for (weights, order), total in sums.items())
    print(f"{lengths:8}{'mean':18}{'':9}             {', '.join(means)}")


def behind(trace: Sequence[Arrival]) -> dict[str, set[str]]:
    """The jobs that come after each, by name, however far."""
    found: dict[str, set[str]] = {each.job.name: set() for each in trace}
    for each in reversed(in_dependency_order(trace)):
        for parent in each.parents:
            found[parent] |= {each.job.name, *found[each.job.name]}
    return found


def in_dependency_order(trace: Sequence[Arrival]) -> list[Arrival]:
    by_name = {each.job.name: each for each in trace}
    return [by_name[name] for name in TopologicalSorter({each.job.name: each.parents for each in trace}).static_order()]


def rests(trace: Sequence[Arrival], seconds: Mapping[str, float]) -> dict[str, float]:
    """The seconds of the longest way from the start of each job to the end of its run, by name."""
    after: dict[str, float] = {}
    found: dict[str, float] = {}
    for each in reversed(in_dependency_order(trace)):
        found[each.job.name] = seconds[each.job.name] + after.get(each.job.name, 0.0)
        for parent in each.parents:
            after[parent] = max(found[each.job.name], after.get(parent, 0.0))
    return found


def makespan(trace: Sequence[Arrival], cpus: int, weights: str, by_rest: Mapping[str, float]) -> float:
    """Seconds until all jobs have ended on one machine, by the node agent's rule.

    :param by_rest: the rests of runs by which jobs of one weight go; empty: they go by arrival
    """
    weight = {name: 1 + len(after) for name, after in behind(trace).items()} if weights == "downstream" else {}
    jobs, free = Dependencies.read(trace), float(cpus)
    events = [(each.arrival, number, -1) for number, each in enumerate(trace) if not each.parents]
    heapq.heapify(events)
    waiting: list[QueuedJob] = []
    numbers = {each.job.name: number for number, each in enumerate(trace)}
    now = 0.0
    while events:
        now = events[0][0]
        while events and events[0][0] == now:
            _, number, ended = heapq.heappop(events)
            comes = [number]
            if ended >= 0:
                free += trace[ended].job.resources.cpus
                comes = list(jobs.end(ended))
            for each in comes:
                name = trace[each].job.name
                needs = Resources(trace[each].job.resources.cpus)
                waiting.append(QueuedJob(name, needs, weight.get(name, 1), now, rest=by_rest.get(name, 0.0)))
        waiting.sort(key=lambda job: job.rank)
        decision = next_starts(waiting, Resources(free), Resources(float(cpus)), now=now, patience=PATIENCE)
        assert not decision.impossible, "a job that the machine can never run"
        for name in decision.starts:
            number = numbers[name]
            free -= trace[number].job.resources.cpus
            heapq.heappush(events, (now + trace[number].duration, number, number))
        waiting = [
            replace(job, overtaken_since=now) if job.token in decision.overtaken else job
            for job in waiting
            if job.token not in decision.starts
        ]
    assert not waiting
    return now


if __name__ == "__main__":
    sys.exit(main())
