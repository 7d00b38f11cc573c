"""Allocations, the batch jobs in which a node agent runs many jobs: which job goes to which, which are launched and how
large, and which make way. Pure; packing is the planner's.

A job's ``instance_type`` is the kind of allocation that it needs, and each job has one: jobs with other directives of
the batch system share no allocation. Allocations are the locations here, those that wait in their queue are booting,
and the time is counted from now on: ``ends_at`` is the seconds that one has left for jobs.

A job without a time limit may run for as long as its allocation lasts. It is placed only where ``Node.unlimited``
seconds are left, which its ``time`` says then, so that it has at least those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.backlog import fill
from lading.scheduling.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.plan import NOTHING, Job, Limits, Location
from lading.scheduling.planner import placements, plan
from lading.scheduling.resources import Resources

NOW = 0.0
# From the start of an allocation to that of its jobs it may take so long, seconds.
SECONDS_TO_BEGIN = 120.0
# An allocation makes way for one that is at least so many times as large.
WORTH_A_CHANGE = 2


@dataclass(frozen=True, slots=True)
class Node:
    """What can be launched.

    :param capacity: what jobs can use of a whole node, the agent's own memory taken off
    :param overhead: MiB that the agent needs in each allocation
    :param seconds: that an allocation has for jobs
    :param unlimited: seconds that a job without a time limit shall have at least
    :param most: allocations at a time
    :param whole: whether there are whole nodes only
    """

    capacity: Resources
    overhead: int
    seconds: float
    unlimited: float
    most: int
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Launch:
    """An allocation to launch.

    :param capacity: what jobs can use of it
    :param seconds: that it has for jobs
    :param jobs: the names of those for which it is launched; they go where there is room first
    """

    kind: str
    capacity: Resources
    seconds: float
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Need:
    """What the work that has not begun needs beyond what runs.

    :param drain: the allocation that makes way for a larger or longer one; None: none does
    :param spare: the allocations in which nothing of it has a place
    :param refused: jobs that are too large for a node, each with the reason
    """

    launches: tuple[Launch, ...] = ()
    drain: str | None = None
    spare: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)


def place(jobs: Sequence[Job], live: Iterable[Location]) -> dict[str, str]:
    """The allocation of each job that goes to one now, by name: what they can run at once, then a store for each.

    :param jobs: in the order in which they should start
    """
    open_ones = [each for each in live if takes(each)]
    if not (jobs and open_ones):
        return {}
    placed = {each.job: each.location for each in placements(jobs, open_ones, now=NOW)}
    given: dict[str, list[Job]] = {}
    for job in jobs:
        if job.name in placed:
            given.setdefault(placed[job.name], []).append(job)
    rest = [job for job in jobs if job.name not in placed]
    return placed | fill(rest, [each.given(given.get(each.name, ())) for each in open_ones], now=NOW)


def misplaced(live: Sequence[Location], settled: frozenset[str]) -> list[str]:
    """The stored jobs that another allocation could run at once, or that their own cannot run any more.

    :param settled: those that have been in store for a while; the others may begin at any moment
    """
    home = {job.name: each for each in live for job in each.stored}
    late = [job.name for each in live for job in each.stored if not suits(each, job)]
    movable = [job for each in live for job in each.stored if job.name in settled and suits(each, job)]
    open_ones = [each for each in live if takes(each)]
    if not movable or len(open_ones) < 2:
        return late
    moves = placements(movable, open_ones, now=NOW)
    return late + [each.job for each in moves if each.location != home[each.job].name]


def takes(allocation: Location) -> bool:
    """Whether an allocation can be given jobs now."""
    return not (allocation.booting or allocation.draining)


def suits(allocation: Location, job: Job) -> bool:
    """Whether the job could run there, now or later."""
    return allocation.suits(job) and allocation.lasts(job.time or 0.0, NOW) and not allocation.draining


def needed(jobs: Sequence[Job], live: Sequence[Location], node: Node) -> Need:
    """What is to be launched so that all that waits could run at once, and what makes way.

    :param jobs: those that wait, and have no place yet
    """
    names = frozenset(each.name for each in live)
    unstarted = [*jobs, *(job for each in live for job in each.stored)]
    if not unstarted:
        return Need(spare=names)
    launches, used, refused = _launches(unstarted, live, node)
    drain = None if launches else _giving_way([job for job in jobs if job.name not in refused], live, used, node)
    return Need(launches, drain, names - used, refused)


def without_store(live: Iterable[Location]) -> list[Location]:
    """Allocations as if what lies in their inboxes had no place yet."""
    return [replace(each, used=each.running, stored=()) for each in live]


def left(allocation: Location) -> float:
    """The seconds that an allocation has for jobs."""
    return math.inf if allocation.ends_at is None else allocation.ends_at


def shaped(packed: Resources, node: Node) -> Resources:
    """The smallest part of a node that holds so much: all of it, a half, a quarter, ... at least one cpu."""
    if node.whole:
        return node.capacity
    found = _part(node, 1, packed)
    parts = 2
    while node.capacity.cpus >= parts and packed.fits(smaller := _part(node, parts, packed)):
        found, parts = smaller, parts * 2
    return found


def _part(node: Node, parts: int, packed: Resources) -> Resources:
    whole = node.capacity
    return Resources(
        math.ceil(whole.cpus / parts) if parts > 1 else whole.cpus,
        math.ceil((whole.memory + node.overhead) / parts) - node.overhead,
        math.ceil(whole.disk / parts),
        math.ceil(whole.gpus / parts) if packed.gpus else 0.0,
    )


def _launches(
    jobs: Sequence[Job], live: Sequence[Location], node: Node
) -> tuple[tuple[Launch, ...], frozenset[str], dict[str, str]]:
    """What is launched for jobs, which allocations they use otherwise, and which jobs nothing can ever hold."""
    jobs = _in_turn(jobs)
    # All at one price: the planner then launches as few as it can.
    kinds = {str(job.instance_type) for job in jobs}
    planned = plan(
        jobs,
        without_store(live),
        Catalogue({kind: InstanceType(kind, node.capacity, (Offering(1.0),)) for kind in kinds}),
        Limits(instances=node.most - sum(each.draining for each in live)),
        bound=False,
    )
    by_name = {job.name: job for job in jobs}
    packed: dict[str, list[Job]] = {each.name: [] for each in planned.launches}
    for each in planned.placements:
        if each.location in packed:
            packed[each.location].append(by_name[each.job])
    launches = tuple(
        Launch(
            launch.instance_type,
            shaped(sum((job.resources for job in packed[launch.name]), NOTHING), node),
            max([node.seconds, *((job.time or 0.0) + SECONDS_TO_BEGIN for job in packed[launch.name])]),
            tuple(job.name for job in packed[launch.name]),
        )
        for launch in planned.launches
    )
    used = frozenset(each.location for each in planned.placements) - packed.keys()
    return launches, used, {each.job: each.reason for each in planned.refusals}


def _in_turn(jobs: Sequence[Job]) -> Sequence[Job]:
    """The jobs, where they are not all alike each with a priority of its own: who came first is served first.

    Without it the planner goes by size, and a job could wait for ever for an allocation of another kind or length.
    """
    if len({(job.instance_type, job.time, job.resources) for job in jobs}) < 2:
        return jobs
    ordered = sorted(jobs, key=lambda job: (-job.priority, job.queued_at))
    return [replace(job, priority=-rank) for rank, job in enumerate(ordered)]


def _giving_way(jobs: Sequence[Job], live: Sequence[Location], used: frozenset[str], node: Node) -> str | None:
    """The allocation that shall end, for what waits wants another or a larger one and there are as many as may be.

    :param used: those for which there is work
    """
    if not jobs or len(live) < node.most or any(each.draining for each in live):
        return None
    # One for which there is work is not given up before any of it has begun: nothing would ever be done.
    yielding = [each for each in live if each.running != NOTHING or each.name not in used]
    if not yielding:
        return None
    odd = {job.name for job in jobs if not any(suits(each, job) for each in live)}
    if odd:
        first = min(yielding, key=lambda each: (left(each) >= node.unlimited, each.used.cpus, left(each)))
        stored = [job for each in live for job in each.stored]
        launches, _, _ = _launches([*jobs, *stored], [each for each in live if each is not first], node)
        if any(not odd.isdisjoint(launch.jobs) for launch in launches):  # else it is not their turn
            return first.name
    smallest = min(yielding, key=lambda each: (each.capacity.cpus, each.capacity.memory, left(each)))
    launches, _, _ = _launches(jobs, [each for each in live if each is not smallest], node)
    if launches and launches[0].capacity.cpus >= WORTH_A_CHANGE * smallest.capacity.cpus:
        return smallest.name
    return None
