"""Decide which allocations a batch cluster launches and releases, and what jobs wait for.

Pure. An allocation is a batch job in which a node agent runs many jobs. Packing is left to the planner. A job's
``instance_type`` is the kind of allocation it needs here, and every job has one: jobs with different directives of the
batch system share no allocation.

A job without a time limit can run for as long as its allocation lasts. It is placed only where ``Market.unlimited``
seconds are left (its ``time`` has that value), so that it gets at least these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling.matching import groups
from lading.scheduling.matching.market import Market
from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.model.job import NOTHING, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.provisioning import planner
from lading.scheduling.provisioning.allocation_plan import shaped
from lading.scheduling.provisioning.launch import SECONDS_TO_BEGIN, AllocationPlan, Launch, Provision, settled
from lading.scheduling.provisioning.recall import suits


def decide(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: Market,
    since: Mapping[str, float] | None = None,
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
    foreseen: AllocationPlan | None = None,
) -> Provision:
    """Decide what is launched and what makes way.

    Nothing smaller than a node is launched while jobs are arriving. An allocation with running jobs is never ended to
    save money: it only makes way for jobs that could otherwise never run, and then takes no more jobs.

    :param jobs: those that wait and have no place yet
    :param live: the running and requested allocations, with their jobs, oldest first
    :param since: when each job first found no room, by name; without an entry, when it was queued
    :param limits: on the number of allocations, live or to be launched, with jobs of a task or a run
    :param now: epoch seconds
    :param foreseen: what the plan of all upcoming work requests; None: there is no plan
    """
    plan = AllocationPlan() if foreseen is None else foreseen
    names = frozenset(each.name for each in live)
    wanting = [*jobs, *(job for each in live for job in each.prefetched)]
    needs = _needed(wanting, live, market, limits, now, plan.margin)
    # To a plan, prefetched jobs are already running.
    left_to_plan = plan.planned | plan.prefetched | _just_come(wanting, plan.known, since, now)
    others = tuple(each for each in needs.launches if not left_to_plan.issuperset(each.jobs))
    if any(not left_to_plan.isdisjoint(each.jobs) for each in others):
        unplanned = [job for job in wanting if job.name not in left_to_plan]
        others = _needed(unplanned, live, market, limits, now, plan.margin).launches
    by_plan = plan.launches[: max(0, market.most - len(live) - len(others))]
    needs = replace(needs, launches=(*others, *by_plan))
    if not (wanting or needs.launches):
        return Provision(releases=_unused(live, names, market, now, foreseen), spare=names)
    waiting = [job for job in jobs if job.name not in needs.refused]
    releases = _unused(live, names - needs.used, market, now, foreseen)
    # Nothing makes way if nothing can be launched in its place, or if other launches or releases already help.
    may_give_way = market.held is None and not (needs.launches or releases)
    # A plan releases idle allocations itself if it needs others.
    unplanned = [job for job in waiting if job.name not in plan.planned]
    if may_give_way and (first := _giving_way(unplanned, live, needs.used, market, limits, now)) is not None:
        releases |= first
    due = () if market.held is not None else (*_settled(others, wanting, since, market, now), *by_plan)
    waits = _waits(waiting, live, needs, market)
    asked = {name: plan.begins[name] for launch in due for name in launch.jobs if name in plan.begins}
    return Provision(due, releases, names - needs.used, waits, needs.refused, awaits=plan.awaits, ahead=asked)


def _just_come(
    jobs: Sequence[PlannedJob], known: Collection[str], since: Mapping[str, float] | None, now: float
) -> frozenset[str]:
    """Return the recently arrived jobs of planned runs, which the plan does not include yet.

    :param known: the planned runs
    """
    seen = since or {}
    # A job that is in no plan after ten seconds is handled without a plan.
    return frozenset(job.name for job in jobs if job.run in known and now - seen.get(job.name, job.queued_at) < 10.0)


@dataclass(frozen=True, slots=True)
class _Needs:
    """What jobs need.

    :param launches: what to launch, as far as the limits allow
    :param used: the allocations in which jobs have a place
    :param left: the jobs without either, each with the planner's reason
    :param refused: the jobs that nothing can ever hold, each with the reason
    """

    launches: tuple[Launch, ...]
    used: frozenset[str]
    left: Mapping[str, Reason]
    refused: Mapping[str, Reason]


def _needed(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: Market,
    limits: InstanceLimits,
    now: float,
    margin: float = SECONDS_TO_BEGIN,
) -> _Needs:
    """Return what jobs need, planned as if none of them had a place.

    :param margin: seconds from the start of an allocation to that of its jobs
    """
    if not jobs:
        return _Needs((), frozenset(), {}, {})
    jobs = _in_turn(jobs)
    kinds = {str(job.instance_type) for job in jobs}
    # Jobs cannot use other kinds, and the planner checks every location for every job.
    open_ones = [each for each in live if each.instance_type in kinds and not each.draining]
    # With equal prices the planner launches as few allocations as possible.
    planned = planner.plan(
        jobs,
        [replace(each, used=each.running, prefetched=(), usd_per_hour=1.0) for each in open_ones],
        Catalogue({kind: InstanceType(kind, market.capacity, (Offering(1.0),)) for kind in kinds}),
        replace(
            groups.limits_left(limits, [each for each in live if each.draining or each.instance_type not in kinds]),
            instances=market.most - (len(live) - len(open_ones)),
        ),
        now=now,
        bound=False,
    )
    by_name = {job.name: job for job in jobs}
    ordered, placements = tuple(planned.launches), tuple(planned.placements)
    # Some policies place equal jobs one by one, so counts are summed.
    packed: dict[str, Counter[str]] = {each.name: Counter() for each in ordered}
    for each in placements:
        if each.location in packed:
            packed[each.location][each.job] += each.count
    launches = tuple(
        Launch(
            launch.instance_type,
            shaped(sum((by_name[job].resources * n for job, n in packed[launch.name].items()), NOTHING), market),
            max([market.seconds, *((by_name[job].time or 0.0) + margin for job in packed[launch.name])]),
            tuple(packed[launch.name]),
        )
        for launch in ordered
    )
    used = frozenset(each.location for each in placements) - packed.keys()
    placed = {each.job for each in placements}
    left = {each.job: each.reason for each in planned.waits if each.job not in placed}
    return _Needs(launches, used, left, {each.job: each.reason for each in planned.refusals})


def _waits(jobs: Sequence[PlannedJob], live: Sequence[Location], needs: _Needs, market: Market) -> dict[str, Reason]:
    if market.held is not None:
        to_launch = {name for launch in needs.launches for name in launch.jobs}
        return {job.name: market.held for job in jobs if job.name in to_launch or job.name in needs.left}
    there = len(live) + len(needs.launches)
    full = because("max_allocations", used=there, most=market.most) if there >= market.most else None
    return {job.name: full or needs.left[job.name] for job in jobs if job.name in needs.left}


def _in_turn(jobs: Sequence[PlannedJob]) -> Sequence[PlannedJob]:
    """Give each job a unique priority: earlier turns, longer rests and earlier arrivals are served first.

    Without this the planner orders by size, and a job could wait forever for an allocation of another kind or length.
    """
    ordered = sorted(jobs, key=lambda job: (-job.priority, job.turn, -job.rest, job.queued_at))
    return [replace(job, priority=-rank) for rank, job in enumerate(ordered)]


def _settled(
    launches: tuple[Launch, ...],
    jobs: Sequence[PlannedJob],
    since: Mapping[str, float] | None,
    market: Market,
    now: float,
) -> tuple[Launch, ...]:
    """Return the launches that are due; while jobs are arriving, only launches of whole nodes are."""
    return settled(launches, jobs, since, now, lambda each: each.capacity.cpus >= market.capacity.cpus)


def _unused(
    live: Sequence[Location], spare: frozenset[str], market: Market, now: float, foreseen: AllocationPlan | None
) -> dict[str, Reason]:
    """Return the idle allocations that the plan does not need, and those that nothing has needed for a while. Without a
    plan, running allocations end by themselves.
    """
    plan = AllocationPlan() if foreseen is None else foreseen
    ends = dict[str, Reason]()
    for each in live:
        is_idle = each.booting or (foreseen is not None and each.empty and not each.draining)
        if not is_idle or each.name not in spare or each.name in plan.needed:
            continue
        if each.name in plan.releases:
            ends[each.name] = plan.releases[each.name]
        elif each.idle_since is not None and now - each.idle_since > market.idle_seconds:
            seconds = now - each.idle_since
            ends[each.name] = because("not_wanted") if each.booting else because("idle", seconds=seconds)
    return ends


def abandoned(
    live: Sequence[Location],
    ordered_for: Mapping[str, Collection[str]],
    active: Collection[str],
    spare: Collection[str],
) -> dict[str, Reason]:
    """Return the queued allocations whose requesting gang members have all stopped looking for room.

    Other unused allocations are kept for ``idle_seconds``; a gang returns after minutes, if at all, and then requests
    all its room again.

    :param ordered_for: by allocation, the members for which it was requested
    :param active: members of gangs that look for room, or have started
    :param spare: the allocations in which no waiting job has a place
    :returns: the allocations with the reason
    """
    return {
        each.name: because("gang_gone")
        for each in live
        if each.booting and each.name in spare and each.name in ordered_for
        if not any(job in active for job in ordered_for[each.name])
    }


def _giving_way(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    used: frozenset[str],
    market: Market,
    limits: InstanceLimits,
    now: float,
) -> dict[str, Reason] | None:
    """Return the allocation that should end in favour of another kind or a larger one if the limit is reached.

    :param used: those in which jobs have a place
    :returns: the allocation with the reason; None: none should end
    """
    if not jobs or len(live) < market.most or any(each.draining for each in live):
        return None
    # An allocation with work is not released before some of it has started, or nothing would ever run. Nor is one in
    # which a gang is about to start: the gang would lose its room.
    yielding = [each for each in live if each.held == NOTHING and (each.running != NOTHING or each.name not in used)]
    if not yielding:
        return None

    def left(each: Location) -> float:
        return math.inf if each.ends_at is None else each.ends_at - now

    def without(abandoned: Location, jobs: Sequence[PlannedJob]) -> tuple[Launch, ...]:
        return _needed(jobs, [each for each in live if each is not abandoned], market, limits, now).launches

    # Among equal allocations, only the one with the most time left is checked: there can be hundreds of them.
    longest = {(each.kind, each.capacity): each for each in sorted(live, key=left)}.values()
    odd = {job.name for job in jobs if not any(suits(each, job, now) for each in longest)}
    if odd:
        first = min(yielding, key=lambda each: (left(each) >= market.unlimited, each.used.cpus, left(each)))
        launches = without(first, [*jobs, *(job for each in live for job in each.prefetched)])
        if any(not odd.isdisjoint(launch.jobs) for launch in launches):  # else it is not their turn
            return {first.name: because("makes_way")}
    smallest = min(yielding, key=lambda each: (each.capacity.cpus, each.capacity.memory, left(each)))
    launches = without(smallest, jobs)
    # An allocation makes way only for one that is at least twice as large.
    if launches and launches[0].capacity.cpus >= 2 * smallest.capacity.cpus:
        return {smallest.name: because("makes_way_for_larger")}
    return None
