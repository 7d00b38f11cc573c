"""The provisioning decision for any kind of market: machines by forecast, machines for waiting jobs, or allocations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.waiting import Apart
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.provisioning import allocations, machines
from lading.scheduling.provisioning import foreseen as by_forecast
from lading.scheduling.provisioning.budgets import within
from lading.scheduling.provisioning.foreseen import Foreseen, ForeseenActions
from lading.scheduling.provisioning.launch import AllocationPlan, Provision


def decide(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: Market | MachineMarket,
    since: Mapping[str, float] | None = None,
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
    foreseen: Foreseen | None = None,
) -> Provision:
    """Decide what is launched and what makes way.

    :param jobs: those that wait and have no place yet
    :param live: everything launched or ordered, with what is on it, oldest first
    :param market: what can be launched
    :param since: when each job first found no room, by name; without an entry, when it was queued
    :param limits: on the number of these locations, and of those to be launched, with jobs of a task or a run
    :param now: epoch seconds
    :param foreseen: what the plan of all upcoming work requests; None: the site has no plan
    """
    if isinstance(market, MachineMarket) and isinstance(foreseen, ForeseenActions):
        return by_forecast.decide(jobs, live, market, since, limits, foreseen, now=now)
    if isinstance(market, MachineMarket):
        return machines.decide(jobs, live, market, since, limits, now=now)
    plan = foreseen if isinstance(foreseen, AllocationPlan) else None
    found = allocations.decide(jobs, live, market, since, limits, now=now, foreseen=plan)
    prefetched = (job for each in live for job in each.prefetched)
    launches, over = within(found.launches, [*jobs, *prefetched], {})
    waits = {job.name: over[job.name] for job in jobs if job.name in over}
    return replace(found, launches=launches, waits={**waits, **found.waits}) if over else found


def decide_apart(
    jobs: Sequence[tuple[PlannedJob, Apart]],
    live: Sequence[Location],
    market: Market | MachineMarket,
    since: Mapping[str, float],
    limits: InstanceLimits,
    *,
    now: float,
) -> tuple[Provision, list[Location], frozenset[str]]:
    """Decide what is launched for members of gangs that must be on different locations.

    The planner packs jobs together, so each member is decided separately, as if the locations of other members took
    nothing.

    :param jobs: those that wait and have no place yet, each with its gang
    :returns: what is launched; the live locations, with the members that have a place on them, followed by the launched
        ones, which take no other jobs and count against limits; and the names of all locations with such a member
    """
    there, kept, provision = list(live), set[str](), Provision()
    taken: dict[str, set[str]] = {}
    for job, apart in jobs:
        shut = taken.setdefault(apart.gang, set(apart.taken))
        fitting = (
            number
            for number, each in enumerate(there)
            if each.name not in shut and not each.draining and each.suits(job) and each.lasts(job.time, now)
            if job.resources.fits(each.capacity - each.running)
        )
        if (number := next(fitting, None)) is not None:
            there[number] = there[number].kept_for([job], now)
            shut.add(there[number].name)
            kept.add(there[number].name)
            continue
        closed = [replace(each, draining=True, used=each.running, prefetched=()) for each in there]
        alone = decide([job], closed, market, since, limits, now=now)
        provision = replace(
            provision,
            launches=(*provision.launches, *alone.launches),
            waits={**provision.waits, **alone.waits},
            refused={**provision.refused, **alone.refused},
        )
        for launch in alone.launches:
            # The new machine counts against limits, and can take a member of another gang.
            name = f"for {job.name}"
            price = launch.usd_per_hour or 0.0
            made = Location(name, launch.capacity, instance_type=launch.kind, usd_per_hour=price, booting=True)
            there.append(made.kept_for([job], now))
            shut.add(name)
            kept.add(name)
    new = [replace(each, draining=True) for each in there[len(live) :]]
    return provision, [*there[: len(live)], *new], frozenset(kept)
