"""How many machines the limits allow, and whether a packing exceeds them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.quotas import quota, vcpus
from lading.scheduling.model.reason_text import MOST_NAMES
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.packing.answer import Packing
from lading.scheduling.packing.problem import UNIT, Bin, Problem

MANY = 2**62
# Tolerance for the float errors of sums of prices and fractional cpus.
ROUNDING = 1e-9


class Instances:
    """Counts existing and planned instances against the limits."""

    def __init__(self, limits: InstanceLimits, locations: Iterable[Location] = ()) -> None:
        self.limits = limits
        self.number = 0
        self.of_type: Counter[str] = Counter()
        self.usd = 0.0
        self.vcpus: Counter[str] = Counter()
        for location in locations:
            if location.instance_type is not None:
                self.number += 1
                self.of_type[location.instance_type] += 1
                self.usd += location.usd_per_hour
                if limits.vcpus:
                    its = vcpus(location.instance_type, location.capacity.cpus)
                    self._count_vcpus(quota(location.instance_type, location.capacity_type), its)

    def add(self, bought: Bin, number: int) -> None:
        self.number += number
        self.of_type[bought.type.name] += number
        self.usd += bought.price * number
        if self.limits.vcpus:
            self._count_vcpus(quota_of(bought), number * vcpus_of(bought))

    def _count_vcpus(self, name: str, number: float) -> None:
        self.vcpus[name] += number  # type: ignore[assignment]  # cpus can be fractions

    def left(self, candidate: Bin) -> int:
        limits, name = self.limits, candidate.type.name
        left = MANY if limits.instances is None else limits.instances - self.number
        if name in limits.types:
            left = min(left, limits.types[name] - self.of_type[name])
        if limits.usd_per_hour is not None:
            left = min(left, int((limits.usd_per_hour - self.usd) / candidate.price + ROUNDING))
        if limits.vcpus and (its_quota := quota_of(candidate)) in limits.vcpus:
            free = limits.vcpus[its_quota] - self.vcpus[its_quota]
            left = min(left, int(free / vcpus_of(candidate) + ROUNDING))
        return max(0, left)

    def reason(self, candidates: Sequence[Bin]) -> Reason:
        """Return why none of these types can be launched: the limit that the cheapest of them has reached."""
        types = sorted({each.type.name for each in candidates})
        first = min(candidates, key=lambda each: each.price)
        limits, name = self.limits, first.type.name
        if self.of_type[name] >= limits.types.get(name, MANY):
            used = sum(self.of_type[each] for each in types)
            return because("type_instances", used=used, most=used, types=types[: MOST_NAMES + 1])
        if limits.usd_per_hour is not None and self.usd + first.price > limits.usd_per_hour:
            most, used_usd = limits.usd_per_hour, self.usd
            return because("max_usd_per_hour", type=name, price=first.price, most=most, used=used_usd)
        its_quota = quota_of(first)
        used_vcpus, most = self.vcpus[its_quota], limits.vcpus.get(its_quota, 0)
        return because("quota", used=used_vcpus, most=most, quota=its_quota, type=name, vcpus=vcpus_of(first))


def quota_of(candidate: Bin) -> str:
    return quota(candidate.type.name, candidate.offering.capacity_type)


def vcpus_of(candidate: Bin) -> float:
    return vcpus(candidate.type.name, candidate.capacity[0] / UNIT)


def too_many(problem: Problem, packing: Packing) -> frozenset[str] | None:
    """Return the types that exceed a limit; an empty set if only the total does; None if all limits are met."""
    limits = problem.limits
    there = Instances(limits, (room.location for room in problem.rooms))
    before = there.number
    for group in packing.groups:
        if group.bin is not None:
            there.add(group.bin, group.size)
    bought = {group.bin.type.name for group in packing.groups if group.bin is not None}
    over = {name for name in bought if there.of_type[name] > limits.types.get(name, MANY)}
    for group in packing.groups:
        name = "" if group.bin is None else quota_of(group.bin)
        if group.bin is not None and there.vcpus[name] > limits.vcpus.get(name, MANY) + ROUNDING:
            over.add(group.bin.type.name)
    if over:
        return frozenset(over)
    is_more = there.number > before
    if is_more and limits.instances is not None and there.number > limits.instances:
        return frozenset()
    if is_more and limits.usd_per_hour is not None and there.usd > limits.usd_per_hour + ROUNDING:
        return frozenset()
    return None
