"""The decision, whatever it is that a site launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.matching.waiting import Apart
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.provisioning import allocations, machines
from lading.scheduling.provisioning import foreseen as by_forecast
from lading.scheduling.provisioning.budgets import within
from lading.scheduling.provisioning.coming_work import ComingWork
from lading.scheduling.provisioning.foreseen import ForeseenActions
from lading.scheduling.provisioning.launch import Provision


def decide(
    jobs: Sequence[PlannedJob],
    live: Sequence[Location],
    market: Market | MachineMarket,
    since: Mapping[str, float] | None = None,
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    now: float,
    foreseen: ForeseenActions | None = None,
    coming: ComingWork | None = None,
) -> Provision:
    """Decide what is launched and what makes way.

    :param jobs: those that wait and have no place yet
    :param live: all that was launched or is ordered, with what is on it, oldest first
    :param market: what can be launched
    :param since: when each of the jobs was seen first to find no room, by its name; without it, when it came
    :param limits: on how many of these locations, and of those to be launched, jobs of a task or a run may be
    :param now: epoch seconds
    :param foreseen: what the plan of all that is to come asks for; None: there is none for the site
    :param coming: what is to come at a site of allocations; None: that is not known
    """
    if isinstance(market, MachineMarket) and foreseen is not None:
        return by_forecast.decide(jobs, live, market, since, limits, foreseen, now=now)
    if isinstance(market, MachineMarket):
        return machines.decide(jobs, live, market, since, limits, now=now)
    found = allocations.decide(jobs, live, market, since, limits, now=now, coming=coming)
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
    """Decide what is launched for members of gangs no two of which may share a location.

    The planner packs, so each is decided about for itself, as if what others have could take nothing.

    :param jobs: those that wait and have no place yet, each with its gang
    :returns: what is launched; what is there, with those on it that have a place, and what is launched, which takes no
        others and counts against limits; and the names of all that has one of them
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
            # It counts against limits, and takes a member of another gang.
            name = f"for {job.name}"
            price = launch.usd_per_hour or 0.0
            made = Location(name, launch.capacity, instance_type=launch.kind, usd_per_hour=price, booting=True)
            there.append(made.kept_for([job], now))
            shut.add(name)
            kept.add(name)
    new = [replace(each, draining=True) for each in there[len(live) :]]
    return provision, [*there[: len(live)], *new], frozenset(kept)
