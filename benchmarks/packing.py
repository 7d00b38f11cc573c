"""What packing costs, in money and in time: every row of the table in benchmarks/RESULTS.md, measured in one run.

    python benchmarks/packing.py            all rows, some minutes
    python benchmarks/packing.py --quick    without the rows that take more than half a minute

Toil and Ray are measured as well if they are installed (``pip install toil ray``).
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from rich.console import Console
from rich.table import Table

from lading.plugin.offline.simulation.simulator import simulate
from lading.plugin.offline.simulation.trace import Arrival
from lading.scheduling.model.catalogue import BUNDLED_SOURCE, Catalogue, InstanceType, Offering, bundled
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits, Plan
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning.planner import plan

# Cpus and GiB of twenty steps as nf-core pipelines have them.
SHAPES = (
    *((1, 1), (1, 2), (1, 4), (1, 6), (1, 8), (2, 4), (2, 6), (2, 8), (2, 12), (2, 16)),
    *((4, 8), (4, 16), (4, 30), (6, 36), (8, 16), (8, 32), (8, 64), (12, 72), (16, 64), (16, 120)),
)
FAMILIES = [f"{family}{generation}.*" for family in "cmr" for generation in ("5", "5a", "6i", "6a", "7i")]
GIB = 1024


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: what was measured, what it should be at most, and what it is."""

    what: str
    limit: float | None
    value: float | None
    unit: str = ""
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.limit is None or self.value is None:
            return ""
        return "yes" if self.value <= self.limit else "NO"


def general_purpose() -> Catalogue:
    """The c, m and r types of five generations up to 24xlarge."""
    return bundled().select(FAMILIES, ["*.metal*", "*.32xlarge", "*.48xlarge"])


def pipeline(number: int, seed: int = 1) -> list[PlannedJob]:
    """So many jobs of twenty shapes."""
    chance = random.Random(seed)
    counts = Counter(chance.choice(SHAPES) for _ in range(number))
    return [
        PlannedJob(f"{c}-{m}", Resources(c, m * GIB), count, arch="x86_64") for (c, m), count in sorted(counts.items())
    ]


def continuous(number: int, seed: int = 1) -> list[PlannedJob]:
    """Jobs of log-normal sizes: median 2 cpus and 7 GiB, 1 to 16 cpus and 1 to 120 GiB, in whole cpus and GiB."""
    chance = random.Random(seed)
    counts: Counter[tuple[int, int]] = Counter()
    for _ in range(number):
        cpus = max(1, min(16, round(chance.lognormvariate(0.8, 0.8))))
        counts[cpus, max(1, min(120, round(chance.lognormvariate(2, 1))))] += 1
    return [
        PlannedJob(f"{c}-{m}", Resources(c, m * GIB), count, arch="x86_64") for (c, m), count in sorted(counts.items())
    ]


def different(number: int, each: int = 1, seed: int = 3) -> list[PlannedJob]:
    """Jobs of which no two have the same shape: 0.5 to 16 cpus, 0.5 to 120 GiB, uniformly."""
    chance = random.Random(seed)
    return [
        PlannedJob(
            f"j{i}", Resources(round(chance.uniform(0.5, 16), 3), chance.randint(500, 120 * GIB)), each, arch="x86_64"
        )
        for i in range(number)
    ]


def fleet(goods: Catalogue, number: int) -> list[Location]:
    """Running instances, each used in part."""
    chance = random.Random(5)
    kinds = list(goods.types.values())
    return [
        Location(
            f"i{i}",
            kind.capacity,
            Resources(chance.uniform(0, kind.capacity.cpus), chance.randint(0, kind.capacity.memory)),
            kind.name,
            arch=kind.arch,
        )
        for i in range(number)
        for kind in [chance.choice(kinds)]
    ]


def timed(run: Callable[[], Plan]) -> tuple[Plan, float]:
    begin = time.perf_counter()
    return run(), time.perf_counter() - begin


def ratio(result: Plan) -> float:
    return 1 + (result.gap or 0.0)


