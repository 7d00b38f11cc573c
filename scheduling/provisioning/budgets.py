"""What the runs of Dags may cost: nothing more is launched for one that has spent its budget. Pure.

How long jobs will run is not known, so each machine counts as if it stayed for an hour: a run has no more machines than
what is left pays for an hour, but one at least until all is spent. Running jobs continue, and machines that are there
may be used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from lading.scheduling.job import Budget, PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.provisioning.launch import Launch
from lading.scheduling.reasons import Reason, because


def coming(jobs: Iterable[PlannedJob], places: Mapping[str, str], live: Iterable[Location]) -> dict[str, float]:
    """What the machines cost that boot for the jobs of each run, USD per hour.

    :param places: the locations at which jobs have a place, by their names
    """
    booting = {each.name: each.usd_per_hour for each in live if each.booting}
    hosts = {(job.budget.run, place) for job in jobs if job.budget is not None and (place := places.get(job.name))}
    found: Counter[str] = Counter()
    for run, place in hosts:
        found[run] += booting.get(place, 0.0)  # type: ignore[assignment]
    return dict(found)


def within(
    launches: Iterable[Launch], jobs: Iterable[PlannedJob], coming: Mapping[str, float]
) -> tuple[tuple[Launch, ...], dict[str, Reason]]:
    """The launches for which the runs can pay, and why the others are not made, by the names of their jobs.

    A machine for jobs of several runs is paid for by each according to how many of the jobs are its own, and launched
    when one of them can.

    :param coming: see :func:`coming`
    """
    budgets = {job.name: job.budget for job in jobs if job.budget is not None}
    if not budgets:
        return tuple(launches), {}
    used: Counter[str] = Counter(coming)
    used.update({each.run: each.per_hour for each in set(budgets.values())})
    kept: list[Launch] = []
    over: dict[str, Reason] = {}
    for launch in launches:
        shares = Counter(budgets[name] for name in launch.jobs if name in budgets)
        costs = {it: (launch.usd_per_hour or 0.0) * count / len(launch.jobs) for it, count in shares.items()}
        is_free = sum(shares.values()) < len(launch.jobs)
        if is_free or any(can_pay(it, used[it.run], cost) for it, cost in costs.items()):
            kept.append(launch)
            used.update({it.run: cost for it, cost in costs.items()})
        else:
            over |= {name: reason(budgets[name], used[budgets[name].run]) for name in launch.jobs}
    return tuple(kept), over


def can_pay(budget: Budget, used: float, more: float) -> bool:
    """Whether a run can pay for more machines.

    :param used: what its machines cost by now, USD per hour; ``more``: what these would
    """
    left = budget.most - budget.spent
    return left > 0 and (used == 0 or used + more <= left)


def reason(budget: Budget, used: float) -> Reason:
    """Why nothing more is launched for a run."""
    if budget.spent >= budget.most:
        return because("max_usd", spent=budget.spent, most=budget.most)
    return because("max_usd_rate", used=used, left=budget.most - budget.spent, most=budget.most)
