"""Ruin and recreate: take some machines of a packing apart, pack their jobs again, and keep results that cost no more.

After Schrimpf, Schneider, Stamm-Wilbrandt, Dueck, "Record breaking optimization results using the ruin and recreate
principle", Journal of Computational Physics 159, 2000. Machines whose price most exceeds the worth of their jobs are
taken apart most often; the filling rule and the worths vary by a fixed seed. The number of rounds is given, so the
result does not depend on how fast the machine is.
"""

from __future__ import annotations

import numpy as np

from lading.scheduling.packing.arrays import PackingArrays
from lading.scheduling.packing.filling import Pattern, ScoringRule, cost, sweep
from lading.scheduling.packing.problem import Going

EPSILON = 1e-9


def improve(
    arrays: PackingArrays, patterns: list[Pattern], rounds: int, machines: tuple[int, int], going: Going
) -> list[Pattern]:
    """Return a packing that costs no more.

    :param rounds: how often machines are taken apart; fewer if the lower bound is reached
    :param machines: minimum and maximum number of machines taken apart at once
    """
    random = np.random.default_rng(seed=2)
    single = [Pattern(p.bin, p.shapes, p.each, 1) for p in patterns for _ in range(p.times)]
    if len(single) < 2:
        return patterns
    price = np.array([arrays.price[pattern.bin] for pattern in single])
    loss = price - np.array([float(pattern.each @ arrays.worth[pattern.shapes]) for pattern in single])
    left = np.zeros(len(arrays.count), np.int64)
    bound = float(arrays.worth @ arrays.count) * (1 + EPSILON)
    rounds = min(rounds, 5 * len(single) ** 2)
    for turn in range(rounds):
        if price.sum() <= bound or not going("ruin and recreate", turn / rounds):
            break
        size = min(len(single), int(random.integers(machines[0], machines[1] + 1)))
        chance = np.maximum(loss, 0.0) + 0.1 * np.abs(loss).mean() + EPSILON
        chosen = np.sort(np.argsort(random.exponential(1 / chance), kind="stable")[:size])
        rule = ScoringRule(
            scarcity=float(random.choice((0.5, 1.0, 2.0))),
            size=float(random.choice((0.0, 0.1, 0.2, 0.3, 0.5))),
            match=float(random.choice((0.0, 5.0, 20.0))),
        )
        for i in chosen:
            left[single[i].shapes] += single[i].each
        shapes = np.flatnonzero(left)
        part = arrays.part(shapes, left[shapes])
        left[shapes] = 0
        worth = part.worth * random.uniform(0.9, 1.1, len(shapes))
        anew = sweep(part, rule, worth)
        if cost(part, anew) > float(price[chosen].sum()) + EPSILON:
            continue
        for i in chosen[::-1]:
            del single[i]
        fresh = [Pattern(p.bin, shapes[p.shapes], p.each, 1) for p in anew for _ in range(p.times)]
        single += fresh
        price = np.append(np.delete(price, chosen), [arrays.price[p.bin] for p in fresh])
        gains = [float(arrays.price[p.bin] - p.each @ arrays.worth[p.shapes]) for p in fresh]
        loss = np.append(np.delete(loss, chosen), gains)
    return single
