"""Choose a location for each job at a site, by the site's policy. Pure, except for third-party policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from lading.scheduling.matching.groups import Allowance
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.prediction import is_short
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.placing.backlog import fill
from lading.scheduling.placing.filling import in_planned_order, machines, run_now
from lading.scheduling.placing.locality import DataLocality
from lading.scheduling.placing.policies import (
    DATA_LOCALITY,
    FILLING,
    GREEDY,
    PRICED,
    Allocations,
    Files,
    JobAllocation,
    Policy,
    PolicyContext,
)
from lading.scheduling.placing.rooms import Rooms, stacks
from lading.scheduling.provisioning.foreseen import Foreseen, ForeseenActions
from lading.scheduling.provisioning.launch import AllocationPlan
from lading.scheduling.provisioning.machines import promised
from lading.scheduling.text.printable import shortened


@dataclass(slots=True)
class Choice:
    """Finds a location for each job of a site that one takes now.

    :param now: epoch seconds
    :param policies: third-party policies by name
    :param allocations: where jobs are; newly placed jobs are added
    :param trouble: by site and job: how the policy failed
    :param foreseen: by site, what the plan of all upcoming work requests
    """

    now: float
    policies: Mapping[str, Policy] = field(default_factory=dict)
    files: Files = field(default_factory=Files)
    allocations: Allocations = field(default_factory=Allocations)
    trouble: dict[str, dict[str, Reason]] = field(default_factory=dict)
    foreseen: Mapping[str, Foreseen] = field(default_factory=dict)

    def run(self, site: SiteView, jobs: Sequence[PlannedJob], limits: InstanceLimits) -> dict[str, str]:
        """Return the location of each job that can run at once, or that a queue takes, by job name."""
        there, jobs = site.locations, self._in_order(site, jobs)
        by = PRICED if site.policy == PRICED else GREEDY
        # Seven Bridges' algorithm orders jobs by the price of machines, if there is one.
        prices = site.market.catalogue if site.policy == GREEDY and isinstance(site.market, MachineMarket) else None

        def filled(some: Sequence[PlannedJob], locations: Sequence[Location]) -> dict[str, str]:
            return run_now(some, locations, limits, policy=by, prices=prices, now=self.now)

        if site.policy in FILLING and site.policy not in self.policies and not stacks(there):
            if (foreseen := self._foreseen(site)) is not None:
                return begin_foreseen(site, jobs, filled, limits, foreseen)
            return begin_promised(site, jobs, filled, self.now)
        context, rooms = PolicyContext(site.name, self.now, self.files), Rooms(there, limits, self.now)
        if site.policy in self.policies:
            policy = self.policies[site.policy]
            return each_by(rooms, jobs, lambda job: self._asked(policy, context, job, rooms))
        if site.policy == DATA_LOCALITY:
            choose = DataLocality(context, rooms, site.locality_fallback, site.locality_wait).location
            return each_by(rooms, jobs, choose)
        if site.policy in FILLING:
            taken = filled(jobs, there)
            # Packing ignores stacking, so each of its choices is checked here against what it is stacked on.
            first = each_by(rooms, [job for job in jobs if job.name in taken], lambda job: taken[job.name])
            return first | each_by(rooms, [job for job in jobs if job.name not in first], rooms.oldest)
        return each_by(rooms, jobs, rooms.oldest)

    def prefetch(self, site: SiteView, jobs: Sequence[PlannedJob], limits: InstanceLimits) -> dict[str, str]:
        if site.policy not in FILLING or stacks(site.locations):
            return {}
        given: dict[str, str] = {}
        there, jobs = site.locations, self._in_order(site, jobs)
        if (plan := self._planned(site)) is not None:
            planned, prefetch_to = plan
            given = fill_planned(site, jobs, prefetch_to, limits, self.now)
            there = with_jobs(there, jobs, given)
            # On another machine, a job with a place in the plan would keep up a machine that the plan does not need.
            jobs = [job for job in jobs if job.name not in planned]
        return given | fill(may_be_prefetched(site, jobs), machines(there), limits, now=self.now)

    def _in_order(self, site: SiteView, jobs: Sequence[PlannedJob]) -> Sequence[PlannedJob]:
        """Reorder jobs by the plan, if the site's allocations are requested by one."""
        plan = self.foreseen.get(site.name)
        return in_planned_order(jobs, plan.starts) if isinstance(plan, AllocationPlan) else jobs

    def _foreseen(self, site: SiteView) -> ForeseenActions | None:
        """Return the actions of the plan by which the site's jobs are placed; None: there is none."""
        is_planned = isinstance(site.market, MachineMarket) and site.market.policy == FORECAST
        foreseen = self.foreseen.get(site.name)
        return foreseen if is_planned and isinstance(foreseen, ForeseenActions) else None

    def _planned(self, site: SiteView) -> tuple[frozenset[str], Mapping[str, str]] | None:
        """Return the jobs of a plan, and the machines to which they can be prefetched; None without a plan."""
        if (foreseen := self._foreseen(site)) is not None:
            return foreseen.planned | foreseen.pending, foreseen.prefetch_to
        plan = self.foreseen.get(site.name)
        return (plan.planned, plan.prefetch_to) if isinstance(plan, AllocationPlan) else None

    def _asked(self, policy: Policy, context: PolicyContext, job: PlannedJob, rooms: Rooms) -> str | None:
        """Ask a third-party policy for a location; a failure is recorded in ``trouble``."""
        available = rooms.available(job)
        if not available:
            return None
        # Read-only views: the next jobs are placed with the same data.
        free, jobs = MappingProxyType(available), MappingProxyType(self.allocations.jobs)
        locations, trouble = MappingProxyType(self.allocations.locations), self.trouble.setdefault(context.site, {})
        try:
            name = policy.get_location(context, job, job.resources, free, jobs, locations)
        except Exception as error:  # a third-party policy can raise anything
            trouble[job.name] = because("policy_failed", text=f"{type(error).__name__}: {error}")
            return None
        if name is not None and not (isinstance(name, str) and name in available):
            trouble[job.name] = because("policy_misnames", answer=shortened(name), locations=list(available))
            return None
        if name is not None:
            self.allocations.put(job.name, JobAllocation(context.site, (name,), "placed", job.resources))
        return name


