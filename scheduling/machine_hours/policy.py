"""The policy ``hours``: the least expected bill when the last job of every machine has ended.

Several ways are tried, and the one with the least expected cost counts: each job where the bill grows least
(:mod:`insertion`), also on a machine that will have room soon, jobs of similar length together (:mod:`windows`), what
``greedy`` does, and one instance per job. Where several jobs wait the best of these is improved (:mod:`ruin_recreate`).
Where limits keep jobs waiting, ``greedy`` decides alone: then it counts what runs, not what it costs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from functools import partial

import numpy as np

from lading.scheduling.job import NOTHING, PlannedJob
from lading.scheduling.machine_hours.classes import Classes, Filler, classes
from lading.scheduling.machine_hours.insertion import (
    COMES,
    LATER,
    BillTerms,
    InsertionPlan,
    JobArrays,
    RoomArrays,
    billed,
)
from lading.scheduling.machine_hours.ruin_recreate import improve
from lading.scheduling.machine_hours.scenarios import remaining
from lading.scheduling.machine_hours.type_offers import TypeOffers, offers
from lading.scheduling.machine_hours.windows import pack_windows
from lading.scheduling.packing import greedy
from lading.scheduling.packing.answer import MachineGroup, Packing, take
from lading.scheduling.packing.arrays import Bools, Ints
from lading.scheduling.packing.limits import too_many
from lading.scheduling.packing.problem import Problem, vector
from lading.scheduling.prediction import Prediction, predicted
from lading.scheduling.reasons import because

# Up to so many jobs each is held against each machine.
FEW = 2_000
# More are packed by classes of jobs that are alike.
MOST = 20_000
WIDTHS = (20, 60)
# Jobs that come together, at least, for windows to be worth their time.
BURST = 6
# A second that a job waits for room is worth this part of the price of what a job needs, on average. The less is known
# of lengths, the less often a wait is worth while, and the less each has to count for jobs to wait no longer on
# average: half, where the logarithms of lengths are off by a fifth.
DELAY, UNSURE = 0.75, 5.0
# In how many parts of the last seconds jobs begin where they come as often as COMES says.
RECENT, PART, USUAL = 600.0, 10.0, 10
# Rounds of ruin and recreate per job that waits, and at most.
ROUNDS = {"fast": (4, 400), "best": (40, 10_000)}


@dataclass(frozen=True, slots=True)
class ShapeMember:
    """A job by itself: which of its shape's it is."""

    shape: int
    position: int
    job: PlannedJob


def pack(problem: Problem, effort: str) -> Packing:
    """Pack for the least expected bill."""
    if sum(problem.counts()) > MOST:
        return pack_many(problem)
    base = greedy.pack(problem)
    if constrained(problem, base):
        return base
    jobs = waiting(problem)
    start = setting(problem, jobs)
    ways = {name: plan for name, plan in attempts(problem, jobs, start, base) if plan is not None}
    if not ways:
        return base
    won = min(ways, key=lambda name: ways[name].total)
    costs = ", ".join(f"{name} {plan.total:.4f}" for name, plan in ways.items())
    if 1 < len(jobs) <= FEW:
        each, most = ROUNDS[effort]
        improve(ways[won], min(most, each * len(jobs)), problem.going)
    less = ", less what free room is worth to later jobs" if start.terms.later else ""
    found = as_packing(problem, jobs, ways[won], f"{won} has won: expected USD until the last job ends{less}: {costs}")
    return base if too_many(problem, found) is not None else found


def one_per_instance(problem: Problem) -> Packing:
    """Give each job an instance of its own, an empty one that is there before a new one."""
    base = greedy.pack(problem)
    jobs = waiting(problem)
    if constrained(problem, base):
        return base
    start = setting(problem, jobs)
    start.terms = replace(start.terms, later=0.0)
    plan = alone(start)
    found = None if plan is None else as_packing(problem, jobs, plan, "")
    return base if found is None or too_many(problem, found) is not None else found


