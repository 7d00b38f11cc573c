"""The controller's view of the jobs that it has given to a site of any kind."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from lading.hooks.polling.job_life import JobAtSite

Job = TypeVar("Job", bound=JobAtSite)


class JobTracker(Generic[Job]):
    """The jobs of a site, by token. The thread of the site changes them; other threads hold ``lock`` to read or change.

    :param new: makes a job from its token
    """

    def __init__(self, new: Callable[[str], Job]) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[str, Job] = {}
        self._new = new

    def job(self, token: str) -> Job:
        """Return the job of this token, registering it if it is new."""
        with self.lock:
            return self.jobs.setdefault(token, self._new(token))

    def acknowledge(self, tokens: Iterable[str]) -> None:
        """Note that the outcomes of these jobs have been stored."""
        with self.lock:
            for token in tokens:
                if token in self.jobs:
                    self.jobs[token].store()

    def move_to_end(self, jobs: Iterable[Job]) -> None:
        """Move these jobs to the end of the order, for work done in turn, such as copying logs."""
        with self.lock:
            for job in jobs:
                if job.token in self.jobs:
                    self.jobs[job.token] = self.jobs.pop(job.token)

    def over(self) -> list[Job]:
        """Return the jobs that are completely processed."""
        with self.lock:
            return [job for job in self.jobs.values() if job.stored and job.log_done]
