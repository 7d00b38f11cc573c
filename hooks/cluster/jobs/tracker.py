"""What a controller remembers about the jobs that it has given to a cluster. The cluster's folder has all of it, too.

How incomplete answers are interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| a state | see :mod:`lading.hooks.polling.job_life` | the next answer |
| an answer from before the submission | nothing | the next answer |
| could not ask | nothing | the next answer |
"""

from __future__ import annotations

import logging
import math
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from lading.hooks.batch.canceller import Canceller
from lading.hooks.batch.outcome import has_ended
from lading.hooks.batch.status_query import Key, Statuses, submitted_as
from lading.hooks.batch.system import BatchSystem, CancelError, NativeJob
from lading.hooks.cluster.jobs.job_script import ArrayShape
from lading.hooks.cluster.jobs.layout import Task
from lading.hooks.polling.job_life import JobAtSite, JobPhase, ShownLife, ShownPhase
from lading.hooks.polling.job_tracker import JobTracker
from lading.hooks.polling.outside_clock import between
from lading.hooks.spool import job_files
from lading.hooks.ssh.answer import CommandResult
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

# Maximum age of an earlier controller's submissions, for queries to the accounting.
OLDEST = timedelta(days=7)
# A new expected start is reported if it differs by this many seconds and by this part of the remaining time.
LEAST_MOVE, PART_OF_MOVE = 60.0, 0.1
# A job that waits for such a reason does not wait for nodes, so excluded nodes do not matter.
_OF_NO_NODES = re.compile(r"limit|quota|maximum|\bmax|held|\bhold|depend|begin ?time|licen[cs]e", re.IGNORECASE)


@dataclass(slots=True)
class Submission:
    """One batch job or job array.

    :param name: of the batch job, by which it can be looked up
    :param id: native ID; None: unknown whether it was accepted
    :param asked_at: when it was submitted, on the monotonic clock
    :param since: when it was submitted, as a date
    :param excluded: nodes on which its jobs must not run
    :param clusters: those that its directives name; empty: it is in the cluster of the login node
    """

    name: str
    tokens: list[str]
    id: str | None
    asked_at: float
    since: datetime = field(default_factory=lambda: datetime.now() - OLDEST)
    excluded: tuple[str, ...] = ()
    clusters: tuple[str, ...] = ()

    def is_found(self, known: Statuses) -> bool:
        """Whether its native ID is known, after looking it up by its name if necessary."""
        if self.id is None:
            self.id = submitted_as(known.jobs, self.name)
        return self.id is not None

    def waits(
        self, queue: str | None, native: NativeJob, allocation: str | None = None, given_up_at: float | None = None
    ) -> Reason:
        """Return why one of its batch jobs waits.

        :param queue: None: the site's default
        :param allocation: name of the allocation; None: the batch job is a single task
        :param given_up_at: when the batch job is cancelled because it can never start, epoch seconds; None: it may
            start
        """
        said: dict[str, Any] = {"text": native.reason or "it gives no reason"}
        if given_up_at is not None:
            return because("batch_never", queue=queue, at=given_up_at, **said)
        if allocation is not None:
            said["allocation"] = allocation
            default, named = "allocation_default_queue", "allocation_queue"
        else:
            default, named = "batch_default_queue", "batch_queue"
        found = because(named, queue=queue, **said) if queue else because(default, **said)
        is_of_nodes = self.excluded and not _OF_NO_NODES.search(said["text"])
        return found.with_also(because("nodes_avoided", nodes=self.excluded)) if is_of_nodes else found


