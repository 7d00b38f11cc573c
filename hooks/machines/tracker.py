"""What a controller knows of the jobs that it has given to a machine. The machine's folder has it all."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lading.hooks.polling.job_life import JobAtSite, JobPhase
from lading.hooks.polling.job_tracker import JobTracker
from lading.hooks.spool import hold
from lading.hooks.spool.spool import Envelope
from lading.hooks.spool.tokens import TOKEN
from lading.scheduling.reasons import Reason

# A job that is to be ended, and has not, is to be ended again after this, seconds.
SECONDS_UNTIL_ASKED_AGAIN = 15.0
# A job that the machine does not know, and of which no end has come, is forgotten after this, seconds.
SECONDS_UNTIL_VANISHED = 300.0
# Jobs that wait for an agent that takes none, is not there, or can write nothing, wait elsewhere after this, seconds.
SECONDS_UNTIL_RETURNED = 60.0
# What comes while enough is prefetched to a machine comes together, within so many seconds at most.
MAX_COALESCE_SECONDS = 0.25


@dataclass(slots=True)
class TrackedJob(JobAtSite):
    """A job that was given to a machine.

    :param is_renewed: whether an older envelope of it is there already
    :param absent_since: since when the machine has not known it, on the monotonic clock
    """

    is_renewed: bool = False
    absent_since: float | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """An envelope on its way.

    :param envelope: as it was given
    :param sent: as it is sent: bound to its Dags, and with times by the machine's own clock
    """

    job: TrackedJob
    envelope: Envelope
    sent: Envelope
    is_renewed: bool


class MachineJobTracker(JobTracker[TrackedJob]):
    """The jobs of a machine. Its thread and the controller's may both call it."""

    def __init__(self) -> None:
        super().__init__(TrackedJob)
        self._there: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._looked_at = time.monotonic()
        self._ends = 0  # how many were reported since then
        self._pace = 0.0  # how many jobs ended a second before that
        self._cancels: dict[str, Reason] = {}
        self._asked: dict[str, float] = {}
        self._back: set[str] = set()
        self._stuck: frozenset[str] = frozenset()
        self._stuck_since = 0.0

    # -- what the controller calls

    def give(self, envelopes: Iterable[Envelope]) -> None:
        """Take jobs, to be brought there."""
        with self.lock:
            for envelope in envelopes:
                job = self.job(envelope.token)
                if job.phase is JobPhase.RETURNED:
                    continue  # that it came back is not stored, so who gives it does not know: it is to go elsewhere
                if job.phase is JobPhase.RELEASED:
                    self._there -= {job.token}
                    job = self.jobs[job.token] = TrackedJob(job.token)
                if not (job.started or job.ended):
                    job.is_renewed = envelope.token in self._there
                    job.envelope, job.log_path = envelope, envelope.log_path

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Take jobs to be ended, with the reason; returns whether there is anything new in that."""
        now = time.monotonic()
        with self.lock:
            self._asked = {token: at for token, at in self._asked.items() if now - at < SECONDS_UNTIL_ASKED_AGAIN}
            new = {token: reason for token, reason in reasons.items() if token not in self._asked}
            for token in new:
                self._asked[token] = now
                if (job := self.jobs.get(token)) is not None:
                    job.envelope = None
            self._cancels |= new
            return bool(new)

    def ask_back(self, tokens: Iterable[str]) -> None:
        """Take back jobs that have not begun; what fails is asked again."""
        with self.lock:
            self._back |= self._there.intersection(tokens)  # what is on its way does not wait there

    def known(self) -> frozenset[str]:
        """All jobs that the machine has, or is about to be given."""
        with self.lock:
            over = {token for token, job in self.jobs.items() if job.stored}
            on_the_way = {token for token, job in self.jobs.items() if job.envelope is not None}
            return frozenset((self._there - over) | on_the_way | self._cancels.keys())

    @property
    def is_busy(self) -> bool:
        """Whether there are jobs, of which there may be news at any moment."""
        with self.lock:
            return bool(self._there) or any(not job.ended for job in self.jobs.values())

    # -- what the machine's thread calls

    def on_the_way(self) -> list[tuple[TrackedJob, Envelope]]:
        """The jobs that are to be brought there, each with its envelope."""
        with self.lock:
            return [(job, job.envelope) for job in self.jobs.values() if job.envelope is not None]

    def take_cancels(self) -> dict[str, Reason]:
        """The jobs that are to be ended now, with the reason."""
        with self.lock:
            taken, self._cancels = self._cancels, {}
            return taken

    def put_back(self, cancels: Mapping[str, Reason]) -> None:
        """They could not be ended: they are to be with the next ones."""
        with self.lock:
            self._cancels = {**cancels, **self._cancels}

    def leisure(self) -> float:
        """For how many seconds nothing need be asked of the machine, or brought there.

        That is half of the time for which its store lasts if jobs keep ending as fast as between the last two looks.
        """
        return min(len(self._waiting) / self._pace / 2, MAX_COALESCE_SECONDS) if self._pace else 0.0

    def arrived(self, parcels: Iterable[Parcel], there: frozenset[str], waiting: frozenset[str] = frozenset()) -> None:
        """These are there.

        :param there: all jobs that the machine has now
        :param waiting: of these, those that have not begun
        """
        now = time.monotonic()
        with self.lock:
            self._there, self._waiting = there, waiting
            self._pace, self._ends, self._looked_at = self._ends / max(now - self._looked_at, 1e-3), 0, now
            for parcel in parcels:
                parcel.job.submit()
                if parcel.job.envelope is parcel.envelope:
                    parcel.job.envelope = None
            for job in list(self.jobs.values()):
                if job.ended or job.envelope is not None or job.token in there:
                    job.absent_since = None
                elif now - (job.absent_since or now) > SECONDS_UNTIL_VANISHED:
                    del self.jobs[job.token]
                else:
                    job.absent_since = job.absent_since or now

    def read(self, event: Mapping[str, Any]) -> None:
        """Take in an event of a job; those of holds are none."""
        if event["event"] in hold.EVENTS:
            return
        with self.lock:
            job = self.job(event["token"])
            if event["event"] in ("started", "finished"):
                job.envelope = None
                job.begin()
            if event["event"] == "finished":
                job.end()
                self._ends += 1

    def give_back(self, token: str) -> None:
        """A job has not begun there and will not."""
        with self.lock:
            job = self.job(token)
            job.envelope, job.log_done = None, True
            job.give_back()

    def stuck(self, tokens: frozenset[str]) -> None:
        """These wait for an agent that takes none, does not live, or can write nothing."""
        if not self._stuck:
            self._stuck_since = time.monotonic()
        self._stuck = tokens

    def to_recall(self) -> list[str]:
        """The jobs that have waited so for too long, and those that are asked back: they are to wait elsewhere."""
        with self.lock:
            back, self._back = self._back, set()
        return sorted(back | self._stuck if time.monotonic() - self._stuck_since > SECONDS_UNTIL_RETURNED else back)

    def vanished(self, there: Collection[str]) -> list[TrackedJob]:
        """The jobs that were there and are not, of a machine that was restarted."""
        with self.lock:
            jobs = self.jobs.values()
            return [job for job in jobs if not job.ended and job.envelope is None and job.token not in there]

    def load(self, logs: Mapping[str, str]) -> None:
        """Know the logs of jobs that an earlier controller has given: what is left of them is copied, too.

        :param logs: their paths, by token
        """
        with self.lock:
            for token, log_path in logs.items():
                if not TOKEN.fullmatch(token):
                    continue
                job = self.job(token)
                job.log_path = job.log_path or log_path
                job.begin()
                if token not in self._there and not job.ended:  # its end was stored by an earlier controller
                    job.end()
                    job.store()

    def forget(self, jobs: Iterable[TrackedJob]) -> None:
        """Forget jobs that are over; one that was given again meanwhile is another."""
        with self.lock:
            for job in jobs:
                if self.jobs.get(job.token) is job:
                    del self.jobs[job.token]
