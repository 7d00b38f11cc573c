"""What the locations of a site take of the jobs that come to it: machines are packed, queues take their number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from lading.scheduling.catalogue import Catalogue
from lading.scheduling.job import PlannedJob
from lading.scheduling.location import Location
from lading.scheduling.matching.groups import Allowance
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.plan import InstanceLimits
from lading.scheduling.provisioning.planner import placements

# Finds a location of a site for each job that one takes now, by the job's name, within limits of tasks and runs.
Filling: TypeAlias = Callable[[SiteView, Sequence[PlannedJob], InstanceLimits], dict[str, str]]


def in_turn(
    jobs: Sequence[tuple[WaitingJob, PlannedJob]], taken: Mapping[str, str], locations: Sequence[Location]
) -> dict[str, str]:
    """What of this may be placed now: nothing goes where jobs that come before it could go next.

    That is so where there are more jobs of a shape than were looked at. Their turn is the next tick.

    :param jobs: those that are taken, and the last of each such shape, in the order in which they should start, each
        with what it takes there
    :param taken: the location of each job that one takes, by the job's name
    """
    kept: dict[str, str] = {}
    closed: set[str] = set()
    for job, need in jobs:
        location = taken.get(job.name)
        if location is not None and not (job.may_overtake and location in closed):
            kept[job.name] = location
        if job.hidden:
            closed.update(each.name for each in locations if each.name not in closed and each.suits(need))
    return kept


def in_planned_order(jobs: Sequence[PlannedJob], starts: Mapping[str, float]) -> Sequence[PlannedJob]:
    """The jobs with other arrivals, so that those of a plan which would go by arrival alone go in its order.

    They exchange their arrivals with each other, so nothing else comes later by it.

    :param starts: when they are to start by the plan, by their names, epoch seconds
    """
    alike: dict[tuple[int, float, float], list[int]] = {}
    for number, job in enumerate(jobs):
        if job.name in starts:
            alike.setdefault((job.priority, job.turn, job.rest), []).append(number)
    found = list(jobs)
    for numbers in alike.values():
        some = [jobs[number] for number in numbers]
        in_order = sorted(some, key=lambda job: (starts[job.name], job.queued_at, job.name))
        arrivals = sorted(job.queued_at for job in some)
        for number, job, queued_at in zip(numbers, in_order, arrivals, strict=True):
            found[number] = replace(job, queued_at=queued_at)
    return found


def machines(locations: Sequence[Location]) -> list[Location]:
    """Those that their capacity fills; the others are queues."""
    return [each for each in locations if each.max_jobs is None]


def run_now(
    jobs: Sequence[PlannedJob],
    locations: Sequence[Location],
    limits: InstanceLimits = InstanceLimits(),  # noqa: B008 (frozen)
    *,
    policy: str = "greedy",
    prices: Catalogue | None = None,
    now: float,
) -> dict[str, str]:
    """The location of each job that a machine can run at once, which is the planner's choice, or that a queue takes.

    :param limits: on how many of these locations jobs of a task or a run may be
    :param policy: that of the planner
    :param prices: see :func:`lading.scheduling.provisioning.planner.placements`
    """
    there = machines(locations)
    found = placements(jobs, there, limits, policy=policy, prices=prices, now=now) if jobs and there else ()
    placed = {each.job: each.location for each in found}
    if len(there) == len(locations):
        return placed
    allowance = Allowance(limits, there)
    for job in jobs:
        if job.name in placed:
            allowance.put(job, placed[job.name])
    rest = [job for job in jobs if job.name not in placed]
    return placed | queue_up(rest, [each for each in locations if each.max_jobs is not None], allowance, now=now)


def queue_up(
    jobs: Sequence[PlannedJob], queues: Sequence[Location], allowance: Allowance, *, now: float
) -> dict[str, str]:
    """The queue of each job that one takes now, by the job's name: each takes its number of jobs, in their order.

    :param allowance: what is left of the limits of groups, of which each job uses as many machines as it has nodes
    """
    left = {each.name: (each.max_jobs or 0) - each.jobs for each in queues}
    placed: dict[str, str] = {}
    for job in jobs if queues else ():
        suiting = (each for each in queues if each.suits(job) and each.lasts(job.time, now))
        name = None if allowance.full(job) else next((each.name for each in suiting if left[each.name] > 0), None)
        if name is not None:
            placed[job.name] = name
            left[name] -= 1
            allowance.put_batch_job(job, name)
    return placed