def pack_many(problem: Problem) -> Packing:
    """Pack thousands of jobs within a tick, for the least expected bill as well: by classes of jobs that are alike."""
    base = greedy.pack(problem)
    if constrained(problem, base):
        return base
    market = market_of(problem)
    jobs = classes(problem, market)
    there, admitted = rooms_now(problem, jobs)
    fillers = [Filler(jobs, there, admitted, market, terms_of(problem, 0.0)) for _ in range(2)]
    tried = {"similar lengths together": fillers[0].together(), "one instance per job": fillers[1].alone()}
    ways = {name: filler for name, filler in tried.items() if filler is not None}
    costs = {name: filler.cost() for name, filler in ways.items()} | {"greedy": cost_of(problem, base, jobs, there)}
    won = min(costs, key=lambda name: costs[name])
    message = ", ".join(f"{name} {cost:.4f}" for name, cost in costs.items())
    why = f"{won} has won: expected USD until the last job ends: {message}"
    if won == "greedy":
        return replace(base, why=why)
    found = ways[won].packing(problem.rooms, why)
    if too_many(problem, found) is not None:
        return base
    problem.members = jobs.members
    return found


def constrained(problem: Problem, base: Packing) -> bool:
    """Whether there is nothing to choose: nothing to place or to launch, or limits by which jobs wait."""
    limited = any(problem.labels(shape) for shape in problem.shapes)
    return limited or bool(base.left) or not base.groups or not problem.bins


def waiting(problem: Problem) -> list[ShapeMember]:
    """All jobs, one by one."""
    found = []
    for number, members in enumerate(problem.members):
        position = 0
        for job in members:
            for _ in range(job.count):
                found.append(ShapeMember(number, position, job))
                position += 1
    return found


