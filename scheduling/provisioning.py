"""Allocations, the batch jobs in which a node agent runs many jobs: which job goes to which, which are launched and how
large, and which make way. Pure; packing is the planner's.

A job's ``instance_type`` is the kind of allocation that it needs, and each job has one: jobs with other directives of
the batch system share no allocation.

A job without a time limit may run for as long as its allocation lasts. It is placed only where ``Node.unlimited``
seconds are left, which its ``time`` says then, so that it has at least those.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lading.scheduling.backlog import Stocked, fill
from lading.scheduling.catalogue import Catalogue, InstanceType, Offering
from lading.scheduling.plan import Job, Limits, Location
from lading.scheduling.planner import plan
from lading.scheduling.resources import Resources

NOTHING = Resources()
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
class Live:
    """An allocation that runs or waits in its queue.

    :param kind: which jobs may use it, by their ``instance_type``
    :param left: seconds that it has for jobs; as long as it waits in its queue: all
    :param running: the sum of the resources of its running jobs
    :param stored: the jobs that it has been given and that have not begun
    :param takes: whether it can be given jobs now
    :param draining: whether it ends with its running jobs
    :param ahead: so many jobs it is given in any case, for they are known to be short
    """

    name: str
    kind: str
    capacity: Resources
    left: float
    running: Resources = NOTHING
    stored: tuple[Job, ...] = ()
    takes: bool = True
    draining: bool = False
    ahead: int = 0

    @property
    def used(self) -> Resources:
        """What its jobs take, begun or not."""
        return sum((job.resources for job in self.stored), self.running)

    def suits(self, job: Job) -> bool:
        """Whether the job could run there, now or later."""
        enough = job.resources.fits(self.capacity) and (job.time or 0.0) <= self.left
        return enough and job.instance_type == self.kind and not self.draining


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


def place(jobs: Sequence[Job], live: Iterable[Live]) -> dict[str, str]:
    """The allocation of each job that goes to one now, by name: what they can run at once, then a store for each.

    :param jobs: in the order in which they should start
    """
    open_ones = [each for each in live if each.takes and not each.draining]
    if not (jobs and open_ones):
        return {}
    placed = {each.job: each.location for each in plan(jobs, locations(open_ones), bound=False).placements}
    stores = {each.name: [job.resources for job in each.stored] for each in open_ones}
    for job in jobs:
        if job.name in placed:
            stores[placed[job.name]].append(job.resources)
    for kind in {each.kind for each in open_ones}:
        alike = [each for each in open_ones if each.kind == kind]
        rest = [job for job in jobs if job.name not in placed and any(each.suits(job) for each in alike)]
        placed |= _store(rest, alike, stores)
    return placed


def misplaced(live: Sequence[Live], settled: frozenset[str]) -> list[str]:
    """The stored jobs that another allocation could run at once, or that their own cannot run any more.

    :param settled: those that have been in store for a while; the others may begin at any moment
    """
    home = {job.name: each for each in live for job in each.stored}
    late = [job.name for each in live for job in each.stored if not each.suits(job)]
    movable = [job for each in live for job in each.stored if job.name in settled and each.suits(job)]
    open_ones = [each for each in live if each.takes and not each.draining]
    if not movable or len(open_ones) < 2:
        return late
    placements = plan(movable, locations(open_ones), bound=False).placements
    return late + [each.job for each in placements if each.location != home[each.job].name]


def needed(jobs: Sequence[Job], live: Sequence[Live], node: Node) -> Need:
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


def locations(live: Iterable[Live], *, stored: bool = True) -> list[Location]:
    """Allocations as the planner sees them.

    :param stored: whether what has not begun takes its room
    """
    return [
        Location(
            each.name,
            each.capacity,
            each.used if stored else each.running,
            instance_type=each.kind,
            ends_at=each.left,
            draining=each.draining,
        )
        for each in live
    ]


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


def _store(jobs: Sequence[Job], live: Sequence[Live], stores: Mapping[str, Sequence[Resources]]) -> dict[str, str]:
    """The allocations that get jobs to start by themselves the moment there is room."""
    stocks = [
        Stocked(each.name, each.capacity, each.running, tuple(stores[each.name]), ahead=each.ahead, longest=each.left)
        for each in live
    ]
    times = {job.name: job.time for job in jobs if job.time is not None}
    return fill([(job.name, job.resources) for job in jobs], stocks, times=times)


def _launches(
    jobs: Sequence[Job], live: Sequence[Live], node: Node
) -> tuple[tuple[Launch, ...], frozenset[str], dict[str, str]]:
    """What is launched for jobs, which allocations they use otherwise, and which jobs nothing can ever hold."""
    jobs = _in_turn(jobs)
    # All at one price: the planner then launches as few as it can.
    kinds = {str(job.instance_type) for job in jobs}
    planned = plan(
        jobs,
        locations(live, stored=False),
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


def _giving_way(jobs: Sequence[Job], live: Sequence[Live], used: frozenset[str], node: Node) -> str | None:
    """The allocation that shall end, for what waits wants another or a larger one and there are as many as may be.

    :param used: those for which there is work
    """
    if not jobs or len(live) < node.most or any(each.draining for each in live):
        return None
    # One for which there is work is not given up before any of it has begun: nothing would ever be done.
    yielding = [each for each in live if each.running != NOTHING or each.name not in used]
    if not yielding:
        return None
    odd = {job.name for job in jobs if not any(each.suits(job) for each in live)}
    if odd:
        first = min(yielding, key=lambda each: (each.left >= node.unlimited, each.used.cpus, each.left))
        stored = [job for each in live for job in each.stored]
        launches, _, _ = _launches([*jobs, *stored], [each for each in live if each is not first], node)
        if any(not odd.isdisjoint(launch.jobs) for launch in launches):  # else it is not their turn
            return first.name
    smallest = min(yielding, key=lambda each: (each.capacity.cpus, each.capacity.memory, each.left))
    launches, _, _ = _launches(jobs, [each for each in live if each is not smallest], node)
    if launches and launches[0].capacity.cpus >= WORTH_A_CHANGE * smallest.capacity.cpus:
        return smallest.name
    return None
