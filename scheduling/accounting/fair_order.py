"""The order in which jobs of several shares are placed. Pure.

Progressive filling: the next job comes from the share with the smallest use relative to its weight, counting the jobs
before it as if they had been placed. A share that has less than is kept for it goes first. The measure is the dominant
share (Ghodsi et al., Dominant resource fairness, NSDI 2011): the largest fraction that a share has of any resource. The
mean fraction that the share has used lately is added. Half of the job in question counts too, as in Webster's method of
apportionment (Balinski and Young, Fair Representation, 1982): without it shares with large jobs would get more than
their weight, and with the whole job less. Within a share jobs keep their order.

Jobs that recently found no place are queued separately: thousands that wait for a GPU must not put their share's other
jobs last when only cpus are needed, and these are available. The first of them still comes before the later jobs of its
share; otherwise small jobs could overtake a large one forever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace
from typing import NamedTuple

from lading.scheduling.accounting.share_table import NONE_USED, Kept, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.model.site_names import is_named

# Tolerance for the float errors of sums of many parts.
TOLERANCE = 1e-9
# Cpus, memory and GPUs.
Need = tuple[float, float, float]


class Candidate(NamedTuple):
    """A job that waits for its turn.

    :param share: the name of its share
    :param need: what it takes
    :param level: jobs of a higher level go first, whatever their shares have
    :param apart: key shared by equal jobs that recently found no place; None: the job is not one of these
    :param site: the only one it can go to; None: any
    """

    share: str
    need: Need
    level: int = 0
    apart: Hashable | None = None
    site: str | None = None


class _Queue:
    """The jobs of one share, or equal jobs of it that recently found no place, with the use counted so far."""

    __slots__ = ("at", "cpus", "gpus", "inverse", "jobs", "kept", "lately", "memory", "share")

    def __init__(self, share: str, shares: Shares, standing: Standing, running: Need) -> None:
        its_own, total = shares.get(share), standing.total
        self.share = share
        used = standing.used_by(share)
        self.cpus, self.memory, self.gpus = (
            have / all_of_it if all_of_it > 0 else 0.0 for have, all_of_it in zip(used[:3], total[:3], strict=True)
        )
        self.lately = standing.lately.get(share, 0.0)
        self.inverse = 1.0 / its_own.weight
        self.kept = [_Left.from_kept(each, standing.used_by(share, each.site), running) for each in its_own.kept]
        self.jobs: list[int] = []
        self.at = 0

    def key(self, job: Candidate, of_each: Need) -> float:
        """Return the share's use relative to its weight, including half of this job.

        :param of_each: the reciprocals of the total cpus, memory and GPUs
        """
        cpus, memory, gpus = job.need
        of_cpus, of_memory, of_gpus = of_each
        most = max(self.cpus + cpus * of_cpus / 2, self.memory + memory * of_memory / 2)
        if gpus or self.gpus:
            most = max(most, self.gpus + gpus * of_gpus / 2)
        return (self.lately + most) * self.inverse


class _Left:
    """The unused remainder of what is kept for a share.

    :param running: see :func:`_running_parts`
    """

    __slots__ = ("amounts", "running", "site")

    def __init__(self, site: str | None, amounts: list[float | None], running: Need) -> None:
        self.site = site
        self.amounts = amounts
        self.running = running

    @classmethod
    def from_kept(cls, kept: Kept, used: ShareAmounts, running: Need) -> _Left:
        parts = (*running, 1.0, 1.0)
        left = [
            None if most is None else most - have * part
            for most, have, part in zip(kept.most, used, parts, strict=True)
        ]
        return cls(kept.site, left, running)

    def covers(self, job: Candidate) -> bool:
        """Return whether the remainder covers a job in all resources it limits, and limits any that the job needs."""
        # Either name can be a table of the sites file, and the other one of its accounts.
        site, hint = self.site, job.site
        if site is not None and hint is not None and not (is_named(hint, site) or is_named(site, hint)):
            return False
        is_any = False
        for need, left, part in zip(job.need, self.amounts, self.running, strict=False):
            if left is not None and need > 0:
                if need * part > left + TOLERANCE:
                    return False
                is_any = True
        # How many machines and how much money the job takes is unknown before it has a place.
        for left in self.amounts[3:]:
            if left is not None:
                if left <= TOLERANCE:
                    return False
                is_any = True
        return is_any

    def take(self, job: Candidate, largest: Need) -> None:
        amounts = self.amounts
        for number, need in enumerate(job.need):
            if (left := amounts[number]) is not None:
                amounts[number] = left - need * self.running[number]
        if (left := amounts[3]) is not None:
            parts = [need / most for need, most in zip(job.need, largest, strict=True) if most > 0]
            amounts[3] = left - min(1.0, max(parts, default=1.0))


def fair_order(
    jobs: Sequence[Candidate], shares: Shares, standing: Standing, largest: Need = (0.0, 0.0, 0.0)
) -> list[int]:
    """The numbers of the jobs in the order in which they go.

    :param jobs: in the order in which they would go without shares
    :param largest: what the largest machine has, by which it is guessed how many machines jobs will take
    """
    if not any(standing.total[:3]) and jobs:
        # Without any machine, fractions are taken of the total request.
        asked = (sum(amounts) for amounts in zip(*(job.need for job in jobs), strict=True))
        standing = replace(standing, total=ShareAmounts(*asked))
    order: list[int] = []
    running = _running_parts(standing)
    queues: dict[tuple[str, Hashable | None], _Queue] = {}
    for level in _levels(jobs):
        here: dict[int, _Queue] = {}
        for number in level:
            job = jobs[number]
            key = job.share, job.apart
            queue = queues.get(key)
            if queue is None:
                queue = queues[key] = _Queue(job.share, shares, standing, running)
            if id(queue) not in here:
                here[id(queue)] = queue
                queue.jobs, queue.at = [], 0
            queue.jobs.append(number)
        if len(here) == 1:  # nothing to compare, but its use counts for the levels below
            queue = next(iter(here.values()))
            order += queue.jobs
            for number in queue.jobs:
                _take(queue, jobs[number], standing.total, largest)
        else:
            _fill(order, jobs, list(here.values()), standing.total, largest)
    return order


def _running_parts(standing: Standing) -> Need:
    """Return which part of the cpus, memory and GPUs given to shares can be in use at once.

    Machines are given more jobs than they can run at once. Counted in full, the waiting ones would use up what is kept
    for their share: of a guarantee of 12 cpus on a machine with as many prefetched as running jobs, 6 would be used.
    """
    given = NONE_USED
    for share in standing.used:
        given = given.plus(standing.used_by(share))
    cpus, memory, gpus = (
        min(1.0, there / amount) if amount > 0 < there else 1.0
        for there, amount in zip(standing.total[:3], given[:3], strict=True)
    )
    return cpus, memory, gpus


def _levels(jobs: Sequence[Candidate]) -> Iterable[Sequence[int]]:
    levels: dict[int, list[int]] = {}
    for number, job in enumerate(jobs):
        levels.setdefault(job.level, []).append(number)
    return [levels[level] for level in sorted(levels, reverse=True)]


def _take(queue: _Queue, job: Candidate, total: ShareAmounts, largest: Need) -> None:
    cpus, memory, gpus = job.need
    if total.cpus > 0:
        queue.cpus += cpus / total.cpus
    if total.memory > 0:
        queue.memory += memory / total.memory
    if gpus and total.gpus > 0:
        queue.gpus += gpus / total.gpus
    for left in queue.kept:
        left.take(job, largest)


def _fill(
    order: list[int], jobs: Sequence[Candidate], queues: Sequence[_Queue], total: ShareAmounts, largest: Need
) -> None:
    """Append the jobs of these queues, each time one of the queue that has least."""
    # Up to ten thousand jobs, so the loop builds nothing but the heap's entries.
    of_cpus, of_memory, of_gpus = (1.0 / each if each > 0 else 0.0 for each in total[:3])
    of_each = of_cpus, of_memory, of_gpus
    heap: list[tuple[bool, float, int, int]] = []
    for number, queue in enumerate(queues):
        first = queue.jobs[0]
        heap.append((not _is_kept(queue, jobs[first]), queue.key(jobs[first], of_each), first, number))
    heapify(heap)
    append = order.append
    waiting = _first_jobs(queues)
    ahead: set[int] = set()
    while heap:
        _, _, job, number = heap[0]
        queue = queues[number]
        firsts = waiting.get(queue.share)
        while firsts and firsts[0] <= job:
            if (first := firsts.popleft()) < job:
                append(first)
                ahead.add(first)
        if job in ahead:
            ahead.remove(job)
        else:
            append(job)
        cpus, memory, gpus = jobs[job].need
        queue.cpus += cpus * of_cpus
        queue.memory += memory * of_memory
        if gpus:
            queue.gpus += gpus * of_gpus
        kept = queue.kept
        for left in kept:
            left.take(jobs[job], largest)
        at = queue.at = queue.at + 1
        if at == len(queue.jobs):
            heappop(heap)
            continue
        following = queue.jobs[at]
        is_kept = bool(kept) and _is_kept(queue, jobs[following])
        heapreplace(heap, (not is_kept, queue.key(jobs[following], of_each), following, number))


def _first_jobs(queues: Sequence[_Queue]) -> dict[str, deque[int]]:
    """Return the first job of each queue, in order, of the shares that have several queues."""
    firsts: dict[str, list[int]] = {}
    for queue in queues:
        firsts.setdefault(queue.share, []).append(queue.jobs[0])
    return {share: deque(sorted(its)) for share, its in firsts.items() if len(its) > 1}


def _is_kept(queue: _Queue, job: Candidate) -> bool:
    """Return whether the remainder kept for the job's share is enough for it."""
    return any(left.covers(job) for left in queue.kept)
