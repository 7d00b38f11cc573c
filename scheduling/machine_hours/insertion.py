"""Insertion: each job goes where the expected bill grows least.

A job on a machine that is there costs by how much longer that is needed. Jobs on a machine that is yet to be launched
may have any type that holds them all, so one more job costs the difference between the cheapest types for both sets,
each for as long as its longest job. What a machine has free while it is there is worth something, for other jobs will
come: a part of its price, which is larger for machines that are small beside what runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lading.scheduling.machine_hours.market import Offers
from lading.scheduling.packing.arrays import Bools, Floats, Ints

EPSILON = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The jobs to place (n), one after the other.

    :param need: (n, 4)
    :param seconds: that each runs, in each scenario (n, k)
    :param offered: which offers grant its wish (n, t)
    :param admitted: which machines that are there it may use, their room aside (n, m)
    """

    need: Ints
    seconds: Floats
    offered: Bools
    admitted: Bools


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The machines that are there (m).

    :param free: (m, 4)
    :param lag: seconds until it is up
    :param life: seconds until its last job ends, in each scenario (m, k)
    :param price: USD per second
    :param unit: USD per second of a unit of each resource (m, 4)
    """

    free: Ints
    lag: Floats
    life: Floats
    price: Floats
    unit: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Terms:
    """How the bill is made.

    :param launch: USD that launching each offer costs: its boot time, and what comes once (t)
    :param sold: the part of what is free that others will use, by offer (t)
    :param sold_there: likewise by machine that is there (m)
    """

    launch: Floats
    sold: Floats
    sold_there: Floats


class Plan:
    """Where jobs are, and what that costs.

    Machines 0 .. m-1 are there; the others are to be launched, of the cheapest type that holds what they have.
    """

    def __init__(self, batch: Batch, fleet: Fleet, offers: Offers, terms: Terms) -> None:
        self.batch, self.fleet, self.offers, self.terms = batch, fleet, offers, terms
        self.mean = batch.seconds.mean(axis=1)
        self.there = len(fleet.price)
        count, scenarios = len(batch.need), batch.seconds.shape[1]
        self.keep = (1 - terms.sold) * offers.price  # of a second of a machine's life
        self.sell = terms.sold[:, None] * offers.unit
        self.keep_there = (1 - terms.sold_there) * fleet.price
        self.sell_there = terms.sold_there[:, None] * fleet.unit
        self.free, self.life = fleet.free.copy(), fleet.life.copy()
        self.load = np.zeros((count, 4), np.int64)
        self.span = np.zeros((count, scenarios))
        self.work = np.zeros((count, 4))
        self.allowed = np.ones((count, len(offers.bins)), bool)
        self.type = np.zeros(count, np.int64)
        self.cost = np.zeros(count)
        self.home = np.full(count, -1, np.int64)
        self.members: list[list[int]] = [[] for _ in range(count)]
        self.before: dict[int, tuple[Ints, Floats, Floats, Bools, int, float, list[int]]] | None = None
        self.launched = 0
        self.total = 0.0

    def price(self, load: Ints, span: Floats, work: Floats, allowed: Bools) -> Floats:
        """What each of some machines to launch costs as each type (machines, offers)."""
        feasible = allowed.copy()
        for r in range(4):
            feasible &= load[:, r, None] <= self.offers.capacity[:, r]
        share = np.minimum((load @ self.offers.unit.T) / self.offers.price, 1)
        cost = span[:, None] * self.keep + self.terms.launch * (1 - self.terms.sold * (1 - share)) + work @ self.sell.T
        return np.where(feasible, cost, np.inf)

    def open(self, jobs: Ints, kind: int) -> None:
        """Launch a machine for some jobs."""
        i = self.launched
        self.launched += 1
        self.load[i] = self.batch.need[jobs].sum(axis=0)
        self.span[i] = self.batch.seconds[jobs].max(axis=0)
        self.work[i] = (self.batch.need[jobs] * self.mean[jobs, None]).sum(axis=0)
        self.allowed[i] = self.batch.offered[jobs].all(axis=0)
        prices = self.price(self.load[i : i + 1], self.span[i : i + 1].mean(axis=1), self.work[i : i + 1], self.allowed[i : i + 1])[0]
        self.type[i] = int(prices.argmin())
        self.cost[i] = prices[self.type[i]]
        self.total += float(self.cost[i])
        self.home[jobs] = self.there + i
        self.members[i] = [int(job) for job in jobs]

    def squeeze(self, job: int, most: float) -> bool:
        """Put a job where there is room anyway, if that costs no more than ``most`` USD; False: it does."""
        need, seconds, mean = self.batch.need[job], self.batch.seconds[job], self.mean[job]
        n = self.launched
        best, home = most, -1
        room = np.flatnonzero(self.batch.admitted[job] & (self.free >= need).all(axis=1))
        if len(room):
            more = longer(self.life[room], self.fleet.lag[room, None] + seconds)
            cost = self.keep_there[room] * more + self.sell_there[room] @ need * mean
            i = int(cost.argmin())
            if cost[i] <= best:
                best, home = float(cost[i]), int(room[i])
        kinds = self.type[:n]
        left = self.offers.capacity[kinds] - self.load[:n] - need
        some = np.flatnonzero((left >= 0).all(axis=1) & self.batch.offered[job][kinds])
        if len(some):
            cost = self.keep[kinds[some]] * longer(self.span[some], np.broadcast_to(seconds, (len(some), len(seconds))))
            # Of those that cost the same the one in which least is left.
            tight = (left[some] * self.offers.unit[kinds[some]]).sum(axis=1)
            i = int(np.lexsort((tight, np.round(cost, 9)))[0])
            if cost[i] < best:
                best, home = float(cost[i]), self.there + int(some[i])
        if home < 0:
            return False
        self.home[job] = home
        self.total += best
        if home < self.there:
            self.free[home] -= need
            self.life[home] = np.maximum(self.life[home], self.fleet.lag[home] + seconds)
        else:
            i = home - self.there
            self.members[i].append(job)
            self.load[i] += need
            self.span[i] = np.maximum(self.span[i], seconds)
            self.work[i] += need * mean
            self.allowed[i] &= self.batch.offered[job]
            self.cost[i] += best
        return True

    def place(self, job: int, among: Ints | None = None) -> bool:
        """Put a job where the bill grows least; False: nothing holds it.

        :param among: which machines to launch are looked at; None: all
        """
        need, seconds, mean = self.batch.need[job], self.batch.seconds[job], self.mean[job]
        best, home, kind = np.inf, -1, -1
        room = np.flatnonzero(self.batch.admitted[job] & (self.free >= need).all(axis=1))
        if len(room):
            more = longer(self.life[room], self.fleet.lag[room, None] + seconds)
            cost = self.keep_there[room] * more + self.sell_there[room] @ need * mean
            i = int(cost.argmin())
            best, home = float(cost[i]), int(room[i])
        offered = self.batch.offered[job]
        if offered.any():
            # The slot after the last machine is empty: a machine of its own.
            n = min(self.launched + 1, len(self.load))
            some = np.arange(n) if among is None else np.append(among, n - 1)
            spans = self.span[some]
            span = spans.mean(axis=1) + longer(spans, np.broadcast_to(seconds, spans.shape))
            prices = self.price(self.load[some] + need, span, self.work[some] + need * mean, self.allowed[some] & offered)
            types = prices.argmin(axis=1)
            more = prices[np.arange(len(some)), types] - self.cost[some]
            i = int(more.argmin())
            if more[i] < best - EPSILON:
                best, home, kind = float(more[i]), self.there + int(some[i]), int(types[i])
        if home < 0:
            return False
        self.home[job] = home
        self.total += best
        if home < self.there:
            self.free[home] -= need
            self.life[home] = np.maximum(self.life[home], self.fleet.lag[home] + seconds)
            return True
        i = home - self.there
        self.touch(i)
        self.launched = max(self.launched, i + 1)
        self.members[i].append(job)
        self.load[i] += need
        self.span[i] = np.maximum(self.span[i], seconds)
        self.work[i] += need * mean
        self.allowed[i] &= offered
        self.type[i] = kind
        self.cost[i] += best
        return True

    def touch(self, i: int) -> None:
        """Remember a machine to launch as it is, so that it can be put back."""
        if self.before is not None and i not in self.before:
            self.before[i] = (
                self.load[i].copy(), self.span[i].copy(), self.work[i].copy(), self.allowed[i].copy(),
                int(self.type[i]), float(self.cost[i]), self.members[i].copy(),
            )

    def restore(self) -> None:
        for i, (load, span, work, allowed, kind, cost, members) in (self.before or {}).items():
            self.load[i], self.span[i], self.work[i], self.allowed[i] = load, span, work, allowed
            self.type[i], self.cost[i], self.members[i] = kind, cost, members
            self.home[members] = self.there + i

    def empty(self, i: int) -> list[int]:
        """Take all jobs off a machine to launch."""
        self.touch(i)
        jobs = self.members[i]
        self.members[i] = []
        self.total -= float(self.cost[i])
        self.load[i], self.span[i], self.work[i], self.allowed[i], self.cost[i] = 0, 0.0, 0.0, True, 0.0
        return jobs


def longer(life: Floats, seconds: Floats) -> Floats:
    """By how much longer machines are expected to be needed for one more job (machines).

    Each scenario of the job is held against each of the machine: were they paired, the machine would be chosen whose
    scenarios happen to be like the job's.
    """
    return np.asarray(np.maximum(seconds[:, :, None] - life[:, None, :], 0.0).mean(axis=(1, 2)))
