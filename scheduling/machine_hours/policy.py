"""The policy ``hours``: the least expected USD until the last job of every machine has ended."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lading.scheduling.hints.durations import Prediction
from lading.scheduling.machine_hours.insertion import Batch, Fleet, Plan, Terms
from lading.scheduling.machine_hours.market import Offers, offers, units
from lading.scheduling.machine_hours.scenarios import remaining
from lading.scheduling.packing import greedy
from lading.scheduling.packing.packing import Group, Packing, take
from lading.scheduling.packing.problem import Problem
from lading.scheduling.plan import Job
import os
PHI = float(os.environ.get("PHI", "0.5"))
CC = float(os.environ.get("CC", "3"))

UNKNOWN = Prediction(900.0, 1.2, None, "assumed")


def expected(job: Job) -> Prediction:
    if job.expected is not None:
        return job.expected
    return UNKNOWN if job.time is None else Prediction(job.time, 0.0, None, "its limit")


def one_per_instance(problem: Problem) -> Packing:
    best = greedy.pack(problem)
    groups = []
    for number, shape in enumerate(problem.shapes):
        bin_ = problem.menu(shape.wish).cheapest(shape.need)
        n = sum(j.count for j in problem.members[number])
        done = 0
        for room in problem.rooms:
            if done < n and room.free == room.capacity and bin_ is not None and room.location.instance_type == bin_.type.name and not any(g.room is room for g in groups):
                groups.append(Group(None, room, 1, take(room.free, shape.need, 1), [(number, 1, done)]))
                done += 1
        if done < n and bin_ is not None:
            groups.append(Group(bin_, None, n - done, take(bin_.capacity, shape.need, 1), [(number, 1, done)]))
    return Packing(groups, [])


def pack(problem: Problem, effort: str) -> Packing:
    base = greedy.pack(problem)
    if base.left or not problem.order:
        return base
    numbers, positions, jobs = [], [], []
    for number, members in enumerate(problem.members):
        pos = 0
        for job in members:
            for _ in range(job.count):
                numbers.append(number); positions.append(pos); jobs.append(job)
                pos += 1
    market = offers(tuple(problem.bins))
    predictions = [expected(job) for job in jobs]
    exact = not any(p.spread for p in predictions) and not any(
        r.expected.spread for room in problem.rooms for r in room.location.running_jobs)
    seconds = remaining(predictions, [0.0] * len(jobs), [n * 7 + p for n, p in zip(numbers, positions)], exact)
    need = np.array([problem.shapes[n].need for n in numbers], np.int64)
    fleet = there(problem, market, exact)
    wishes = {s.wish for s in problem.shapes}
    offered = {w: market.grants(w) for w in wishes}
    admitted = {w: np.array([r.kind.grants(w) for r in problem.rooms], bool) for w in wishes}
    batch = Batch(need, seconds, np.array([offered[problem.shapes[n].wish] for n in numbers]),
                  np.array([admitted[problem.shapes[n].wish] for n in numbers]).reshape(len(jobs), len(problem.rooms)))
    terms = Terms(market.price * problem.objective.boot_seconds, np.zeros(len(market.price)), np.zeros(len(problem.rooms)))
    plan = Plan(batch, fleet, market, terms)
    for j in np.argsort(-plan.mean * (need @ market.unit.T).min(axis=1) ** 0.0, kind="stable"):
        if not plan.place(int(j)):
            return base
    if len(jobs) > 5:
        from lading.scheduling.machine_hours.windows import windows, Rule
        for width in (20, 60):
            if width < 3*len(jobs):
              for rule in (Rule(1.0, 0.1, 0.0), Rule(2.0, 0.3, 0.0)):
                other = Plan(batch, fleet, market, terms)
                if windows(other, width, rule):
                    if os.environ.get("V"): print(len(jobs), width, rule, other.total, plan.total)
                    if other.total < plan.total: plan = other
    if len(jobs) > 1 and os.environ.get("RR"):
        from lading.scheduling.machine_hours.ruin import improve
        import time; t=time.time(); b=plan.total
        improve(plan, int(os.environ["RR"]))
        if os.environ.get("V"): print("ruin", len(jobs), b, plan.total, time.time()-t)
    held = {}
    for j, home in enumerate(plan.home):
        held.setdefault(int(home), []).append(j)
    groups = []
    for home, js in sorted(held.items()):
        if home < plan.there:
            room = problem.rooms[home]
            group = Group(None, room, 1, room.free)
        else:
            bin_ = market.bins[int(plan.type[home - plan.there])]
            group = Group(bin_, None, 1, bin_.capacity)
        for j in js:
            group.fills.append((numbers[j], 1, positions[j]))
            group.free = take(group.free, problem.shapes[numbers[j]].need, 1)
        groups.append(group)
    return Packing(groups, [])


def there(problem: Problem, market: Offers, exact: bool) -> Fleet:
    rooms = problem.rooms
    m = len(rooms)
    free = np.array([r.free for r in rooms], np.int64).reshape(m, 4)
    price = np.array([r.location.usd_per_hour for r in rooms]) / 3600
    cap = np.array([r.capacity for r in rooms], np.int64).reshape(m, 4)
    lag = np.array([max(0.0, (r.location.ready_at or 0.0) - problem.now) for r in rooms])
    unit = units(cap, price, (market.capacity, market.price))
    running = [(i, each) for i, r in enumerate(rooms) for each in r.location.running_jobs]
    left = remaining([e.expected for _, e in running], [problem.now - e.begun for _, e in running], [k for k, _ in enumerate(running)], exact)
    # those that have yet to begin
    begun_in = np.array([max(0.0, e.begun - problem.now) for _, e in running])
    left = left + begun_in[:, None]
    life = np.zeros((m, left.shape[1]))
    if running:
        np.maximum.at(life, np.array([i for i, _ in running]), left)
    return Fleet(free, lag, life, price, unit)
