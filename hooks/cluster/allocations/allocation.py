"""What a controller knows of allocations and of what their jobs need. The cluster's folder has it all."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms
from lading.hooks.cluster.jobs.tracker import BatchJobTracker, Submission, TrackedBatchJob
from lading.scheduling.reasons import Reason


class ReleaseState(Enum):
    """How far the release of an allocation is."""

    NONE = 0
    WANTED = 1
    """It is to be asked to end with its running jobs."""
    ASKED = 2
    """It was, or was cancelled before it ran."""


@dataclass(slots=True)
class Allocation:
    """One allocation.

    :param batch: its batch job; it was asked for by ``batch.submission``
    :param ends_at: when it takes no jobs any more, on the monotonic clock; None: its agent has not begun
    :param clock_ahead: seconds by which the clock of its node is ahead of ours, to a minute; 0: they agree to a minute
    :param worked: whether it has run a job to its end
    :param closed: whether it has refused a job: it ends
    :param release: how far its release is
    :param end: the cause of its end and why, nothing where it was in order; None: it is not known to have ended
    :param rest: in how many looks in a row there was nothing new from it after its end
    """

    folder: AllocationFolder
    terms: AllocationTerms
    batch: TrackedBatchJob
    ends_at: float | None = None
    clock_ahead: float = 0.0
    worked: bool = False
    closed: bool = False
    release: ReleaseState = ReleaseState.NONE
    end: tuple[str | None, Reason | None] | None = None
    rest: int = 0

    @classmethod
    def from_terms(cls, folder: AllocationFolder, terms: AllocationTerms, id: str | None = None) -> Allocation:
        """An allocation that is asked for now, or was by an earlier controller."""
        submission = Submission(folder.name, [], id, time.monotonic())
        batch = TrackedBatchJob(folder.name)
        batch.enter(submission)
        return cls(folder, terms, batch)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def submission(self) -> Submission:
        assert self.batch.submission is not None
        return self.batch.submission

    @property
    def over(self) -> bool:
        """Whether it is known to have ended: nothing in it will ever run."""
        return self.end is not None

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


@dataclass(slots=True)
class AllocationFleet:
    """The allocations by name, and which of them jobs were given to.

    :param given: the name of the allocation of a job, by token, also before it is in its inbox
    :param placed_at: when a job was put into an inbox, on the monotonic clock
    :param doubtful: the jobs of which it is not known whether they arrived in their inbox
    """

    tracker: BatchJobTracker
    allocations: dict[str, Allocation] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    placed_at: dict[str, float] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    def of_job(self, job: TrackedBatchJob) -> Allocation | None:
        """The allocation that a job was given to."""
        return self.allocations.get(job.submission.name) if job.submission is not None else None

    def living(self) -> list[TrackedBatchJob]:
        """The batch jobs of the allocations that are not over."""
        return [each.batch for each in self.allocations.values() if not each.over]

    def jobs(self) -> Iterator[tuple[Allocation, TrackedBatchJob]]:
        """The jobs in allocations whose end was not reported."""
        for job in list(self.tracker.live()):
            if (allocation := self.of_job(job)) is not None:
                yield allocation, job

    def known(self) -> dict[str, set[str]]:
        """The jobs of each allocation, by its name; also those whose end is not stored yet."""
        known: dict[str, set[str]] = {}
        for token, name in self.given.items():
            known.setdefault(name, set()).add(token)
        for token, job in self.tracker.jobs.items():
            if job.submission is not None and not job.stored:
                known.setdefault(job.submission.name, set()).add(token)
        return known

    def place(self, job: TrackedBatchJob, allocation: Allocation) -> None:
        """A job is put into an inbox."""
        job.enter(allocation.submission)
        self.placed_at[job.token] = time.monotonic()

    def forget(self, tokens: Iterable[str]) -> None:
        """These jobs are over, or are to be given again."""
        with self.tracker.lock:
            for token in tokens:
                self.given.pop(token, None)
                self.placed_at.pop(token, None)
                self.doubtful.discard(token)

    def drop(self, allocation: Allocation) -> None:
        """Forget an allocation, and remove its folder."""
        self.allocations.pop(allocation.name, None)
        self.tracker.pending.leftovers.add(allocation.folder.relative)
