"""Windows: jobs that start together are packed with those that end at about the same time.

From the longest job to the shortest: one that fits where there is room goes there, for what is there will be up for
longer anyway; else a machine is launched and filled with the best of the jobs that are next in length. Classification
by duration is what the bounds for known durations rest on (Ren and Tang, IEEE/ACM SPAA 2016); a window that slides has
no borders between classes.
"""

from __future__ import annotations

import numpy as np

from lading.scheduling.machine_hours.insertion import Plan
from lading.scheduling.packing.arrays import Floats, Goods, Ints
from lading.scheduling.packing.filling import Rule, fill


def windows(plan: Plan, width: int, rule: Rule) -> bool:
    """Place all jobs of a plan; False: some fit nothing.

    :param width: how many jobs next in length are looked at for each machine
    """
    batch, offers = plan.batch, plan.offers
    each = np.where(batch.offered, batch.need @ offers.unit.T, np.inf).min(axis=1)
    fair = each * plan.mean * FAIR
    order = np.argsort(-plan.mean, kind="stable")
    waiting = np.ones(len(order), bool)
    here = 0
    while here < len(order):
        job = int(order[here])
        if not waiting[job]:
            here += 1
            continue
        if plan.squeeze(job, float(fair[job])):
            waiting[job] = False
            here += 1
            continue
        some = order[here:]
        some = some[waiting[some]][:width]
        chosen = best_machine(plan, some, each, rule)
        if chosen is None:
            return False
        kind, jobs = chosen
        plan.open(jobs, kind)
        waiting[jobs] = False
    return True


FAIR = 1.05


def best_machine(plan: Plan, some: Ints, worth: Floats, rule: Rule) -> tuple[int, Ints] | None:
    """The machine that gives most for its price, with the first of some jobs on it, and its jobs."""
    batch, offers = plan.batch, plan.offers
    need = batch.need[some]
    first, rest = some[0], some[1:]
    kinds = np.flatnonzero(batch.offered[first] & (offers.capacity >= need[0]).all(axis=1))
    if not len(kinds):
        return None
    enough = 2 * float(worth[some].sum())
    small = kinds[offers.price[kinds] <= max(enough, offers.price[kinds].min())]
    free = offers.capacity[small] - need[0]
    fits = batch.offered[rest][:, small].T.copy()
    from lading.scheduling.packing.filling import fill_free

    for r in range(4):
        fits &= batch.need[rest][:, r] <= free[:, None, r]
    used = need.any(axis=0)
    goods = Goods(
        np.arange(len(rest)), np.ones(len(rest), np.int64), batch.need[rest][:, used], worth[rest], small,
        offers.capacity[small][:, used], offers.price[small], offers.unit[small][:, used], fits,
    )
    taken = fill_free(goods, np.arange(len(small)), free[:, used], rule) if len(rest) else np.zeros((len(small), 0), np.int64)
    value = worth * plan.mean
    gain = (taken @ value[rest] + value[first]) / (offers.price[small] * plan.mean[first] + plan.terms.launch[small])
    best = int(gain.argmax())
    return int(small[best]), np.append(first, rest[np.flatnonzero(taken[best])])
