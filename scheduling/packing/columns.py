"""Column generation: which patterns (contents of one machine) to buy, and how often.

The linear program over patterns (Gilmore and Gomory, "A linear programming approach to the cutting stock problem",
Operations Research 9, 1961) starts from patterns found by other rules. Its prices give the worth of a job of each
shape. Bins are filled by those prices, and each pattern worth more than it costs joins the program, until there is none
or the rounds are used up. Integer solutions come from rounding with different cuts and packing the rest again; for few
shapes also from the integer program over the cheapest patterns, which HiGHS solves within a limit of nodes. No step
depends on the clock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lading.scheduling.packing.arrays import Floats, Ints, PackingArrays
from lading.scheduling.packing.filling import Pattern, ScoringRule, cost, fill, sweep
from lading.scheduling.packing.linear_program import LinearProgram
from lading.scheduling.packing.problem import Going

PRICING = (
    ScoringRule(0.5, 0.0, 0.0),
    ScoringRule(1.0, 0.1, 0.0),
    ScoringRule(1.0, 0.3, 0.0),
    ScoringRule(2.0, 0.1, 5.0),
)
# The linear program is solved at most ROUNDS times; the progress of the last PATIENCE rounds decides whether to stop.
ROUNDS, PATIENCE = 60, 4


class Pool:
    """Distinct patterns, each with the cheapest bin that holds it, and the linear program over them."""

    def __init__(self, arrays: PackingArrays) -> None:
        self.arrays = arrays
        self.patterns: list[Pattern] = []
        self.known: set[bytes] = set()
        self.program, self.in_program = program(arrays), 0
        for shape in range(len(arrays.count)):
            self.alone(shape)

    def alone(self, shape: int) -> None:
        """Add a pattern of one shape only, so that every demand can be met."""
        shapes = np.array([shape])
        bin_ = self.arrays.cheapest(shapes, np.ones(1, np.int64))
        need = self.arrays.need[shape]
        fitting = [int(self.arrays.capacity[bin_][r] // need[r]) for r in range(len(need)) if need[r]]
        self.add(shapes, np.array([min([int(self.arrays.count[shape]), *fitting])]))

    def add(self, shapes: Ints, each: Ints) -> bool:
        """Add a pattern; return False if the pool already has it."""
        key = shapes.tobytes() + b"|" + each.tobytes()
        if key in self.known:
            return False
        self.known.add(key)
        self.patterns.append(Pattern(self.arrays.cheapest(shapes, each), shapes, each, 0))
        return True

    def solve(self) -> tuple[Floats, Floats]:
        """Return how often to buy each pattern, and the worth of one job of each shape."""
        join(self.program, self.arrays, self.patterns[self.in_program :])
        self.in_program = len(self.patterns)
        often, worth = self.program.solve()
        return often, np.maximum(0.0, worth)

    def prices(self) -> Floats:
        return self.arrays.price[[pattern.bin for pattern in self.patterns]]


def program(arrays: PackingArrays) -> LinearProgram:
    """Build the program without columns: its rows require that all jobs are packed."""
    return LinearProgram(arrays.count, np.full(len(arrays.count), np.inf))


def join(program: LinearProgram, arrays: PackingArrays, patterns: Sequence[Pattern]) -> None:
    if patterns:
        program.add(
            arrays.price[[pattern.bin for pattern in patterns]],
            np.array([len(pattern.shapes) for pattern in patterns]),
            np.concatenate([pattern.shapes for pattern in patterns]),
            np.concatenate([pattern.each for pattern in patterns]),
        )


def generate(
    arrays: PackingArrays,
    start: list[list[Pattern]],
    falling: float,
    nodes: int,
    shaken: int,
    rules: Sequence[ScoringRule],
    going: Going,
) -> list[Pattern]:
    """Pack by column generation.

    :param start: packings whose patterns the pool starts with
    :param falling: stop when the linear program's cost fell by less than this fraction in ``PATIENCE`` rounds
    :param nodes: node limit of the integer program; 0: round the linear program only
    :param shaken: how many randomly perturbed worths to try when the filling rules find no pattern
    :param rules: filling rules that pack what is left after rounding
    :param going: whether to continue
    """
    pool = Pool(arrays)
    for packing in start:
        for pattern in packing:
            pool.add(pattern.shapes, pattern.each)
    often = np.zeros(0)
    worth = arrays.worth
    costs: list[float] = []
    for turn in range(ROUNDS):
        often, worth = pool.solve()
        costs.append(float(often @ pool.prices()))
        if turn >= PATIENCE and costs[-1 - PATIENCE] - costs[-1] < falling * costs[-1]:
            break
        if not going("column generation", turn / ROUNDS):
            nodes = 0
            break
        if not price(pool, worth, shaken):
            break
    else:
        often, worth = pool.solve()
    found = [rounded(pool, often, cut, rules) for cut in (0.999, 0.5, 0.3, 0.05)]
    # With more shapes the integer program finds little within a reasonable number of nodes.
    if nodes and len(arrays.count) <= 64:
        found += integer(pool, worth, nodes, rules)
    return min(found, key=lambda patterns: cost(arrays, patterns))


def price(pool: Pool, worth: Floats, shaken: int) -> int:
    """Add patterns worth more than they cost; return how many were added.

    :param shaken: how often to try again with randomly perturbed worths (fixed seed) if the rules find none
    """
    added = sum(price_by(pool, worth, worth, rule) for rule in PRICING)
    random = np.random.default_rng(seed=1)
    for i in range(shaken):
        if added:
            break
        guess = (worth if i % 2 else pool.arrays.worth) * random.uniform(0.8, 1.2, len(worth))
        added = sum(price_by(pool, worth, guess, rule) for rule in PRICING)
    return added


def price_by(pool: Pool, worth: Floats, guess: Floats, rule: ScoringRule) -> int:
    """Fill every bin by the worths in ``guess`` and add the patterns worth more than they cost."""
    arrays = pool.arrays
    here = arrays.part(np.arange(len(arrays.count)), arrays.count, guess)
    taken = fill(here, np.arange(len(arrays.bins)), rule)
    surplus = taken @ worth / arrays.price - 1
    added = 0
    for i in np.argsort(-surplus, kind="stable")[: max(10, len(worth) // 2)]:
        if surplus[i] <= 1e-6:
            break
        shapes = np.flatnonzero(taken[i])
        added += pool.add(shapes, taken[i][shapes])
    return added


def rounded(pool: Pool, often: Floats, cut: float, rules: Sequence[ScoringRule]) -> list[Pattern]:
    """Buy patterns as often as the linear program says, most frequent first, and pack the rest by filling.

    :param cut: fractions above it are rounded up, as far as enough jobs are left; the others are rounded down
    """
    times = np.floor(often + 1 - cut).astype(np.int64)
    return complete(pool, times, np.argsort(-often, kind="stable"), rules)


def complete(
    pool: Pool, times: Ints, order: Ints, rules: Sequence[ScoringRule], *, trimmed: bool = False
) -> list[Pattern]:
    """Buy each pattern up to its number of times, in this order, and pack the rest by the best of the rules.

    :param trimmed: whether to buy patterns for which some jobs are missing, without those jobs
    """
    arrays = pool.arrays
    left = arrays.count.copy()
    bought = []
    for i in order[times[order] > 0]:
        pattern = pool.patterns[i]
        full = min(int(times[i]), int((left[pattern.shapes] // pattern.each).min()))
        if full:
            left[pattern.shapes] -= pattern.each * full
            bought.append(Pattern(pattern.bin, pattern.shapes, pattern.each, full))
        for _ in range(int(times[i]) - full if trimmed else 0):
            each = np.minimum(pattern.each, left[pattern.shapes])
            on = each > 0
            if on.any():
                left[pattern.shapes] -= each
                bought.append(Pattern(arrays.cheapest(pattern.shapes[on], each[on]), pattern.shapes[on], each[on], 1))
    rest = np.flatnonzero(left)
    if len(rest):
        part = arrays.part(rest, left[rest])
        filled = min(
            (sweep(priced, rule) for priced in (part, part.balanced()) for rule in rules),
            key=lambda patterns: cost(part, patterns),
        )
        bought += [Pattern(p.bin, rest[p.shapes], p.each, p.times) for p in filled]
    return bought


def integer(pool: Pool, worth: Floats, nodes: int, rules: Sequence[ScoringRule]) -> list[list[Pattern]]:
    """Solve the integer program over the best-priced patterns; empty if no solution was found within the node limit."""
    prices = pool.prices()
    excess = 1 - np.array([pattern.each @ worth[pattern.shapes] for pattern in pool.patterns]) / prices
    some = np.sort(np.argsort(excess, kind="stable")[:400])
    whole = program(pool.arrays)
    join(whole, pool.arrays, [pool.patterns[i] for i in some])
    found = whole.solve_whole(nodes, 1e-4)
    if found is None:
        return []
    times = np.zeros(len(pool.patterns), np.int64)
    times[some] = found
    order = np.argsort(excess, kind="stable")
    # The solution can cover more jobs than exist.
    return [complete(pool, times, order, rules, trimmed=True), complete(pool, times, order, rules)]
