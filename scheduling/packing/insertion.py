"""Insertion: jobs of many different sizes are placed one by one, each where the price of the machines grows least.

A machine is the cheapest type that holds its jobs, so one more job costs the difference between two types. The result
is improved by ruin and recreate (Schrimpf and others 2000): in each round some machines, preferably those with the most
unused value, are emptied fully or by half, and their jobs are placed again in another order. A result is kept if it is
more expensive by less than a threshold, which falls to zero (Dueck and Scheuer, "Threshold accepting", Journal of
Computational Physics 90, 1990). The rating prefers unused room gathered on few machines, because those are then emptied
most often. The effort is a number of placed jobs, never a time.

The inner loop is in :mod:`lading.scheduling.packing.kernel`, compiled where Numba is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from lading.scheduling.model.job import Wish
from lading.scheduling.packing.arrays import Bools, Ints, PackingArrays
from lading.scheduling.packing.filling import Pattern
from lading.scheduling.packing.problem import Going, Problem, always

SEED = 88172645
# Jobs placed between two checks of whether to continue; if the inner loop is compiled, COMPILED times as many.
LOOK, COMPILED = 500, 100


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """The wishes of jobs, and of jobs that share a machine, grouped into kinds that the same bins grant.

    :param granted: whether a bin of the arrays grants a kind (w, t); all bins grant kind 0
    :param both: the kind of two kinds together, or -1 where no bin grants both (w, w)
    :param of_shape: the kind of each of the arrays' shapes (k)
    """

    granted: Bools
    both: Ints
    of_shape: Ints


def kinds(problem: Problem, arrays: PackingArrays, most: int = 64) -> Kinds | None:
    """Return the kinds of wishes of the arrays' shapes, including combined ones; None if there are more than ``most``.

    Such problems are left to the filling rules.
    """
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
    while i < len(masks) <= most:  # the list grows by each new combination of two kinds
        for j in range(i + 1):
            common = masks[i] & masks[j]
            both[i, j] = both[j, i] = number(common) if common.any() else -1
        i += 1
    if len(masks) > most:
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
    """Pack all jobs and improve the packing.

    :param insertions: how many jobs are placed again in total, without and with a compiled inner loop; reduced for
        fewer than 20 jobs
    :param start: a packing to improve; empty: jobs are placed in order of worth, each where it costs least
    """
    shape = np.repeat(np.arange(len(arrays.count)), arrays.count)
    home = search(arrays, kinds, shape, homes(arrays, start), insertions, going)
    found = []
    for machine in np.unique(home):
        shapes, each = np.unique(shape[home == machine], return_counts=True)
        found.append(Pattern(arrays.cheapest(shapes, each), shapes, each, 1))
    return found


def homes(arrays: PackingArrays, packing: Sequence[Pattern]) -> Ints | None:
    """Return the machine of each job, ordered by shape; None if nothing is packed."""
    if not packing:
        return None
    single = [(pattern.shapes, pattern.each) for pattern in packing for _ in range(pattern.times)]
    shape = np.concatenate([np.repeat(shapes, each) for shapes, each in single])
    machine = np.repeat(np.arange(len(single)), [int(each.sum()) for _, each in single])
    return machine[np.argsort(shape, kind="stable")]


def compiled() -> bool:
    """Return whether Numba is installed, so that the inner loop is compiled."""
    return find_spec("numba") is not None


def search(
    arrays: PackingArrays, kinds: Kinds, shape: Ints, start: Ints | None, insertions: tuple[int, int], going: Going
) -> Ints:
    """Return the machine of each job.

    :param shape: the shape of each job
    :param start: the initial machine of each job; None: build a first packing
    """
    # Imported here because Numba takes half a second to import.
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
    empty = np.zeros(number + 1)  # one machine more than jobs, so one is always empty
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
    best, bound = ints(np.array(jobs.home)), float(worth.sum()) * (1 + 1e-9)
    # Fewer than 20 jobs have so few packings that a search in proportion to the square of their number suffices.
    total = insertions[kernel_state.COMPILED] * min(number, 20) ** 2 // 20**2
    look = LOOK * (COMPILED if kernel_state.COMPILED else 1)
    state = kernel_state.Progress(SEED, 0, 0, top, cost, cost)
    while state.done < total and state.least > bound and going("insertion", state.done / total):
        until = min(total, state.done + look)
        state = kernel.search(offers, jobs, machines, round_state, best, kernel_state.WAY, state, until, total)
    return np.array(best)
