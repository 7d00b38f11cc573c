"""Insertion: jobs whose sizes are all different go, one by one, where the price of the machines grows least.

A machine is the cheapest type that holds what it has, so one more job costs the difference between two types. From
there ruin and recreate (Schrimpf and others 2000): some machines at a time, most often those that lose most, are taken
apart, all of it or a half, and their jobs are put back in another order. What is dearer by less than a threshold is
kept, which falls to nothing (Dueck and Scheuer, "Threshold accepting", Journal of Computational Physics 90, 1990). What
is left over should be left on few machines, for those are taken apart most often. Jobs that are put back are counted,
never timed.

The inner loop is in :mod:`lading.scheduling.packing.kernel`, compiled where Numba is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from lading.scheduling.job import Wish
from lading.scheduling.packing.arrays import Bools, Ints, PackingArrays
from lading.scheduling.packing.filling import Pattern
from lading.scheduling.packing.problem import Going, Problem, always

SEED = 88172645
# Jobs that are put back between two checks of whether to continue; so many times that where the inner loop is compiled.
LOOK, COMPILED = 500, 100
# Fewer jobs than this have so few packings that a part of the search finds as much: it falls with their square.
FULL = 20
# More kinds of wishes than this, those of jobs together included, are left to the filling rules.
MOST_KINDS = 64
EPSILON = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """The wishes of jobs, and of jobs together, where those are one kind for which the same types do.

    :param granted: whether a kind is granted by a bin of the arrays (w, t); all bins grant kind 0
    :param both: the kind of two kinds together, or -1 where no bin does (w, w)
    :param of_shape: the kind of each of the arrays' shapes (k)
    """

    granted: Bools
    both: Ints
    of_shape: Ints


def kinds(problem: Problem, arrays: PackingArrays) -> Kinds | None:
    """The kinds of wishes of the arrays' shapes; None if they are too many."""
    bins = [problem.bins[i] for i in arrays.bins]
    masks = [np.ones(len(bins), bool)]
    numbers = {masks[0].tobytes(): 0}

    def number(mask: Bools) -> int:
        if mask.tobytes() not in numbers:
            numbers[mask.tobytes()] = len(masks)
            masks.append(mask)
        return numbers[mask.tobytes()]

    of_wish: dict[Wish, int] = {}
    for i in arrays.shapes:
        wish = problem.shapes[i].wish
        if wish not in of_wish:
            of_wish[wish] = number(np.array([each.kind.grants(wish) for each in bins]))
    both: dict[tuple[int, int], int] = {}
    i = 0
    while i < len(masks) <= MOST_KINDS:  # what two have in common joins the list
        for j in range(i + 1):
            common = masks[i] & masks[j]
            both[i, j] = both[j, i] = number(common) if common.any() else -1
        i += 1
    if len(masks) > MOST_KINDS:
        return None
    every = range(len(masks))
    return Kinds(
        np.array(masks),
        np.array([[both[i, j] for j in every] for i in every], np.int64),
        np.array([of_wish[problem.shapes[i].wish] for i in arrays.shapes], np.int64),
    )


def pack(
    arrays: PackingArrays,
    kinds: Kinds,
    insertions: tuple[int, int],
    going: Going = always,
    start: Sequence[Pattern] = (),
) -> list[Pattern]:
    """Pack all jobs and improve that.

    :param insertions: how many jobs are put back in all, where the inner loop is not compiled and where it is; less of
        it where there are few
    :param start: a packing to be improved; without one the jobs that are worth most go first where it costs least
    """
    shape = np.repeat(np.arange(len(arrays.count)), arrays.count)
    home = search(arrays, kinds, shape, homes(arrays, start), insertions, going)
    found = []
    for machine in np.unique(home):
        shapes, each = np.unique(shape[home == machine], return_counts=True)
        found.append(Pattern(arrays.cheapest(shapes, each), shapes, each, 1))
    return found


def homes(arrays: PackingArrays, packing: Sequence[Pattern]) -> Ints | None:
    """The machine of each job by number, those of a shape one after the other; None: nothing is packed."""
    if not packing:
        return None
    single = [(pattern.shapes, pattern.each) for pattern in packing for _ in range(pattern.times)]
    shape = np.concatenate([np.repeat(shapes, each) for shapes, each in single])
    machine = np.repeat(np.arange(len(single)), [int(each.sum()) for _, each in single])
    return machine[np.argsort(shape, kind="stable")]


def compiled() -> bool:
    """Whether the inner loop is: Numba is installed."""
    return find_spec("numba") is not None


def search(
    arrays: PackingArrays, kinds: Kinds, shape: Ints, start: Ints | None, insertions: tuple[int, int], going: Going
) -> Ints:
    """The machine of each job, by number.

    :param shape: of each job
    :param start: where each is at first
    """
    # Numba takes half a second to import.
    from lading.scheduling.packing import kernel, kernel_state

    ints, floats = kernel_state.ints, kernel_state.floats
    number, resources = len(shape), arrays.need.shape[1]
    order = np.argsort(arrays.price, kind="stable")
    offers = kernel_state.KernelOffers(
        resources,
        len(order),
        len(kinds.both),
        floats(arrays.price[order]),
        floats(arrays.capacity[order]),
        ints(kinds.granted[:, order]),
        ints(kinds.both),
    )
    worth, none = arrays.worth[shape], np.full(number, -1)
    jobs = kernel_state.KernelJobs(
        floats(arrays.need[shape]), floats(worth), ints(kinds.of_shape[shape]), ints(none), ints(none)
    )
    empty = np.zeros(number + 1)  # one machine more than there are jobs: there always is an empty one
    loads = np.zeros((number + 1, resources))
    machines = kernel_state.KernelMachines(
        *(ints(empty - 1), floats(loads), ints(empty), ints(empty - 1), floats(empty), ints(empty)),
        *(floats(loads), ints(empty), ints(empty), floats(empty)),
    )
    first = np.argsort(-worth, kind="stable")
    origin = none if start is None else start[first]
    round_state = kernel_state.RoundState(ints(first), ints(origin), floats(worth), ints(empty), ints(empty))
    if start is None:
        cost, top = kernel.build(offers, jobs, machines, round_state, number)
    else:
        top = int(start.max()) + 1
        cost = kernel.settle(offers, jobs, machines, round_state, number, top)
    best, bound = ints(np.array(jobs.home)), float(worth.sum()) * (1 + EPSILON)
    total = insertions[kernel_state.COMPILED] * min(number, FULL) ** 2 // FULL**2
    look = LOOK * (COMPILED if kernel_state.COMPILED else 1)
    state = kernel_state.Progress(SEED, 0, 0, top, cost, cost)
    while state.done < total and state.least > bound and going("insertion", state.done / total):
        until = min(total, state.done + look)
        state = kernel.search(offers, jobs, machines, round_state, best, kernel_state.WAY, state, until, total)
    return np.array(best)
