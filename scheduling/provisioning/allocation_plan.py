"""Allocations by a plan of all that is to come: how large they are, how many, and when they are asked for. Pure.

The plan is that by which machines are bought. A part of a node is a machine, its cpu-hours are its USD, and what it
waits in its queue is its boot, which costs nothing. So work that is behind what the run waits for in any case shares
small allocations, and what is wide for a while gets more of them for that while.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from lading.scheduling.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.forecast.forecast import Forecast
from lading.scheduling.forecast.policy import Actions
from lading.scheduling.job import NOTHING
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.packing.problem import fits, vector
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.provisioning.launch import AllocationPlan, Launch
from lading.scheduling.resources import Resources

# One that has waited for longer than others is expected after as much again, so many times the time that has passed.
LONGER = 1.5
# A GPU counts as so many cpus, and each allocation as so much of one beside: of what costs as much otherwise, fewer and
# larger ones are asked for.
CPUS_PER_GPU, CPUS_PER_ALLOCATION = 1.0, 0.1
# From its start until its first job begins, and from the end of its last one to its own, one is paid for so long.
SECONDS_PAID = 60.0
# No smaller part of a node is planned: in very small ones jobs that come in another order than planned wait for long.
MOST_PARTS = 4


def parts(market: Market) -> dict[str, Resources]:
    """What allocations can be, by names: a node, its half and its quarter; with its GPUs and without."""
    whole, numbers = market.capacity, [1]
    while not market.whole and whole.cpus >= 2 * numbers[-1] and numbers[-1] < MOST_PARTS:
        numbers.append(2 * numbers[-1])
    some = [part_of(market, number) for number in numbers]
    if whole.gpus:
        some += [replace(each, gpus=0.0) for each in some if not market.whole]
    return {size_of(each): each for each in some}


def part_of(market: Market, number: int) -> Resources:
    """One of so many equal parts of a node."""
    whole = market.capacity
    if number == 1:
        return whole
    return Resources(
        math.ceil(whole.cpus / number),
        math.ceil((whole.memory + market.overhead) / number) - market.overhead,
        math.ceil(whole.disk / number),
        math.ceil(whole.gpus / number),
    )


def shaped(packed: Resources, market: Market) -> Resources:
    """The smallest part of a node that holds so much: all of it, a half, a quarter, ... at least one cpu."""
    if market.whole:
        return market.capacity
    part = _part(market, 1, packed)
    parts = 2
    # As exactly as the planner, or what is launched could turn out too small for its jobs.
    while market.capacity.cpus >= parts and fits(vector(packed), vector(smaller := _part(market, parts, packed))):
        part, parts = smaller, parts * 2
    return part


def _part(market: Market, number: int, packed: Resources) -> Resources:
    part = part_of(market, number)
    return part if packed.gpus else replace(part, gpus=0.0)


def size_of(part: Resources) -> str:
    """What tells allocations of one kind from each other in a plan."""
    return f"{part.cpus:g} cpus, {part.gpus:g} gpus"


def usd_of(part: Resources) -> float:
    """What stands for the USD of an hour."""
    return part.cpus + CPUS_PER_GPU * part.gpus + CPUS_PER_ALLOCATION


def as_machines(market: Market, waits: Mapping[str, float]) -> MachineMarket:
    """What can be launched, as a plan of machines has it.

    :param waits: the kinds of allocations that are to come, and for how many seconds they wait in their queues
    """
    types = {
        f"{kind} {size}": InstanceType(kind, part, (Offering(usd_of(part), capacity_type=size),))
        for kind in waits
        for size, part in parts(market).items()
    }
    return MachineMarket(
        Catalogue(types),
        InstanceLimits(instances=market.most),
        boot_seconds=market.queue_seconds,
        boots=waits,
        held=market.held,
        hurry=market.hurry,
    )


def as_machine(allocation: Location, seen_at: float, up_at: float | None, wait: float, now: float) -> Location:
    """One that is there or in its queue, as a plan of machines has it.

    :param seen_at: when it was seen first, epoch seconds; ``up_at``: when it was up first, None: it is not
    :param wait: seconds that others have waited
    """
    ready_at = None
    if allocation.booting:
        passed = wait
        while seen_at + passed <= now:
            passed = max(LONGER * passed, passed + 1.0)
        ready_at = seen_at + passed
    return replace(
        allocation,
        capacity_type=size_of(allocation.capacity),
        usd_per_hour=usd_of(allocation.capacity),
        launched_at=now if up_at is None else up_at,
        ready_at=ready_at,
    )


def needed_soon(actions: Actions, live: Sequence[Location], waits: Mapping[str, float], now: float) -> frozenset[str]:
    """The allocations that a plan needs sooner than another one would come out of its queue."""
    kinds = {each.name: str(each.instance_type) for each in live}
    soon = (name for name, begin in actions.needed.items() if name in kinds and begin <= now + waits[kinds[name]])
    return frozenset((*soon, *(each.location for each in actions.placements)))


def allocation_plan(
    actions: Actions,
    planned: Collection[str],
    forecast: Forecast,
    tokens: Mapping[str, str],
    begins: Mapping[str, float],
    sure: Collection[str],
    needed: Collection[str],
    market: Market,
    margin: float,
) -> AllocationPlan:
    """What a plan asks for now.

    :param planned: the waiting jobs that have a place in it, or for which it is being made
    :param tokens: the names of steps by the tokens of the jobs that wait
    :param begins: when steps are to begin by it, epoch seconds
    :param sure: the steps that are still to come and for which may be launched before they have come
    :param needed: the allocations that it needs sooner than another one would come out of its queue
    :param margin: by how many seconds a walltime is longer than what its jobs may take
    """
    sizes, launches = parts(market), []
    for machine in actions.launches:
        names = actions.launched_for[machine.name]
        waiting = tuple(name for name in names if name in tokens)
        coming = sorted((begins.get(name, math.inf), name) for name in names if name in sure)
        if not (jobs := waiting or tuple(name for _, name in coming[:1])):
            continue
        limits = (forecast.steps[tokens.get(name, name)].job.time or 0.0 for name in jobs)
        seconds = max(market.seconds, max(limits) + margin)
        # Where all that it is for fits into less at once, it does so in any order.
        least = shaped(sum((forecast.steps[tokens.get(name, name)].job.resources for name in names), NOTHING), market)
        capacity = min(sizes[machine.capacity_type], least, key=usd_of)
        launches.append(Launch(machine.instance_type, capacity, seconds, jobs))
    return AllocationPlan(
        tuple(launches),
        frozenset(planned),
        frozenset(needed),
        {each.location: each.reason for each in actions.releases if each.location not in needed},
        {each.job: each.reason for each in actions.waits if each.reason.code == "room_soon"},
        {name: begins[name] for launch in launches for name in launch.jobs if name not in tokens and name in begins},
        {token: begins[name] for token, name in tokens.items() if name in begins},
    )
