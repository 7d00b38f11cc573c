"""Find out how the allocations of a cluster that have gone, and the jobs in them, ended.

How incomplete evidence is interpreted, and what revises the conclusion:

| read | concluded | until |
|---|---|---|
| gone, and nothing known about a job in it | nothing; after ``lost_after``: ``lost`` | final |
| a strange state | running until its agent's time is over; then as above, and it is cancelled | a known state |
| never launched, and still listed | nothing | it is gone, then another one is requested |
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lading.hooks.batch.outcome import REASONS, TAIL_BYTES, Evidence, decide, is_unclear
from lading.hooks.batch.status_query import Statuses
from lading.hooks.batch.system import NativeJob
from lading.hooks.cluster.allocations.allocation import Allocation, ReleaseState
from lading.hooks.cluster.allocations.launcher import AllocationLauncher
from lading.hooks.cluster.jobs import end_event
from lading.hooks.cluster.jobs.context import ClusterPart
from lading.hooks.cluster.jobs.tracker import TrackedBatchJob
from lading.hooks.ssh.steps import FilePart, Parts
from lading.scheduling.model.reasons import because

log = logging.getLogger(__name__)


class AllocationPostMortem(ClusterPart):
    """Decides how allocations that have gone ended, and the jobs that ran in them.

    :param submitter: is told about allocations that ended before they could run a job
    :param conclude: reports the end of a job: the job, the event, the file that contained the event
    """

    def __init__(
        self,
        submitter: AllocationLauncher,
        conclude: Callable[[TrackedBatchJob, dict[str, Any], str | None], None],
    ) -> None:
        super().__init__(submitter.context)
        self.submitter, self.fleet = submitter, submitter.fleet
        self.conclude = conclude

    def gone(self) -> dict[str, list[TrackedBatchJob]]:
        """Return the allocations that may have ended, each with its started jobs whose end has not been reported."""
        allocations = self.fleet.allocations.values()
        return {each.name: self._begun(each) for each in allocations if each.batch.gone_since and not each.over}

    def question(self, gone: Mapping[str, Sequence[TrackedBatchJob]]) -> Parts:
        """Return the step that reads the output of gone allocations, and what their jobs have left."""
        return Parts(list(self._remains(gone)), 2**16)

    def judge(
        self,
        gone: Mapping[str, Sequence[TrackedBatchJob]],
        contents: Sequence[bytes | None],
        accounts: Statuses,
        known: Statuses,
    ) -> None:
        """Report the end of jobs whose allocation has gone, as far as it is known how they ended.

        :param contents: the answer to :meth:`question`
        :param accounts: the accounting's report
        :param known: the batch system's report of this poll
        """
        left = iter(contents)
        for name, jobs in gone.items():
            allocation = self.fleet.allocations.get(name)
            output = (next(left) or b"").decode(errors="replace")
            remains = {job.token: (next(left), next(left)) for job in jobs}
            if allocation is None or not allocation.batch.has_gone(known):
                continue
            native, gone_since = _native(allocation.batch, accounts), allocation.batch.gone_since
            assert gone_since is not None
            for job in jobs:
                if not job.ended:
                    self._judge_job(job, allocation, native, gone_since, remains[job.token], output)
            if (native is not None and native.succeeded) or decide(self.evidence(native, None, gone_since, output)):
                self._end(allocation, native, output)

    def _remains(self, gone: Mapping[str, Sequence[TrackedBatchJob]]) -> Iterable[FilePart]:
        for name, jobs in gone.items():
            folder = self.fleet.allocations[name].folder
            yield FilePart(folder.output, -TAIL_BYTES)
            for job in jobs:
                yield FilePart(f"{folder.spool}/jobs/{job.token}/exit.json")
                yield FilePart(f"{folder.spool}/jobs/{job.token}/cause.json")

    def _judge_job(
        self,
        job: TrackedBatchJob,
        allocation: Allocation,
        native: NativeJob | None,
        gone_since: float,
        remains: tuple[bytes | None, bytes | None],
        output: str,
    ) -> None:
        own = job.own or job.report_left(*remains)
        said = end_event.sentinel(own)
        if said is not None and said.is_certain:
            native = None  # the job ended before its allocation, so how the allocation ended does not matter
        facts = replace(self.evidence(native, own, gone_since, output), cancelled=job.cancelled_at is not None)
        event = end_event.judged(job.token, facts, own, allocation=allocation.name)
        if event is not None:
            self.conclude(job, event, job.own_file)

    def _end(self, allocation: Allocation, native: NativeJob | None, output: str) -> None:
        """Note that an allocation is over, once the end of all of its jobs is known."""
        if self._begun(allocation):
            return
        if native is None and allocation.batch.native is not None and allocation.batch.native.strange:
            native = allocation.batch.native
            self.fleet.tracker.cancel_natively(allocation.batch, self.system)  # it may still run
        cause = native.cause if native is not None else None
        log.info("allocation %s has ended: %s", allocation.name, native)
        says = native.reason if native is not None else None
        allocation.end = cause, because("batch_says", text=says) if says else None
        if native is None or not native.succeeded:
            log.warning("the last output of allocation %s: %s", allocation.name, output.strip() or "none")
        if cause == "node_failure":
            self.nodes.failed(self.node_of(allocation.batch), str(REASONS[cause]))
        failed = allocation.ends_at is None or (native is not None and native.succeeded is False)
        if failed and not (allocation.worked or allocation.release is ReleaseState.ASKED):
            if native is not None and native.exit_code:
                self.nodes.died(self.node_of(allocation.batch))
            facts = self.evidence(native, None, -math.inf, output)
            event = end_event.judged(allocation.name, facts, None, output, started=False)
            assert event is not None
            allocation.end = str(event["cause"]), event["reason"]
            self.submitter.has_failed(allocation, event["reason"])

    def conclude_hopeless(self) -> None:
        """Report the end of jobs that were killed in a running allocation, and of those that are nowhere."""
        now = time.monotonic()
        for allocation, job in list(self.fleet.jobs()):
            if job.own is not None and job.gone_since is not None and allocation.batch.gone_since is None:
                if now - job.gone_since > end_event.SECONDS_FOR_A_CAUSE and job.own["cause"] != "terminated":
                    self._conclude_now(job, allocation.batch.native)
            elif allocation.over and not job.started and job.token not in self.fleet.doubtful:
                job.lose(now)
                if now - (job.gone_since or now) > self.config.lost_after:
                    self._conclude_now(job, None)

    def _conclude_now(self, job: TrackedBatchJob, native: NativeJob | None) -> None:
        facts = Evidence(native=native, cancelled=job.cancelled_at is not None)
        event = end_event.judged(job.token, facts, job.own, started=job.started)
        assert event is not None
        self.conclude(job, event, job.own_file)

    def _begun(self, allocation: Allocation) -> list[TrackedBatchJob]:
        jobs = [job for each, job in self.fleet.jobs() if each is allocation and job.started]
        return jobs[:200]


def _native(batch: TrackedBatchJob, accounts: Statuses) -> NativeJob | None:
    account = None if batch.is_hopeless else batch.found_in(accounts)
    return account if account is not None and is_unclear(batch.native) else batch.end_seen
