"""Ruin and recreate on the bill: take the jobs off some machines, put each where the bill grows least, keep what is
no dearer.

Schrimpf and others, "Record breaking optimization results using the ruin and recreate principle", Journal of
Computational Physics 159, 2000, with threshold accepting that ends at nothing. Rounds are counted, not timed.
"""

from __future__ import annotations

import numpy as np

from lading.scheduling.machine_hours.insertion import Plan

SEED = 3
NEIGHBOURS = 24
THRESHOLD = 2e-4


def improve(plan: Plan, rounds: int) -> None:
    random = np.random.default_rng(SEED)
    batch = plan.batch
    value = np.where(batch.offered, batch.need @ plan.offers.unit.T, np.inf).min(axis=1) * plan.mean
    for turn in range(rounds):
        n = plan.launched
        if n < 2:
            return
        plan.before, before = {}, plan.total
        loss = np.array([plan.cost[i] - value[plan.members[i]].sum() if plan.members[i] else 0.0 for i in range(n)]) if turn % 20 == 0 else loss
        chance = np.maximum(loss[:n], 0) + 1e-12 + 0.1 * np.abs(loss[:n]).mean()
        if len(chance) < n:
            chance = np.append(chance, np.full(n - len(chance), chance.mean()))
        size = int(random.integers(1, 4))
        first = int((random.exponential(1 / chance)).argmin())
        # those of similar length
        near = np.argsort(np.abs(np.log(plan.span[:n].mean(axis=1) + 1.0) - np.log(plan.span[first].mean() + 1.0)) + random.uniform(0, 0.1, n))
        chosen = near[:size] if first in near[:size] else np.append(near[: size - 1], first)
        jobs = [job for i in chosen for job in plan.empty(int(i))]
        among = np.unique(np.append(near[:NEIGHBOURS], chosen))
        if len(among) > n: among = among[:n]
        order = np.array(jobs)[np.argsort(-value[jobs] * random.uniform(0.5, 1.5, len(jobs)), kind="stable")] if turn % 2 else np.array(jobs)[np.argsort(-plan.mean[jobs] * random.uniform(0.8, 1.2, len(jobs)), kind="stable")]
        ok = all(plan.place(int(job), among) for job in order)
        limit = THRESHOLD * before * max(0.0, 1 - 2 * turn / rounds) / max(1, n) * 5
        if not ok or plan.total > before + limit + 1e-12:
            plan.restore()
            plan.total = before
    plan.before = None
