"""The logs that tasks write at a site: which are copied in a look, and how far each has been."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Sequence

from lading.hooks.polling.job_tracker import Job, JobAtSite
from lading.hooks.spool.log_mirror import LogCopies
from lading.hooks.ssh.answer import CommandResult
from lading.hooks.ssh.tails import FilePart, Parts

log = logging.getLogger(__name__)

# So many logs are looked at in one look, and so many bytes of all together; what is left comes in the next.
MOST_LOGS = 200
MOST_LOG_BYTES = 16 * 2**20


class TaskLogs:
    """The logs at a site and their copies here.

    :param folder: that is Airflow's folder of logs there, by the token of the job
    """

    def __init__(self, folder: Callable[[str], str], copies: LogCopies) -> None:
        self.folder = folder
        self.copies = copies

    @staticmethod
    def choose(jobs: Iterable[Job]) -> list[Job]:
        """The jobs whose logs are looked at now: those that have ended first, then in their order."""
        jobs = list(jobs)
        ended = [job for job in jobs if job.ended and not job.log_done]
        for job in ended:
            job.log_done = not job.log_path
        running = [job for job in jobs if job.started and not job.ended and job.log_path]
        return ([job for job in ended if not job.log_done] + running)[:MOST_LOGS]

    def question(self, jobs: Sequence[JobAtSite]) -> Parts:
        """What is new in the logs of these jobs, of which there is one at least."""
        return Parts([FilePart(*part) for part in self.parts(jobs)], MOST_LOG_BYTES // len(jobs))

    def parts(self, jobs: Iterable[JobAtSite]) -> list[tuple[str, int]]:
        """The logs of these jobs, each with how many bytes of it have been copied."""
        return [(f"{self.folder(job.token)}/{job.log_path}", self.copies.offset(job.token)) for job in jobs]

    def copy(self, jobs: Sequence[JobAtSite], question: Parts, answer: CommandResult) -> None:
        """Add what is new to the copies."""
        self.add(jobs, question.contents(answer), question.most)

    def add(self, jobs: Sequence[JobAtSite], contents: Sequence[bytes | None], most: int) -> None:
        """Add what is new to the copies.

        :param contents: of each log from its offset, ``most`` bytes at most; None: there is no such log
        """
        new = {job.token: job.log_path for job, data in zip(jobs, contents, strict=True) if data}
        self.copies.begin(new)
        for job, data in zip(jobs, contents, strict=True):
            try:
                if data:
                    self.copies.add(job.token, job.log_path, data)
            except (OSError, ValueError) as error:
                log.error("the log of job %s cannot be copied: %s", job.token, error)
                job.log_done = job.ended
                continue
            # What was read of a job that had ended before is the rest, unless there was too much of it.
            job.log_done = job.ended and len(data or b"") < most
        self.copies.save_in_time()

    def keep(self, tokens: Collection[str]) -> None:
        """Only these jobs are there; others are left of a controller that was killed."""
        self.copies.keep(tokens)

    def forget(self, tokens: Iterable[str]) -> None:
        """These jobs are over and their logs copied."""
        for token in tokens:
            self.copies.forget(token)
