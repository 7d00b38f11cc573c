"""The priced policy: the worth of each job decides which jobs share a machine, and of which type.

1. The greedy policy packs as a baseline. ``priced`` returns that packing unless it finds another one that
   costs no more and leaves no more jobs waiting, so its objective never exceeds greedy's.
2. Running instances are filled first (higher priorities before lower ones), with the jobs that are worth most for the
   room they take.
3. Machines are bought for the rest. Candidate packings come from bin-centric filling under several rules
   (:mod:`filling`), from column generation if there are few shapes (:mod:`columns`), and from ruin and recreate on the
   best of them (:mod:`ruin_recreate`). The cheapest is chosen and improved by :mod:`insertion`, which packs jobs of
   many different sizes from the start if there are many types.

Jobs under a limit on the instances of their task or run, and jobs that no launchable type fits, are placed by the
greedy rule beforehand. Limits on the number of instances are met by making launches more expensive, or by excluding
types that would exceed their limit. If that does not help, the greedy packing stands.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from lading.scheduling.packing import greedy, insertion, shelf
from lading.scheduling.packing.answer import MachineGroup, Packing, take
from lading.scheduling.packing.arrays import Ints, PackingArrays, host_arrays, packing_arrays
from lading.scheduling.packing.bound import Shrunk
from lading.scheduling.packing.columns import generate
from lading.scheduling.packing.filling import SAMPLE, Pattern, ScoringRule, cost, fill_free, sweep
from lading.scheduling.packing.insertion import Kinds
from lading.scheduling.packing.limits import too_many
from lading.scheduling.packing.problem import Going, Problem, Shape, fits
from lading.scheduling.packing.ruin_recreate import improve

ROOM_RULE = ScoringRule(1.0, 0.1, 0.0)
EPSILON = 1e-9


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is tried. All amounts are numbers of rounds, never seconds.

    :param rules: filling rules for up to ``ALIKE`` shapes, up to ``FEW``, up to ``MANY``, and more
    :param even: filling rules with all resources worth the same, in the same four cases
    :param shrunk: usable parts of cpus and memory for additional pricings of machines, in the same four cases
    :param enough: ratio of cost to lower bound at which nothing more is tried
    :param falling: column generation stops when its linear program's cost fell by less than this fraction in some
        rounds
    :param nodes: node limit of its integer program
    :param shaken: random guesses when its rules find no pattern
    :param finishers: how many rules pack what rounding leaves over, and how many are used per additional pricing
    :param ruins: rounds of ruin and recreate, in the same four cases
    :param insertions: jobs placed again by insertion without Numba
    :param compiled: jobs placed again by insertion with Numba, in the same four cases
    """

    rules: tuple[tuple[ScoringRule, ...], tuple[ScoringRule, ...], tuple[ScoringRule, ...], tuple[ScoringRule, ...]]
    even: tuple[tuple[ScoringRule, ...], tuple[ScoringRule, ...], tuple[ScoringRule, ...], tuple[ScoringRule, ...]]
    shrunk: tuple[tuple[Shrunk, ...], tuple[Shrunk, ...], tuple[Shrunk, ...], tuple[Shrunk, ...]]
    enough: float
    falling: float
    nodes: int
    shaken: int
    finishers: int
    ruins: tuple[int, int, int, int]
    insertions: int
    compiled: tuple[int, int, int, int]


ALIKE, FEW, MANY = 64, 300, 2500
WIDE = tuple(
    ScoringRule(scarcity, size, match)
    for size in (0.0, 0.1, 0.3)
    for scarcity in (0.5, 1.0, 2.0)
    for match in (0.0, 5.0)
)
EVEN = (ScoringRule(1.0, 0.5, 0.0), ScoringRule(1.0, 1.0, 0.0), ScoringRule(2.0, 0.5, 0.0))
# Memory first: it is what jobs of many different sizes leave unused.
SHRUNK: tuple[Shrunk, ...] = (
    *((1.0, part, 1.0, 1.0) for part in (0.97, 0.94, 0.91, 0.88)),
    (0.97, 0.94, 1.0, 1.0),
    (0.97, 1.0, 1.0, 1.0),
)
SHRUNK_RULES = (ScoringRule(0.5, 0.1, 0.0), ScoringRule(1.0, 0.1, 5.0))
EFFORTS = {
    "fast": Effort(
        (WIDE[::3], WIDE[::6], WIDE[::6], WIDE[6:7]),
        ((EVEN[0],), EVEN, EVEN[:1], ()),
        ((), (), SHRUNK[:2], ()),
        1.001,
        falling=0.0005,
        nodes=0,
        shaken=4,
        finishers=1,
        ruins=(20, 0, 20, 0),
        insertions=16_000,
        compiled=(200_000, 200_000, 1_000_000, 360_000),
    ),
    "best": Effort(
        (WIDE, WIDE, WIDE[::3], WIDE[::6]),
        (EVEN, EVEN, EVEN, EVEN[:1]),
        (SHRUNK, SHRUNK, SHRUNK, SHRUNK[:2]),
        1 + EPSILON,
        falling=0.0,
        nodes=200,
        shaken=16,
        finishers=4,
        ruins=(300, 300, 300, 100),
        insertions=70_000,
        compiled=(1_000_000, 1_000_000, 6_000_000, 6_000_000),
    ),
}


