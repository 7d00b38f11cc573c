"""Whether a packing buys more machines than the limits allow."""

from __future__ import annotations

from collections import Counter

from lading.scheduling.packing.packing import Packing
from lading.scheduling.packing.problem import Problem


def too_many(problem: Problem, packing: Packing) -> frozenset[str] | None:
    """The types of which there would be more than allowed; none if it is the sum; None if all limits are met."""
    running = Counter(room.location.instance_type for room in problem.rooms if room.location.instance_type is not None)
    bought: Counter[str] = Counter()
    for group in packing.groups:
        if group.bin is not None:
            bought[group.bin.type.name] += group.size
    limits = problem.limits
    over = frozenset(
        name for name in bought if name in limits.types and bought[name] + running[name] > limits.types[name]
    )
    if over:
        return over
    if limits.instances is not None and bought.total() and bought.total() + running.total() > limits.instances:
        return frozenset()
    return None
