"""What each share gets when shares compete for machines: a trace of jobs on a fixed set of machines, with and without
shares. Pure.

The simulated controller decides whenever a job arrives or finishes. Jobs follow the order of shares
(:func:`lading.scheduling.accounting.fair_order.fair_order`), and the first machine with room takes each. A job
without room is overtaken for as long as others fit: no room is kept free, unlike with the ``patience`` of a site.
Nothing is launched or terminated.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lading.scheduling.accounting.bounds import ShareBounds
from lading.scheduling.accounting.fair_order import Candidate, fair_order
from lading.scheduling.accounting.share_table import NONE_USED, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, UseHistory
from lading.scheduling.model.resources import Resources

# The simulation has a single site.
SITE = "simulated"


class ContendingJob(NamedTuple):
    """A job of the trace.

    :param arrival: seconds after the start of the trace; ``duration``: seconds
    """

    name: str
    share: str
    resources: Resources
    arrival: float
    duration: float
    priority: int = 0


@dataclass(slots=True)
class ContentionReport:
    """The result of running a trace.

    :param part: by share, the mean dominant share (0 to 1) that it had while it and others had waiting jobs. Shares are
        left out if they competed for less than half as long as the one that competed longest
    :param contended: seconds for which more than one share had waiting jobs
    :param waits: by share, the mean seconds that its jobs waited
    :param utilization: fraction of all cpus that was used until the last job finished, 0 to 1
    :param makespan: seconds from the first arrival until the last job finished
    :param begun: when each job started, by name, seconds
    """

    part: dict[str, float]
    contended: float
    waits: dict[str, float]
    utilization: float
    makespan: float
    begun: dict[str, float] = field(default_factory=dict)

    def jain(self, shares: Shares) -> float:
        """Jain's index of use relative to weight among the shares: 1 is fair, 1/n if one of n shares has everything."""
        had = [part / shares.get(name).weight for name, part in self.part.items()]
        return jain(had)


def jain(amounts: Sequence[float]) -> float:
    """Jain's index of fairness (Jain, Chiu and Hawe, 1984); 1 for no amounts."""
    squares = sum(each * each for each in amounts)
    return sum(amounts) ** 2 / (len(amounts) * squares) if squares else 1.0


def contend(
    jobs: Iterable[ContendingJob], machines: Sequence[Resources], shares: Shares | None, *, ahead: int = 64
) -> ContentionReport:
    """Run a trace to its end.

    :param machines: the capacity of each machine
    :param shares: None: jobs are ordered by priority, then by arrival
    :param ahead: how many waiting jobs of each share and shape a decision examines, in addition to one per machine
    :raises ValueError: a job fits no machine
    """
    return _Contention(sorted(jobs, key=lambda job: (job.arrival, job.name)), machines, shares, ahead).run()