def fill_planned(
    site: SiteView, jobs: Sequence[PlannedJob], prefetch_to: Mapping[str, str], limits: InstanceLimits, now: float
) -> dict[str, str]:
    """Prefetch each job to the machine that a plan chose for it; return these locations by job name."""
    by_machine: dict[str, list[PlannedJob]] = {}
    for job in jobs:
        if (machine := prefetch_to.get(job.name)) is not None:
            by_machine.setdefault(machine, []).append(job)
    up = {each.name: each for each in machines(site.locations)} if by_machine else {}
    given: dict[str, str] = {}
    for name, its in by_machine.items():
        if name in up:
            given |= fill(its, [up[name]], limits, now=now)
    return given


def each_by(rooms: Rooms, jobs: Sequence[PlannedJob], choose: Callable[[PlannedJob], str | None]) -> dict[str, str]:
    """Give jobs one by one to the location chosen for each, if it has room."""
    placed: dict[str, str] = {}
    for job in jobs:
        name = choose(job)
        if name is not None and rooms.has_room(job, name):
            rooms.put(job, name)
            placed[job.name] = name
    return placed


def begin_foreseen(
    site: SiteView,
    jobs: Sequence[PlannedJob],
    fill: Callable[[Sequence[PlannedJob], Sequence[Location]], dict[str, str]],
    limits: InstanceLimits,
    foreseen: ForeseenActions,
) -> dict[str, str]:
    """Return the location of each job that starts now under a plan of all upcoming work, by job name.

    The remaining room goes to jobs outside the plan, and to those for which the plan cannot launch anything now.

    :param fill: fills locations with jobs; if it finds no room for a job, there is none
    """
    up, waiting = {each.name for each in site.locations}, {job.name: job for job in jobs}
    taken: dict[str, str] = {}
    allowed = Allowance(limits, site.locations)  # a slightly outdated plan can spread jobs over more machines
    for each in foreseen.actions.placements:
        if each.location in up and (job := waiting.get(each.job)) is not None and allowed.admits(job, each.location):
            allowed.put(job, each.location)
            taken[each.job] = each.location
    by_plan = foreseen.planned - foreseen.withheld
    others = [job for job in jobs if job.name not in by_plan and job.name not in taken]
    return taken | fill(others, with_jobs(site.locations, jobs, taken)) if others else taken


def with_jobs(there: Sequence[Location], jobs: Sequence[PlannedJob], taken: Mapping[str, str]) -> list[Location]:
    theirs: dict[str, list[PlannedJob]] = {}
    for job in jobs:
        if job.name in taken:
            theirs.setdefault(taken[job.name], []).append(job)
    return [each.given(theirs[each.name]) if each.name in theirs else each for each in there]


def begin_promised(
    site: SiteView,
    jobs: Sequence[PlannedJob],
    fill: Callable[[Sequence[PlannedJob], Sequence[Location]], dict[str, str]],
    now: float,
) -> dict[str, str]:
    """Return the location of each job that starts now, by job name; jobs that were promised a place come first.

    :param fill: see :func:`begin_foreseen`
    :param now: epoch seconds
    """
    if not isinstance(site.market, MachineMarket):
        return fill(jobs, site.locations)
    up = {each.name for each in site.locations}
    there, homes = promised(jobs, [each for each in site.launched if not each.draining], now)
    rest = [job for job in jobs if job.name not in homes]
    taken = fill(rest, [each for each in there if each.name in up])
    return {job: name for job, name in homes.items() if name in up} | taken


def may_be_prefetched(site: SiteView, jobs: Sequence[PlannedJob]) -> Sequence[PlannedJob]:
    """Return the jobs that can be prefetched.

    Where no forecast decides what is bought, these are all jobs for which no machine is booting, and short ones. Where
    a forecast does, only short ones: the others are better placed once there is room.
    """
    market = site.market
    if isinstance(market, MachineMarket) and market.policy == FORECAST and market.held is None:
        return [job for job in jobs if is_short(job)]
    awaited = frozenset().union(*(each.promised for each in site.launched if each.booting))
    return [job for job in jobs if job.name not in awaited or is_short(job)] if awaited else jobs
