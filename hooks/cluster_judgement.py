"""The jobs of a cluster that have gone: what is read to find out how each has ended, and what becomes of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lading.hooks import cluster_verdict, events
from lading.hooks.batch import Answer, NativeJob
from lading.hooks.cluster_config import ClusterConfig
from lading.hooks.cluster_folder import ClusterFolder
from lading.hooks.cluster_ledger import Ledger, Tracked
from lading.hooks.cluster_news import News
from lading.hooks.cluster_steps import Part, Parts
from lading.hooks.excluded_nodes import ExcludedNodes
from lading.hooks.status_query import Statuses
from lading.scheduling.retries import INFRASTRUCTURE

# So many jobs are looked into in one look.
MOST_VERDICTS = 200
TAIL_BYTES = 2000
# What a job may have left, in the order in which it is read.
REMAINS = ("exit.json", "cause.json", "supervisor.json")
# A job that a failing node or a preemption has ended before its task began is submitted so often, the first included.
MOST_ATTEMPTS = 4


class Judgement:
    """What is concluded of jobs that have gone.

    :param conclude: tells the end of a job: the job, the event, the file in which the event came
    :param nodes: those that fail
    """

    def __init__(
        self,
        config: ClusterConfig,
        ledger: Ledger,
        news: News,
        conclude: Callable[[Tracked, dict[str, Any], str | None], None],
        nodes: ExcludedNodes,
    ) -> None:
        self.config = config
        self.folder = ClusterFolder(config.work_dir)
        self.ledger = ledger
        self.news = news
        self.conclude = conclude
        self.nodes = nodes
        self._attempts: dict[str, int] = {}

    def question(self, doubtful: Sequence[Tracked]) -> Parts:
        """What these jobs may have left."""
        return Parts([part for job in doubtful for part in self._remains(job)], 2**16)

    def judge(
        self,
        doubtful: Sequence[Tracked],
        answer: Answer,
        accounts: Mapping[tuple[str, int | None], NativeJob],
        known: Statuses,
    ) -> None:
        """Tell the end of jobs that are gone, as far as it is known how they ended.

        :param accounts: what the accounting says, by native id and index
        :param known: what the batch system says now; those of which it says nothing are left as they are
        :raises TransportError: the answer is damaged
        """
        remains = self.question(doubtful).contents(answer)
        size = len(REMAINS) + 1
        for number, job in enumerate(doubtful):
            silent = job.key is not None and known.is_silent(job.key)
            if not (job.ended or job.gone_since is None or silent):
                account = accounts.get(job.key) if job.key is not None else None
                self._judge(job, remains[size * number : size * (number + 1)], account)

    def forget(self, tokens: Sequence[str]) -> None:
        """These jobs are over."""
        for token in tokens:
            self._attempts.pop(token, None)

    def _remains(self, job: Tracked) -> list[Part]:
        assert job.submission is not None
        folder, output = self.folder.job(job.token), self.folder.output(job.submission.name, job.index)
        return [*(Part(f"{folder}/{name}") for name in REMAINS), Part(output, -TAIL_BYTES)]

    def _judge(self, job: Tracked, remains: Sequence[bytes | None], account: NativeJob | None) -> None:
        assert job.gone_since is not None
        sentinel, cause, supervisor, output = remains
        left, why = events.remains(events.SentinelFile, sentinel), events.remains(events.CauseFile, cause)
        own = job.own or (cluster_verdict.of_sentinel(left, why) if left is not None else None)
        # That it waited or ran when it was seen last says nothing of its end, unless it could never have started.
        native = job.native if job.native is not None and (job.native.state == "ended" or job.native.cause) else None
        vague = native is None or native.state != "ended" or cluster_verdict.is_vague(native)
        if account is not None and job.is_this(account) and vague:
            native = account
        job.node = (native.nodes if native else None) or job.node
        gone = time.monotonic() - job.gone_since
        shortest, deadline = self.config.poll_shortest, self.config.absence_deadline
        if not cluster_verdict.is_decided(native, own, gone, shortest=shortest, deadline=deadline):
            return
        if supervisor is None and not job.started and native is not None and self._may_run_again(job, native):
            self._submit_again(job, native)
            return
        if supervisor is None and own is None and not job.started and native is not None and _has_failed(native):
            self.nodes.died(job.node)
        words = (output or b"").decode(errors="replace")
        event = cluster_verdict.finished(job.token, native, own, words, started=job.started)
        self.conclude(job, event, job.own_file)

    def _may_run_again(self, job: Tracked, native: NativeJob) -> bool:
        """Whether a job is submitted again whose task has not begun: nothing that it can help has ended it."""
        again = native.cause in INFRASTRUCTURE
        return again and job.own is None and self._attempts.get(job.token, 1) < MOST_ATTEMPTS

    def _submit_again(self, job: Tracked, native: NativeJob) -> None:
        assert native.cause is not None
        if native.cause == "node_failure":
            self.nodes.failed(job.node, cluster_verdict.WORDS[native.cause])
        self._attempts[job.token] = self._attempts.get(job.token, 1) + 1
        self.news.tell_reason(job, f"waits: it is submitted again, for {cluster_verdict.WORDS[native.cause]}")
        self.ledger.withdraw(job)


def _has_failed(native: NativeJob) -> bool:
    """Whether a batch job has ended with a failure of its own."""
    return native.cause in (None, "error") and bool(native.exit_code)
