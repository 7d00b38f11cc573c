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

    def place(self, job: int) -> bool:
        """Put a job where the bill grows least; False: nothing holds it."""
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
            n = self.launched
            load = np.vstack([self.load[:n], np.zeros((1, 4), np.int64)]) + need
            spans = np.vstack([self.span[:n], np.zeros((1, len(seconds)))])
            span = spans.mean(axis=1) + longer(spans, np.broadcast_to(seconds, spans.shape))
            work = np.vstack([self.work[:n], np.zeros((1, 4))]) + need * mean
            allowed = np.vstack([self.allowed[:n], np.ones((1, len(offered)), bool)]) & offered
            prices = self.price(load, span, work, allowed)
            types = prices.argmin(axis=1)
            more = prices[np.arange(n + 1), types] - np.append(self.cost[:n], 0.0)
            i = int(more.argmin())
            if more[i] < best - EPSILON:
                best, home, kind = float(more[i]), self.there + i, int(types[i])
        if home < 0:
            return False
        self.home[job] = home
        self.total += best
        if home < self.there:
            self.free[home] -= need
            self.life[home] = np.maximum(self.life[home], self.fleet.lag[home] + seconds)
            return True
        i = home - self.there
        self.launched = max(self.launched, i + 1)
        self.load[i] += need
        self.span[i] = np.maximum(self.span[i], seconds)
        self.work[i] += need * mean
        self.allowed[i] &= offered
        self.type[i] = kind
        self.cost[i] += best
        return True


def longer(life: Floats, seconds: Floats) -> Floats:
    """By how much longer machines are expected to be needed for one more job (machines).

    Each scenario of the job is held against each of the machine: were they paired, the machine would be chosen whose
    scenarios happen to be like the job's.
    """
    return np.asarray(np.maximum(seconds[:, :, None] - life[:, None, :], 0.0).mean(axis=(1, 2)))