def pack(problem: Problem, effort: str) -> Packing:
    best = greedy.pack(problem)
    if not best.launches:
        return best  # no launches, so no cost
    goal = best.objective(problem) + EPSILON
    for candidate in candidates(problem, EFFORTS[effort]):
        if candidate.waiting <= best.waiting and candidate.objective(problem) <= goal:
            return candidate
    return best


def candidates(problem: Problem, effort: Effort) -> Iterator[Packing]:
    """Yield a packing that respects the limits, after retries with more expensive launches or fewer types."""
    extra, excluded = 0.0, frozenset[str]()
    for _ in range(6):
        packing = attempt(problem, effort, extra, excluded)
        if packing is None:
            return
        over = too_many(problem, packing)
        if over is None:
            yield packing
            return
        if over:
            excluded |= over
        else:
            extra = 2 * extra or packing.cost / max(1, packing.launches)


def attempt(problem: Problem, effort: Effort, extra: float, excluded: frozenset[str]) -> Packing | None:
    """Return one packing, with ``extra`` USD per hour added to each launch; None if the rest cannot be bought."""
    buyable = [not problem.labels(shape) and sold(problem, shape, excluded) for shape in problem.shapes]
    before = greedy.Greedy(replace(problem, order=[run for run in problem.order if not buyable[run[0]]]))
    packed = before.pack()
    per_launch = problem.objective.per_launch + extra
    counts = [count if buyable[i] else 0 for i, count in enumerate(problem.counts())]
    dealer = Dealer(problem)
    hosts = [site for site in before.sites if site.size == 1]
    if any(counts) and hosts:
        counts = fill_hosts(problem, counts, hosts, dealer, per_launch, excluded)
    bought: list[MachineGroup] = []
    if any(counts):
        arrays = packing_arrays(problem, counts, per_launch, excluded)
        bought = dealer.groups(
            arrays,
            cheapest(
                arrays,
                insertion.kinds(problem, arrays),
                effort,
                lambda part: packing_arrays(problem, counts, per_launch, excluded, part),
                problem.going,
            ),
        )
    first = [site for site in sorted(before.sites, key=lambda site: site.age) if site.fills]
    return Packing(first + bought, packed.left)


def sold(problem: Problem, shape: Shape, excluded: frozenset[str]) -> bool:
    granting = problem.on_sale.granting(shape.wish)
    cheapest = granting.cheapest(shape.need)
    if cheapest is None or cheapest.type.name not in excluded:
        return cheapest is not None
    return any(fits(shape.need, bin_.capacity) for bin_ in granting.bins if bin_.type.name not in excluded)


def cheapest(
    arrays: PackingArrays, kinds: Kinds | None, effort: Effort, shrink: Callable[[Shrunk], PackingArrays], going: Going
) -> list[Pattern]:
    """Return the cheapest packing found within the effort; stop once it is close enough to the lower bound.

    :param kinds: of the shapes' wishes; None: too many for insertion
    :param shrink: returns the same arrays, priced as if only a part of each resource were usable
    """
    size = bisect_left((ALIKE, FEW, MANY), len(arrays.count))
    bound = float(arrays.worth @ arrays.count)
    jobs, insertions = int(arrays.count.sum()), (effort.insertions, effort.compiled[size])
    # With more types, a sweep over FEW to MANY shapes takes longer than insertion, and finds less.
    unlike = size == 2 and len(arrays.bins) > 48 and jobs <= MANY
    # Insertion handles jobs one by one; for more jobs than this, filling is faster.
    if kinds is not None and (unlike or (size == 3 and jobs <= 20_000 and insertion.compiled())):
        return insertion.pack(arrays, kinds, insertions, going)
    packings: list[list[Pattern]] = []
    rules = len(effort.rules[size])
    for patterns in sweeps(arrays, effort, size, shrink):
        packings.append(patterns)
        if not going("filling", min(1.0, len(packings) / rules)):
            return min(packings, key=lambda patterns: cost(arrays, patterns))
        if cost(arrays, patterns) <= bound * effort.enough:
            return patterns
        # With more than FEW shapes a sweep takes long, and this close to the lower bound another one finds little.
        if size > 1 and cost(arrays, patterns) <= bound * 1.002:
            break
    if size < 2:
        ranked = sorted(range(len(effort.rules[size])), key=lambda i: cost(arrays, packings[i]))
        finishers = [effort.rules[size][i] for i in ranked[: effort.finishers]]
        packings.append(generate(arrays, packings, effort.falling, effort.nodes, effort.shaken, finishers, going))
    result = min(packings, key=lambda patterns: cost(arrays, patterns))
    # With more machines, single ones matter little and ruin and recreate is skipped.
    if sum(pattern.times for pattern in result) <= 2000:
        result = improve(arrays, result, effort.ruins[size], (3, 10), going)
    # With few jobs, filling and rounding sometimes end further from the bound than this; insertion then gets closer.
    if kinds is not None and jobs <= MANY and cost(arrays, result) > bound * 1.005 and insertion.compiled():
        result = insertion.pack(arrays, kinds, insertions, going, result)
    return result


