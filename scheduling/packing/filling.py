"""Bin-centric filling: fill one machine at a time, each time with the jobs that best suit its remaining room.

The score of a job on a bin is its worth divided by the price of what it takes there; a resource weighs more the scarcer
it has become on this bin. This is the dot-product rule (Panigrahy, Talwar, Uyeda, Wieder, "Heuristics for vector bin
packing", Microsoft Research 2011; bin-centric in Gabay and Zaourar 2016 and in Mommessin, Erlebach, Shakhlevich,
Computers & Operations Research 173, 2025) with the dual prices of the bound as weights. Of all types filled in this
way, the one with the most worth per dollar is bought, as often as the job counts allow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from lading.scheduling.packing.arrays import Floats, Ints, PackingArrays

# With more shapes than this, each bin is filled from a different sample of them.
SAMPLE = 768
# A job that is worth nothing at the program's prices still has to be packed.
LEAST = 1e-12


class ScoringRule(NamedTuple):
    """How jobs are scored.

    :param scarcity: exponent of the remaining fraction of a resource; 0: scarcity does not matter
    :param size: exponent of a job's worth; above 0 large jobs come first
    :param match: exponent of how well a type's prices suit the job; 0: this does not matter
    """

    scarcity: float
    size: float
    match: float


@dataclass(frozen=True, slots=True, eq=False)
class Pattern:
    """The contents of one machine, and the number of such machines.

    :param bin: index among the arrays' bins
    :param shapes: indices among the arrays' shapes
    :param each: jobs of each shape
    """

    bin: int
    shapes: Ints
    each: Ints
    times: int


def fill(arrays: PackingArrays, bins: Ints, rule: ScoringRule) -> Ints:
    """Fill one of each of ``bins``; return how many jobs of each shape each bin holds (bins, shapes)."""
    return fill_free(arrays, bins, arrays.capacity[bins], rule)


def fill_free(arrays: PackingArrays, bins: Ints, free: Ints, rule: ScoringRule) -> Ints:
    """Like :func:`fill`, with ``free`` (bins, resources) left on the bins."""
    need, count = arrays.need, arrays.count
    left, whole = free.copy(), arrays.capacity[bins].astype(float)
    needed = need.astype(float).T
    possible, unit = arrays.fits[bins], arrays.unit[bins]
    base = np.broadcast_to(arrays.worth ** (1 + rule.size) + LEAST, possible.shape)
    if rule.match:
        base = base * np.where(possible, (arrays.worth + LEAST) / (unit @ needed + LEAST), 0.0) ** rule.match
    taken = np.zeros(possible.shape, np.int64)
    # Full bins, and shapes that no longer fit anywhere, are dropped.
    live, shapes = np.arange(len(bins)), np.arange(len(need))
    while True:
        for r in range(need.shape[1]):
            possible &= need[:, r] <= left[:, r, None]
        some = possible.any(axis=0)
        if 2 * np.count_nonzero(some) < len(shapes):
            if not some.any():
                return taken
            shapes, need, count, needed = shapes[some], need[some], count[some], needed[:, some]
            possible, base = possible[:, some], base[:, some]
        weight = unit * (whole / np.maximum(left, 1)) ** rule.scarcity
        best = np.where(possible, base / (weight @ needed + LEAST), -1.0).argmax(axis=1)
        going = possible[np.arange(len(live)), best]
        if not going.all():
            live, best, left, whole = live[going], best[going], left[going], whole[going]
            possible, base, unit = possible[going], base[going], unit[going]
        each = need[best]
        most = np.where(each > 0, left // np.maximum(each, 1), np.iinfo(np.int64).max).min(axis=1)
        # Add half of what fits at once: many small jobs take few steps, and scarcity is measured again in between.
        before = taken[live, shapes[best]]
        number = (np.minimum(most, count[best] - before) + 1) // 2
        taken[live, shapes[best]] = before + number
        left -= each * number[:, None]
        possible[np.arange(len(live)), best] = before + number < count[best]


def sweep(arrays: PackingArrays, rule: ScoringRule, worth: Floats | None = None) -> list[Pattern]:
    """Buy and fill bins until every job is packed.

    :param worth: of one job of each shape; None: the arrays' own
    """
    worth = arrays.worth if worth is None else worth
    left = arrays.count.copy()
    some, short, patterns = sensible(arrays, left), False, []
    threshold, turn = 0.0, 0
    while left.any():
        present = np.flatnonzero(left)
        if len(present) > SAMPLE:
            step = -(-len(present) // SAMPLE)
            present, turn = present[turn % step :: step], turn + 1
        here = arrays.part(present, left[present], worth[present])
        taken = fill(here, some, rule)
        gain = taken @ np.maximum(here.worth, LEAST) / arrays.price[some]
        best = int(gain.argmax())
        if short and gain[best] < threshold:
            some, short = sensible(arrays, left), False
            continue
        chosen = taken[best]
        if not short:
            threshold = float(gain[best]) * 0.998
            # Only these types are tried for the next bin; all are tried again once the best of these has become worse.
            some, short = some[np.sort(np.argsort(-gain, kind="stable")[:16])], True
        on = np.flatnonzero(chosen)
        shapes, each = present[on], chosen[on]
        times = int((left[shapes] // each).min())
        left[shapes] -= each * times
        patterns.append(Pattern(arrays.cheapest(shapes, each), shapes, each, times))
    return patterns


def sensible(arrays: PackingArrays, left: Ints) -> Ints:
    """Return the bins that are not far too large for the remaining jobs, and always the cheapest bin for each shape."""
    present = np.flatnonzero(left)
    enough = 2 * float(arrays.worth[present] @ left[present])
    by_price = np.argsort(arrays.price, kind="stable")
    alone = by_price[arrays.fits[np.ix_(by_price, present)].argmax(axis=0)]
    return np.union1d(alone, np.flatnonzero(arrays.price <= enough))


def cost(arrays: PackingArrays, patterns: list[Pattern]) -> float:
    """USD per hour, including the launch costs spread over the horizon."""
    return float(sum(arrays.price[pattern.bin] * pattern.times for pattern in patterns))