@dataclass(slots=True)
class TrackedBatchJob(JobAtSite):
    """One job.

    :param submission: None: it has not been submitted
    :param index: of its array element, from 1
    :param native: the batch system's last report
    :param shown: its life as the batch system shows it, on the monotonic clock
    :param node: where it runs or ran, in the batch system's notation; None: it has not run, or unknown
    :param began_at: when it started, epoch seconds by our clock; None: unknown
    :param own: its own report of how it ended, while the batch system may still know better
    :param own_file: the file that contained this report
    :param starts_at: the expected start that was reported last, epoch seconds
    :param cancelled_at: when its cancellation was sent, on the monotonic clock
    :param tries: how often it was submitted without having started, including this time
    """

    shape: ArrayShape | None = None
    submission: Submission | None = None
    index: int = 1
    native: NativeJob | None = None
    shown: ShownLife = field(default_factory=ShownLife)
    node: str | None = None
    began_at: float | None = None
    own: Mapping[str, Any] | None = None
    own_file: str | None = None
    starts_at: float | None = None
    cancelled_at: float | None = None
    tries: int = 1

    def report_left(self, sentinel: bytes | None, cause: bytes | None) -> dict[str, Any] | None:
        """Return its own report of how it ended, from the files that it may have left; None: there is none.

        Times of a node's clock are limited to what is possible by ours.
        """
        left, why = job_files.remains(job_files.SentinelFile, sentinel), job_files.remains(job_files.CauseFile, cause)
        if left is None:
            return None
        earliest = -math.inf if self.began_at is None else self.began_at
        return between(job_files.of_sentinel(left, why), earliest, time.time())

    def end(self) -> None:
        JobAtSite.end(self)
        self.envelope = self.own = None

    def report_end(self, own: Mapping[str, Any], file: str | None) -> None:
        """Note its own report of how it ended, while the batch system may know better.

        :param file: contained the report
        """
        self.own, self.own_file = own, file
        self.close()
        self.lose(time.monotonic())

    def lose(self, at: float) -> None:
        """Note that the job is gone, so that its end has to be determined.

        :param at: on the monotonic clock
        """
        self.shown = self.shown.lost(at)

    @property
    def gone_since(self) -> float | None:
        return self.shown.gone_since

    def enter(self, submission: Submission, index: int = 1) -> None:
        self.submission, self.index = submission, index
        self.submit()

    def leave(self) -> None:
        """Note that it no longer belongs to a submission; it waits again unless it has started."""
        self.submission = self.native = None
        self.shown = ShownLife()
        self.withdraw()

    def found_in(self, known: Statuses) -> NativeJob | None:
        """Return the report of the batch system, or its accounting, about this job; None: there is none."""
        key = self.key
        return known.get(key, self.submission.name) if key is not None and self.submission is not None else None

    def see(
        self,
        native: NativeJob | None,
        asked_at: float,
        *,
        blocked_for: float = math.inf,
        strange_for: float = math.inf,
    ) -> bool:
        """Process the batch system's report; return whether the state has changed.

        :param native: None: it does not know the job
        :param asked_at: on the monotonic clock
        :param blocked_for: as in :meth:`ShownLife.shown`; so is ``strange_for``
        """
        if native is None:
            # An answer to a query that was sent before the submission does not count.
            if self.submission is not None and asked_at > self.submission.asked_at:
                self.lose(asked_at)
            return False
        if self.phase is not JobPhase.CLOSING:
            self.shown = self.shown.shown(native, asked_at, blocked_for=blocked_for, strange_for=strange_for)
        if self.is_hopeless and native.state == "ended":
            return False  # Lading has cancelled it because of the earlier report
        is_new = self.native is None or native.state != self.native.state
        self.native, self.node = native, native.nodes or self.node
        if self.is_hopeless and native.cause is None:
            self.native = replace(native, cause="error")
        return is_new

    def given_up_at(self, deadline: float) -> float | None:
        """Return when it is cancelled because it can never start, epoch seconds; None: it may start.

        :param deadline: seconds
        """
        if self.shown.phase is not ShownPhase.BLOCKED:
            return None
        return time.time() + self.shown.since + deadline - time.monotonic()

    def expects(self, native: NativeJob, now: float) -> bool:
        """Note when the batch system expects it to start; return whether that differs from the last reported time.

        :param now: epoch seconds
        """
        before, at = self.starts_at, native.starts_at
        if before is not None and at is not None:
            # Small shifts from one scheduling cycle to the next do not count.
            is_new = abs(at - before) > max(LEAST_MOVE, PART_OF_MOVE * abs(before - now))
        else:
            is_new = at is not before
        if is_new:
            self.starts_at = at
        return is_new

    @property
    def is_hopeless(self) -> bool:
        """Whether it will never start and would stay in its queue forever."""
        return self.shown.phase is ShownPhase.UNRUNNABLE

    def has_gone(self, known: Statuses) -> bool:
        """Whether its end has to be determined.

        A job that could not be launched and is still listed has not gone: it is submitted again only when it has.

        :param known: the batch system's report of this poll; a job about which it says nothing is left alone
        """
        if self.ended or self.gone_since is None or (self.key is not None and known.is_silent(self.key)):
            return False
        is_launch_failure = self.is_hopeless and self.native is not None and self.native.cause != "error"
        native = self.found_in(known) if is_launch_failure else None
        return native is None or native.state == "ended"

    @property
    def end_seen(self) -> NativeJob | None:
        """The batch system's report that it has ended or can never start; None: so far it was only listed as alive."""
        return self.native if self.native is not None and has_ended(self.native) else None

    @property
    def is_array(self) -> bool:
        return self.submission is not None and len(self.submission.tokens) > 1

    def native_id(self, system: BatchSystem) -> str | None:
        """Return the ID by which it is cancelled; None: it has none, or it is unknown."""
        if self.submission is None or self.submission.id is None:
            return None
        return system.element(self.submission.id, self.index) if self.is_array else self.submission.id

    def whereabouts(self, system: BatchSystem) -> dict[str, str]:
        found = {"native_id": self.native_id(system), "node": self.node}
        return {name: value for name, value in found.items() if value}

    @property
    def key(self) -> Key | None:
        if self.submission is None or self.submission.id is None:
            return None
        return self.submission.id, self.index if self.is_array else None


