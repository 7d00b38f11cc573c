"""Decide which machines a site buys and releases, and what jobs wait for.

Pure. A machine is bought by the hour and stays until it is released. Packing is left to the planner: by the forecast,
with each job as a run of its own, or by Seven Bridges' algorithm (``greedy``). Both fill the existing machines, count
booting ones with their whole capacity, and buy within the limits of the market.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from lading.scheduling.matching import groups
from lading.scheduling.matching.market import MOST_TO_LEARN, MachineMarket
from lading.scheduling.model.job import NOTHING, PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import FORECAST, InstanceLimits, Placement, Plan
from lading.scheduling.model.prediction import is_short
from lading.scheduling.model.quotas import quota, vcpus
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.provisioning.budgets import coming, within
from lading.scheduling.provisioning.launch import Launch, Provision, settled
from lading.scheduling.provisioning.planner import plan
from lading.scheduling.provisioning.scale_in import ScaleIn, releases
from lading.scheduling.provisioning.waiting_jobs import plan_waiting

MAKES_WAY = because("makes_way")
LEARNING = because("first_gpu_machine")
# The limits that still count machines which take no more jobs.
COUNTED = ("group_instances", "site_instances", "type_instances")
NEEDED = because("limit_needed")


@dataclass(frozen=True, slots=True)
class _Needs:
    """What jobs need.

    :param launches: what to buy, as far as the limits allow
    :param used: the machines on which jobs have a place
    :param left: the jobs without either, each with the planner's reason
    :param refused: the jobs that nothing can ever hold, each with the reason
    :param coming: cost of the machines booting for the jobs of each budget, USD per hour
    :param homes: see :class:`Provision`
    """

    launches: tuple[Launch, ...]
    used: frozenset[str]
    left: Mapping[str, Reason]
    refused: Mapping[str, Reason]
    coming: Mapping[str, float] = field(default_factory=dict)
    homes: Mapping[str, str] = field(default_factory=dict)


def decide(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: MachineMarket,
    since: Mapping[str, float] | None,
    limits: InstanceLimits,
    *,
    now: float,
) -> Provision:
    """See :func:`lading.scheduling.provisioning.decision.decide`.

    Nothing is bought while jobs are arriving. Only empty machines are released to save money: after ``idle_seconds``,
    or at once if something else can then be bought for waiting jobs. If no existing machine can ever run some job, and
    the limits allow no more machines, one machine takes no more jobs and makes way once its jobs have finished.
    """
    prefetched = [job for each in live for job in each.prefetched]
    waiting = [*jobs, *prefetched]
    needs = _needed(waiting, live, market, limits, now) if waiting else _Needs((), frozenset(), {}, {})
    spare = frozenset(each.name for each in live) - needs.used
    released = _idle(live, needs.used, market, now)
    if market.held is None and needs.left:
        released |= _sooner(waiting, live, spare - released.keys(), needs, market, limits, now)
        if not (released or needs.launches):
            released |= _making_way(jobs, waiting, live, market, limits, now)
    payable, over = within(needs.launches, waiting, needs.coming)
    due = () if market.held is not None or not waiting else settled(payable, waiting, since, now)
    due, late = learnt(due, live, market)
    over = {**over, **late}
    closed = sum(each.draining for each in live)
    waits = {job.name: over[job.name] for job in jobs if job.name in over} | _waits(jobs, needs, market, closed)
    return Provision(due, released, spare, waits, needs.refused, needs.homes)


def _needed(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: MachineMarket,
    limits: InstanceLimits,
    now: float,
) -> _Needs:
    """Return what jobs need if none of them has a place."""
    there = [
        replace(each, used=each.running, prefetched=(), jobs=each.jobs - len(each.prefetched))
        for each in live
        if not each.draining
    ]
    there, homes = promised(jobs, there, now)
    plan = planned(
        [job for job in jobs if job.name not in homes],
        there,
        [each for each in live if each.draining],
        market,
        limits,
        now,
    )
    launches, placements = bought(plan, market)
    by_name = {job.name: job for job in jobs}
    given = [each for each in live if each.prefetched and begins_all(each)]
    begins = {job.name for each in given for job in each.prefetched}
    placed = {each.job: each.location for each in placements} | homes
    cared_for = begins.union(placed, *(launch.jobs for launch in launches))
    booting = {each.name for each in there if each.booting}
    named = {job.name for job in jobs if job.count == 1}
    return _Needs(
        tuple(less(each, begins) for each in launches if not begins.issuperset(each.jobs)),
        frozenset(each.location for each in placements).union(homes.values(), [each.name for each in given]),
        {each.job: each.reason for each in plan.waits if each.job not in cared_for},
        {each.job: market.why_not(by_name[each.job], each.reason) for each in plan.refusals},
        coming(jobs, placed, live),
        {job: name for job, name in placed.items() if name in booting and job in named},
    )


def learnt(
    launches: tuple[Launch, ...], live: Sequence[Location], market: MachineMarket
) -> tuple[tuple[Launch, ...], dict[str, Reason]]:
    """Hold back launches of GPU types until one machine has shown that its image supports the GPUs.

    Return the other launches, and the reason for each job that is held back, by name.
    """
    kept: list[Launch] = []
    waits: dict[str, Reason] = {}
    left = MOST_TO_LEARN - sum(each.instance_type in market.learning and each.booting for each in live)
    for launch in launches:
        if launch.kind in market.learning and left <= 0:
            waits |= dict.fromkeys(launch.jobs, LEARNING)
            continue
        left -= launch.kind in market.learning
        kept.append(launch)
    return tuple(kept), waits


def bought(found: Plan, market: MachineMarket) -> tuple[tuple[Launch, ...], list[Placement]]:
    placements, ordered = tuple(found.placements), tuple(found.launches)
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
    return launches, [each for each in placements if each.location not in packed]


def begins_all(machine: Location) -> bool:
    """Return whether every job given to a machine starts there at once, so that nothing needs to be bought for them."""
    return not machine.draining and machine.used.fits(machine.capacity)


def less(launch: Launch, begins: AbstractSet[str]) -> Launch:
    return replace(launch, jobs=tuple(name for name in launch.jobs if name not in begins))


def promised(
    jobs: Sequence[PlannedJob], there: Sequence[Location], now: float
) -> tuple[list[Location], dict[str, str]]:
    """Add jobs to the machines on which they were promised a place; return the machines, and the machine of each job.

    A booting machine is not planned again in each tick as if it were empty: jobs would change places as others arrive,
    and another machine would be bought for those that lose theirs.
    """
    is_any = any(each.promised for each in there)
    by_name = {job.name: job for job in jobs if job.count == 1 and not is_short(job)} if is_any else {}
    machines, homes = [], {}
    for location in there:
        machine = location
        for job in [by_name[name] for name in sorted(location.promised & by_name.keys())]:
            if machine.suits(job) and job.resources.fits(machine.capacity - machine.used):
                machine, homes[job.name] = machine.kept_for([job], now), machine.name
        machines.append(machine)
    return machines, homes


def planned(
    jobs: Sequence[PlannedJob],
    there: Sequence[Location],
    closed: Sequence[Location],
    market: MachineMarket,
    limits: InstanceLimits,
    now: float,
) -> Plan:
    """Return the plan by which machines are bought and filled.

    :param there: the machines that take jobs, now or once booted, oldest first
    :param closed: those that take no more jobs
    :param limits: on the number of them with jobs of a task or a run
    """
    there, kept = with_kept(there, market.min_instances - len(closed))
    allowed = left_of(market.limits, groups.limits_left(limits, closed), closed)
    if allowed.usd_per_hour is not None:
        allowed = replace(allowed, usd_per_hour=max(0.0, allowed.usd_per_hour - kept))

    def made(some: Sequence[PlannedJob]) -> Plan:
        if market.policy == FORECAST:
            return plan_waiting(some, [as_planned(each, market, now) for each in there], market, allowed, now=now)
        return plan(some, there, market.catalogue, allowed, market.policy, now=now, bound=False)

    found = made(jobs)
    first = by_turn(jobs, found)
    return found if first is None else made(first)


def by_turn(jobs: Sequence[PlannedJob], found: Plan) -> list[PlannedJob] | None:
    """Prioritise the jobs of the shares with least; None if all have a place or there is only one share.

    Within a priority the planner orders by price. So each priority is split: the first jobs by turn, as many as need in
    total what the placed jobs take, get up to 32 steps, and the others come last and fill what is left.
    """
    left = {each.job for each in found.waits}
    if not left or len({job.share for job in jobs}) < 2:
        return None
    refused = {each.job for each in found.refusals}
    amounts = [0.0, 0.0, 0.0]
    for job in jobs:
        if job.name not in left and job.name not in refused:
            amounts = [have + need for have, need in zip(amounts, _need(job), strict=True)]
    in_order = sorted(
        (job for job in jobs if job.name not in refused),
        key=lambda job: (-job.priority, job.turn, -job.rest, job.queued_at, job.name),
    )
    taken, first = [0.0, 0.0, 0.0], dict[str, int]()
    for job in in_order:
        # A resource that no placed job uses says nothing: perhaps no machine has GPUs.
        if any(have >= most for have, most in zip(taken, amounts, strict=True) if most):
            break
        taken = [have + need for have, need in zip(taken, _need(job), strict=True)]
        first[job.name] = len(first)
    if left.isdisjoint(first):
        return None  # the first jobs by turn already have a place
    steps = 32  # enough to tell the first ones apart
    size = -(-len(first) // steps)
    turns = {name: steps - number // size for name, number in first.items()}
    return [replace(job, priority=(steps + 1) * job.priority + turns.get(job.name, 0)) for job in jobs]


def _need(job: PlannedJob) -> tuple[float, float, float]:
    """Return what a job, times its count and nodes, takes: cpus, MiB and GPUs."""
    asked, number = job.resources, job.count * job.nodes
    return asked.cpus * number, float(asked.memory * number), asked.gpus * number


def with_kept(there: Sequence[Location], least: int) -> tuple[Sequence[Location], float]:
    """Return the machines, with price 0 for idle ones that are kept in any case, and the price of those, USD per hour.

    :param least: how many machines are kept, including busy ones
    """
    idle = [each for each in there if each.empty]
    number = max(0, least - (len(there) - len(idle)))
    kept = {each.name for each in sorted(idle, key=lambda each: each.usd_per_hour)[:number]}
    usd = sum(each.usd_per_hour for each in idle if each.name in kept)
    return [replace(each, usd_per_hour=0.0) if each.name in kept else each for each in there] if kept else there, usd


def left_of(market: InstanceLimits, its_groups: InstanceLimits, closed: Sequence[Location]) -> InstanceLimits:
    """Return the limits of a market and of groups, less the closed machines, which the planner does not see.

    :param closed: machines that take no more jobs, and cost money until they are gone
    """
    types = Counter(each.instance_type for each in closed)
    free: dict[str, float] = dict(market.vcpus)
    for each in closed:
        name = quota(str(each.instance_type), each.capacity_type)
        if name in free:
            free[name] -= vcpus(str(each.instance_type), each.capacity.cpus)
    usd = market.usd_per_hour
    return replace(
        its_groups,
        instances=None if market.instances is None else max(0, market.instances - len(closed)),
        types={name: max(0, most - types[name]) for name, most in market.types.items()},
        usd_per_hour=None if usd is None else max(0.0, usd - sum(each.usd_per_hour for each in closed)),
        vcpus={name: max(0.0, most) for name, most in free.items()},
    )


def _idle(live: Sequence[Location], used: frozenset[str], market: MachineMarket, now: float) -> dict[str, Reason]:
    rules = ScaleIn(idle_seconds=market.idle_seconds, min_instances=market.min_instances)
    # A machine that was needed a moment ago has no ``idle_since`` yet.
    there = [each for each in live if not each.draining and (each.idle_since is not None or each.name in used)]
    rules = replace(rules, min_instances=max(0, market.min_instances - (len(live) - len(there))))
    return {each.location: each.reason for each in releases(there, used, rules, now)}


def _sooner(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    spare: frozenset[str],
    needs: _Needs,
    market: MachineMarket,
    limits: InstanceLimits,
    now: float,
) -> dict[str, Reason]:
    """Return the empty machines whose release lets the limits admit launches for more of the waiting jobs."""
    empty = {each.name for each in live if each.name in spare and each.empty and not each.draining}
    if not empty:
        return {}
    without = _needed(jobs, [each for each in live if each.name not in empty], market, limits, now)
    return dict.fromkeys(sorted(empty), NEEDED) if len(without.left) < len(needs.left) else {}


def _making_way(
    jobs: Sequence[PlannedJob],
    waiting: Sequence[PlannedJob],
    live: Sequence[Location],
    market: MachineMarket,
    limits: InstanceLimits,
    now: float,
) -> dict[str, Reason]:
    """Return the machine that should end because a waiting job can never run on any existing machine."""
    if any(each.draining for each in live):
        return {}
    odd = {job.name for job in jobs if not any(each.suits(job) for each in live)}
    # Among equal machines, only the one with the fewest used cpus is tried.
    least: dict[tuple[str | None, str | None], Location] = {}
    yielding = [each for each in live if each.held == NOTHING]  # a gang that is to start there would lose its room
    for each in sorted(yielding, key=lambda each: each.used.cpus) if odd else ():
        least.setdefault((each.instance_type, each.capacity_type), each)
    for candidate in least.values():
        others = [each for each in live if each is not candidate]
        launches = _needed(waiting, others, market, limits, now).launches
        if any(not odd.isdisjoint(launch.jobs) for launch in launches):
            return {candidate.name: MAKES_WAY}
    return {}


def _waits(jobs: Sequence[PlannedJob], needs: _Needs, market: MachineMarket, closed: int) -> dict[str, Reason]:
    """Return why nothing is bought for the jobs that have no place.

    :param closed: how many machines take no more jobs; the planner sees only the limits that these leave
    """
    if market.held is not None:
        to_buy = {name for launch in needs.launches for name in launch.jobs}
        return {job.name: market.held for job in jobs if job.name in to_buy or job.name in needs.left}
    more = [because("closed_count", number=closed)] if closed else []
    return {
        job.name: reason.with_also(*(more if reason.code in COUNTED else ()))
        for job in jobs
        if (reason := needs.left.get(job.name)) is not None
    }


def as_planned(location: Location, market: MachineMarket, now: float) -> Location:
    """Return a machine as the planner sees it; a booting one with its ready time and its type's properties.

    :param now: epoch seconds
    """
    if not location.booting:
        return location
    ready_at = now if location.ready_at is None else location.ready_at
    if ready_at <= now:
        # An overdue machine is expected within ten seconds again and again, but never later than a new machine of its
        # kind, which would be bought in its place. It is given up at its launch deadline.
        more = min(10.0, market.boot_of(location.instance_type) or 10.0)
        ready_at += more * (1 + (now - ready_at) // more)
    kind = market.catalogue.types.get(location.instance_type or "")
    if kind is None:
        return replace(location, ready_at=ready_at)
    return replace(
        location,
        ready_at=ready_at,
        arch=location.arch or kind.arch,
        features=location.features or kind.features,
    )
