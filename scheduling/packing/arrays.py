"""A packing problem as arrays for the ``priced`` policy: the shapes to pack, the bins that can be bought, and the
linear program's prices for both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lading.scheduling.packing.bound import SCALE, WHOLE, Shrunk, relax
from lading.scheduling.packing.problem import Problem
from lading.scheduling.packing.shelf import ShelfSlot

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class PackingArrays:
    """k shapes, t bins, and r resources (those that at least one shape needs).

    :param shapes: index of each shape in the problem (k)
    :param count: how many jobs of each shape are to be packed (k)
    :param need: (k, r)
    :param worth: cost of one job of each shape at the linear program's prices, USD per hour (k)
    :param bins: index of each bin in the problem (t)
    :param capacity: (t, r)
    :param price: USD per hour, including the one-off launch cost spread over the horizon (t)
    :param unit: value of one unit of each resource on each bin (t, r)
    :param fits: whether a bin takes a shape (t, k)
    """

    shapes: Ints
    count: Ints
    need: Ints
    worth: Floats
    bins: Ints
    capacity: Ints
    price: Floats
    unit: Floats
    fits: Bools

    def part(self, shapes: Ints, count: Ints, worth: Floats | None = None) -> PackingArrays:
        return PackingArrays(
            self.shapes[shapes],
            count,
            self.need[shapes],
            self.worth[shapes] if worth is None else worth,
            self.bins,
            self.capacity,
            self.price,
            self.unit,
            self.fits[:, shapes],
        )

    def balanced(self) -> PackingArrays:
        """Return the same arrays with all resources of a bin worth the same.

        The linear program prices only the resources that are scarce in total. If all resources are scarce, or jobs are
        large compared with their bins, weighing all resources works better.
        """
        unit = self.price[:, None] / np.maximum(self.capacity, 1) / self.capacity.shape[1]
        each = np.where(self.fits, unit @ self.need.T, np.inf)
        return replace(self, unit=unit, worth=each.min(axis=0))

    def cheapest(self, shapes: Ints, each: Ints) -> int:
        """Return the cheapest bin that holds ``each`` jobs of these shapes together."""
        total = each @ self.need[shapes]
        large = (self.capacity >= total).all(axis=1) & self.fits[:, shapes].all(axis=1)
        candidates = np.flatnonzero(large)
        return int(candidates[self.price[candidates].argmin()])


def packing_arrays(
    problem: Problem, counts: list[int], per_launch: float, excluded: frozenset[str], shrunk: Shrunk = WHOLE
) -> PackingArrays:
    """Set up the arrays for ``counts`` jobs of each shape.

    Bins that are dominated in size and price are left out: whatever is packed on one fits on the other.

    :param per_launch: USD per hour added to the price of every launch
    :param excluded: instance types that must not be bought
    :param shrunk: the usable part of each resource when machines are priced. Jobs of many different sizes waste some of
        every machine, usually of one resource. Allowing for that makes jobs that need this resource worth more, so that
        types with more of it are bought
    """
    shapes = np.flatnonzero(counts)
    need = np.array([problem.shapes[i].need for i in shapes], np.int64).reshape(len(shapes), 4)
    used = used_resources(need)
    wishes = list(dict.fromkeys(problem.shapes[i].wish for i in shapes))
    granted = np.array([[b.kind.grants(wish) for wish in wishes] for b in problem.bins])
    capacity = np.array([b.capacity for b in problem.bins], np.int64)[:, used]
    price = np.array([b.price for b in problem.bins]) + per_launch
    kept: list[int] = []
    for i, candidate in enumerate(problem.bins):
        beaten = (
            (capacity[kept] >= capacity[i]).all(axis=1)
            & (price[kept] <= price[i])
            & (granted[kept] >= granted[i]).all(axis=1)
        )
        if granted[i].any() and not beaten.any() and candidate.type.name not in excluded:
            kept.append(i)
    relaxation = relax(problem, counts, per_launch, [], shrunk)
    of_wish = {wish: i for i, wish in enumerate(wishes)}
    fits = granted[kept][:, [of_wish[problem.shapes[i].wish] for i in shapes]]
    for r in range(int(used.sum())):
        fits &= need[:, used][:, r] <= capacity[kept][:, None, r]
    return PackingArrays(
        shapes=shapes,
        count=np.array([counts[i] for i in shapes], np.int64),
        need=need[:, used],
        worth=relaxation.worth[shapes],
        bins=np.array(kept, np.int64),
        capacity=capacity[kept],
        price=price[kept],
        unit=units(
            capacity[kept],
            price[kept],
            capacity[relaxation.bins],
            price[relaxation.bins],
            (relaxation.prices / SCALE)[:, used],
        ),
        fits=fits,
    )


def units(capacity: Ints, price: Floats, bought: Ints, cost: Floats, prices: Floats) -> Floats:
    """Value one unit of each resource on each bin, so that a full bin is worth its price.

    The linear program prices the resources of the types it would buy. Any other bin takes the proportions of the type
    that dominates it or, without one, of the type whose prices value it highest.
    """
    full = np.maximum((prices * bought).sum(axis=1), 1e-300)
    scaled = prices * (cost / full)[:, None]
    result = np.zeros(capacity.shape)
    for i in range(len(capacity)):
        value = scaled @ capacity[i]
        beats = (bought >= capacity[i]).all(axis=1) & (
            bought / cost[:, None] >= capacity[i] / price[i] * (1 - 1e-9)
        ).all(axis=1)
        best = np.where(beats, value, -1.0).argmax() if beats.any() else value.argmax()
        # A resource without a price still counts a little, so that of otherwise equal jobs the smaller one is chosen.
        some = scaled[best] + 1e-6 * price[i] / np.maximum(capacity[i], 1)
        result[i] = some * price[i] / max(float(some @ capacity[i]), 1e-300)
    return result


@dataclass(frozen=True, slots=True, eq=False)
class Hosts:
    """Existing machines, represented as bins.

    :param arrays: their capacities, and which shapes fit into their free room
    :param used: which of the four resources the arrays contain
    """

    arrays: PackingArrays
    used: Bools

    @property
    def fits(self) -> Bools:
        return self.arrays.fits


def host_arrays(problem: Problem, arrays: PackingArrays, hosts: Sequence[ShelfSlot]) -> Hosts:
    """Build arrays with the same shapes and, instead of bins to buy, existing machines."""
    needs = np.array([problem.shapes[i].need for i in arrays.shapes], np.int64)
    used = used_resources(needs)
    machines = [host.bin or host.room for host in hosts]
    capacity = np.array([machine.capacity for machine in machines if machine], np.int64)[:, used]
    free = np.array([host.free for host in hosts], np.int64)[:, used]
    shapes = [problem.shapes[i] for i in arrays.shapes]
    kinds = {(shape.wish, shape.time) for shape in shapes}
    granted = {
        kind: np.array(
            [
                machine is not None
                and machine.kind.grants(kind[0])
                and (host.ends_at is None or (kind[1] is not None and problem.now + kind[1] <= host.ends_at))
                for host, machine in zip(hosts, machines, strict=True)
            ]
        )
        for kind in kinds
    }
    fits = np.array([granted[shape.wish, shape.time] for shape in shapes]).T
    for r in range(capacity.shape[1]):
        fits &= arrays.need[:, r] <= free[:, None, r]
    some = np.maximum(capacity, 1)
    unit = units(some, np.ones(len(hosts)), arrays.capacity, arrays.price, arrays.unit)
    every = np.arange(len(hosts))
    return Hosts(
        PackingArrays(
            arrays.shapes, arrays.count, arrays.need, arrays.worth, every, some, np.ones(len(hosts)), unit, fits
        ),
        used,
    )


def used_resources(needs: Ints) -> Bools:
    """Return which resources any shape needs; cpus if no shape needs anything."""
    used: Bools = np.asarray(needs.any(axis=0))
    used[0] |= not used.any()
    return used
