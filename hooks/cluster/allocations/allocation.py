"""What a controller knows of allocations and of what their jobs need. The cluster's folder has it all."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lading.hooks.cluster.allocations.layout import AllocationFolder, Terms
from lading.hooks.cluster.layout import Task
from lading.hooks.cluster.tracker import Submission, Tracked, Tracker
from lading.scheduling.plan import Job, Location
from lading.scheduling.resources import Resources

# An allocation is given as many jobs in advance as have ended in it in so many seconds: it takes a while until what was
# seen in one look has an effect.
SECONDS_AHEAD = 6.0


@dataclass(slots=True)
class Allocation:
    """One allocation.

    :param batch: its batch job; it was asked for by ``batch.submission``
    :param ends_at: when it takes no jobs any more, on the monotonic clock; None: its agent has not begun
    :param worked: whether it has run a job to its end
    :param closed: whether it has refused a job: it ends
    :param draining: whether it was told to end with its running jobs
    :param wants_drain: whether it is to be told so
    :param over: whether it is known to have ended: nothing in it will ever run
    :param rest: in how many looks in a row there was nothing new from it after its end
    :param ends_of_jobs: when its last jobs have ended, on the monotonic clock
    :param spare_since: since when nothing that waits has a place in it, on the monotonic clock
    """

    folder: AllocationFolder
    terms: Terms
    batch: Tracked
    ends_at: float | None = None
    worked: bool = False
    closed: bool = False
    draining: bool = False
    wants_drain: bool = False
    over: bool = False
    rest: int = 0
    ends_of_jobs: deque[float] = field(default_factory=deque)
    spare_since: float | None = None

    @classmethod
    def of(cls, folder: AllocationFolder, terms: Terms, id: str | None = None) -> Allocation:
        """An allocation that is asked for now, or was by an earlier controller."""
        submission = Submission(folder.name, [], id, time.monotonic())
        return cls(folder, terms, Tracked(Task(folder.name), submission=submission))

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def submission(self) -> Submission:
        assert self.batch.submission is not None
        return self.batch.submission

    @property
    def is_up(self) -> bool:
        """Whether its agent has begun and takes jobs, as far as is known."""
        return self.ends_at is not None and not self.ends

    @property
    def ends(self) -> bool:
        """Whether nothing that lies in its inbox will be started any more."""
        return bool(self.closed or self.batch.gone_since or self.over)

    @property
    def is_pending(self) -> bool:
        """Whether it waits in its queue."""
        return self.ends_at is None and not self.ends

    @property
    def ahead(self) -> int:
        """How many jobs it can be given in advance, since they are short."""
        while self.ends_of_jobs and self.ends_of_jobs[0] < time.monotonic() - SECONDS_AHEAD:
            self.ends_of_jobs.popleft()
        return len(self.ends_of_jobs)


@dataclass(slots=True)
class Fleet:
    """The allocations by name, and of each job what it needs.

    :param placed_at: when a job was put into an inbox, on the monotonic clock
    :param doubtful: the jobs of which it is not known whether they arrived in their inbox
    """

    tracker: Tracker
    unknown: Resources
    allocations: dict[str, Allocation] = field(default_factory=dict)
    needs: dict[str, Job] = field(default_factory=dict)
    placed_at: dict[str, float] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    def of(self, job: Tracked) -> Allocation | None:
        """The allocation that a job was given to."""
        return self.allocations.get(job.submission.name) if job.submission is not None else None

    def jobs(self) -> Iterator[tuple[Allocation, Tracked]]:
        """The jobs in allocations whose end was not told."""
        for job in list(self.tracker.live()):
            if (allocation := self.of(job)) is not None:
                yield allocation, job

    def need(self, job: Tracked, allocation: Allocation | None = None) -> Job:
        """What a job needs; of one that an earlier controller has given to an allocation nobody here knows."""
        if (need := self.needs.get(job.token)) is not None:
            return need
        terms = allocation.terms if allocation is not None else None
        return Job(
            job.token,
            self.unknown,
            time=terms.unlimited if terms else None,
            instance_type=terms.kind if terms else None,
        )

    def place(self, job: Tracked, allocation: Allocation) -> None:
        """A job is put into an inbox."""
        job.submission = allocation.submission
        self.placed_at[job.token] = time.monotonic()

    def withdraw(self, job: Tracked) -> None:
        """A job is out of its inbox and waits again; one without envelope is forgotten: the store gives it again."""
        self.doubtful.discard(job.token)
        with self.tracker.lock:
            job.submission = None
            if job.envelope is None:
                self.tracker.jobs.pop(job.token, None)

    def forget(self, tokens: Iterable[str]) -> None:
        """These jobs are over."""
        for token in tokens:
            self.needs.pop(token, None)
            self.placed_at.pop(token, None)
            self.doubtful.discard(token)

    def drop(self, allocation: Allocation) -> None:
        """Forget an allocation, and remove its folder."""
        self.allocations.pop(allocation.name, None)
        self.tracker.errands.leftovers.add(allocation.folder.relative)

    def live(self) -> list[Location]:
        """The allocations as the planner sees them, oldest first: those that run or wait in their queue."""
        running: dict[str, Resources] = {}
        stored: dict[str, list[Job]] = {}
        for allocation, job in self.jobs():
            need = self.need(job, allocation)
            if job.started:
                running[allocation.name] = running.get(allocation.name, Resources()) + need.resources
            else:
                stored.setdefault(allocation.name, []).append(need)
        now = time.monotonic()
        return [
            Location(
                each.name,
                each.terms.capacity,
                running.get(each.name, Resources()),
                instance_type=each.terms.kind,
                ends_at=each.terms.seconds if each.ends_at is None else max(0.0, each.ends_at - now),
                draining=each.draining,
                booting=not each.is_up,
                ahead=each.ahead,
            ).given(stored.get(each.name, ()))
            for each in self.allocations.values()
            if each.is_up or each.is_pending
        ]