def setting(problem: Problem, jobs: list[ShapeMember]) -> InsertionPlan:
    """The plan before anything is placed."""
    market = market_of(problem)
    expected = [predicted(each.job) for each in jobs]
    running = [each.expected for room in problem.rooms for each in room.location.running_jobs]
    exact = not any(each.spread for each in (*expected, *running))
    numbers = np.array([each.shape for each in jobs])
    admitted = np.array([[r.kind.grants(shape.wish) for r in problem.rooms] for shape in problem.shapes], bool)
    admitted = admitted.reshape(len(problem.shapes), len(problem.rooms))[numbers]
    there = fleet(problem, exact)
    admitted = admitted[:, there.machine]
    patience = np.array([problem.objective.room_seconds - (problem.now - each.job.queued_at) for each in jobs])
    admitted[:, len(problem.rooms) :] &= there.lag[len(problem.rooms) :] <= patience[:, None]
    for m, (machine, lag) in enumerate(zip(there.machine, there.lag, strict=True)):
        location = problem.rooms[machine].location
        if location.ends_at is not None:
            admitted[:, m] &= [location.lasts(each.job.time, problem.now + float(lag)) for each in jobs]
    batch = JobArrays(
        need=np.array([shape.need for shape in problem.shapes], np.int64)[numbers],
        seconds=remaining(expected, [0.0] * len(jobs), range(len(jobs)), exact),
        offered=np.array([market.grants(shape.wish) for shape in problem.shapes], bool)[numbers],
        admitted=admitted,
    )
    spread = sum(each.spread for each in (*expected, *running)) / (len(expected) + len(running))
    delay = DELAY / (1 + UNSURE * spread) * usual_worth(problem, market, batch.need)
    # As many jobs are expected to come as are there, as far as they do not all come now.
    credit = LATER * len(running) / (len(running) + len(jobs))
    # The more parts there are of the last minutes in which jobs began, the sooner the next one comes.
    begun = [each.begun for room in problem.rooms for each in room.location.running_jobs]
    lately = {each // PART for each in begun if 0 <= problem.now - each < RECENT}
    comes = COMES * min(1.0, USUAL / max(1, len(lately)))
    return InsertionPlan(batch, there, market, replace(terms_of(problem, delay), later=credit, comes=comes))


def market_of(problem: Problem) -> TypeOffers:
    """What can be launched."""
    named = frozenset(shape.wish.instance_type for shape in problem.shapes if shape.wish.instance_type is not None)
    return offers(tuple(problem.bins), named)


def terms_of(problem: Problem, delay: float) -> BillTerms:
    """How the bill is made."""
    objective = problem.objective
    return BillTerms(objective.boot_seconds, objective.per_instance, objective.billing_seconds, delay)


def rooms_now(problem: Problem, jobs: Classes) -> tuple[RoomArrays, Bools]:
    """The rooms that are free now, and which of them each class may use; none that goes away by itself."""
    every, count = fleet(problem, exact=False), len(problem.rooms)
    there = RoomArrays(*(getattr(every, each.name)[:count] for each in fields(RoomArrays)))
    stays = np.array([room.location.ends_at is None for room in problem.rooms], bool)
    granted = {
        kind: np.array([kind.grants(shape.wish) for shape in problem.shapes], bool)
        for kind in {room.kind for room in problem.rooms}
    }
    admitted = np.array([granted[room.kind] for room in problem.rooms], bool).reshape(count, len(problem.shapes)).T
    return there, admitted[jobs.shape] & stays


def cost_of(problem: Problem, packing: Packing, jobs: Classes, there: RoomArrays) -> float:
    """By how much another policy's packing lets the bill grow, USD."""
    terms, total = terms_of(problem, 0.0), 0.0
    rooms = {id(room): m for m, room in enumerate(problem.rooms)}
    life = there.life.mean(axis=1)
    for group in packing.groups:
        seconds = np.zeros(group.size)
        for shape, each, start in group.fills:
            some = jobs.lengths[shape][start : start + each * group.size]
            seconds = np.maximum(seconds, some.reshape(group.size, each).max(axis=1))
        if group.bin is not None:
            total += group.bin.price / 3600 * float(billed(terms.boot + seconds, terms.period).sum())
            total += terms.once * group.size
        elif group.room is not None:
            m = rooms[id(group.room)]
            until = there.age[m] + np.maximum(life[m], there.lag[m] + seconds)
            longer = billed(until, terms.period) - billed(there.age[m] + life[m : m + 1], terms.period)
            total += float(there.price[m] * longer.sum())
    return total


def usual_worth(problem: Problem, market: TypeOffers, need: Ints) -> float:
    """USD per second that the jobs that wait and run are worth on average.

    All wait at the same price, whatever they need: so it is the large ones that wait, for which it pays.
    """
    running = [vector(each.resources) for room in problem.rooms for each in room.location.running_jobs]
    every = np.concatenate([need, np.array(running, np.int64).reshape(len(running), 4)])
    return float(np.min(every @ market.unit.T, axis=1, initial=np.inf).mean()) if len(market.bins) else 0.0


def fleet(problem: Problem, exact: bool) -> RoomArrays:
    """The rooms on the machines that are there, now and soon, and for how long what runs is expected to keep those."""
    places = [room.location for room in problem.rooms]
    running = [(m, each) for m, place in enumerate(places) for each in place.running_jobs]
    ages = [problem.now - each.begun for _, each in running]
    left = remaining([each.expected for _, each in running], ages, range(len(running)), exact)
    left += np.maximum(0.0, -np.array(ages, float))[:, None]  # those that have yet to begin
    life = np.zeros((len(places), left.shape[1]))
    np.maximum.at(life, np.array([m for m, _ in running], np.int64), left)
    free = np.array([room.free for room in problem.rooms], np.int64).reshape(len(places), 4)
    capacity = np.array([room.capacity for room in problem.rooms], np.int64).reshape(len(places), 4)
    age = np.array([problem.now - (problem.now if p.launched_at is None else p.launched_at) for p in places], float)
    lag = np.array([max(0.0, (place.ready_at or 0.0) - problem.now) for place in places], float)
    price = np.array([place.usd_per_hour / 3600 for place in places], float)
    ends = left.mean(axis=1)
    soon = [i for i in np.argsort(ends, kind="stable") if ends[i] <= problem.objective.room_seconds]
    coming = [i for i in soon if running[i][1].resources != NOTHING]
    # Each end of a job makes one more room of its machine, with all that is free by then.
    total, later = free.copy(), [running[i][0] for i in coming]
    rooms = [free]
    for i, m in zip(coming, later, strict=True):
        total[m] += vector(running[i][1].resources)
        rooms.append(total[m : m + 1].copy())
    machine = np.array([*range(len(places)), *later], np.int64)
    lag = np.append(lag, np.maximum(ends[coming], lag[later])) if later else lag
    return RoomArrays(
        machine, np.concatenate(rooms), capacity[machine], age[machine], lag, life[machine], price[machine]
    )


def attempts(
    problem: Problem, jobs: list[ShapeMember], start: InsertionPlan, base: Packing
) -> Iterator[tuple[str, InsertionPlan | None]]:
    """The ways to place the jobs, each with its plan; None: it places not all."""
    anew = partial(InsertionPlan, start.batch, start.fleet, start.offers, start.terms)
    if len(jobs) <= FEW:
        plan = anew()
        # Long ones first: shorter ones then find room that is there anyway.
        placed = all(plan.place(int(job)) for job in np.argsort(-plan.mean, kind="stable"))
        yield "least growth", plan if placed else None
    if len(jobs) >= BURST:
        for width in WIDTHS if len(jobs) <= FEW else WIDTHS[:1]:
            plan = anew()
            yield f"windows of {width}", plan if pack_windows(plan, width) else None
    yield "greedy", adopted(problem, jobs, anew(), base)
    yield "one instance per job", alone(anew())


def adopted(problem: Problem, jobs: list[ShapeMember], plan: InsertionPlan, packing: Packing) -> InsertionPlan:
    """Another policy's packing, each machine as the cheapest type that holds what it has."""
    number = {(each.shape, each.position): i for i, each in enumerate(jobs)}
    rooms = {id(room): m for m, room in enumerate(problem.rooms)}
    for group in packing.groups:
        for i in range(group.size):
            held = [number[shape, start + i * each + k] for shape, each, start in group.fills for k in range(each)]
            some: Ints = np.array(held, np.int64)
            if group.room is not None:
                plan.fill(some, rooms[id(group.room)])
            else:
                plan.open(some)
    return plan


def alone(plan: InsertionPlan) -> InsertionPlan | None:
    """One instance per job; an empty one that is there serves where it costs no more than a new one."""
    empty = plan.fleet.life.max(axis=1, initial=0.0) <= 0
    for job in range(len(plan.batch.need)):
        need = plan.batch.need[job]
        types = plan.batch.offered[job] & (plan.offers.capacity >= need).all(axis=1)
        if not types.any():
            return None
        suits = empty & plan.batch.admitted[job] & (plan.free >= need).all(axis=1)
        suits &= plan.fleet.price <= plan.offers.price[types].min() * (1 + 1e-9)
        if suits.any():
            room = int(suits.argmax())
            empty[room] = False
            plan.fill(np.array([job]), room)
        else:
            plan.open(np.array([job]))
    return plan


def in_turn(jobs: list[ShapeMember], plan: InsertionPlan) -> Ints:
    """The machine of each job: of those that are alike, the one whose turn it is begins first."""
    alike: dict[tuple[int, Prediction], list[int]] = {}
    for i, each in enumerate(jobs):
        alike.setdefault((each.shape, predicted(each.job)), []).append(i)
    begins = np.append(plan.fleet.lag, np.full(len(plan.load), plan.terms.boot))
    home = plan.home.copy()
    for some in alike.values():
        turns = sorted(some, key=lambda i: (-jobs[i].job.priority, jobs[i].job.queued_at, i))
        home[turns] = sorted(home[some], key=lambda machine: (begins[machine], machine))
    return home


def as_packing(problem: Problem, jobs: list[ShapeMember], plan: InsertionPlan, why: str) -> Packing:
    """The plan as a packing."""
    held: dict[int, list[ShapeMember]] = {}
    for waits, machine in zip(jobs, in_turn(jobs, plan), strict=True):
        held.setdefault(int(machine), []).append(waits)
    groups = []
    left = []
    for home in sorted(held):
        if len(problem.rooms) <= home < plan.there:
            name = problem.rooms[int(plan.fleet.machine[home])].location.name
            reason = because("room_expected", location=name, seconds=float(plan.fleet.lag[home]))
            left += [(each.shape, each.position, 1, reason) for each in held[home]]
            continue
        if home < plan.there:
            group = MachineGroup(None, problem.rooms[home], 1, problem.rooms[home].free)
        else:
            launched = plan.offers.bins[int(plan.type[home - plan.there])]
            group = MachineGroup(launched, None, 1, launched.capacity)
        for each in held[home]:
            group.fills.append((each.shape, 1, each.position))
            group.free = take(group.free, problem.shapes[each.shape].need, 1)
        groups.append(group)
    return Packing(groups, left, why)
