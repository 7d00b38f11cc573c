"""Hundreds of jobs at once, when no more come: packed by length, and improved once.

As :mod:`policy` packs a few, but with the expected length of each job alone and without waits for room, so that what
takes seconds is asked once: all jobs get a place. While jobs come, and where they are more, it is by :mod:`classes`.
"""

from __future__ import annotations

from dataclasses import fields, replace

from lading.scheduling.machine_hours.insertion import InsertionPlan, RoomArrays
from lading.scheduling.machine_hours.policy import WIDTHS, adopted, as_packing, constrained, pack_many, setting, waiting
from lading.scheduling.machine_hours.ruin_recreate import improve
from lading.scheduling.machine_hours.windows import pack_windows
from lading.scheduling.packing.answer import Packing
from lading.scheduling.packing.limits import too_many
from lading.scheduling.packing.problem import Problem

# Rounds of ruin and recreate: so many at least, and one for each job.
ROUNDS = 400


def pack(problem: Problem) -> Packing:
    """Pack for the least expected bill."""
    first = pack_many(problem)
    if constrained(problem, first):
        return first
    jobs = waiting(problem)
    start = flat(setting(problem, jobs), len(problem.rooms))
    best = adopted(problem, jobs, fresh(start), first)
    by_length = fresh(start)
    why = first.why
    if pack_windows(by_length, WIDTHS[0]):
        best = min(best, by_length, key=lambda plan: plan.total)
        why += f"; windows of {WIDTHS[0]}: {by_length.total:.4f}"
    improve(best, max(ROUNDS, len(jobs)), problem.going)
    found = as_packing(problem, jobs, best, f"{why}; the better one improved: {best.total:.4f}")
    return first if too_many(problem, found) is not None else found


def flat(plan: InsertionPlan, rooms: int) -> InsertionPlan:
    """A plan with expected lengths alone, and with the rooms that are free now, which come first."""
    there = RoomArrays(*(getattr(plan.fleet, each.name)[:rooms] for each in fields(RoomArrays)))
    batch = replace(
        plan.batch,
        seconds=plan.batch.seconds.mean(axis=1, keepdims=True),
        admitted=plan.batch.admitted[:, :rooms],
    )
    return InsertionPlan(batch, replace(there, life=there.life.mean(axis=1, keepdims=True)), plan.offers, plan.terms)


def fresh(plan: InsertionPlan) -> InsertionPlan:
    """The same with nothing placed."""
    return InsertionPlan(plan.batch, plan.fleet, plan.offers, plan.terms)