def quality() -> Iterator[Row]:
    """Cost over the reported bound."""
    cmr, everything = general_purpose(), bundled()
    for number, fast, best in ((100, 1.06, 1.04), (1_000, 1.03, 1.01), (10_000, 1.02, 1.003)):
        jobs = pipeline(number)
        yield Row(f"greedy, 20 shapes, n = {number:,}", None, ratio(plan(jobs, (), cmr)))
        for effort, limit in (("fast", fast), ("best", best)):
            result = plan(jobs, (), cmr, policy="priced", effort=effort)
            yield Row(f"priced {effort}, 20 shapes, n = {number:,}", limit, ratio(result))
    cases = [
        ("continuous shapes", continuous(1_000), cmr, 1.02),
        ("20 shapes, whole catalogue", pipeline(1_000), everything, 1.03),
        ("continuous shapes, whole catalogue", continuous(1_000), everything, 1.03),
    ]
    for name, jobs, goods, limit in cases:
        yield Row(f"greedy, {name}, n = 1,000", None, ratio(plan(jobs, (), goods)))
        yield Row(
            f"priced best, {name}, n = 1,000", limit, ratio(plan(jobs, (), goods, policy="priced", effort="best"))
        )


Items = list[tuple[int, ...]]


def uniform(chance: random.Random, number: int, least: int, most: int) -> Items:
    return [tuple(chance.randint(least, most) for _ in range(3)) for _ in range(number)]


def paired(chance: random.Random, number: int, sign: int) -> Items:
    """Two resources that grow together (sign 1) or at each other's cost (sign -1), and a third by itself."""
    items: Items = []
    for _ in range(number):
        size = chance.randint(20, 99)
        other = size + chance.randint(-10, 10) if sign > 0 else 120 - size + chance.randint(-10, 10)
        items.append((size, other, chance.randint(20, 99)))
    return items


def lumps(chance: random.Random, number: int) -> Items:
    """Six lumps of one size, each dropped on a resource at random."""
    items: Items = []
    while len(items) < number:
        drops, size = Counter(chance.choices(range(3), k=6)), chance.randint(10, 40)
        item = tuple(size * drops[r] + chance.randint(0, 1) for r in range(3))
        if max(item) <= 100:
            items.append(item)
    return items


def panigrahy(chance: random.Random, number: int) -> Iterator[tuple[int, Items]]:
    """The nine classes of Panigrahy and others (2011), one instance each: capacity and items."""
    for capacity, least, most in (
        (1000, 100, 400),
        (1000, 1, 1000),
        (1000, 200, 800),
        (1000, 50, 200),
        (1000, 25, 100),
    ):
        yield capacity, uniform(chance, number, least, most)
    yield 150, uniform(chance, number, 20, 100)
    yield 150, paired(chance, number, 1)
    yield 150, paired(chance, number, -1)
    yield 100, lumps(chance, number)


def normal(chance: random.Random, mean: float, deviation: float) -> int:
    """A whole number from 0 to 100, near the mean."""
    while True:
        size = round(chance.gauss(mean, deviation))
        if 0 <= size <= 100:
            return size


def new_classes(chance: random.Random, number: int) -> Iterator[tuple[int, Items]]:
    """The six "New" classes of Mommessin and others (2025): large in one resource and small in the others, normal, and
    a mixture of a tenth of large and the rest of small sizes."""
    large = [i % 3 for i in range(number)]
    yield (
        100,
        [tuple(chance.randint(50, 100) if r == big else chance.randint(0, 25) for r in range(3)) for big in large],
    )
    for mean, deviation in ((20, 10), (30, 15)):
        yield 100, [tuple(normal(chance, mean, deviation) for _ in range(3)) for _ in range(number)]
    for high, low, deviation in ((70, 30, 15), (80, 20, 10), (70, 15, 10)):
        yield (
            100,
            [
                tuple(normal(chance, high if chance.random() < 0.1 else low, deviation) for _ in range(3))
                for _ in range(number)
            ],
        )


def dot_product(capacity: int, items: Items) -> int:
    """Bins by the bin-centric dot product, weighted by the average size of what is left: the best simple rule of
    Mommessin and others."""
    left, bins = np.array(items, float) / capacity, 0
    while len(left):
        room, bins = np.ones(3), bins + 1
        while len(fits := np.flatnonzero((left <= room + 1e-9).all(axis=1))):
            chosen = fits[(left[fits] @ (left.mean(axis=0) * room)).argmax()]
            room -= left[chosen]
            left = np.delete(left, chosen, axis=0)
    return bins


