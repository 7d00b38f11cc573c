"""Thousands of jobs at once for the least expected bill: by classes of jobs of one size and of similar length.

From the longest class to the shortest: what fits where there is room anyway goes there; else machines are launched,
each filled with jobs that are not much shorter, and as many alike as there are jobs for. So what takes time are the
classes, not the jobs. This is :mod:`windows` for many, without waits for room and without a second look.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from lading.scheduling.job import PlannedJob
from lading.scheduling.machine_hours.insertion import BillTerms, RoomArrays, billed
from lading.scheduling.machine_hours.scenarios import remaining
from lading.scheduling.machine_hours.type_offers import TypeOffers
from lading.scheduling.machine_hours.windows import FAIR, RULE
from lading.scheduling.packing.answer import MachineGroup, Packing
from lading.scheduling.packing.arrays import Bools, Floats, Ints, PackingArrays
from lading.scheduling.packing.filling import fill_free
from lading.scheduling.packing.problem import Problem, Room
from lading.scheduling.prediction import Prediction, predicted

# Lengths within such a factor are one class: the least by which there are not too many, or the last.
STEPS, MOST_CLASSES = (1.02, 1.05, 1.1, 1.25), 1_000
# A machine is filled with jobs of which the longest is expected to run for so many times the shortest, at most.
SIMILAR = 1.3
# How many classes are tried for each machine, and up to which multiple of the cheapest suitable price types are.
WIDTH, LARGEST = 24, 8


@dataclass(frozen=True, slots=True, eq=False)
class Classes:
    """Jobs that are alike (k), the longest first.

    :param shape: the number of their shape
    :param start: the position of the first of them among its shape's members, as ``members`` has them
    :param seconds: that they are expected to run, the longest of them
    :param worth: USD per second of each on the type that suits it best
    :param members: the jobs of each shape, the longest first
    :param lengths: seconds of each of them in the order of the problem's own members
    """

    shape: Ints
    start: Ints
    count: Ints
    need: Ints
    seconds: Floats
    worth: Floats
    offered: Bools
    members: list[list[PlannedJob]]
    lengths: list[Floats]


def classes(problem: Problem, market: TypeOffers) -> Classes:
    """The classes of all jobs of a problem."""
    known = expected_seconds([predicted(job) for members in problem.members for job in members])
    ordered, lengths = [], []
    for members in problem.members:
        lengths.append(np.repeat([known[predicted(job)] for job in members], [job.count for job in members]))
        ordered.append(sorted(members, key=lambda job: -known[predicted(job)]))
    for step in STEPS:
        slices = sliced([-np.sort(-each) for each in lengths], step)
        if len(slices) <= MOST_CLASSES:
            break
    shape = np.array([number for _, number, _, _ in slices], np.int64)
    need = np.array([each.need for each in problem.shapes], np.int64)[shape]
    offered = np.array([market.grants(each.wish) for each in problem.shapes], bool)[shape]
    return Classes(
        shape,
        np.array([start for _, _, start, _ in slices], np.int64),
        np.array([count for _, _, _, count in slices], np.int64),
        need,
        np.array([seconds for seconds, _, _, _ in slices]),
        market.worth(need, offered),
        offered,
        ordered,
        lengths,
    )


def sliced(lengths: list[Floats], step: float) -> list[tuple[float, int, int, int]]:
    """The classes of jobs, the longest first: seconds, shape, position of the first, and how many they are.

    :param lengths: seconds of the jobs of each shape, the longest first
    """
    slices = []
    for number, seconds in enumerate(lengths):
        start = 0
        while start < len(seconds):
            end = int(np.searchsorted(-seconds, -seconds[start] / step, side="right"))
            slices.append((float(seconds[start]), number, start, end - start))
            start = end
    return sorted(slices, key=lambda each: -each[0])


def expected_seconds(predictions: list[Prediction]) -> dict[Prediction, float]:
    """The mean of each prediction."""
    different = list(dict.fromkeys(predictions))
    means = remaining(different, [0.0] * len(different), range(len(different)), exact=False).mean(axis=1)
    return dict(zip(different, means.tolist(), strict=True))


@dataclass(slots=True, eq=False)
class Fillings:
    """Machines with what is put on them (g): first those that are there, then those to launch, alike ones together.

    :param lag: seconds until jobs can begin there, the boot of those to launch aside; ``life``: until the last ends
    :param fills: (shape, how many per machine, the first job's position)
    """

    types: Ints
    size: Ints
    free: Ints
    lag: Floats
    life: Floats
    price: Floats
    fills: list[list[tuple[int, int, int]]] = field(default_factory=list)

    def add(self, kind: int, size: int, free: Ints, life: float, price: float) -> None:
        self.types, self.size = np.append(self.types, kind), np.append(self.size, size)
        self.free, self.lag = np.concatenate([self.free, free[None]]), np.append(self.lag, 0.0)
        self.life, self.price = np.append(self.life, life), np.append(self.price, price)
        self.fills.append([])

    def split(self, at: int, size: int) -> None:
        """Let some machines of one kind be of another kind from now on: the rest comes last."""
        self.add(int(self.types[at]), int(self.size[at]) - size, self.free[at], float(self.life[at]), self.price[at])
        self.size[at] = size
        # The jobs of those that stay come first.
        fills = self.fills[at]
        self.fills[-1] = [(shape, each, start + each * size) for shape, each, start in fills]


class Filler:
    """The jobs of all classes, placed in one way or another."""

    def __init__(self, jobs: Classes, fleet: RoomArrays, admitted: Bools, market: TypeOffers, terms: BillTerms) -> None:
        """
        :param fleet: the rooms that are free now
        :param admitted: which of them each class may use (k, m)
        """
        self.jobs, self.admitted, self.market, self.terms = jobs, admitted, market, terms
        self.there = len(fleet.price)
        self.count, self.start = jobs.count.copy(), jobs.start.copy()
        self.on = Fillings(
            np.full(self.there, -1),
            np.ones(self.there, np.int64),
            fleet.free[: self.there].copy(),
            fleet.lag.copy(),
            fleet.life.mean(axis=1),
            fleet.price.copy(),
            [[] for _ in range(self.there)],
        )
        self.before = self.on.life.copy()
        self.age = fleet.age

    def together(self) -> Filler | None:
        """Place all jobs, those of similar length together; None: some fit nothing."""
        for k in range(len(self.count)):
            if self.count[k]:
                self.squeeze(k)
            while self.count[k]:
                if not self.launch(k):
                    return None
        return self

    def alone(self) -> Filler | None:
        """Launch the cheapest machine that does for each job."""
        market = self.market
        for k, need in enumerate(self.jobs.need):
            prices = np.where(self.jobs.offered[k] & (need <= market.capacity).all(axis=1), market.price, np.inf)
            kind = int(prices.argmin())
            if not np.isfinite(prices[kind]):
                return None
            self.on.add(kind, int(self.count[k]), market.capacity[kind], 0.0, market.price[kind])
            self.put(len(self.on.size) - 1, k, 1, int(self.count[k]))
        return self

    def squeeze(self, k: int) -> None:
        """Put jobs of a class where there is room, as far as that costs no more than they are worth."""
        on, need, seconds = self.on, self.jobs.need[k], float(self.jobs.seconds[k])
        may = np.concatenate([self.admitted[k], self.jobs.offered[k][on.types[self.there :]]])
        asked = need > 0
        most = np.where(may, (on.free[:, asked] // need[asked]).min(axis=1), 0)
        open_ones = np.flatnonzero(most)
        each = np.minimum(most[open_ones], self.count[k])
        longer = np.maximum(on.lag[open_ones] + seconds - on.life[open_ones], 0.0)
        cost = on.price[open_ones] * longer / each
        worth = float(self.jobs.worth[k])
        left = on.free[open_ones] @ self.market.unit.mean(axis=0)
        for i in np.lexsort((left, np.round(cost, 9))):
            if not self.count[k] or cost[i] > FAIR * worth * seconds:
                return
            at = int(open_ones[i])
            while self.count[k] and at >= 0:
                at = self.fill(at, k, int(most[open_ones[i]]))

    def fill(self, at: int, k: int, most: int) -> int:
        """Put up to so many jobs of a class on each of some machines that are alike; the rest of these, or -1."""
        on, count = self.on, int(self.count[k])
        each = min(most, count)
        machines = min(int(on.size[at]), count // each)
        rest = -1
        if machines < on.size[at]:
            on.split(at, machines)
            rest = len(on.size) - 1
        self.put(at, k, each, machines)
        return rest

    def put(self, at: int, k: int, each: int, machines: int) -> None:
        on = self.on
        on.fills[at].append((int(self.jobs.shape[k]), each, int(self.start[k])))
        on.free[at] -= each * self.jobs.need[k]
        on.life[at] = max(on.life[at], on.lag[at] + self.jobs.seconds[k])
        self.count[k] -= each * machines
        self.start[k] += each * machines

    def launch(self, k: int) -> bool:
        """Launch the machines that are worth most with a job of a class and others, and as many alike as there are jobs
        for; False: it fits none."""
        jobs, market, seconds = self.jobs, self.market, float(self.jobs.seconds[k])
        types = np.flatnonzero(jobs.offered[k] & (market.capacity >= jobs.need[k]).all(axis=1))
        if not len(types):
            return False
        types = types[market.price[types] <= LARGEST * market.price[types].min()]
        near = np.flatnonzero(self.count[k:] * (jobs.seconds[k:] * SIMILAR >= seconds))[:WIDTH] + k
        count = self.count[near] - (near == k)
        used = jobs.need[near].any(axis=0)
        free, need = (market.capacity[types] - jobs.need[k])[:, used], jobs.need[near][:, used]
        arrays = PackingArrays(
            near, count, need, jobs.worth[near], types, market.capacity[types][:, used], market.price[types],
            market.unit[types][:, used], jobs.offered[np.ix_(near, types)].T & (need <= free[:, None, :]).all(axis=2),
        )  # fmt: skip
        taken = fill_free(arrays, np.arange(len(types)), free, RULE) + (near == k)
        value = taken @ (jobs.worth[near] * jobs.seconds[near])
        best = int((value / (market.price[types] * (self.terms.boot + seconds) + self.terms.once)).argmax())
        chosen = taken[best]
        load = chosen @ jobs.need[near]
        allowed = np.logical_and.reduce(jobs.offered[near[chosen > 0]], axis=0)
        kind = int(np.where(allowed & (load <= market.capacity).all(axis=1), market.price, np.inf).argmin())
        machines = int((self.count[near[chosen > 0]] // chosen[chosen > 0]).min())
        self.on.add(kind, machines, market.capacity[kind], 0.0, market.price[kind])
        for i in np.flatnonzero(chosen):
            self.put(len(self.on.size) - 1, int(near[i]), int(chosen[i]), machines)
        return True

    def cost(self) -> float:
        """By how much the bill grows, USD."""
        on, terms, new = self.on, self.terms, slice(self.there, None)
        paid = billed(terms.boot + on.life[new], terms.period)
        longer = billed(self.age + on.life[: self.there], terms.period) - billed(self.age + self.before, terms.period)
        launched = (on.price[new] * paid + terms.once) @ on.size[new]
        return float(launched + on.price[: self.there] @ longer)

    def packing(self, rooms: list[Room], why: str) -> Packing:
        """The packing of the problem whose members are in the order of the classes."""
        groups = []
        for at, fills in enumerate(self.on.fills):
            room = rooms[at] if at < self.there else None
            bought = None if room else self.market.bins[int(self.on.types[at])]
            free = tuple(int(amount) for amount in self.on.free[at])
            if fills:
                groups.append(MachineGroup(bought, room, int(self.on.size[at]), free, fills))  # type: ignore[arg-type]
        return Packing(groups, [], why)
