"""The controller's view of the jobs that it has given to a machine. The complete state is in the machine's folder."""

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
from lading.scheduling.model.reasons import Reason

# Seconds after which an unfinished job that is to be cancelled is cancelled again.
SECONDS_UNTIL_ASKED_AGAIN = 15.0
# Seconds after which a job is forgotten that the machine does not list and whose end was not reported.
SECONDS_UNTIL_VANISHED = 300.0
# Seconds after which jobs are taken back from an agent that takes none, is not running or cannot write.
SECONDS_UNTIL_RETURNED = 60.0
# While a machine has enough prefetched jobs, its news is collected for up to this many seconds.
MAX_COALESCE_SECONDS = 0.25


@dataclass(slots=True)
class TrackedJob(JobAtSite):
    """A job that was given to a machine.

    :param is_renewed: whether the machine already has an older envelope of it
    :param absent_since: since when the machine has not listed it, on the monotonic clock
    """

    is_renewed: bool = False
    absent_since: float | None = None


@dataclass(frozen=True, slots=True)
class Parcel:
    """An envelope on its way to a machine.

    :param envelope: as the controller gave it
    :param sent: as it is sent: bound to its Dags, and with times by the machine's clock
    """

    job: TrackedJob
    envelope: Envelope
    sent: Envelope
    is_renewed: bool


class MachineJobTracker(JobTracker[TrackedJob]):
    """The jobs of a machine. Its methods can be called by the machine's thread and the controller's."""

    def __init__(self) -> None:
        super().__init__(TrackedJob)
        self._there: frozenset[str] = frozenset()
        self._waiting: frozenset[str] = frozenset()
        self._looked_at = time.monotonic()
        self._ends = 0  # how many jobs have finished since then
        self._pace = 0.0  # jobs that finished per second before that
        self._cancels: dict[str, Reason] = {}
        self._asked: dict[str, float] = {}
        self._back: set[str] = set()
        self._stuck: frozenset[str] = frozenset()
        self._stuck_since = 0.0

    # -- called by the controller

    def give(self, envelopes: Iterable[Envelope]) -> None:
        with self.lock:
            for envelope in envelopes:
                job = self.job(envelope.token)
                if job.phase is JobPhase.RETURNED:
                    continue  # its return is not stored yet, so the controller does not know: it has to go elsewhere
                if job.phase is JobPhase.RELEASED:
                    self._there -= {job.token}
                    job = self.jobs[job.token] = TrackedJob(job.token)
                if not (job.started or job.ended):
                    job.is_renewed = envelope.token in self._there
                    job.envelope, job.log_path = envelope, envelope.log_path

    def ask_to_cancel(self, reasons: Mapping[str, Reason]) -> bool:
        """Accept jobs to be cancelled, with the reason; return whether any is new."""
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
        """Take back jobs that have not started; the controller repeats those that fail."""
        with self.lock:
            self._back |= self._there.intersection(tokens)  # jobs on their way do not wait on the machine

    def known(self) -> frozenset[str]:
        """Return all jobs that the machine has, or is about to be given."""
        with self.lock:
            over = {token for token, job in self.jobs.items() if job.stored}
            on_the_way = {token for token, job in self.jobs.items() if job.envelope is not None}
            return frozenset((self._there - over) | on_the_way | self._cancels.keys())

    @property
    def is_busy(self) -> bool:
        """Whether it has jobs, which may have news at any moment."""
        with self.lock:
            return bool(self._there) or any(not job.ended for job in self.jobs.values())

    # -- called by the machine's thread

    def on_the_way(self) -> list[tuple[TrackedJob, Envelope]]:
        """Return the jobs to send to the machine, each with its envelope."""
        with self.lock:
            return [(job, job.envelope) for job in self.jobs.values() if job.envelope is not None]

    def take_cancels(self) -> dict[str, Reason]:
        with self.lock:
            taken, self._cancels = self._cancels, {}
            return taken

    def put_back(self, cancels: Mapping[str, Reason]) -> None:
        with self.lock:
            self._cancels = {**cancels, **self._cancels}

    def leisure(self) -> float:
        """Return for how many seconds the machine needs no exchange.

        That is half of the time for which its prefetched jobs last if jobs keep finishing as fast as between the last
        two looks.
        """
        return min(len(self._waiting) / self._pace / 2, MAX_COALESCE_SECONDS) if self._pace else 0.0

    def arrived(self, parcels: Iterable[Parcel], there: frozenset[str], waiting: frozenset[str] = frozenset()) -> None:
        """Note that these jobs have arrived.

        :param there: all jobs that the machine has now
        :param waiting: those of them that have not started
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
        """Process an event of a job; events of holds are ignored."""
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
        """Note that a job has not started on the machine, and will not."""
        with self.lock:
            job = self.job(token)
            job.envelope, job.log_done = None, True
            job.give_back()

    def stuck(self, tokens: frozenset[str]) -> None:
        """Note which jobs wait for an agent that takes none, is not running or cannot write."""
        if not self._stuck:
            self._stuck_since = time.monotonic()
        self._stuck = tokens

    def to_recall(self) -> list[str]:
        """Return the jobs that have been stuck for too long and those to be taken back; they are to wait elsewhere."""
        with self.lock:
            back, self._back = self._back, set()
        return sorted(back | self._stuck if time.monotonic() - self._stuck_since > SECONDS_UNTIL_RETURNED else back)

    def vanished(self, there: Collection[str]) -> list[TrackedJob]:
        """Return the unfinished jobs that a restarted machine no longer has."""
        with self.lock:
            jobs = self.jobs.values()
            return [job for job in jobs if not job.ended and job.envelope is None and job.token not in there]

    def load(self, logs: Mapping[str, str]) -> None:
        """Register the logs of jobs of an earlier controller, so that the rest of them is copied, too.

        :param logs: their paths by token
        """
        with self.lock:
            for token, log_path in logs.items():
                if not TOKEN.fullmatch(token):
                    continue
                job = self.job(token)
                job.log_path = job.log_path or log_path
                job.begin()
                if token not in self._there and not job.ended:  # an earlier controller has stored its end
                    job.end()
                    job.store()

    def forget(self, jobs: Iterable[TrackedJob]) -> None:
        """Forget finished jobs, except for those that have been given again since."""
        with self.lock:
            for job in jobs:
                if self.jobs.get(job.token) is job:
                    del self.jobs[job.token]
