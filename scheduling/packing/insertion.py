"""Insertion: jobs whose sizes are all different go, one by one, where the price of the machines grows least.

A machine is the cheapest type that holds what it has, so one more job costs the difference between two types. From
there ruin and recreate (Schrimpf and others 2000): all jobs of some machines are taken off and put back in another
order. What is dearer by less than a threshold is kept, which falls to nothing (Dueck and Scheuer, "Threshold
accepting", Journal of Computational Physics 90, 1990). At first what is left shall be left on few machines, for those
are taken apart most often. Insertions are counted, never timed.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from lading.scheduling.packing.arrays import Bools, Floats, Goods, Ints
from lading.scheduling.packing.filling import Pattern
from lading.scheduling.packing.problem import Going, always

SEED = 5
# A round may cost so much of a machine's mean price at first.
THRESHOLD = 0.01
MOST_MACHINES = 3
# How much it is worth that what is left is left on few machines, in parts of its price.
GATHERED = 1.5
# Jobs are put back on a part of the machines, another one in each round: more rounds find more than more machines.
PART = 0.25
EPSILON = 1e-9

State: TypeAlias = tuple[Ints, Floats, Bools, Floats, Floats]


class Machines:
    """Which job is on which machine: n jobs on up to n machines, of which those without a cost are empty.

    Amounts are whole numbers below 2 ** 53, exact as floats, with which NumPy is quicker.

    :param shape: which of the goods' shapes each job has
    """

    def __init__(self, goods: Goods, shape: Ints) -> None:
        machines = len(shape) + 1
        order = np.argsort(goods.price, kind="stable")
        self.price, self.capacity = goods.price[order], goods.capacity[order].T.astype(float)
        self.need, self.worth = goods.need[shape].astype(float), goods.worth[shape]
        self.fits = goods.fits[order][:, shape].T.copy()
        self.home = np.full(len(shape), -1, np.int64)
        self.load = np.zeros((machines, goods.need.shape[1]))
        self.allowed = np.ones((machines, len(order)), bool)
        self.cost = np.zeros(machines)
        self.held = np.zeros(machines)
        self.among = np.zeros(1, np.int64)

    @property
    def total(self) -> float:
        """USD per hour."""
        return float(self.cost.sum())

    def rated(self, gathered: float) -> float:
        """The same, less what it is worth to have what is left on few machines."""
        return self.total - gathered * float(self.waste(self.cost, self.held).sum())

    @staticmethod
    def waste(cost: Floats, held: Floats) -> Floats:
        return np.asarray(np.maximum(cost - held, 0.0) ** 2 / np.maximum(cost, EPSILON))

    def insert(self, job: int, gathered: float) -> None:
        """Put a job where the rated price grows least."""
        here = self.among
        cost, held = self.cost[here], self.held[here]
        load = self.load[here] + self.need[job]
        possible = self.allowed[here] & self.fits[job]
        for r in range(load.shape[1]):
            possible &= load[:, r, None] <= self.capacity[r]
        kind = possible.argmax(axis=1)
        price = self.price[kind]
        more = price - cost
        if gathered:
            more -= gathered * (self.waste(price, held + self.worth[job]) - self.waste(cost, held))
        more[~possible[np.arange(len(kind)), kind]] = np.inf
        best = int(more.argmin())
        home = int(here[best])
        self.load[home] += self.need[job]
        self.allowed[home] &= self.fits[job]
        self.held[home] += self.worth[job]
        self.cost[home], self.home[job] = price[best], home
        self.offer(here)

    def offer(self, machines: Ints) -> None:
        """Look at these machines alone from now on, and at an empty one."""
        empty = [] if (self.cost[machines] == 0).any() else [int((self.cost == 0).argmax())]
        self.among = np.append(machines, np.array(empty, np.int64))

    def clear(self, machines: Ints) -> Ints:
        """Take all jobs off some machines; returns those."""
        jobs = np.flatnonzero(np.isin(self.home, machines))
        self.load[machines], self.allowed[machines], self.cost[machines], self.held[machines] = 0, True, 0, 0
        return jobs

    def state(self) -> State:
        return self.home.copy(), self.load.copy(), self.allowed.copy(), self.cost.copy(), self.held.copy()

    def restore(self, state: State) -> None:
        self.home, self.load, self.allowed, self.cost, self.held = state


def pack(goods: Goods, insertions: int, going: Going = always) -> list[Pattern]:
    """Pack all jobs, those that are worth most first, and improve that by so many insertions."""
    shape = np.repeat(np.arange(len(goods.count)), goods.count)
    machines = Machines(goods, shape)
    for job in np.argsort(-machines.worth, kind="stable"):
        machines.insert(int(job), 0.0)
    improve(machines, insertions, float(goods.worth @ goods.count), going)
    return patterns(goods, machines, shape)


def improve(machines: Machines, insertions: int, bound: float, going: Going) -> None:
    """Ruin and recreate until so many jobs were put back, or the bound is reached."""
    random = np.random.default_rng(SEED)
    best, least = machines.state(), machines.total
    done = 0
    while done < insertions and least > bound * (1 + EPSILON) and going("insertion", done / insertions):
        gathered = GATHERED * max(0.0, 1 - 2 * done / insertions)
        before, kept = machines.rated(gathered), machines.state()
        chosen = ruined(machines, random)
        others = np.flatnonzero((machines.cost > 0) & (random.random(len(machines.cost)) < PART))
        jobs = machines.clear(chosen)
        machines.offer(np.union1d(chosen, others))
        done += len(jobs)
        key = machines.worth[jobs] * random.uniform(0.6, 1.4, len(jobs))
        for job in jobs[np.argsort(-key, kind="stable")]:
            machines.insert(int(job), gathered)
        up = machines.cost[machines.cost > 0]
        allowed = THRESHOLD * float(up.mean()) * max(0.0, 1 - 1.2 * done / insertions)
        if machines.rated(gathered) > before + allowed * random.uniform() + EPSILON:
            machines.restore(kept)
        elif machines.total < least - EPSILON:
            best, least = machines.state(), machines.total
    machines.restore(best)


def ruined(machines: Machines, random: np.random.Generator) -> Ints:
    """The machines to take apart, most often those that lose most."""
    up = np.flatnonzero(machines.cost > 0)
    loss = np.maximum(machines.cost - machines.held, 0.0) + 0.05 * machines.cost
    chance = random.exponential(1.0, len(up)) / (loss[up] + EPSILON)
    return np.sort(up[np.argsort(chance, kind="stable")[: int(random.integers(1, MOST_MACHINES + 1))]])


def patterns(goods: Goods, machines: Machines, shape: Ints) -> list[Pattern]:
    """What is on each machine."""
    found = []
    for machine in np.unique(machines.home):
        shapes, each = np.unique(shape[machines.home == machine], return_counts=True)
        found.append(Pattern(goods.cheapest(shapes, each), shapes, each, 1))
    return found
