"""The decision, whatever it is that a site launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from lading.scheduling.job import Job
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket, Market
from lading.scheduling.plan import Limits
from lading.scheduling.provisioning import allocations, machines
from lading.scheduling.provisioning.budgets import within
from lading.scheduling.provisioning.launch import Provision


def decide(
    jobs: Sequence[Job],
    live: Sequence[Location],
    market: Market | MachineMarket,
    since: Mapping[str, float] | None = None,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    *,
    now: float,
) -> Provision:
    """Decide what is launched and what makes way.

    :param jobs: those that wait and have no place yet
    :param live: all that was launched or is ordered, with what is on it, oldest first
    :param market: what can be launched
    :param since: when each of the jobs was seen first to find no room, by its name; without it, when it came
    :param limits: on how many of these locations, and of those to be launched, jobs of a task or a run may be
    :param now: epoch seconds
    """
    if isinstance(market, MachineMarket):
        return machines.decide(jobs, live, market, since, limits, now=now)
    found = allocations.decide(jobs, live, market, since, limits, now=now)
    stored = (job for each in live for job in each.stored)
    launches, over = within(found.launches, [*jobs, *stored], {})
    waits = {job.name: over[job.name] for job in jobs if job.name in over}
    return replace(found, launches=launches, waits={**waits, **found.waits}) if over else found
