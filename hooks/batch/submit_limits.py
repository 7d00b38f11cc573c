"""What a batch system takes: how many jobs in one submission, how many at a time, and from whom."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lading.hooks.batch.refusals import SubmitError, limit_on_jobs
from lading.hooks.batch.system import BatchSystem, Profile
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.reasons import Reason, because

T = TypeVar("T")

# A submission without an answer is tried again after 5, 10, 20 ... seconds, at most this many.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
# At a limit one more is tried after this, seconds: it may have been raised, or others' jobs have ended.
SECONDS_BETWEEN_PROBES = 60.0
# A job says that it has ended this long, seconds, before the batch system has counted it out.
SECONDS_UNTIL_FREE = 2.0
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

    A round of submissions ends at the first refusal (who submits sees to that). From then on as many jobs are submitted
    as have ended; beyond that one at most is tried each :data:`SECONDS_BETWEEN_PROBES`. So no more calls are refused
    than one in that time and one for each end, however many jobs wait.

    :param largest: elements that a job array may ever have; 1: no arrays
    :ivar most: how many jobs may be submitted at a time, until it proves to be more; None: no limit was met
    """

    def __init__(self, largest: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.largest = largest
        self.chunk = largest
        self.clock = clock
        self.backoff = ReasonedBackoff(FIRST_PAUSE, LONGEST_PAUSE)
        self.most: int | None = None
        self._message = ""
        self._ends = 0
        self._next_try = self._next_probe = 0.0

    def held(self) -> Reason | None:
        """Why nothing is submitted now, whatever there is room for; None: it is."""
        return self.backoff.reason

    def hold(self, reason: Reason) -> None:
        """Submit nothing for a while, each time in a row for longer."""
        self.backoff.failed_for(reason)

    def room(self, submitted: int) -> int:
        """How many more jobs may be submitted now beside so many."""
        if self.most is None:
            return sys.maxsize
        now, free = self.clock(), self.most - submitted
        if free > 0 and self._ends and now >= self._next_try:
            return free
        return 1 if now >= self._next_probe else 0

    def allow(self, system: str, profile: Profile, submitted: int) -> tuple[int, Reason]:
        """How many more jobs may be submitted now beside so many, and why no more.

        :param system: the name of the batch system
        """
        room, learned = profile.room(submitted), self.room(submitted)
        if learned < room:
            return learned, self.reason(system, submitted)
        return room, because("max_submitted", most=profile.max_submitted)

    def reason(self, system: str, submitted: int) -> Reason:
        """Why no more are submitted, where there is no room.

        :param system: the name of the batch system
        :param submitted: how many are
        """
        if self.most is not None and (limit := self.limit) is not None:
            return because("submit_limit", submitted=submitted, most=self.most, limit=limit)
        return because("site_limit", system=system, text=self._message)

    @property
    def limit(self) -> str | None:
        """What names the limit on the number of jobs that was met; None: none was, or it is on something else."""
        return limit_on_jobs(self._message) if self.most else None

    def read(
        self, system: BatchSystem, answer: CommandResult, count: int, submitted: int, *, divisible: bool = True
    ) -> str:
        """The native id in the answer to a submission, from which is learned what the site takes.

        :param count: how many jobs were submitted
        :param submitted: how many there were before
        :param divisible: whether a part of them could be submitted by itself; the array of a script's own is as it is
        :raises SubmitError: the answer has no id, as the submission was refused or its outcome is not known
        """
        try:
            id = system.submitted(answer)
        except SubmitError as error:
            is_array = count > 1 and error.is_of_arrays
            if is_array and divisible and error.kind != "transient":
                self.shrink(count)
            elif error.kind == "limit" and not is_array:
                self.refuse(count, submitted, error.message)
            raise
        self.accept(count, submitted + count)
        return id

    def accept(self, count: int, submitted: int) -> None:
        """So many jobs were taken in one submission: a larger one may be taken, too.

        :param submitted: with them
        """
        self.backoff.succeeded()
        if count >= self.chunk < self.largest:
            self.chunk = min(self.largest, self.chunk * 2)
        self._ends = max(0, self._ends - count)
        if self.most is not None and submitted > self.most:
            self.most = None
        elif self.most is not None and submitted < self.most:
            self._ends = max(1, self._ends)

    def refuse(self, count: int, submitted: int, message: str) -> None:
        """So many jobs in one submission were too many for now.

        :param submitted: without them
        :param message: of the batch system
        """
        self.chunk, self._message, now = 1, message, self.clock()
        if self.most is None and count > 1 and submitted == 0:
            return  # nothing runs there, and a part of them may be allowed: one by one until the next refusal
        if self.most is None or not self._ends:
            self.most = submitted
        # Otherwise the batch system may count for a moment longer what has ended.
        self._ends = max(0, self._ends - 1)
        self._next_try, self._next_probe = now + FIRST_PAUSE, now + SECONDS_BETWEEN_PROBES

    def shrink(self, count: int) -> None:
        """No array of so many jobs is ever taken: one of a part of them may be, at once."""
        self.chunk = self.largest = max(1, count // 2)

    def release(self) -> None:
        """A job has ended: there is room for another."""
        if self.most is None:
            return
        if not self._ends:
            self._next_try = max(self._next_try, self.clock() + SECONDS_UNTIL_FREE)
        self._ends = min(self._ends + 1, max(1, self.most))


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
