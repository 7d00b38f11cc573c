"""Ruin and recreate on the bill: take the jobs off some machines, put each where the bill grows least, keep what is
no dearer, and at first what is a little dearer.

After Schrimpf and others (2000), as :mod:`lading.scheduling.packing.ruin_recreate`; the machines that are taken apart
together are up for similarly long. Rounds are counted, not timed.
"""

from __future__ import annotations

import numpy as np

from lading.scheduling.machine_hours.insertion import InsertionPlan
from lading.scheduling.packing.arrays import Floats
from lading.scheduling.packing.problem import Going

SEED = 3
MOST_MACHINES = 3
NEIGHBOURS = 24
# A round may cost so much of a machine's mean cost at first; from the half on nothing.
THRESHOLD = 1e-3
# The losses of all machines are measured again after so many rounds.
REFRESH = 20
EPSILON = 1e-12


def improve(plan: InsertionPlan, rounds: int, going: Going) -> None:
    """Make a plan cheaper, or leave it as it is."""
    random = np.random.default_rng(SEED)
    value = plan.offers.worth(plan.batch.need, plan.batch.offered) * plan.mean
    chance = np.zeros(0)
    for turn in range(rounds):
        slots = plan.launched
        if slots < 2 or not going("ruin and recreate", turn / rounds):
            return
        if turn % REFRESH == 0 or len(chance) != slots:
            chance = chances(plan, value)
        plan.before, before = {}, plan.total
        first = int(random.exponential(1 / chance).argmin())
        length = np.log1p(plan.span[:slots].mean(axis=1))
        near = np.argsort(np.abs(length - length[first]) + random.uniform(0, 0.1, slots), kind="stable")
        chosen = np.union1d(near[: int(random.integers(0, MOST_MACHINES))], first)
        jobs = np.array([job for slot in chosen for job in plan.empty(int(slot))], np.int64)
        # Large jobs first, or long ones.
        size = value[jobs] * random.uniform(0.5, 1.5, len(jobs))
        order = jobs[np.argsort(-size if turn % 2 else -plan.mean[jobs] * random.uniform(0.8, 1.2, len(jobs)))]
        among = np.union1d(near[:NEIGHBOURS], chosen)
        placed = all(plan.place(int(job), among) for job in order)
        allowed = THRESHOLD * before / slots * max(0.0, 1 - 2 * turn / rounds)
        if not placed or plan.total > before + allowed + EPSILON:
            plan.undo(before)


def chances(plan: InsertionPlan, value: Floats) -> Floats:
    """How often each machine is taken apart: as much as it costs beyond what its jobs are worth."""
    held = np.array([value[members].sum() for members in plan.members[: plan.launched]])
    loss = np.maximum(plan.cost[: plan.launched] - held, 0.0)
    return np.asarray(loss + 0.1 * loss.mean() + EPSILON)
