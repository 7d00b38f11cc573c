"""What Dag runs and teams can cost: nothing more is launched for those that have spent their budget. Pure.

How long jobs will run is unknown, so each machine counts as if it stayed for an hour: a budget can have as many
machines as its remainder pays for an hour, but always one until all is spent. Running jobs continue, and existing
machines can be used. A job with several budgets needs room in each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from lading.scheduling.model.job import Budget, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.provisioning.launch import Launch


def coming(jobs: Iterable[PlannedJob], places: Mapping[str, str], live: Iterable[Location]) -> dict[str, float]:
    """Return the cost of the machines booting for the jobs of each budget, USD per hour.

    :param places: the locations at which jobs have a place, by job name
    """
    booting = {each.name: each.usd_per_hour for each in live if each.booting}
    hosts = {(it.name, place) for job in jobs for it in job.budgets if (place := places.get(job.name))}
    found: Counter[str] = Counter()
    for name, place in hosts:
        found[name] += booting.get(place, 0.0)  # type: ignore[assignment]
    return dict(found)


def within(
    launches: Iterable[Launch], jobs: Iterable[PlannedJob], coming: Mapping[str, float]
) -> tuple[tuple[Launch, ...], dict[str, Reason]]:
    """Return the launches that the budgets can pay, and why the others are not made, by job name.

    A machine for jobs of several budgets is paid by each in proportion to its number of jobs, and launched if all
    budgets of at least one job can pay.

    :param coming: see :func:`coming`
    """
    budgets = {job.name: job.budgets for job in jobs if job.budgets}
    if not budgets:
        return tuple(launches), {}
    used: Counter[str] = Counter(coming)
    used.update({it.name: it.per_hour for it in {it for some in budgets.values() for it in some}})
    kept: list[Launch] = []
    over: dict[str, Reason] = {}
    for launch in launches:
        shares = Counter(it for name in launch.jobs for it in budgets.get(name, ()))
        costs = {it: (launch.usd_per_hour or 0.0) * count / len(launch.jobs) for it, count in shares.items()}
        unable = {it for it, cost in costs.items() if not can_pay(it, used[it.name], cost)}
        if not unable or any(unable.isdisjoint(budgets.get(name, ())) for name in launch.jobs):
            kept.append(launch)
            used.update({it.name: cost for it, cost in costs.items()})
        else:
            for name in launch.jobs:
                its = next(it for it in budgets[name] if it in unable)
                over[name] = reason(its, used[its.name])
    return tuple(kept), over


def can_pay(budget: Budget, used: float, more: float) -> bool:
    """Return whether a budget can pay for more machines.

    :param used: cost of its present machines, USD per hour; ``more``: cost of the new ones
    """
    left = budget.most - budget.spent
    return left > 0 and (used == 0 or used + more <= left)


def reason(budget: Budget, used: float) -> Reason:
    if budget.until is not None:
        code, rate = ("budget_spent", {}) if budget.spent >= budget.most else ("budget_rate", {"used": used})
        spent = {"spent": budget.said_spent, "most": budget.most, "until": budget.until}
        return because(code, budget=budget.name, **rate, **spent)
    if budget.spent >= budget.most:
        return because("max_usd", spent=budget.spent, most=budget.most)
    return because("max_usd_rate", used=used, left=budget.most - budget.spent, most=budget.most)
