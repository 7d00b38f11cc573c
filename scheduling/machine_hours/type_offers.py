"""The types on offer in arrays, and what a unit of each resource is worth on them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from itertools import combinations

import numpy as np

from lading.scheduling.job import Wish
from lading.scheduling.packing.arrays import Bools, Floats, Ints
from lading.scheduling.packing.problem import Bin


@dataclass(frozen=True, slots=True, eq=False)
class TypeOffers:
    """Types that can be launched, without those that another one beats in size and price (t).

    :param capacity: (t, 4)
    :param price: USD per second
    :param unit: USD per second that a unit of each resource is worth, so that a full machine is worth its price (t, 4)
    """

    bins: tuple[Bin, ...]
    capacity: Ints
    price: Floats
    unit: Floats
    granting: dict[Wish, Bools] = field(default_factory=dict)

    def grants(self, wish: Wish) -> Bools:
        """Which of them are what a job asks for."""
        if wish not in self.granting:
            self.granting[wish] = np.array([each.kind.grants(wish) for each in self.bins], bool)
        return self.granting[wish]

    def worth(self, need: Ints, offered: Bools) -> Floats:
        """USD per second that jobs are worth on the type that suits each best."""
        return np.asarray(np.where(offered, need @ self.unit.T, np.inf).min(axis=1, initial=np.inf))


@lru_cache(maxsize=16)
def offers(bins: tuple[Bin, ...], named: frozenset[str]) -> TypeOffers:
    """The types of a market; the same ones are asked for at every tick.

    :param named: types that jobs ask for by name, which stay whatever beats them
    """
    capacity = np.array([each.capacity for each in bins], np.int64).reshape(len(bins), 4)
    price = np.array([each.price for each in bins]) / 3600
    kept: list[int] = []
    for i in np.argsort(price, kind="stable"):
        larger = np.flatnonzero((capacity[kept] >= capacity[i]).all(axis=1))
        if bins[i].type.name in named or not any(stands_in(bins[kept[k]], bins[i]) for k in larger):
            kept.append(int(i))
    return TypeOffers(tuple(bins[i] for i in kept), capacity[kept], price[kept], units(capacity[kept], price[kept]))


def stands_in(better: Bin, other: Bin) -> bool:
    """Whether a type is what any job asks for that another one is, names aside."""
    mine, its = better.kind, other.kind
    return (mine.arch, mine.capacity_type) == (its.arch, its.capacity_type) and mine.features >= its.features


def units(capacity: Ints, price: Floats) -> Floats:
    """What a unit of each resource is worth on each machine.

    Prices of types are nearly sums over their resources: that sum is fitted (hedonic prices: Rosen, Journal of
    Political Economy 82, 1974), then scaled so that each machine, when full, is worth what it costs.
    """
    if not len(price):
        return np.zeros((0, 4))
    scale = np.maximum(capacity.max(axis=0), 1)
    # Each type counts alike, whatever its size. A resource without a price still counts a little.
    weights = fitted(capacity / scale / np.maximum(price, 1e-12)[:, None], np.ones(len(price)))
    worth = (weights + 1e-6 * max(float(weights.max()), 1e-12)) / scale
    return np.asarray(worth * (price / np.maximum(capacity @ worth, 1e-300))[:, None])


def fitted(parts: Floats, whole: Floats) -> Floats:
    """The weights of parts, none below zero, by which they come nearest to the whole (least squares).

    Where weights of zero belong is found by trying: there are only four resources.
    """
    resources = range(parts.shape[1])
    best, least = np.zeros(parts.shape[1]), np.inf
    for some in (list(each) for size in resources for each in combinations(resources, size + 1)):
        weights = np.linalg.lstsq(parts[:, some], whole, rcond=None)[0]
        rest = float(np.square(parts[:, some] @ weights - whole).sum())
        if rest < least - 1e-12 and (weights >= 0).all():
            best, least = np.zeros(parts.shape[1]), rest
            best[some] = weights
    return best
