"""The limits of a batch system on submissions: array sizes, numbers of jobs, and accounts that queues refuse."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lading.hooks.batch.refusals import SubmitError, limit_on_jobs
from lading.hooks.batch.system import BatchSystem, Profile
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.backoff import ReasonedBackoff
from lading.scheduling.model.reasons import Reason, because

T = TypeVar("T")

# Pauses after a submission without an answer, in seconds: 5, 10, 20 ... up to the maximum.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0
# Pauses after an account is refused, in seconds: the first, and the maximum to which they grow.
FIRST_BAR = 600.0
LONGEST_BAR = 3600.0


def largest_array(system: BatchSystem, profile: Profile) -> int:
    """Return the maximum number of tasks in one submission, numbered from 1; 1: no arrays."""
    most = profile.max_array_size or system.max_array_size
    if system.name == "slurm" and profile.max_array_size:
        most -= 1  # SLURM limits the largest index, not the number of elements
    return most if most >= max(2, system.smallest_array) else 1


def chunks(jobs: Sequence[T], most: int, system: BatchSystem) -> Iterable[Sequence[T]]:
    """Split jobs into parts of at most ``most``. A part that is too small for an array is split into single jobs."""
    for start in range(0, len(jobs), most):
        part = jobs[start : start + most]
        if len(part) >= max(2, system.smallest_array):
            yield part
        else:
            yield from ([job] for job in part)


class BackPressure:
    """The limits of a site, learned from the answers to submissions.

    The caller stops a round of submissions at the first refusal. From then on, one job is submitted for each job that
    ends, plus one probe every ``seconds_between_probes``. This bounds the number of refused submissions, however
    many jobs wait.

    :param largest: maximum number of elements of a job array; 1: no arrays
    :ivar most: how many jobs the site accepts at a time, until it accepts more; None: no limit was reached
    """

    seconds_between_probes = 60.0
    """Until one more job is tried at a limit: it may have been raised, or other users' jobs may have ended."""

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
        """Return why nothing is submitted now, even if there is room; None: submissions are possible."""
        return self.backoff.reason

    def hold(self, reason: Reason) -> None:
        """Pause submissions; consecutive pauses get longer."""
        self.backoff.failed_for(reason)

    def room(self, submitted: int) -> int:
        """Return how many more jobs can be submitted now, given the number of submitted jobs."""
        if self.most is None:
            return sys.maxsize
        now, free = self.clock(), self.most - submitted
        if free > 0 and self._ends and now >= self._next_try:
            return free
        return 1 if now >= self._next_probe else 0

    def allow(self, system: str, profile: Profile, submitted: int, first: int = 1) -> tuple[int, Reason]:
        """Return how many more jobs can be submitted now, and why no more than that.

        :param system: name of the batch system
        :param submitted: number of jobs that are submitted already
        :param first: number of jobs in the first submission, which cannot be divided. It can exceed a learned limit,
            which may have been raised; otherwise it would never be tried
        """
        if (held := self.held()) is not None:
            return 0, held
        room, learned = profile.room(submitted), self.room(submitted)
        learned = max(learned, first) if learned else 0
        if learned < room:
            return learned, self.reason(system, submitted)
        return room, because("max_submitted", most=profile.max_submitted)

    def reason(self, system: str, submitted: int) -> Reason:
        """Return why no more jobs are submitted when there is no room.

        :param system: name of the batch system
        :param submitted: number of jobs that are submitted
        """
        if self.most is not None and (limit := self.limit) is not None:
            return because("submit_limit", submitted=submitted, most=self.most, limit=limit)
        return because("site_limit", system=system, text=self._message)

    @property
    def limit(self) -> str | None:
        """The name of the limit on the number of jobs that was reached; None: none was, or it limits something else."""
        return limit_on_jobs(self._message) if self.most else None

    def read(
        self, system: BatchSystem, answer: CommandResult, count: int, submitted: int, *, divisible: bool = True
    ) -> str:
        """Return the native ID in the answer to a submission, and learn from the answer which limits the site has.

        :param count: number of submitted jobs
        :param submitted: number of jobs that were submitted before
        :param divisible: whether the jobs could be submitted in parts, unlike a job script's own array
        :raises SubmitError: the answer has no ID: the submission was refused, or its outcome is unknown
        """
        try:
            id = system.submitted(answer)
        except SubmitError as error:
            is_array = count > 1 and error.is_of_arrays
            if error.kind == "transient":
                # It may have been accepted: look it up by its name before doing anything else about it.
                self.hold(because("submit_unanswered", system=system.name, text=error.message))
            elif is_array and divisible:
                self.shrink(count)
            elif error.kind == "limit" and not is_array and (divisible or count == 1):
                self.refuse(count, submitted, error.message)
            elif error.kind == "limit" and not is_array:
                # How many single jobs the site accepts is still unknown.
                self.hold(because("site_limit", system=system.name, text=error.message))
            raise
        self.accept(count, submitted + count)
        return id

    def accept(self, count: int, submitted: int) -> None:
        """Note that a submission was accepted, so a larger one may be accepted too.

        :param count: number of jobs in it
        :param submitted: number of jobs that are submitted now, these included
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
        """Note that a submission exceeded a limit.

        :param count: number of jobs in it
        :param submitted: number of jobs that are submitted, without these
        :param message: the batch system's own
        """
        self.chunk, self._message, now = 1, message, self.clock()
        if self.most is None and count > 1 and submitted == 0:
            return  # nothing runs, so the site may accept part of them: submit one by one until the next refusal
        if self.most is None or not self._ends:
            self.most = submitted
        # Otherwise the batch system may still be counting jobs that have just ended.
        self._ends = max(0, self._ends - 1)
        self._next_try, self._next_probe = now + FIRST_PAUSE, now + self.seconds_between_probes

    def shrink(self, count: int) -> None:
        """Note that arrays of this size are never accepted; half the size can be tried at once."""
        self.chunk = self.largest = max(1, count // 2)

    def release(self) -> None:
        """Note that a job has ended, which makes room for another one."""
        if self.most is None:
            return
        if not self._ends:
            # The batch system stops counting a job shortly after the job has reported its end.
            self._next_try = max(self._next_try, self.clock() + 2.0)
        self._ends = min(self._ends + 1, max(1, self.most))


class BarredQueues:
    """Queues that refuse the account. Each is avoided for a while and then tried again."""

    def __init__(self) -> None:
        self._backoffs: dict[str, ReasonedBackoff] = {}

    def bar(self, queue: str | None, reason: Reason) -> None:
        """Note that a queue (None: the site's default) refused the account; repeated refusals last longer."""
        self._backoffs.setdefault(queue or "", ReasonedBackoff(FIRST_BAR, LONGEST_BAR)).failed_for(reason)

    def admit(self, queue: str | None) -> None:
        self._backoffs.pop(queue or "", None)

    def reasons(self) -> dict[str, Reason]:
        """Return why the account is refused, by queue; the empty name is the site's default queue."""
        found = {queue: each.reason for queue, each in list(self._backoffs.items())}
        return {queue: reason for queue, reason in found.items() if reason is not None}