@dataclass(slots=True)
class PendingActions:
    """The actions for the next poll.

    :param cancels: native IDs to be cancelled, each with the time of the first request, on the monotonic clock
    :param withdrawals: name of the submission and token of each job that no longer belongs to it
    :param leftovers: files to be removed, relative to the cluster's folder
    """

    cancels: dict[str, float] = field(default_factory=dict)
    withdrawals: list[tuple[str, str]] = field(default_factory=list)
    leftovers: set[str] = field(default_factory=set)
    seconds_of_cancelling = 3600.0
    """For which a failing cancellation is repeated; a job that starts later finds no envelope."""

    def take(self) -> PendingActions:
        """Return the pending actions, and remove them here."""
        taken = PendingActions(self.cancels, self.withdrawals, self.leftovers)
        self.cancels, self.withdrawals, self.leftovers = {}, [], set()
        return taken

    def put_back(self, taken: PendingActions) -> None:
        self.cancels |= taken.cancels
        self.withdrawals += taken.withdrawals
        self.leftovers |= taken.leftovers

    def cancel(self, ids: Iterable[str]) -> None:
        for id in ids:
            self.cancels.setdefault(id, time.monotonic())

    def check_cancelled(self, system: BatchSystem, taken: PendingActions, answer: CommandResult, now: float) -> None:
        """Repeat cancellations if the command has failed. Jobs that are gone do not count as a failure.

        :param answer: to the cancel command
        :param now: on the monotonic clock
        """
        try:
            system.cancelled(answer)
        except CancelError as error:
            log.warning("%d jobs could not be cancelled: %s", len(taken.cancels), error.message)
            for id, since in taken.cancels.items():
                if now - since < self.seconds_of_cancelling:
                    self.cancels[id] = since
                else:
                    log.error("job %s still could not be cancelled; Lading stops trying", id)


