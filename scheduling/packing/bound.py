"""The lower bound on the cost of any plan: a linear program in which jobs and instances are divisible.

Every shape is spread over the types that fit it, and a fraction of any type can be bought. The shapes spread over a
type must not need more of any resource than was bought of that type. Restricting a shape to the types that fit it
matters: without this the bound is off by a third on EC2's catalogue, where some types are cheap but small.

With k shapes and t types this is the assignment relaxation of variable-sized vector bin packing (Gabay and Zaourar,
"Vector bin packing with heterogeneous bins", Annals of Operations Research 242, 2016). Two reductions keep it small:

* A type dominated by another in both size and size per dollar is never bought.
* Shapes are merged while the program treats them alike, and split where its prices differ, until nothing changes
  (dynamic constraint aggregation: Elhallaoui, Villeneuve, Soumis, Desaulniers, Operations Research 53, 2005).

The reported value is recomputed from the dual prices over all shapes, so it is a valid bound whatever the solver's
tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.plan import InstanceLimits, Objective
from lading.scheduling.packing.linear_program import LinearProgram
from lading.scheduling.packing.problem import UNIT, Bin, Problem, Room, Shape, pose

Floats: TypeAlias = NDArray[np.float64]
Shrunk: TypeAlias = tuple[float, float, float, float]
Bools: TypeAlias = NDArray[np.bool_]

WHOLE: Shrunk = (1.0, 1.0, 1.0, 1.0)
ALONE = 64  # up to this many shapes are solved without merging
# Cpus and GPUs in units, memory and disk in GiB: solvers work best on amounts of similar magnitude.
SCALE = (UNIT, 1024, 1024, UNIT)


@dataclass(frozen=True, slots=True)
class Relaxation:
    """The solution of the linear program.

    :param value: lower bound, USD per hour
    :param worth: how much one job of each shape adds to it, USD per hour
    :param bins: the types worth buying, as positions among the problem's bins
    :param prices: value of one unit of each resource (cpu, GiB of memory, GiB of disk, gpu) on each of those types
    """

    value: float
    worth: Floats
    bins: list[int]
    prices: Floats


@dataclass(slots=True)
class BoundSide:
    """Machines over which jobs are spread: types bought at a price, or existing rooms at price 0.

    :param capacity: of one machine (types), or of all together (rooms)
    :param fits: which shapes fit on one machine
    """

    capacity: Floats
    price: Floats
    fits: Bools


def lower_bound(problem: Problem, counts: list[int]) -> float:
    """Return the least USD per hour for placing ``counts`` jobs of each shape. Existing machines are free."""
    return relax(problem, counts, 0.0, problem.rooms).value


def relax(
    problem: Problem, counts: Sequence[float], per_launch: float, rooms: list[Room], shrunk: Shrunk = WHOLE
) -> Relaxation:
    """Solve the program for ``counts`` jobs of each shape.

    :param per_launch: added to the price of every type, USD per hour
    :param rooms: their free capacity costs nothing
    :param shrunk: the usable part of each resource of a type. Below 1 the value is not a bound: the prices are those of
        machines that cannot be filled completely, which is what happens in practice
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
    shapes: list[Shape], need: Floats, used: Bools, bins: Sequence[Bin], per_launch: float
) -> tuple[list[int], BoundSide]:
    """Return the types that no other type dominates: as large, as much per dollar, and granting the same wishes."""
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
    """Sum the free capacity of locations that grant the same wishes, as if jobs could be divided between them."""
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
    """Return which needs (rows) fit into which capacities (columns)."""
    result: Bools = np.ones((len(need), len(capacity)), bool)
    for r in range(need.shape[1]):
        result &= need[:, r, None] <= capacity[:, r]
    return result


def aggregate(need: Floats, number: Floats, types: BoundSide, rooms: BoundSide) -> tuple[float, Floats, Floats]:
    """Solve over merged shapes, splitting those on which the prices disagree. Return the bound, worths and prices."""
    fits = np.hstack([types.fits, rooms.fits])
    cluster = first_clusters(need, fits)
    best, worth, dual = -1.0, np.zeros(len(need)), np.zeros(0)
    for _ in range(40):
        above, prices = solve(need * number[:, None], fits, cluster, types, rooms)
        each = need @ prices.T
        each[~fits] = np.inf
        choice = each.argmin(axis=1)
        cheapest = each[np.arange(len(need)), choice]
        value = float(number @ cheapest - (prices[len(types.price) :] * rooms.capacity).sum())
        if value > best:
            best, worth, dual = value, cheapest, prices
        _, finer = np.unique(cluster * fits.shape[1] + choice, return_inverse=True)
        if above - best <= 1e-7 * above or finer.max() == cluster.max():
            break
        cluster = finer
    return max(best, 0.0), worth, dual


def first_clusters(need: Floats, fits: Bools) -> NDArray[np.intp]:
    """Group shapes that fit the same machines and have similar proportions."""
    if len(need) <= ALONE:
        return np.arange(len(need))
    proportion = np.log((need[:, -1] + 1e-9) / (need[:, 0] + 1e-9)) if need.shape[1] > 1 else need[:, 0]
    edges = np.quantile(proportion, np.linspace(0, 1, 13)[1:-1])
    packed = np.packbits(fits, axis=1)
    _, alike = np.unique(packed, axis=0, return_inverse=True)
    _, cluster = np.unique(alike.ravel() * 13 + np.searchsorted(edges, proportion), return_inverse=True)
    return np.asarray(cluster, np.intp)


def solve(
    mass: Floats, fits: Bools, cluster: NDArray[np.intp], types: BoundSide, rooms: BoundSide
) -> tuple[float, Floats]:
    """Solve the program over clusters. Return its value, and the price of every resource on every type and room."""
    clusters, resources, bought = int(cluster.max()) + 1, mass.shape[1], len(types.price)
    total = np.zeros((clusters, resources))
    np.add.at(total, cluster, mass)
    head = np.zeros(clusters, int)
    head[cluster] = np.arange(len(cluster))  # all shapes of a cluster fit the same machines
    spread, place = np.nonzero(fits[head])
    # Rows: the capacity of each type and room in each resource, then the demand that each cluster is fully spread.
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
    # Prices that value a type above its cost do not prove a bound, so they are scaled down.
    value = (prices[:bought] * types.capacity).sum(axis=1)
    prices[:bought] *= np.minimum(1.0, types.price / np.maximum(value, 1e-300))[:, None]
    return float(types.price @ amounts[:bought]), prices


def bound_of_hours(hours: Sequence[tuple[PlannedJob, float]], catalogue: Catalogue) -> float:
    """Return the least USD for running each job for its number of hours, whenever it runs."""
    problem = pose([job for job, _ in hours], [], catalogue, InstanceLimits(), Objective(), 0.0, None)
    of_job = {job.name: amount for job, amount in hours}
    amounts = [sum(of_job[job.name] for job in members) for members in problem.members]
    return relax(problem, amounts, 0.0, []).value
