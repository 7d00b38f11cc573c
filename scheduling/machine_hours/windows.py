"""Windows: jobs that start together are packed with those that end at about the same time.

From the longest job to the shortest: one that fits where there is room goes there, for what is there will be up for
longer anyway; else a machine is launched and filled with the best of the jobs that are next in length. Classification
by duration is what the bounds for known durations rest on (Ren and Tang, "Clairvoyant dynamic bin packing for job
scheduling with minimum server usage time", SPAA 2016); a window that slides has no borders between classes.
"""

from __future__ import annotations

import numpy as np

from lading.scheduling.machine_hours.insertion import InsertionPlan
from lading.scheduling.packing.arrays import Floats, Ints, PackingArrays
from lading.scheduling.packing.filling import ScoringRule, fill_free

RULE = ScoringRule(2.0, 0.3, 0.0)
# Room that is there is taken for up to so many times what the job is worth.
FAIR = 1.05


def pack_windows(plan: InsertionPlan, width: int) -> bool:
    """Place all jobs of a plan; False: some fit nothing.

    :param width: how many jobs next in length are looked at for each machine
    """
    worth = plan.offers.worth(plan.batch.need, plan.batch.offered)
    waiting = np.ones(len(worth), bool)
    order = np.argsort(-plan.mean, kind="stable")
    for turn, job in enumerate(order):
        if not waiting[job]:
            continue
        waiting[job] = False
        if plan.squeeze(int(job), float(worth[job] * plan.mean[job] * FAIR)):
            continue
        following = order[turn + 1 : turn + 1 + 2 * width]
        company = best_company(plan, int(job), following[waiting[following]][:width], worth)
        if company is None:
            return False
        waiting[company] = False
        plan.open(np.append(job, company))
    return True


def best_company(plan: InsertionPlan, job: int, others: Ints, worth: Floats) -> Ints | None:
    """The jobs with which a job makes most of a machine; None: it fits no type."""
    batch, offers = plan.batch, plan.offers
    types = np.flatnonzero(batch.offered[job] & (offers.capacity >= batch.need[job]).all(axis=1))
    others = others[np.isfinite(worth[others])]  # what only a machine that is there grants has no worth
    if not len(types) or not len(others):
        return others if len(types) else None
    enough = 2 * float(worth[others].sum() + worth[job])
    types = types[offers.price[types] <= max(enough, float(offers.price[types].min()))]
    used = batch.need[np.append(others, job)].any(axis=0)
    free, need = (offers.capacity[types] - batch.need[job])[:, used], batch.need[others][:, used]
    fits = batch.offered[np.ix_(others, types)].T & (need <= free[:, None, :]).all(axis=2)
    arrays = PackingArrays(
        np.arange(len(others)), np.ones(len(others), np.int64), need, worth[others],
        types, offers.capacity[types][:, used], offers.price[types], offers.unit[types][:, used], fits,
    )  # fmt: skip
    taken = fill_free(arrays, np.arange(len(types)), free, RULE)
    value = worth * plan.mean
    price = offers.price[types] * (plan.terms.boot + plan.mean[job]) + plan.terms.once
    best = int(((taken @ value[others] + value[job]) / price).argmax())
    return others[np.flatnonzero(taken[best])]