class BatchJobTracker(JobTracker[TrackedBatchJob]):
    """The jobs and submissions of a cluster. One thread changes them; others can read them while holding ``lock``."""

    def __init__(self) -> None:
        super().__init__(TrackedBatchJob)
        self.submissions: dict[str, Submission] = {}
        self.pending = PendingActions()
        self.canceller = Canceller()

    def waiting(self) -> Iterator[TrackedBatchJob]:
        return (job for job in self.jobs.values() if job.phase is JobPhase.WAITING)

    def live(self) -> Iterator[TrackedBatchJob]:
        """Return the submitted jobs whose end has not been reported."""
        return (job for job in self.jobs.values() if job.submission is not None and not job.ended)

    def at_work(self) -> list[str]:
        """Return the tokens of jobs that were submitted or have started, and whose end has not been reported."""
        with self.lock:
            return [token for token, job in self.jobs.items() if job.phase is not JobPhase.WAITING and not job.ended]

    def submit(self, submission: Submission) -> None:
        """Note a submission before it is made."""
        self.submissions[submission.name] = submission
        for index, token in enumerate(submission.tokens, 1):
            job = self.jobs[token]
            job.leave()
            job.node = None
            job.enter(submission, index)

    def submit_found(self, submission: Submission, tasks: Iterable[Task], begun: frozenset[str]) -> None:
        """Note a submission of an earlier controller.

        :param tasks: those that were not withdrawn from it
        :param begun: tokens of the jobs that have started
        """
        with self.lock:
            for task in tasks:
                phase = JobPhase.STARTED if task.token in begun else JobPhase.WAITING
                job = TrackedBatchJob(task.token, task.log_path, task.bundle, phase=phase)
                self.jobs.setdefault(task.token, job)
            self.submissions[submission.name] = submission
            for index, token in enumerate(submission.tokens, 1):
                if token in self.jobs and (job := self.jobs[token]).submission is None:
                    job.enter(submission, index)

    def take_back(self, submission: Submission) -> None:
        """Make the jobs of a submission that was not accepted wait again; forget those whose envelope is gone."""
        self.pending.leftovers |= {f"submissions/{submission.name}", f"incoming/{submission.name}"}
        with self.lock:
            self.submissions.pop(submission.name, None)
            for token in submission.tokens:
                job = self.jobs.get(token)
                if job is None or job.ended or job.submission is not submission:
                    continue
                job.leave()
                if job.envelope is None:
                    del self.jobs[token]

    def withdraw(self, job: TrackedBatchJob) -> None:
        """Make a job that has not started wait again; without its envelope, forget it: the store gives it again."""
        assert job.submission is not None
        self.pending.withdrawals.append((job.submission.name, job.token))
        with self.lock:
            job.leave()
            if job.envelope is None:
                del self.jobs[job.token]

    def cancel_natively(self, job: TrackedBatchJob, system: BatchSystem) -> None:
        """Cancel a job in the batch system, if it is submitted."""
        if (id := job.native_id(system)) is not None:
            self.pending.cancel([id])
            self.canceller.ask([id])

    def press(self, job: TrackedBatchJob, system: BatchSystem) -> None:
        """Cancel a job again from time to time while it is still listed after its cancellation."""
        if (id := job.native_id(system)) is not None:
            self.pending.cancel(self.canceller.press([id], at_once=True))

    def forget(self, tokens: Iterable[str]) -> None:
        """Forget jobs that have ended, and submissions that have no jobs left."""
        with self.lock:
            for token in tokens:
                self.jobs.pop(token, None)
            over = [name for name, submission in self.submissions.items() if not self._has_jobs(submission)]
            for name in over:
                del self.submissions[name]
        self.pending.leftovers |= {f"submissions/{name}" for name in over}

    def _has_jobs(self, submission: Submission) -> bool:
        return any(token in self.jobs and self.jobs[token].submission is submission for token in submission.tokens)
