"""Machines that are bought by the hour: which jobs begin on them now, and which may be prefetched to them. Pure.

Where lengths differ it matters which jobs share a machine: a long one on a machine that would soon be empty keeps it
for its own sake, and a smaller one would have cost less. So where machines are bought by machine-hours, the plan by
which they are bought also says which job begins where.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.groups import Allowance
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.placing.policies import HOURS
from lading.scheduling.plan import FORECAST, InstanceLimits
from lading.scheduling.prediction import is_short
from lading.scheduling.provisioning import machines
from lading.scheduling.provisioning.budgets import coming, within
from lading.scheduling.provisioning.foreseen import ForeseenActions
from lading.scheduling.provisioning.machines import MachinePlan

# Machines may be refused again and again. So a job goes wherever there is room, whatever that costs, when it has waited
# for so many seconds and so many boots of a machine; for sixteen of these it may have waited for cheaper room.
PATIENCE, BOOTS = 60.0, 17.0


def by_hours(site: SiteView) -> MachineMarket | None:
    """The market of a site at which machine-hours decide where jobs go; None: they do not."""
    market = None if not isinstance(site.market, MachineMarket) else machines.without_forecast(site.market)
    if market is None or market.held is not None or market.policy != HOURS:
        return None
    return market if site.policy in (HOURS, FORECAST) else None


def begin(
    site: SiteView,
    jobs: Sequence[PlannedJob],
    fill: Callable[[Sequence[PlannedJob], Sequence[Location]], dict[str, str]],
    limits: InstanceLimits,
    now: float,
) -> tuple[dict[str, str], MachinePlan | None]:
    """The location of each job that begins now, by the job's name: first of those that were promised a place. And the
    plan by which that was decided; None: by none.

    What machine-hours would rather buy a machine for goes where there is room when its run cannot pay for that, or when
    it has waited for too long.

    :param fill: fills locations with jobs; where it finds room for none, there is none
    :param now: epoch seconds
    """
    if not isinstance(site.market, MachineMarket):
        return fill(jobs, site.locations), None
    up = {each.name for each in site.locations}
    there, homes = machines.promised(jobs, [each for each in site.launched if not each.draining], now)
    rest = [job for job in jobs if job.name not in homes]
    taken = fill(rest, [each for each in there if each.name in up])
    market, made = by_hours(site) if taken else None, None
    if market is not None and not (limits.tasks or limits.runs):
        closed = [each for each in site.launched if each.draining]
        made = machines.planned(rest, there, closed, market, limits, now)
        launches, placements = machines.bought(made.plan, market)
        planned = {each.job: each.location for each in placements}
        taken = {job: name for job, name in planned.items() if name in up}
        _, unpaid = within(launches, rest, coming(rest, planned | homes, there))
        late = now - PATIENCE - BOOTS * market.boot_seconds
        others = [job for job in rest if job.name not in taken and (job.name in unpaid or job.queued_at < late)]
        if others:
            taken |= fill(others, [each for each in with_jobs(there, rest, taken) if each.name in up])
    return {job: name for job, name in homes.items() if name in up} | taken, made


def begin_foreseen(
    site: SiteView,
    jobs: Sequence[PlannedJob],
    fill: Callable[[Sequence[PlannedJob], Sequence[Location]], dict[str, str]],
    limits: InstanceLimits,
    foreseen: ForeseenActions,
) -> dict[str, str]:
    """The location of each job that begins now, by the job's name, where a plan of all that is to come says so.

    Those that are not in the plan fill what is left.

    :param fill: see :func:`begin`
    """
    up, waiting = {each.name for each in site.locations}, {job.name: job for job in jobs}
    taken: dict[str, str] = {}
    allowed = Allowance(limits, site.locations)  # a plan that is not quite of now may have jobs on more machines
    for each in foreseen.actions.placements:
        if each.location in up and (job := waiting.get(each.job)) is not None and allowed.admits(job, each.location):
            allowed.put(job, each.location)
            taken[each.job] = each.location
    others = [job for job in jobs if job.name not in foreseen.planned]
    return taken | fill(others, with_jobs(site.locations, jobs, taken)) if others else taken


def with_jobs(there: Sequence[Location], jobs: Sequence[PlannedJob], taken: Mapping[str, str]) -> list[Location]:
    """Machines when jobs are on them that they have taken."""
    theirs: dict[str, list[PlannedJob]] = {}
    for job in jobs:
        if job.name in taken:
            theirs.setdefault(taken[job.name], []).append(job)
    return [each.given(theirs[each.name]) if each.name in theirs else each for each in there]


def may_be_prefetched(site: SiteView, jobs: Sequence[PlannedJob]) -> Sequence[PlannedJob]:
    """Those that may wait on a machine, which are all where none boots for them and machine-hours do not count.

    Of the others only short ones: the rest is worth a question when there is room.
    """
    if by_hours(site) is not None:
        return [job for job in jobs if is_short(job)]
    awaited = frozenset().union(*(each.promised for each in site.launched if each.booting))
    return [job for job in jobs if job.name not in awaited or is_short(job)] if awaited else jobs