def sweeps(
    arrays: PackingArrays, effort: Effort, size: int, shrink: Callable[[Shrunk], PackingArrays]
) -> Iterator[list[Pattern]]:
    """Yield packings by filling alone: by the effort's rules, then with other ways of pricing."""
    for rule in effort.rules[size]:
        yield sweep(arrays, rule)
    for part in effort.shrunk[size]:
        priced = shrink(part)
        for rule in SHRUNK_RULES[: effort.finishers]:
            yield sweep(priced, rule)
    if effort.even[size]:
        balanced = arrays.balanced()
        for rule in effort.even[size]:
            yield sweep(balanced, rule)


def fill_hosts(
    problem: Problem,
    counts: list[int],
    hosts: list[shelf.ShelfSlot],
    dealer: Dealer,
    per_launch: float,
    excluded: frozenset[str],
) -> list[int]:
    """Fill existing machines, highest priority first; return how many jobs of each shape are left."""
    left = list(counts)
    arrays = packing_arrays(problem, counts, per_launch, excluded)
    rooms = host_arrays(problem, arrays, hosts)
    order = sorted(range(len(hosts)), key=lambda i: (hosts[i].ends_at or np.inf, hosts[i].free[:2], hosts[i].age))
    for wanted in by_priority(problem, arrays):
        turn = 0
        for i in order:
            present = np.flatnonzero(wanted * rooms.fits[i])
            if not len(present):
                continue
            step = -(-len(present) // SAMPLE)
            present, turn = present[turn % step :: step], turn + 1
            free = np.array([hosts[i].free], np.int64)[:, rooms.used]
            taken = fill_free(rooms.arrays.part(present, wanted[present]), np.array([i]), free, ROOM_RULE)[0]
            wanted[present] -= taken
            for k in np.flatnonzero(taken):
                number = int(arrays.shapes[present[k]])
                dealer.give(hosts[i], number, int(taken[k]))
                hosts[i].free = take(hosts[i].free, problem.shapes[number].need, int(taken[k]))
                left[number] -= int(taken[k])
    return left


def by_priority(problem: Problem, arrays: PackingArrays) -> Iterator[Ints]:
    """Yield the number of jobs of each of the arrays' shapes, one priority at a time, highest first."""
    classes: dict[int, Ints] = {}
    for k, number in enumerate(arrays.shapes):
        for job in problem.members[number]:
            classes.setdefault(job.priority, np.zeros(len(arrays.shapes), np.int64))[k] += job.count
    for priority in sorted(classes, reverse=True):
        yield classes[priority]


class Dealer:
    """Assigns positions among the jobs of each shape, in order, to machines."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.position = [0] * len(problem.shapes)

    def give(self, group: MachineGroup, number: int, each: int) -> None:
        group.fills.append((number, each, self.position[number]))
        self.position[number] += each * group.size

    def groups(self, arrays: PackingArrays, patterns: list[Pattern]) -> list[MachineGroup]:
        """Return the machines to launch. Those with the longest jobs come first and get the longest jobs of each shape,
        so that jobs which finish together share a machine.
        """
        typical = [self.typical_time(int(number)) for number in arrays.shapes]
        ordered = sorted(patterns, key=lambda p: -max(typical[int(shape)] for shape in p.shapes))
        return [self.group(arrays, pattern) for pattern in ordered]

    def group(self, arrays: PackingArrays, pattern: Pattern) -> MachineGroup:
        bought = self.problem.bins[int(arrays.bins[pattern.bin])]
        group = MachineGroup(bought, None, pattern.times, bought.capacity)
        for shape, each in zip(pattern.shapes, pattern.each, strict=True):
            number = int(arrays.shapes[shape])
            self.give(group, number, int(each))
            group.free = take(group.free, self.problem.shapes[number].need, int(each))
        return group

    def typical_time(self, number: int) -> float:
        """Return the mean time of the shape's jobs whose time is known, in seconds; 0 if none is."""
        jobs = [job for job in self.problem.members[number] if job.time is not None]
        return sum(job.time * job.count for job in jobs if job.time is not None) / max(
            1, sum(job.count for job in jobs)
        )
