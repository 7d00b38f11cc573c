"""Allocations by a plan of all upcoming work: how large they are, how many, and when they are requested. Pure.

The plan is the one by which machines are bought. A part of a node is a machine, its cpu-hours are its USD, and its
queue wait is its boot, which costs nothing. So work that is not on the critical path of its run shares small
allocations, and a wide phase gets more allocations for as long as it lasts.
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

# An allocation that has waited longer than expected is expected at LONGER times the last estimate, again and again.
LONGER = 1.5
# The cost of a GPU in cpus, and a surcharge for each allocation, so that of equally expensive choices the one with the
# fewest and largest allocations is requested.
CPUS_PER_GPU, CPUS_PER_ALLOCATION = 1.0, 0.1
# Seconds that an allocation is paid for before its first job starts and after its last job finishes.
SECONDS_PAID = 60.0
# No smaller part of a node is planned: in very small ones, jobs that arrive out of order wait for a long time.
MOST_PARTS = 4


def parts(market: Market) -> dict[str, Resources]:
    """Return the possible sizes of allocations by name: a node, a half and a quarter, with GPUs and without."""
    whole, numbers = market.capacity, [1]
    while not market.whole and whole.cpus >= 2 * numbers[-1] and numbers[-1] < MOST_PARTS:
        numbers.append(2 * numbers[-1])
    some = [part_of(market, number) for number in numbers]
    if whole.gpus:
        some += [replace(each, gpus=0.0) for each in some if not market.whole]
    return {size_of(each): each for each in some}


def part_of(market: Market, number: int) -> Resources:
    """Return one of ``number`` equal parts of a node."""
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
    """Return the smallest part of a node (all, a half, a quarter, ..., at least one cpu) that holds ``packed``."""
    if market.whole:
        return market.capacity
    part = _part(market, 1, packed)
    parts = 2
    # Compares with the planner's exact integers; otherwise the allocation could turn out too small for its jobs.
    while market.capacity.cpus >= parts and fits(vector(packed), vector(smaller := _part(market, parts, packed))):
        part, parts = smaller, parts * 2
    return part


def _part(market: Market, number: int, packed: Resources) -> Resources:
    part = part_of(market, number)
    return part if packed.gpus else replace(part, gpus=0.0)


def size_of(part: Resources) -> str:
    """Return the name of a size, which identifies kinds of allocations in a plan."""
    return f"{part.cpus:g} cpus, {part.gpus:g} gpus"


def usd_of(part: Resources) -> float:
    """Return the cost of an hour in cpus, which the plan uses as USD."""
    return part.cpus + CPUS_PER_GPU * part.gpus + CPUS_PER_ALLOCATION


def as_machines(market: Market, waits: Mapping[str, float]) -> MachineMarket:
    """Represent the allocations that can be launched as a market of machines.

    :param waits: the kinds of allocations that are needed, and their expected queue waits in seconds
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
    """Represent a running or queued allocation as a machine.

    :param seen_at: when it was first seen, epoch seconds; ``up_at``: when it was first up, None: not yet
    :param wait: the expected queue wait, seconds
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
    """Return the allocations that a plan needs sooner than a new one would leave its queue."""
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
    """Turn the actions of a plan into an :class:`AllocationPlan`.

    :param planned: the waiting jobs that have a place in the plan, or for which it is being made
    :param tokens: step names by the tokens of waiting jobs
    :param begins: planned starts of steps, epoch seconds
    :param sure: upcoming steps for which something can be launched ahead
    :param needed: the allocations that the plan needs sooner than a new one would leave its queue
    :param margin: how many seconds a walltime exceeds the time limits of its jobs
    """
    sizes, launches = parts(market), []
    for machine in actions.launches:
        names = actions.launched_for[machine.name]
        waiting = tuple(name for name in names if name in tokens)
        coming = {name: begins.get(name, math.inf) for name in names if name in sure}
        first = min(coming.values(), default=math.inf)
        if not (jobs := waiting or tuple(sorted(name for name, begin in coming.items() if begin == first))):
            continue
        limits = (forecast.steps[tokens.get(name, name)].job.time or 0.0 for name in jobs)
        seconds = max(market.seconds, max(limits) + margin)
        # If all its jobs fit together into a smaller part, that part suffices in any order.
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
