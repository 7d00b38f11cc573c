"""What a machine-hour costs: the types on offer in arrays, and what a unit of each resource is worth on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.optimize import nnls

from lading.scheduling.packing.arrays import Bools, Floats, Ints
from lading.scheduling.packing.problem import Bin
from lading.scheduling.plan import Wish


@dataclass(frozen=True, slots=True, eq=False)
class Offers:
    """Types that can be launched, without those that another one beats in size and price.

    :param bins: as they were given
    :param numbers: which of the problem's bins each is
    :param capacity: (t, 4)
    :param price: USD per second (t)
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


@lru_cache(maxsize=16)
def offers(bins: tuple[Bin, ...]) -> Offers:
    """The types of a market in arrays; the engine asks for the same ones at every tick."""
    capacity = np.array([each.capacity for each in bins], np.int64).reshape(len(bins), 4)
    price = np.array([each.price for each in bins]) / 3600
    kept: list[int] = []
    for i, candidate in enumerate(bins):
        beaten = (capacity[kept] >= capacity[i]).all(axis=1) & (price[kept] <= price[i])
        if not any(bins[kept[k]].kind._replace(instance_type=None, features=frozenset()) ==
                   candidate.kind._replace(instance_type=None, features=frozenset())
                   and candidate.kind.features <= bins[kept[k]].kind.features for k in np.flatnonzero(beaten)):
            kept.append(i)
    return Offers(
        tuple(bins[i] for i in kept), capacity[kept], price[kept], units(capacity[kept], price[kept])
    )


def units(capacity: Ints, price: Floats, guide: tuple[Ints, Floats] | None = None) -> Floats:
    """What a unit of each resource is worth on each machine.

    The prices of types are nearly a sum over their resources: that sum is fitted (a hedonic price: Rosen, Journal of
    Political Economy 82, 1974), then scaled so that each machine, when full, is worth what it costs.
    """
    sizes, costs = guide or (capacity, price)
    scale = np.maximum(sizes.max(axis=0, initial=1), 1)
    # Each type counts alike, whatever its size.
    weights = nnls(sizes / scale / np.maximum(costs, 1e-12)[:, None], np.ones(len(costs)))[0] if len(costs) else np.ones(4)
    worth = weights / scale
    # A resource without a price still counts a little.
    worth = worth + 1e-6 * np.max(worth * scale, initial=1e-12) / scale
    full = capacity @ worth
    return np.asarray(worth[None, :] * (price / np.maximum(full, 1e-300))[:, None])


def worth(need: Ints, unit: Floats) -> Floats:
    return np.asarray(need @ unit.T)