def vector_packing() -> Iterator[Row]:
    """Identical bins, three resources: mean of bins over the bound, against the dot-product rule."""
    for name, classes in (("Panigrahy, nine classes", panigrahy), ("New, six classes", new_classes)):
        ours, theirs = [], []
        for capacity, items in (each for n in (60, 120) for each in classes(random.Random(n), n)):
            goods = Catalogue({"bin": InstanceType("bin", Resources(capacity, capacity, capacity), (Offering(1.0),))})
            jobs = [PlannedJob(f"j{i}", Resources(*item)) for i, item in enumerate(items)]
            result = plan(jobs, (), goods, policy="priced", effort="best")
            bound = float(np.ceil((result.bound or 0.0) - 1e-9))
            ours.append(result.cost / bound)
            theirs.append(dot_product(capacity, items) / bound)
        rule = sum(theirs) / len(theirs)
        yield Row(f"priced best, {name}, d = 3", rule, sum(ours) / len(ours), note="to reach: the dot-product rule")


SPEED = {
    "fast-20": ("priced fast, 10,000 jobs of 20 shapes", "fast", lambda: pipeline(10_000), 0.3),
    "fast-different": ("priced fast, 10,000 jobs all different", "fast", lambda: different(10_000), 5.0),
    "fast-million": ("priced fast, 1,000,000 jobs of 200 shapes", "fast", lambda: different(200, 5_000), 3.0),
    "best-20": ("priced best, 10,000 jobs of 20 shapes", "best", lambda: pipeline(10_000), 5.0),
    "best-different": ("priced best, 10,000 jobs all different", "best", lambda: different(10_000), 60.0),
    "best-million": ("priced best, 1,000,000 jobs of 200 shapes", "best", lambda: different(200, 5_000), 30.0),
}


def measure(key: str) -> str:
    """One row of :data:`SPEED` in a process of its own: seconds, MiB at the peak, ratio."""
    _, effort, jobs, _ = SPEED[key]
    goods, waiting = general_purpose(), jobs()
    plan(pipeline(5), (), goods, policy="priced")  # whatever is imported at first use
    result, seconds = timed(lambda: plan(waiting, (), goods, policy="priced", effort=effort))
    return f"{seconds} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024} {ratio(result)}"


def measure_greedy() -> str:
    goods = general_purpose()
    there, waiting = fleet(goods, 1_000), different(10_000)
    plan(pipeline(5), (), goods)
    _, seconds = timed(lambda: plan(waiting, there, goods))
    return f"{seconds} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024} 0"


def measure_tick() -> str:
    chance = random.Random(7)
    shapes = [Resources(c, m) for c, m in ((1, 1000), (2, 4000), (0.25, 512), (8, 64_000))]
    jobs = [
        PlannedJob(f"j{i}", chance.choice(shapes), 1, chance.randint(0, 3), chance.random() * 1000)
        for i in range(10_000)
    ]
    there = [Location(f"l{i}", Resources(64, 256 * GIB)) for i in range(100)]
    plan(jobs[:10], there)
    _, seconds = timed(lambda: plan(jobs, there, now=1000.0, patience=60.0))
    return f"{seconds} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024} 0"


def measure_simulator() -> str:
    chance = random.Random(5)
    sizes = {shape: Resources(shape[0], shape[1] * GIB) for shape in SHAPES}
    trace = [
        Arrival(
            PlannedJob(f"j{i}", sizes[chance.choice(SHAPES)], arch="x86_64"),
            chance.uniform(0, 86_400),
            chance.expovariate(1 / 600),
        )
        for i in range(1_000_000)
    ]
    begin = time.perf_counter()
    report = simulate(trace, general_purpose(), InstanceLimits(instances=2_000), "greedy")
    seconds = time.perf_counter() - begin
    return f"{seconds} {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024} {report.peak_instances}"


def apart(key: str) -> list[float]:
    """Measure in a process of its own, so that its memory is its own."""
    answer = subprocess.run([sys.executable, __file__, "--one", key], check=True, capture_output=True, text=True)
    return [float(word) for word in answer.stdout.split()]


