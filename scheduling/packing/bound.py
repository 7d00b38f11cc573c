"""The least that any plan can cost: a linear program that cuts jobs and instances into fractions.

Every shape is spread over the types that fit it, and of every type a fraction may be bought; what is spread on a type
must not exceed, in any resource, what was bought of it. Letting a shape go only to types that fit it matters: without
that the bound is off by a third on EC2's catalogue, where some types are cheap but small.

With k shapes and t types this is the assignment relaxation of variable-sized vector bin packing (Gabay and Zaourar,
"Vector bin packing with heterogeneous bins", Annals of Operations Research 242, 2016). Two reductions keep it small:

* A type that another one beats in size, and in size per dollar, is never bought.
* Shapes are merged while the program treats them alike, and split where its prices say otherwise, until nothing
  changes (dynamic constraint aggregation: Elhallaoui, Villeneuve, Soumis, Desaulniers, Operations Research 53, 2005).

The value that is reported is that of the dual prices, computed again over all shapes, so that it is a bound whatever
the solver's tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import PlannedJob
from lading.scheduling.packing.linear_program import LinearProgram
from lading.scheduling.packing.problem import UNIT, Bin, Problem, Room, Shape, pose
from lading.scheduling.plan import InstanceLimits, Objective

Floats: TypeAlias = NDArray[np.float64]
Shrunk: TypeAlias = tuple[float, float, float, float]
Bools: TypeAlias = NDArray[np.bool_]

WHOLE: Shrunk = (1.0, 1.0, 1.0, 1.0)
ROUNDS = 40
TOLERANCE = 1e-7
ALONE = 64  # up to so many shapes are not merged
QUANTILES = 12
# Cpus and gpus in ones, memory and disk in GiB: amounts of similar magnitude, which solvers like.
SCALE = (UNIT, 1024, 1024, UNIT)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The solution of the linear program.

    :param value: USD per hour, a bound from below
    :param worth: for every shape what one of its jobs adds to that, USD per hour
    :param bins: the types that are worth buying, by their position among the problem's bins
    :param prices: what a unit of each resource (cpu, GiB of memory, GiB of disk, gpu) is worth on each of those
    """

    value: float
    worth: Floats
    bins: list[int]
    prices: Floats


@dataclass(slots=True)
class BoundSide:
    """What jobs may be spread over: types that are bought at a price, or rooms that are there, price 0.

    :param capacity: of one of them (types), of all together (rooms)
    :param fits: which shapes go on one of them
    """

    capacity: Floats
    price: Floats
    fits: Bools


def lower_bound(problem: Problem, counts: list[int]) -> float:
    """The least USD per hour for which so many jobs of each shape can be placed, what is there being free."""
    return relax(problem, counts, 0.0, problem.rooms).value


def relax(
    problem: Problem, counts: Sequence[float], per_launch: float, rooms: list[Room], shrunk: Shrunk = WHOLE
) -> Relaxation:
    """Solve the program for so many jobs of each shape; ``per_launch`` comes on top of every type's price, and what is
    free in ``rooms`` costs nothing.

    :param shrunk: the part of each resource of a type that counts. Below 1 the value is no bound; the prices are those
        of machines that cannot be filled to the brim, as they never can
    """
    present = [i for i, count in enumerate(counts) if count]
    shapes = [problem.shapes[i] for i in present]
    need = np.array([shape.need for shape in shapes], float) / SCALE
    used: Bools = np.asarray(need.any(axis=0))
    need, number = need[:, used], np.array([counts[i] for i in present], float)
    kept, types = buyable(shapes, need, used, problem.bins, per_launch)
    types.capacity = types.capacity * np.array(shrunk)[used]
    value, worth, prices = aggregate(need, number, types, free_rooms(shapes, need, used, rooms))
    of_shape, of_bin = np.zeros(len(counts)), np.zeros((len(kept), 4))
    of_shape[present] = worth
    of_bin[:, used] = prices[: len(kept)]
    return Relaxation(value, of_shape, kept, of_bin)


def buyable(
    shapes: list[Shape], need: Floats, used: Bools, bins: list[Bin], per_launch: float
) -> tuple[list[int], BoundSide]:
    """The types that no other one beats: at least as large, at least as much per dollar, for the same wishes."""
    wishes = list(dict.fromkeys(shape.wish for shape in shapes))
    grants = np.array([[candidate.kind.grants(wish) for wish in wishes] for candidate in bins])
    capacity = (np.array([candidate.capacity for candidate in bins], float) / SCALE)[:, used]
    price = np.array([candidate.price for candidate in bins]) + per_launch
    dense = capacity / price[:, None]
    kept: list[int] = []
    for i in np.argsort(-capacity.sum(axis=1), kind="stable"):
        beaten = (
            (capacity[kept] >= capacity[i]).all(axis=1)
            & (dense[kept] >= dense[i]).all(axis=1)
            & (grants[kept] >= grants[i]).all(axis=1)
        )
        if grants[i].any() and not beaten.any():
            kept.append(int(i))
    of_wish = {wish: i for i, wish in enumerate(wishes)}
    allowed = grants[kept][:, [of_wish[shape.wish] for shape in shapes]].T
    return kept, BoundSide(capacity[kept], price[kept], allowed & within(need, capacity[kept]))


