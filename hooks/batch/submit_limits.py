"""What a batch system takes: how many jobs in one submission, how many at a time, and from whom."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from lading.hooks.batch.system import BatchSystem, Profile
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.reasons import Reason

T = TypeVar("T")

# A refused submission is tried again after 5, 10, 20 ... seconds, at most this many.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
# A refused account is tried again after this, seconds, and ever later up to so many.
FIRST_BAR = 600.0
LONGEST_BAR = 3600.0


def largest_array(system: BatchSystem, profile: Profile) -> int:
    """How many tasks one submission may have, numbered from 1; 1: no arrays."""
    most = profile.max_array_size or system.max_array_size
    if system.name == "slurm" and profile.max_array_size:
        most -= 1  # SLURM limits the largest index, not the number
    return most if most >= max(2, system.smallest_array) else 1


def chunks(jobs: Sequence[T], most: int, system: BatchSystem) -> Iterable[Sequence[T]]:
    """The jobs in parts of at most ``most``; where an array of a part would be too small, each job alone."""
    for start in range(0, len(jobs), most):
        part = jobs[start : start + most]
        if len(part) >= max(2, system.smallest_array):
            yield part
        else:
            yield from ([job] for job in part)


class BackPressure:
    """What the answers to submissions have taught about the limits of a site.

    :param largest: elements that a job array may ever have; 1: no arrays
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.chunk = largest
        self.backoff = ReasonedBackoff(FIRST_PAUSE, LONGEST_PAUSE)

    def held(self) -> Reason | None:
        """Why nothing is submitted now; None: it is."""
        return self.backoff.reason

    def hold(self, reason: Reason) -> None:
        """Submit nothing for a while, each time in a row for longer."""
        self.backoff.failed_for(reason)

    def accept(self, count: int) -> None:
        """So many jobs were taken in one submission: a larger one may be taken, too."""
        self.backoff.succeeded()
        if count == self.chunk < self.largest:
            self.chunk = min(self.largest, self.chunk * 2)

    def shrink(self, count: int, *, for_good: bool = False) -> None:
        """So many jobs in one submission were too many, now or forever: a part of it may be allowed, at once."""
        self.chunk = max(1, count // 2)
        if for_good:
            self.largest = self.chunk

    def release(self) -> None:
        """A job has ended: where each job is submitted by itself there is room for one."""
        if self.chunk == 1:
            self.backoff.not_before = 0.0


class BarredQueues:
    """The queues to which the batch system does not admit the account, each for a while: then it is tried again."""

    def __init__(self) -> None:
        self._backoffs: dict[str, ReasonedBackoff] = {}

    def bar(self, queue: str | None, reason: Reason) -> None:
        """Note that it was refused in a queue; None: in that of the site. Each time in a row counts for longer."""
        self._backoffs.setdefault(queue or "", ReasonedBackoff(FIRST_BAR, LONGEST_BAR)).failed_for(reason)

    def admit(self, queue: str | None) -> None:
        """Note that a job of that queue was taken."""
        self._backoffs.pop(queue or "", None)

    def reasons(self) -> dict[str, Reason]:
        """Why the account is not admitted, by the queue, which is empty for that of the site."""
        found = {queue: each.reason for queue, each in list(self._backoffs.items())}
        return {queue: reason for queue, reason in found.items() if reason is not None}
