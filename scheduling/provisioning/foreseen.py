"""Provision machines by a forecast: turn the actions of its plan into launches, kept machines and releases. Pure.

A machine is kept if it is needed again sooner than another one would boot, and released at once if not;
``idle_seconds`` bounds the machines that no plan mentions. An outdated plan, made before jobs or machines changed,
releases nothing. Launches of the plan that exceed the limits, and jobs outside the plan, are planned separately
(:mod:`lading.scheduling.provisioning.waiting_jobs`).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from lading.scheduling.forecast.policy import Actions
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.job import Budget, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits
from lading.scheduling.model.quotas import quota, vcpus
from lading.scheduling.model.reasons import Reason
from lading.scheduling.model.resources import Resources
from lading.scheduling.packing.problem import Bin
from lading.scheduling.provisioning import machines
from lading.scheduling.provisioning.budgets import coming, within
from lading.scheduling.provisioning.launch import AllocationPlan, Launch, Provision

NO_NEED = Resources()


@dataclass(frozen=True, slots=True)
class ForeseenActions:
    """The actions requested now by the plan of all upcoming work at a site. In it, jobs have their tokens as names.

    :param actions: what to do; without releases if the plan is outdated
    :param is_of_now: whether jobs and machines are as the plan assumes
    :param planned: the waiting jobs that have a place in it
    :param pending: those for which a plan is being made, so that nothing else is bought for them
    :param withheld: those of ``planned`` for which a budget or a limit does not allow a launch now
    :param homes: the existing machines on which waiting jobs have their places, by job name
    :param prefetch_to: of these, the machines to which jobs can be prefetched before there is room, by job name
    :param budgets: the budgets of the runs of upcoming steps, by step name
    :param not_ahead: steps for which nothing is bought before they are queued: Airflow could have queued them and has
        not, or the cost of their runs so far is unknown
    :param begins: planned starts of upcoming steps, by name, epoch seconds
    """

    actions: Actions
    is_of_now: bool
    planned: frozenset[str] = frozenset()
    pending: frozenset[str] = frozenset()
    withheld: frozenset[str] = frozenset()
    homes: Mapping[str, str] = field(default_factory=dict)
    prefetch_to: Mapping[str, str] = field(default_factory=dict)
    budgets: Mapping[str, tuple[Budget, ...]] = field(default_factory=dict)
    not_ahead: frozenset[str] = frozenset()
    begins: Mapping[str, float] = field(default_factory=dict)

    def ahead_only(self, waiting: Iterable[str]) -> ForeseenActions:
        """Return only what is launched and kept for upcoming steps, for a site whose policy decides about waiting jobs.

        :param waiting: the tokens of waiting jobs: a machine that is planned for one of them is left to that policy
        """
        tokens, launched_for = frozenset(waiting), self.actions.launched_for
        launches = tuple(each for each in self.actions.launches if tokens.isdisjoint(launched_for[each.name]))
        actions = replace(self.actions, placements=(), launches=launches, releases=(), waits=())
        return ForeseenActions(actions, is_of_now=True, not_ahead=self.not_ahead, begins=self.begins)


# What the plan of all upcoming work requests at a site: of machines, or of allocations.
Foreseen: TypeAlias = ForeseenActions | AllocationPlan


def decide(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: MachineMarket,
    since: Mapping[str, float] | None,
    limits: InstanceLimits,
    foreseen: ForeseenActions,
    *,
    now: float,
) -> Provision:
    """See :func:`lading.scheduling.provisioning.decision.decide`."""
    actions = foreseen.actions
    launches, dropped = wanted(foreseen, live, market)
    paid, over = within(launches, budgeted(launches, jobs, foreseen.budgets), coming(jobs, foreseen.homes, live))
    paid, late = machines.learnt(paid, live, market)
    if market.held is not None:
        over, paid = {name: market.held for launch in launches for name in launch.jobs}, ()
    not_launched = {name: reason for name, reason in {**over, **late}.items() if name in foreseen.planned}
    others = [
        job for job in jobs if job.name in dropped or not (job.name in foreseen.planned or job.name in foreseen.pending)
    ]
    # Jobs that a plan has given to a machine have their place there and are not planned again.
    there = live
    if market.policy == FORECAST:
        there = [replace(each, prefetched=()) if each.prefetched else each for each in live]
    there = [*there, *map(as_ordered, paid)]
    found = machines.decide(others, there, market, since, limits, now=now)
    kinds = {each.name: each.instance_type for each in live}
    # A machine needed only after a new one would have booted is bounded by `idle_seconds`.
    soon = {
        name
        for name, begin in actions.needed.items()
        if not foreseen.is_of_now or begin <= now + market.boot_of(kinds.get(name))
    }
    needed = soon | {each.location for each in actions.placements}
    # A machine that the plan needs is not released just because the other jobs do not need it.
    releases = {name: reason for name, reason in found.releases.items() if name not in needed}
    if foreseen.is_of_now:
        free = {each.name for each in live if each.empty and each.name in found.spare}
        spare = {each.location: each.reason for each in actions.releases if each.location in free}
        releases |= within_least(spare, releases, live, market.min_instances)
    awaits = {each.job: each.reason for each in actions.waits if each.job in foreseen.planned}
    return replace(
        found,
        launches=(*paid, *found.launches),
        releases=releases,
        spare=frozenset(each.name for each in live if each.name in found.spare and each.name not in needed),
        waits={**found.waits, **not_launched},
        awaits={name: reason for name, reason in awaits.items() if name not in not_launched and name not in dropped},
        ahead={name: start for each in paid for name, start in first_to_come(each, foreseen.begins).items()},
    )


def first_to_come(launch: Launch, begins: Mapping[str, float]) -> dict[str, float]:
    """Return the first steps of a launch and their start, if all of its steps are still upcoming; else nothing.

    :param begins: starts of upcoming steps, epoch seconds
    """
    if not all(name in begins for name in launch.jobs):
        return {}
    first = min((begins[name] for name in launch.jobs), default=None)
    return {name: begins[name] for name in launch.jobs if begins[name] == first}


def wanted(
    foreseen: ForeseenActions, live: Sequence[Location], market: MachineMarket
) -> tuple[list[Launch], frozenset[str]]:
    """Return the launches of a plan that fit into the limits, and the steps of the others."""
    launches: list[Launch] = []
    dropped: set[str] = set()
    there = [as_launch_of(each) for each in live]
    for planned in foreseen.actions.launches:
        names = foreseen.actions.launched_for[planned.name]
        if names and foreseen.not_ahead.issuperset(names):
            continue
        capacity = market.catalogue.types[planned.instance_type].capacity
        launch = Launch(
            planned.instance_type, capacity, math.inf, names, planned.zone, planned.capacity_type, planned.usd_per_hour
        )
        if is_within(launch, [*there, *launches], market.limits):
            launches.append(launch)
        else:
            dropped.update(names)
    return launches, frozenset(dropped)


def as_launch_of(location: Location) -> Launch:
    """Represent an existing machine as a launch, for counting limits."""
    kind, usd = str(location.instance_type), location.usd_per_hour
    return Launch(kind, location.capacity, math.inf, (), None, str(location.capacity_type), usd)


def as_ordered(launch: Launch) -> Location:
    """Represent a new launch as a location that counts against limits and takes no other jobs."""
    return Location(
        f"for {launch.jobs[0] if launch.jobs else launch.kind}",
        launch.capacity,
        instance_type=launch.kind,
        capacity_type=launch.capacity_type,
        usd_per_hour=launch.usd_per_hour or 0.0,
        booting=True,
        draining=True,
    )


def is_within(launch: Launch, others: Sequence[Launch], limits: InstanceLimits) -> bool:
    if limits.instances is not None and len(others) >= limits.instances:
        return False
    most = limits.types.get(launch.kind)
    if most is not None and sum(each.kind == launch.kind for each in others) >= most:
        return False
    every = [*others, launch]
    if limits.usd_per_hour is not None and sum(each.usd_per_hour or 0.0 for each in every) > limits.usd_per_hour:
        return False
    used: Counter[str] = Counter()
    for each in every:
        used[quota(each.kind, each.capacity_type)] += vcpus(each.kind, each.capacity.cpus)  # type: ignore[assignment]
    name = quota(launch.kind, launch.capacity_type)
    return name not in limits.vcpus or used[name] <= limits.vcpus[name]


def affordable(bins: Iterable[Bin], live: Sequence[Location], limits: InstanceLimits) -> list[Bin]:
    """Return the bins that the limits allow once more, ignoring the limit on the number of machines.

    :param live: the machines that take jobs or boot
    """
    types = Counter(each.instance_type for each in live)
    used: Counter[str] = Counter()
    for each in live:
        used[quota(str(each.instance_type), each.capacity_type)] += vcpus(  # type: ignore[assignment]
            str(each.instance_type), each.capacity.cpus
        )
    usd = math.fsum(each.usd_per_hour for each in live)

    def is_within(candidate: Bin) -> bool:
        name, offering = candidate.type.name, candidate.offering
        its = quota(name, offering.capacity_type)
        return (
            types[name] < limits.types.get(name, math.inf)
            and (limits.usd_per_hour is None or usd + candidate.price <= limits.usd_per_hour)
            and used[its] + vcpus(name, candidate.type.capacity.cpus) <= limits.vcpus.get(its, math.inf)
        )

    return [each for each in bins if is_within(each)]


def budgeted(
    launches: Iterable[Launch], jobs: Iterable[PlannedJob], budgets: Mapping[str, tuple[Budget, ...]]
) -> list[PlannedJob]:
    """Return the jobs of these launches, including upcoming ones, with the budgets of their runs."""
    waiting = {job.name: job for job in jobs}
    names = dict.fromkeys(name for launch in launches for name in launch.jobs)
    found = []
    for name in names:
        if name in waiting:
            found.append(waiting[name])
        elif name in budgets:
            found.append(PlannedJob(name, NO_NEED, budgets=budgets[name]))
    return found


def within_least(
    asked: Mapping[str, Reason], others: Mapping[str, Reason], live: Sequence[Location], least: int
) -> dict[str, Reason]:
    """Return the releases that leave at least ``least`` machines; the youngest are released first.

    :param others: machines that are released in any case
    """
    staying = sum(not each.draining and each.name not in others for each in live)
    spare = max(0, staying - least)
    names = [each.name for each in reversed(live) if each.name in asked and each.name not in others]
    return {name: asked[name] for name in names[:spare]}