def speed(quick: bool) -> Iterator[Row]:
    for key, (name, _, _, limit) in SPEED.items():
        if quick and key in ("best-different", "best-million"):
            continue
        seconds, memory, over = apart(key)
        yield Row(name, limit, seconds, "s", f"cost / bound {over:.4f}")
        yield Row(f"{name}, memory", 500 if "fast" in key else None, memory, "MiB")
    yield Row("greedy, 10,000 jobs all different, 1,000 running instances", 1.0, apart("greedy")[0], "s")
    yield Row("greedy, no catalogue, 10,000 waiting jobs, 100 locations", 0.1, apart("tick")[0], "s")
    if not quick:
        seconds, memory, peak = apart("simulator")
        yield Row("simulator, 1,000,000 jobs, 2,000 instances", 300, seconds, "s", f"{peak:.0f} instances at once")
        yield Row("simulator, memory", 2048, memory, "MiB")


def toil(jobs: list[PlannedJob], goods: Catalogue) -> float:
    """USD per hour of what Toil's packer would launch."""
    from toil.provisioners.abstractProvisioner import Shape
    from toil.provisioners.clusterScaler import BinPackedFit

    shapes = {
        Shape(3600, kind.capacity.memory * 2**20, kind.capacity.cpus, 2**50, False): kind.offerings[0].usd_per_hour
        for kind in goods.types.values()
    }
    packer = BinPackedFit(list(shapes), targetTime=1800)
    wanted = [
        Shape(3600, job.resources.memory * 2**20, job.resources.cpus, 0, False)
        for job in jobs
        for _ in range(job.count)
    ]
    packer.binPack(sorted(wanted, reverse=True))
    return sum(shapes[shape] * number for shape, number in packer.getRequiredNodes().items())


def ray(jobs: list[PlannedJob], goods: Catalogue) -> float:
    """USD per hour of what Ray's autoscaler (v1's bin packer) would launch; Ray 2.60 has it no more."""
    from ray.autoscaler._private.resource_demand_scheduler import _utilization_scorer, get_nodes_for

    types = {
        kind.name: {
            "resources": {"CPU": kind.capacity.cpus, "memory": kind.capacity.memory * 2**20},
            "max_workers": 10**6,
            "node_config": {},
        }
        for kind in goods.types.values()
    }
    wanted = [
        {"CPU": job.resources.cpus, "memory": job.resources.memory * 2**20} for job in jobs for _ in range(job.count)
    ]
    nodes, left = get_nodes_for(types, {}, "", 10**6, wanted, utilization_scorer=_utilization_scorer)
    if left:
        raise RuntimeError(f"Ray left {len(left)} jobs without a node")
    return sum(goods.types[name].offerings[0].usd_per_hour * number for name, number in nodes.items())


def peers() -> Iterator[Row]:
    """The packers of other tools, on the same thousand jobs and types."""
    goods, jobs = general_purpose(), pipeline(1_000)
    bound = plan(jobs, (), goods).bound or 0.0
    for name, packer in (("Toil", toil), ("Ray", ray)):
        what = f"{name}, 20 shapes, n = 1,000"
        if find_spec(name.lower()) is None:
            yield Row(what, None, None, note="not installed")
            continue
        try:
            yield Row(what, None, packer(jobs, goods) / bound)
        except ImportError:
            yield Row(what, None, None, note=f"{version(name.lower())} does not have what is called here any more")


def machine() -> str:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return (
        f"{os.cpu_count()} cores, {memory:.0f} GiB, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, "
        f"NumPy {np.__version__}, HiGHS {version('highspy')}; {BUNDLED_SOURCE}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="leave out rows that take more than half a minute")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        alone = {"greedy": measure_greedy, "tick": measure_tick, "simulator": measure_simulator}
        print(alone[args.one]() if args.one in alone else measure(args.one))
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    table = Table("Measured", "To reach", "Value", "Reached", "")
    failed = 0
    for part in (quality(), vector_packing(), peers(), speed(args.quick)):
        for row in part:
            limit = "" if row.limit is None else f"≤ {row.limit:.4g} {row.unit}"
            value = "" if row.value is None else f"{row.value:.4f}" if not row.unit else f"{row.value:.2f} {row.unit}"
            table.add_row(row.what, limit, value, row.verdict, row.note)
            failed += row.verdict == "NO"
            print(f"{row.what}: {value or row.note}", file=sys.stderr, flush=True)
        table.add_section()
    console.print(table)
    console.print(machine())
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
