"""Which machines are bought, which are released, and what waits for that.

Pure. A machine is bought by the hour and stays until it is released. Packing is the planner's: by machine-hours
(policy ``hours``) where lengths differ, of many jobs by classes of them, else by Seven Bridges' algorithm (``greedy``).
All fill what is there, machines that boot with their whole capacity, and buy within the limits of the market.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from lading.scheduling import groups
from lading.scheduling.job import Job
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.packing.quotas import quota
from lading.scheduling.plan import Limits, Objective
from lading.scheduling.planner import POLICIES, hours_of_many, plan
from lading.scheduling.provisioning.allocations import MOST_CLASSIFIED, differ
from lading.scheduling.provisioning.launch import Launch, Provision, settled
from lading.scheduling.scale_in import ScaleIn, releases

MAKES_WAY = "it makes way for what waits and cannot run on it"
NEEDED = "it is empty, and what waits needs another one within the limits"


@dataclass(frozen=True, slots=True)
class _Needs:
    """What jobs need.

    :param launches: what has to be bought, as far as it may be
    :param used: the machines on which they have a place
    :param left: the jobs for which there is neither, each with the reason of the planner
    :param refused: the jobs that nothing can ever hold, each with the reason
    """

    launches: tuple[Launch, ...]
    used: frozenset[str]
    left: Mapping[str, str]
    refused: Mapping[str, str]


def decide(
    jobs: Sequence[Job],
    live: Sequence[Location],
    market: MachineMarket,
    since: Mapping[str, float] | None,
    limits: Limits,
    *,
    now: float,
) -> Provision:
    """See :func:`lading.scheduling.provisioning.decision.decide`.

    Nothing is bought while jobs arrive. Only what is empty is released for money, after ``idle_seconds``, or at once
    where something else could then be bought for what waits. Where nothing that is there can ever run a job, and the
    limits allow no more, one machine takes no more jobs, and makes way when its jobs have ended.
    """
    stored = [job for each in live for job in each.stored]
    waiting = [*jobs, *stored]
    needs = _needed(waiting, live, market, limits, now) if waiting else _Needs((), frozenset(), {}, {})
    spare = frozenset(each.name for each in live) - needs.used
    released = _idle(live, needs.used, market, now)
    if market.held is None and needs.left:
        released |= _sooner(waiting, live, spare - released.keys(), needs, market, limits, now)
        if not (released or needs.launches):
            released |= _making_way(jobs, waiting, live, market, limits, now)
    due = () if market.held is not None or not waiting else settled(needs.launches, waiting, since, now)
    return Provision(due, released, spare, _waits(jobs, needs, market), needs.refused)


def _needed(jobs: Sequence[Job], live: Sequence[Location], market: MachineMarket, limits: Limits, now: float) -> _Needs:
    """What jobs need if none of them has a place."""
    many = sum(job.count for job in jobs) > MOST_CLASSIFIED
    planned = plan(
        jobs,
        [replace(each, used=each.running, stored=()) for each in live if not each.draining],
        market.catalogue,
        left_of(market.limits, groups.less(limits, closed := [each for each in live if each.draining]), closed),
        "greedy" if market.policy == "hours" and not (many or differ(jobs)) else market.policy,
        now=now,
        objective=Objective(boot_seconds=market.boot_seconds),
        bound=False,
        policies={**POLICIES, "hours": hours_of_many} if many else POLICIES,
    )
    placements, ordered = tuple(planned.placements), tuple(planned.launches)
    packed: dict[str, dict[str, None]] = {each.name: {} for each in ordered}
    for each in placements:
        if each.location in packed:
            packed[each.location][each.job] = None
    launches = tuple(
        Launch(
            each.instance_type,
            market.catalogue.types[each.instance_type].capacity,
            math.inf,
            tuple(packed[each.name]),
            each.zone,
            each.capacity_type,
            each.usd_per_hour,
        )
        for each in ordered
    )
    placed = {each.job for each in placements}
    return _Needs(
        launches,
        frozenset(each.location for each in placements) - packed.keys(),
        {each.job: each.reason for each in planned.waits if each.job not in placed},
        {each.job: each.reason for each in planned.refusals},
    )


def left_of(market: Limits, its_groups: Limits, closed: Sequence[Location]) -> Limits:
    """The limits of a market and of groups, less what the planner does not see.

    :param closed: machines that take no more jobs, and cost money until they have gone
    """
    types = Counter(each.instance_type for each in closed)
    vcpus: dict[str, float] = dict(market.vcpus)
    for each in closed:
        name = quota(str(each.instance_type), each.capacity_type)
        if name in vcpus:
            vcpus[name] -= each.capacity.cpus
    usd = market.usd_per_hour
    return replace(
        its_groups,
        instances=None if market.instances is None else max(0, market.instances - len(closed)),
        types={name: max(0, most - types[name]) for name, most in market.types.items()},
        usd_per_hour=None if usd is None else max(0.0, usd - sum(each.usd_per_hour for each in closed)),
        vcpus={name: max(0.0, most) for name, most in vcpus.items()},
    )


def _idle(live: Sequence[Location], used: frozenset[str], market: MachineMarket, now: float) -> dict[str, str]:
    """What is empty and nothing has needed for a while."""
    rules = ScaleIn(idle_seconds=market.idle_seconds, min_instances=market.min_instances)
    # Since when it has nothing to do is not known of what was needed a moment ago.
    there = [each for each in live if not each.draining and (each.idle_since is not None or each.name in used)]
    rules = replace(rules, min_instances=max(0, market.min_instances - (len(live) - len(there))))
    return {each.location: each.reason for each in releases(there, used, rules, now)}


def _sooner(
    jobs: Sequence[Job],
    live: Sequence[Location],
    spare: frozenset[str],
    needs: _Needs,
    market: MachineMarket,
    limits: Limits,
    now: float,
) -> dict[str, str]:
    """What is empty, and stands in the way of what could be bought for jobs within the limits."""
    empty = {each.name for each in live if each.name in spare and each.empty and not each.draining}
    if not empty:
        return {}
    without = _needed(jobs, [each for each in live if each.name not in empty], market, limits, now)
    return dict.fromkeys(sorted(empty), NEEDED) if len(without.left) < len(needs.left) else {}


def _making_way(
    jobs: Sequence[Job],
    waiting: Sequence[Job],
    live: Sequence[Location],
    market: MachineMarket,
    limits: Limits,
    now: float,
) -> dict[str, str]:
    """The machine that shall end, for something waits that nothing which is there can ever run."""
    if any(each.draining for each in live):
        return {}
    odd = {job.name for job in jobs if not any(each.suits(job) for each in live)}
    # Of those that are alike the one with the least to do will do.
    least: dict[tuple[str | None, str | None], Location] = {}
    for each in sorted(live, key=lambda each: each.used.cpus) if odd else ():
        least.setdefault((each.instance_type, each.capacity_type), each)
    for given_up in least.values():
        others = [each for each in live if each is not given_up]
        launches = _needed(waiting, others, market, limits, now).launches
        if any(not odd.isdisjoint(launch.jobs) for launch in launches):
            return {given_up.name: MAKES_WAY}
    return {}


def _waits(jobs: Sequence[Job], needs: _Needs, market: MachineMarket) -> dict[str, str]:
    """Why nothing is bought for those of the jobs that have no place either."""
    if market.held is not None:
        to_buy = {name for launch in needs.launches for name in launch.jobs}
        return {job.name: market.held for job in jobs if job.name in to_buy or job.name in needs.left}
    return {job.name: needs.left[job.name].removeprefix("waits: ") for job in jobs if job.name in needs.left}
