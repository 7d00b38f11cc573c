"""Find out how the jobs of a cluster that have gone ended, and react to it.

How incomplete evidence is interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| gone, with neither exit file nor accounting | nothing; after ``lost_after``: ``lost`` | final |
| the same in a strange state | the same, and its batch job is cancelled | final |
| never launched, and still listed | nothing: it may be released | it is gone, then it is submitted again |
| ended by a node or a preemption, no sign of a start | submitted again, up to four times in all | it starts |
| the batch system says nothing about it in this poll | nothing | the next poll |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lading.hooks.batch.outcome import MOST_TRIES, REASONS, TAIL_BYTES
from lading.hooks.batch.status_query import Statuses
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.jobs import end_event
from lading.hooks.cluster.jobs.context import ClusterContext, ClusterPart
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.steps import FilePart, Parts
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.model.reasons import because

# Files that a job may have left, in the order in which they are read.
REMAINS = ("exit.json", "cause.json", "supervisor.json")


class PostMortem(ClusterPart):
    """Decides how jobs that have gone ended.

    :param conclude: reports the end of a job: the job, the event, the file that contained the event
    """

    def __init__(
        self, context: ClusterContext, conclude: Callable[[TrackedBatchJob, dict[str, Any], str | None], None]
    ) -> None:
        super().__init__(context)
        self.conclude = conclude

    def question(self, doubtful: Sequence[TrackedBatchJob]) -> Parts:
        """Return the step that reads what these jobs may have left."""
        return Parts([part for job in doubtful for part in self._remains(job)], 2**16)

    def judge(
        self,
        doubtful: Sequence[TrackedBatchJob],
        answer: CommandResult,
        accounts: Statuses,
        known: Statuses,
    ) -> None:
        """Report the end of jobs that are gone, as far as it is known how they ended.

        :param accounts: the accounting's report
        :param known: the batch system's report of this poll
        :raises TransportError: the answer is damaged
        """
        remains = self.question(doubtful).contents(answer)
        size = len(REMAINS) + 1
        for number, job in enumerate(doubtful):
            if job.has_gone(known):
                # A job that could not start was cancelled by Lading, so what the accounting reports does not count.
                account = None if job.is_hopeless else job.found_in(accounts)
                self._judge(job, remains[size * number : size * (number + 1)], account)

    def _remains(self, job: TrackedBatchJob) -> list[FilePart]:
        assert job.submission is not None
        folder, output = self.folder.job(job.token), self.folder.output(job.submission.name, job.index)
        return [*(FilePart(f"{folder}/{name}") for name in REMAINS), FilePart(output, -TAIL_BYTES)]

    def _judge(self, job: TrackedBatchJob, remains: Sequence[bytes | None], account: NativeJob | None) -> None:
        assert job.gone_since is not None
        sentinel, cause, supervisor, output = remains
        own = job.own or job.report_left(sentinel, cause)
        job.node = next((each.nodes for each in (account, job.end_seen) if each and each.nodes), job.node)
        message = (output or b"").decode(errors="replace")
        facts = replace(
            self.evidence(job.end_seen or account, own, job.gone_since, message),
            native=job.end_seen,
            account=account,
            accounting=self.config.accounting == "auto",
            cancelled=job.cancelled_at is not None,
            waited=job.shown.ran is False and supervisor is None and not job.started,
        )
        event = end_event.judged(job.token, facts, own, message, started=job.started)
        if event is None:
            return
        if supervisor is None and own is None and not (job.started or facts.cancelled):
            if event["cause"] in INFRASTRUCTURE and job.tries < MOST_TRIES:
                self._submit_again(job, event["cause"])
                return
            if event["cause"] == "error" and event["exit_code"]:
                self.nodes.died(self.node_of(job))
        if event["cause"] == "lost" and job.native is not None and job.native.strange:
            # It may still be running, and its replacement must not run at the same time.
            self.tracker.cancel_natively(job, self.system)
            event["reason"] = event["reason"].with_also(because("batch_says", text=job.native.reason))
        self.conclude(job, event, job.own_file)

    def _submit_again(self, job: TrackedBatchJob, cause: str) -> None:
        """Submit a job again whose task has not started, because it did not fail by its own fault."""
        if cause == "node_failure":
            self.nodes.failed(self.node_of(job), str(REASONS[cause]))
        job.tries += 1
        self.event_buffer.add_reason(job, because("submitted_again").with_also(REASONS[cause]))
        if (id := job.native_id(self.system)) is not None:
            self.tracker.canceller.forget(id)
        self.tracker.withdraw(job)
