"""Insertion: each job goes where the expected bill grows least.

A job on a machine that is there costs by how much longer that is needed. Jobs on a machine that is yet to be launched
may have any type that holds them all, so one more job costs the difference between the cheapest machines for both sets,
each for as long as its longest job. This is MinUsageTime dynamic bin packing (Li, Tang, Cai, "On dynamic bin packing
for resource allocation in the cloud", SPAA 2014) with types, boot times and uncertain durations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from lading.scheduling.billing import LEAST_SECONDS
from lading.scheduling.machine_hours.type_offers import TypeOffers
from lading.scheduling.packing.arrays import Bools, Floats, Ints

EPSILON = 1e-12
# Room that stays free is worth this part of its price to jobs that come later, where most jobs run already; they are
# expected to need so many seconds to come. Both, NEW and LONGER are from traces of a day of a thousand jobs and more.
LATER = 0.88
COMES = 300.0
# On a machine that is yet to be launched it is worth so much of that: the larger one is paid for, and may stay empty.
NEW = 0.78
# To keep a machine up for longer counts so many times what it costs: in the end it is up for the sake of few jobs.
LONGER = 1.03


@dataclass(frozen=True, slots=True, eq=False)
class JobArrays:
    """The jobs to place (n).

    :param need: (n, 4)
    :param seconds: that each runs, in each scenario (n, k)
    :param offered: which offers grant its wish (n, t)
    :param admitted: which rooms it may use, their size aside (n, m)
    """

    need: Ints
    seconds: Floats
    offered: Bools
    admitted: Bools


@dataclass(frozen=True, slots=True, eq=False)
class RoomArrays:
    """The rooms on machines that are there (m): what is free now, and what will be when some of their jobs have ended.

    :param machine: which one each is on
    :param free: (m, 4)
    :param capacity: of its machine (m, 4)
    :param age: seconds since its machine was launched
    :param lag: seconds until it can be used: the machine is up, jobs have ended
    :param life: seconds until the machine's last job ends, in each scenario (m, k)
    :param price: USD per second
    """

    machine: Ints
    free: Ints
    capacity: Ints
    age: Floats
    lag: Floats
    life: Floats
    price: Floats


@dataclass(frozen=True, slots=True)
class BillTerms:
    """How the bill is made.

    :param boot: seconds that a machine is paid for before its first job begins
    :param once: USD that each launch costs besides
    :param period: seconds; whole periods are paid
    :param delay: USD that a second is worth which a job waits for room, beyond the boot of a new machine
    :param later: the part of a machine's price that room on it is worth which stays free
    :param comes: seconds until a job is expected to come that can use it
    """

    boot: float
    once: float
    period: float
    delay: float = 0.0
    later: float = 0.0
    comes: float = COMES


# A machine to launch: what it holds, for how long, which offers may be it, which it is, its cost, its jobs.
Slot: TypeAlias = tuple[Ints, Floats, Bools, int, float, list[int]]


class InsertionPlan:
    """Where jobs are, and what that adds to the bill, USD, less what the room is worth that it leaves to later jobs.

    Machines 0 .. m-1 are there; the others are slots for machines to launch, some of which may be empty.
    """

    def __init__(self, batch: JobArrays, fleet: RoomArrays, offers: TypeOffers, terms: BillTerms) -> None:
        self.batch, self.fleet, self.offers, self.terms = batch, fleet, offers, terms
        self.mean = batch.seconds.mean(axis=1)
        self.worth = offers.unit.mean(axis=0) if len(offers.unit) else np.zeros(4)
        self.there = len(fleet.price)
        self.free, self.life = fleet.free.copy(), fleet.life.copy()
        count = len(batch.need) + 1
        self.load = np.zeros((count, 4), np.int64)
        self.span = np.zeros((count, batch.seconds.shape[1]))
        self.allowed = np.ones((count, len(offers.bins)), bool)
        self.type = np.zeros(count, np.int64)
        self.cost = np.zeros(count)
        self.members: list[list[int]] = [[] for _ in range(count)]
        self.home = np.full(count - 1, -1, np.int64)
        self.launched = 0
        self.total = 0.0
        self.before: dict[int, Slot] = {}

    def bought(self, load: Ints, seconds: Floats, allowed: Bools) -> tuple[Ints, Floats]:
        """The cheapest type for what some machines hold, and what it costs (machines).

        :param seconds: that each is paid for
        """
        feasible = allowed.copy()
        for r in range(4):
            feasible &= load[:, r, None] <= self.offers.capacity[:, r]
        rated = self._rated(load[:, None], self.offers.capacity, seconds)
        costs = np.where(feasible, self.offers.price * rated, np.inf)
        types = costs.argmin(axis=1)
        return types, costs[np.arange(len(load)), types] + self.terms.once

    def _rated(self, load: Ints, capacity: Ints, seconds: Floats) -> Floats:
        """The seconds that machines are paid for, less those that what stays free is worth (machines, types).

        :param load: (machines, 1, 4); ``capacity``: (types, 4); ``seconds``: (machines)
        """
        if not self.terms.later:
            return seconds[:, None]
        worth = NEW * self.terms.later * later(seconds - self.terms.boot, self.terms.comes)
        return np.asarray(seconds[:, None] - worth[:, None] * share(capacity - load, capacity))

    def place(self, job: int, among: Ints | None = None) -> bool:
        """Put a job where the bill grows least; False: nothing holds it.

        :param among: the slots that are looked at besides an empty one; None: all
        """
        cost, home = self._cheapest_room(job)
        slots = np.arange(self.launched) if among is None else among
        slots = np.append(slots, self.members.index([]))  # there is one more slot than jobs
        load, allowed = self.load[slots] + self.batch.need[job], self.allowed[slots] & self.batch.offered[job]
        types, prices = self.bought(load, self._paid_slots(slots, job), allowed)
        more = prices - self.cost[slots]
        i = int(more.argmin()) if len(self.offers.bins) else 0
        if more[i] < cost - EPSILON:
            self._put(job, int(slots[i]), int(types[i]), float(more[i]))
            return True
        if home >= 0:
            self._fill(job, home, cost)
        return home >= 0

    def squeeze(self, job: int, most: float) -> bool:
        """Put a job where there is room anyway, if that costs no more than ``most`` USD; False: it does."""
        cost, home = self._cheapest_room(job)
        types = self.type[: self.launched]
        left = self.offers.capacity[types] - self.load[: self.launched] - self.batch.need[job]
        slots = np.flatnonzero((left >= 0).all(axis=1) & self.batch.offered[job][types])
        if len(slots):
            capacity = self.offers.capacity[types[slots]]
            seconds = self._rated((capacity - left[slots])[:, None], capacity[:, None], self._paid_slots(slots, job))
            more = self.offers.price[types[slots]] * seconds[:, 0] + self.terms.once - self.cost[slots]
            # Of those that cost the same the one on which least is left.
            tight = (left[slots] * self.offers.unit[types[slots]]).sum(axis=1)
            i = int(np.lexsort((tight, np.round(more, 9)))[0])
            if more[i] < min(cost, most):
                self._put(job, int(slots[i]), int(types[slots[i]]), float(more[i]))
                return True
        if home >= 0 and cost <= most:
            self._fill(job, home, cost)
            return True
        return False

    def open(self, jobs: Ints) -> None:
        """Launch the cheapest machine that holds some jobs."""
        slot = self.launched
        load, seconds = self.batch.need[jobs].sum(axis=0), self.batch.seconds[jobs].max(axis=0)
        allowed: Bools = np.logical_and.reduce(self.batch.offered[jobs], axis=0)
        length = billed(self.terms.boot + seconds, self.terms.period).mean()
        types, prices = self.bought(load[None], np.array([length]), allowed[None])
        self.load[slot], self.span[slot], self.allowed[slot] = load, seconds, allowed
        self.type[slot], self.cost[slot], self.members[slot] = types[0], prices[0], [int(job) for job in jobs]
        self.home[jobs] = self.there + slot
        self.launched += 1
        self.total += float(prices[0])

    def fill(self, jobs: Ints, home: int) -> None:
        """Put jobs on a machine that is there."""
        for job in jobs:
            self._fill(int(job), home, float(self._paid_rooms(np.array([home]), int(job))[0]))

    def empty(self, slot: int) -> list[int]:
        """Take all jobs off a machine to launch."""
        self._remember(slot)
        jobs, self.members[slot] = self.members[slot], []
        self.total -= float(self.cost[slot])
        self.load[slot], self.span[slot], self.allowed[slot], self.cost[slot] = 0, 0.0, True, 0.0
        return jobs

    def undo(self, total: float) -> None:
        """Put all slots back as they were when ``before`` was empty, at that cost."""
        for slot, (load, span, allowed, kind, cost, members) in self.before.items():
            self.load[slot], self.span[slot], self.allowed[slot] = load, span, allowed
            self.type[slot], self.cost[slot], self.members[slot] = kind, cost, members
            self.home[members] = self.there + slot
        self.total = total

    def _remember(self, slot: int) -> None:
        if slot not in self.before:
            self.before[slot] = (
                self.load[slot].copy(), self.span[slot].copy(), self.allowed[slot].copy(),
                int(self.type[slot]), float(self.cost[slot]), self.members[slot].copy(),
            )  # fmt: skip

    def _cheapest_room(self, job: int) -> tuple[float, int]:
        """By how much the bill grows on the best machine that is there, and which; infinite and -1: there is none."""
        rooms = np.flatnonzero(self.batch.admitted[job] & (self.free >= self.batch.need[job]).all(axis=1))
        if not len(rooms):
            return np.inf, -1
        more = self._paid_rooms(rooms, job)
        least = float(more.min())
        rooms = rooms[more <= least + EPSILON]
        # Of those that cost the same the one on which least is left: most often it is nothing.
        return least, int(rooms[(self.free[rooms] @ self.worth).argmin()])

    def _paid_rooms(self, rooms: Ints, job: int) -> Floats:
        """USD by which the bill of machines that are there grows for one more job."""
        age, life, period = self.fleet.age[rooms, None], self.life[rooms], self.terms.period
        seconds = self.fleet.lag[rooms, None] + self.batch.seconds[job]
        longer = paid(life, seconds, age, period) - billed(age + life, period).mean(axis=1)
        late = np.maximum(self.fleet.lag[rooms] - self.terms.boot, 0.0)
        if self.terms.later:  # an empty one is up for the sake of nothing yet, and costs no more than a new one
            rated = np.where((life > 0).any(axis=1), LONGER, 1.0) * longer
            longer = rated + self.terms.later * self._used_up(rooms, job, longer)
        return np.asarray(self.fleet.price[rooms] * longer + self.terms.delay * late)

    def _used_up(self, rooms: Ints, job: int, longer: Floats) -> Floats:
        """Seconds that machines are worth less to later jobs for one more job; below zero where they stay for longer.

        What is free is taken to stay as it is until the machine's last job ends.
        """
        need, free, capacity = self.batch.need[job], self.free[rooms], self.fleet.capacity[rooms]
        life, begin = self.life[rooms].mean(axis=1), self.fleet.lag[rooms]
        until = np.minimum(begin + self.mean[job], life)
        comes = self.terms.comes
        meanwhile = later(until, comes) - later(np.minimum(begin, until), comes)
        after = later(life + longer, comes) - later(life, comes)
        taken = (share(free, capacity) - share(free - need, capacity)) * meanwhile
        return np.asarray(taken - share(capacity - need, capacity) * after)

    def _paid_slots(self, slots: Ints, job: int) -> Floats:
        """Seconds that machines to launch are paid for with one more job."""
        seconds = np.broadcast_to(self.batch.seconds[job], (len(slots), self.span.shape[1]))
        return paid(self.span[slots], seconds, np.full((len(slots), 1), self.terms.boot), self.terms.period)

    def _fill(self, job: int, home: int, more: float) -> None:
        same = self.fleet.machine == self.fleet.machine[home]
        self.free[same & (self.fleet.lag >= self.fleet.lag[home])] -= self.batch.need[job]
        self.life[same] = np.maximum(self.life[home], self.fleet.lag[home] + self.batch.seconds[job])
        self.home[job] = home
        self.total += more

    def _put(self, job: int, slot: int, kind: int, more: float) -> None:
        self._remember(slot)
        self.load[slot] += self.batch.need[job]
        self.span[slot] = np.maximum(self.span[slot], self.batch.seconds[job])
        self.allowed[slot] &= self.batch.offered[job]
        self.type[slot] = kind
        self.cost[slot] += more
        self.members[slot].append(job)
        self.home[job] = self.there + slot
        self.launched = max(self.launched, slot + 1)
        self.total += more


def share(free: Ints, capacity: Ints) -> Floats:
    """The part of machines that is free in every resource that they have."""
    return np.asarray(np.where(capacity > 0, free / np.maximum(capacity, 1), 1.0).min(axis=-1))


def later(seconds: Floats, comes: float) -> Floats:
    """The seconds, of so many from now, that a job which has come by then can use, as they do every so often."""
    return np.asarray(seconds + comes * np.expm1(-np.maximum(seconds, 0.0) / comes))


def billed(seconds: Floats, period: float) -> Floats:
    """What is paid for a life of so many seconds: whole periods, and the least that is billed of any."""
    whole = np.ceil(seconds / period - 1e-9) * period if period > 1 else seconds
    return np.asarray(np.maximum(whole, LEAST_SECONDS))


def paid(life: Floats, seconds: Floats, age: Floats, period: float) -> Floats:
    """Seconds that machines are expected to be paid for when each gets one more job (machines).

    Each scenario of the job is held against each of the machine: were they paired, the machine would be chosen whose
    scenarios happen to be like the job's.

    :param life: until the last job ends that is there (machines, k); ``seconds``: until the new one does (machines, k)
    :param age: that are to be paid for already (machines, 1)
    """
    longest = np.maximum(life[:, None, :], seconds[:, :, None])
    return np.asarray(billed(age[:, :, None] + longest, period).mean(axis=(1, 2)))
