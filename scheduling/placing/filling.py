"""Fill the locations of a site with jobs: machines by packing, queues up to their number of jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from lading.scheduling.matching.groups import Allowance
from lading.scheduling.matching.sites import SiteView
from lading.scheduling.matching.waiting import WaitingJob
from lading.scheduling.model.catalogue import Catalogue
from lading.scheduling.model.job import PlannedJob
from lading.scheduling.model.location import Location
from lading.scheduling.model.plan import InstanceLimits
from lading.scheduling.provisioning.planner import placements

# Returns the location of each job that a site takes now, by job name, within the limits of tasks and runs.
Filling: TypeAlias = Callable[[SiteView, Sequence[PlannedJob], InstanceLimits], dict[str, str]]


def in_turn(
    jobs: Sequence[tuple[WaitingJob, PlannedJob]], taken: Mapping[str, str], locations: Sequence[Location]
) -> dict[str, str]:
    """Drop placements that would use a location which earlier jobs could use next.

    This happens if a shape has more jobs than were examined; the rest of them are examined in the next tick.

    :param jobs: those that are taken, and the last of each shape with unexamined jobs, in the order in which they
        should start, each with what it takes there
    :param taken: the location of each job that one takes, by job name
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
    """Reorder jobs that differ only by arrival into the order of a plan.

    They exchange their arrival times with each other, so no other job is delayed.

    :param starts: planned starts by job name, epoch seconds
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
    """Return the locations that are filled by capacity; the others are queues."""
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
    """Return the location of each job that a machine can run at once (chosen by the planner) or that a queue takes.

    :param limits: on the number of these locations with jobs of a task or a run
    :param policy: of the planner
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
    """Return the queue of each job that one takes now, by job name, in the order of the jobs.

    :param allowance: what is left of the limits of groups; each job counts as many machines as it has nodes
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
