"""What a controller remembers about allocations and their jobs. The cluster's folder has all of it, too."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum

from lading.hooks.cluster.allocations.layout import AllocationFolder, AllocationTerms
from lading.hooks.cluster.jobs.tracker import BatchJobTracker, Submission, TrackedBatchJob
from lading.scheduling.model.reasons import Reason


class ReleaseState(Enum):
    NONE = 0
    WANTED = 1
    """It has yet to be asked to end once its running jobs have ended."""
    ASKED = 2
    """It was asked to end, or was cancelled before it ran."""


@dataclass(slots=True)
class Allocation:
    """One allocation.

    :param batch: its batch job, requested by ``batch.submission``
    :param ends_at: when it stops accepting jobs, on the monotonic clock; None: its agent has not started
    :param clock_ahead: seconds by which its node's clock is ahead of ours, to the minute; 0: they agree to the minute
    :param worked: whether a job has run to its end in it
    :param closed: whether it has refused a job because it is ending
    :param release: how far its release has progressed
    :param end: cause and reason of its end, both None if it ended normally; None: not known to have ended
    :param rest: number of consecutive polls without news from it after its end
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
        """Create an allocation that is requested now, or was requested by an earlier controller."""
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
        """Whether it is known to have ended, so that nothing will ever run in it."""
        return self.end is not None

    @property
    def is_up(self) -> bool:
        """Whether its agent has started and accepts jobs, as far as known."""
        return self.ends_at is not None and not self.ends

    @property
    def ends(self) -> bool:
        """Whether nothing more in its inbox will be started."""
        return bool(self.closed or self.batch.gone_since or self.over)

    @property
    def is_pending(self) -> bool:
        return self.ends_at is None and not self.ends


@dataclass(slots=True)
class AllocationFleet:
    """The allocations by name, and the jobs given to them.

    :param given: name of a job's allocation by token, even before the job is in its inbox
    :param placed_at: when a job was put into an inbox, on the monotonic clock
    :param doubtful: jobs that may or may not have arrived in their inbox
    """

    tracker: BatchJobTracker
    allocations: dict[str, Allocation] = field(default_factory=dict)
    given: dict[str, str] = field(default_factory=dict)
    placed_at: dict[str, float] = field(default_factory=dict)
    doubtful: set[str] = field(default_factory=set)

    def of_job(self, job: TrackedBatchJob) -> Allocation | None:
        return self.allocations.get(job.submission.name) if job.submission is not None else None

    def living(self) -> list[TrackedBatchJob]:
        return [each.batch for each in self.allocations.values() if not each.over]

    def jobs(self) -> Iterator[tuple[Allocation, TrackedBatchJob]]:
        """Yield the jobs in allocations whose end has not been reported, with their allocation."""
        for job in list(self.tracker.live()):
            if (allocation := self.of_job(job)) is not None:
                yield allocation, job

    def known(self) -> dict[str, set[str]]:
        """Return the jobs of each allocation by its name, including those whose end is not stored yet."""
        known: dict[str, set[str]] = {}
        for token, name in self.given.items():
            known.setdefault(name, set()).add(token)
        for token, job in self.tracker.jobs.items():
            if job.submission is not None and not job.stored:
                known.setdefault(job.submission.name, set()).add(token)
        return known

    def place(self, job: TrackedBatchJob, allocation: Allocation) -> None:
        job.enter(allocation.submission)
        self.placed_at[job.token] = time.monotonic()

    def forget(self, tokens: Iterable[str]) -> None:
        with self.tracker.lock:
            for token in tokens:
                self.given.pop(token, None)
                self.placed_at.pop(token, None)
                self.doubtful.discard(token)

    def drop(self, allocation: Allocation) -> None:
        """Forget an allocation, and have its folder removed."""
        self.allocations.pop(allocation.name, None)
        self.tracker.pending.leftovers.add(allocation.folder.relative)
