"""The logs of a cluster's tasks: which are copied in a look, and how far each has been."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from lading.hooks.cluster.layout import ClusterFolder
from lading.hooks.cluster.tracker import Tracked, Tracker
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.ssh.answer import Answer
from lading.hooks.ssh.tails import Part, Parts

log = logging.getLogger(__name__)

# So many logs are looked at in one look, and so many bytes of all together; what is left comes in the next.
MOST_LOGS = 200
MOST_LOG_BYTES = 16 * 2**20


class TaskLogs:
    """The logs on a cluster and their copies here."""

    def __init__(self, folder: ClusterFolder, copies: LogCopies) -> None:
        self.folder = folder
        self.copies = copies

    def choose(self, tracker: Tracker) -> list[Tracked]:
        """The jobs whose logs are looked at now: those that have ended first, then in turn."""
        jobs = list(tracker.jobs.values())
        ended = [job for job in jobs if job.ended and not job.log_done]
        for job in ended:
            job.log_done = not job.task.log_path
        running = [job for job in tracker.live() if job.started and job.task.log_path]
        chosen = ([job for job in ended if not job.log_done] + running)[:MOST_LOGS]
        tracker.move_to_end(chosen)
        return chosen

    def question(self, jobs: Sequence[Tracked]) -> Parts:
        """What is new in the logs of these jobs, of which there is one at least."""
        paths = [f"{self.folder.logs(job.token)}/{job.task.log_path}" for job in jobs]
        offsets = [self.copies.offset(job.token) for job in jobs]
        return Parts([Part(*part) for part in zip(paths, offsets, strict=True)], MOST_LOG_BYTES // len(jobs))

    def copy(self, jobs: Sequence[Tracked], question: Parts, answer: Answer) -> None:
        """Add what is new to the copies."""
        contents = question.contents(answer)
        read = zip(jobs, contents, strict=True)
        self.copies.begin({job.token: job.task.log_path for job, data in read if data})
        for job, data in zip(jobs, contents, strict=True):
            try:
                if data:
                    self.copies.add(job.token, job.task.log_path, data)
            except (OSError, ValueError) as error:
                log.error("the log of job %s cannot be copied: %s", job.token, error)
                job.log_done = job.ended
                continue
            # What was read of a job that had ended before is the rest, unless there was too much of it.
            job.log_done = job.ended and len(data or b"") < question.most
        self.copies.save()

    def keep(self, tokens: Collection[str]) -> None:
        """Only these jobs are there; others were forgotten by nobody, for their controller was killed."""
        self.copies.keep(tokens)

    def forget(self, tokens: Iterable[str]) -> None:
        """These jobs are over and their logs copied."""
        tokens = list(tokens)
        for token in tokens:
            self.copies.forget(token)
        if tokens:
            self.copies.save()
