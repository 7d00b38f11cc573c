"""What a controller knows of the jobs that it has given to a site, whatever the site is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from lading.hooks.polling.job_life import JobAtSite

Job = TypeVar("Job", bound=JobAtSite)


class JobTracker(Generic[Job]):
    """The jobs of a site, by token. The thread of the site changes them; other threads hold ``lock`` to read or change.

    :param new: makes a job of which only its token is known
    """

    def __init__(self, new: Callable[[str], Job]) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[str, Job] = {}
        self._new = new

    def job(self, token: str) -> Job:
        """The job of this token; one that was not known is known from now on."""
        with self.lock:
            return self.jobs.setdefault(token, self._new(token))

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """The ends of these jobs have been stored."""
        with self.lock:
            for token in tokens:
                if token in self.jobs:
                    self.jobs[token].store()

    def move_to_end(self, jobs: Iterable[Job]) -> None:
        """Let these jobs be the last ones, for what is done in turn, such as copying logs."""
        with self.lock:
            for job in jobs:
                if job.token in self.jobs:
                    self.jobs[job.token] = self.jobs.pop(job.token)

    def over(self) -> list[Job]:
        """The jobs of which nothing is needed any more."""
        with self.lock:
            return [job for job in self.jobs.values() if job.stored and job.log_done]