def free_rooms(shapes: list[Shape], need: Floats, used: Bools, rooms: list[Room]) -> BoundSide:
    """What is free on the locations, those that grant the same wishes taken together, as if jobs could be cut across
    them."""
    wishes = list(dict.fromkeys(shape.wish for shape in shapes))
    alike: dict[tuple[bool, ...], list[Room]] = {}
    for room in rooms:
        alike.setdefault(tuple(room.kind.grants(wish) for wish in wishes), []).append(room)
    sides = len(alike)
    free = [np.array([room.free for room in group], float) / SCALE for group in alike.values()]
    total = np.array([amounts.sum(axis=0) for amounts in free]).reshape(sides, 4)[:, used]
    most = np.array([amounts.max(axis=0) for amounts in free]).reshape(sides, 4)[:, used]
    of_wish = {wish: i for i, wish in enumerate(wishes)}
    granted = np.array(list(alike), bool).reshape(sides, len(wishes))[:, [of_wish[shape.wish] for shape in shapes]].T
    return BoundSide(total, np.zeros(sides), granted & within(need, most))


def within(need: Floats, capacity: Floats) -> Bools:
    """Which needs (rows) go into which capacities (columns)."""
    result: Bools = np.ones((len(need), len(capacity)), bool)
    for r in range(need.shape[1]):
        result &= need[:, r, None] <= capacity[:, r]
    return result


def aggregate(need: Floats, number: Floats, types: BoundSide, rooms: BoundSide) -> tuple[float, Floats, Floats]:
    """Solve over merged shapes, splitting those about which the prices disagree; returns bound, worths and prices."""
    fits = np.hstack([types.fits, rooms.fits])
    cluster = first_clusters(need, fits)
    best, worth, dual = -1.0, np.zeros(len(need)), np.zeros(0)
    for _ in range(ROUNDS):
        above, prices = solve(need * number[:, None], fits, cluster, types, rooms)
        each = need @ prices.T
        each[~fits] = np.inf
        choice = each.argmin(axis=1)
        cheapest = each[np.arange(len(need)), choice]
        value = float(number @ cheapest - (prices[len(types.price) :] * rooms.capacity).sum())
        if value > best:
            best, worth, dual = value, cheapest, prices
        _, finer = np.unique(cluster * fits.shape[1] + choice, return_inverse=True)
        if above - best <= TOLERANCE * above or finer.max() == cluster.max():
            break
        cluster = finer
    return max(best, 0.0), worth, dual


def first_clusters(need: Floats, fits: Bools) -> NDArray[np.intp]:
    """Shapes that fit the same, in parts of similar proportions."""
    if len(need) <= ALONE:
        return np.arange(len(need))
    proportion = np.log((need[:, -1] + 1e-9) / (need[:, 0] + 1e-9)) if need.shape[1] > 1 else need[:, 0]
    edges = np.quantile(proportion, np.linspace(0, 1, QUANTILES + 1)[1:-1])
    packed = np.packbits(fits, axis=1)
    _, alike = np.unique(packed, axis=0, return_inverse=True)
    _, cluster = np.unique(alike.ravel() * (QUANTILES + 1) + np.searchsorted(edges, proportion), return_inverse=True)
    return np.asarray(cluster, np.intp)


def solve(
    mass: Floats, fits: Bools, cluster: NDArray[np.intp], types: BoundSide, rooms: BoundSide
) -> tuple[float, Floats]:
    """The program over clusters: its value, and the price of every resource on every type and room."""
    clusters, resources, bought = int(cluster.max()) + 1, mass.shape[1], len(types.price)
    total = np.zeros((clusters, resources))
    np.add.at(total, cluster, mass)
    head = np.zeros(clusters, int)
    head[cluster] = np.arange(len(cluster))  # all of a cluster fit the same
    spread, place = np.nonzero(fits[head])
    # The rows: what each type and room has of each resource, and that all of each cluster is spread.
    room, kinds = np.arange(resources), len(types.price) + len(rooms.price)
    program = LinearProgram(
        np.concatenate([np.full(kinds * resources, -np.inf), np.ones(clusters)]),
        np.concatenate([np.zeros(bought * resources), rooms.capacity.ravel(), np.ones(clusters)]),
    )
    program.add(
        types.price,
        np.full(bought, resources),
        (np.arange(bought)[:, None] * resources + room).ravel(),
        -types.capacity.ravel(),
    )
    program.add(
        np.zeros(len(spread)),
        np.full(len(spread), resources + 1),
        np.column_stack([place[:, None] * resources + room, kinds * resources + spread]).ravel(),
        np.column_stack([total[spread], np.ones(len(spread))]).ravel(),
    )
    amounts, duals = program.solve()
    prices = np.maximum(0.0, -duals[: kinds * resources]).reshape(-1, resources)
    # Prices under which a type would be worth more than it costs are no proof: scale them down.
    value = (prices[:bought] * types.capacity).sum(axis=1)
    prices[:bought] *= np.minimum(1.0, types.price / np.maximum(value, 1e-300))[:, None]
    return float(types.price @ amounts[:bought]), prices


def bound_of_hours(hours: Sequence[tuple[PlannedJob, float]], catalogue: Catalogue) -> float:
    """The least USD for running jobs for so many hours in all, whenever they run."""
    problem = pose([job for job, _ in hours], [], catalogue, InstanceLimits(), Objective(), 0.0, None)
    of_job = {job.name: amount for job, amount in hours}
    amounts = [sum(of_job[job.name] for job in members) for members in problem.members]
    return relax(problem, amounts, 0.0, []).value