class _Contention:
    def __init__(
        self, jobs: Sequence[ContendingJob], machines: Sequence[Resources], shares: Shares | None, ahead: int
    ) -> None:
        for job in jobs:
            if not any(job.resources.fits(each) for each in machines):
                raise ValueError(f"job {job.name} fits no machine")
        self.jobs, self.capacity, self.free = jobs, list(machines), list(machines)
        self.is_fair, self.shares, self.ahead = shares is not None, shares or Shares(), ahead
        total = sum(machines, Resources())
        self.total = ShareAmounts(total.cpus, total.memory, total.gpus, len(machines))
        self.used: dict[str, ShareAmounts] = {}
        self.history = UseHistory(self.shares.half_life)
        # The waiting jobs by share and shape, in the order in which they start.
        self.queues: dict[tuple[str, Resources], list[tuple[int, float, int]]] = {}
        self.ends: list[tuple[float, int, int]] = []
        self.begun: dict[str, float] = {}
        self.apart: dict[tuple[str, Resources], int] = {}
        self.had: Counter[str] = Counter()
        self.each_contended: Counter[str] = Counter()
        self.contended = self.cpu_seconds = 0.0

    def run(self) -> ContentionReport:
        at, now = 0, 0.0
        while at < len(self.jobs) or self.ends:
            times = [self.jobs[at].arrival] if at < len(self.jobs) else []
            times += [self.ends[0][0]] if self.ends else []
            self._pass(now, coming := min(times))
            now = coming
            while at < len(self.jobs) and self.jobs[at].arrival <= now:
                job = self.jobs[at]
                heapq.heappush(self.queues.setdefault((job.share, job.resources), []), (-job.priority, job.arrival, at))
                at += 1
            while self.ends and self.ends[0][0] <= now:
                _, number, machine = heapq.heappop(self.ends)
                self._give(self.jobs[number], machine, -1)
            self._begin(now)
        return self._report(now)

    def _pass(self, now: float, until: float) -> None:
        """Add up what each share has until the next event."""
        seconds = until - now
        waiting = {share for (share, _), queue in self.queues.items() if queue}
        standing = Standing(self.total, {share: {SITE: used} for share, used in self.used.items()})
        parts = {share: standing.part_of(share) for share in self.used}
        self.history.note(parts, now)
        if len(waiting) > 1:
            self.contended += seconds
            for share in waiting:
                self.had[share] += seconds * parts.get(share, 0.0)  # type: ignore[assignment]
                self.each_contended[share] += seconds  # type: ignore[assignment]
        self.cpu_seconds += seconds * sum(used.cpus for used in self.used.values())

    def _begin(self, now: float) -> None:
        looked = [
            (entry, key)
            for key, queue in self.queues.items()
            for entry in heapq.nsmallest(self.ahead + len(self.free), queue)
        ]
        looked.sort(key=lambda each: each[0])
        if self.is_fair:
            lately = self.history.lately if self.shares.table else {}
            standing = Standing(self.total, {share: {SITE: used} for share, used in self.used.items()}, lately)
            candidates = [self._candidate(entry, key) for entry, key in looked]
            looked = [looked[number] for number in fair_order(candidates, self.shares, standing, self._largest())]
            bounds = ShareBounds(self.shares, standing, {SITE: self.total}) if self.shares.has_bounds else None
        else:
            bounds = None
        full, begun = set[Resources](), set[int]()
        placed = set[tuple[str, Resources]]()
        for (_, _, number), key in looked:
            job = self.jobs[number]
            if job.resources in full:
                continue
            need = _amounts(job.resources)
            if bounds is not None and bounds.admits(job.share, SITE, need) is not None:
                continue
            machine = next((n for n, free in enumerate(self.free) if job.resources.fits(free)), None)
            if machine is None:
                full.add(job.resources)
                continue
            if bounds is not None:
                bounds.put(job.share, SITE, need)
            self._give(job, machine, 1)
            heapq.heappush(self.ends, (now + job.duration, number, machine))
            self.begun[job.name] = now
            begun.add(number)
            placed.add(key)
        for key, queue in self.queues.items():
            if key in placed:
                queue[:] = [entry for entry in queue if entry[2] not in begun]
                heapq.heapify(queue)
        self.queues = {key: queue for key, queue in self.queues.items() if queue}
        sizes = {key[1] for key in placed}
        self.apart = {key: number for number, key in enumerate(self.queues) if key[1] not in sizes}

    def _candidate(self, entry: tuple[int, float, int], key: tuple[str, Resources]) -> Candidate:
        share, size = key
        level = -entry[0] if not self.shares.table else 0
        return Candidate(share, (size.cpus, float(size.memory), size.gpus), level, self.apart.get(key))

    def _largest(self) -> tuple[float, float, float]:
        return (
            max(each.cpus for each in self.capacity),
            float(max(each.memory for each in self.capacity)),
            max(each.gpus for each in self.capacity),
        )

    def _give(self, job: ContendingJob, machine: int, times: int) -> None:
        self.free[machine] = self.free[machine] - job.resources if times > 0 else self.free[machine] + job.resources
        more = [times * each for each in _amounts(job.resources)]
        self.used[job.share] = self.used.get(job.share, NONE_USED).plus(more)

    def _report(self, now: float) -> ContentionReport:
        # Shares that competed only briefly say little about how the machines were divided.
        most = max(self.each_contended.values(), default=0.0)
        part = {
            share: self.had[share] / seconds for share, seconds in self.each_contended.items() if seconds >= most / 2
        }
        waits: dict[str, list[float]] = {}
        for job in self.jobs:
            waits.setdefault(job.share, []).append(self.begun[job.name] - job.arrival)
        first = self.jobs[0].arrival if self.jobs else 0.0
        available = self.total.cpus * (now - first)
        return ContentionReport(
            dict(sorted(part.items())),
            self.contended,
            {share: sum(some) / len(some) for share, some in sorted(waits.items())},
            self.cpu_seconds / available if available else 0.0,
            now - first,
            self.begun,
        )


def _amounts(resources: Resources) -> ShareAmounts:
    return ShareAmounts(resources.cpus, resources.memory, resources.gpus)
