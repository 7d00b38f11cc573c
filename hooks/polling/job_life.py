"""The life of a job at a site: the phases that it goes through, and those that its batch system shows. Pure.

There are two sources: the job itself, by its events (:class:`JobPhase`), and the site's batch system, if it has one
(:class:`ShownPhase`). Neither overrules the other; callers draw their conclusions from both.

| observed | concluded | until |
|---|---|---|
| late or repeated news, such as a start after the end | nothing: the phase stays | for good |
| not listed by the batch system | ``gone`` | it is listed again |
| an unknown state for ``lost_after`` | ``stray``, which counts as gone since that state began | a known state |
| it will never start (a cause) | ``unrunnable``: it is cancelled | another reason |
| it cannot start for ``cancel_unrunnable_after`` | the same | another reason |
| ``unrunnable``, then cancelled or not listed | ``unrunnable``: Lading has cancelled it | for good |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from pydantic import FiniteFloat

from lading.hooks.batch.system import NativeJob
from lading.hooks.spool.spool import Envelope
from lading.scheduling.model.reasons import Reason


class JobPhase(str, Enum):
    WAITING = "waiting"
    """It is to be given to the site, which has nothing of it."""
    SUBMITTED = "submitted"
    """The site has it, or may have it; it has not been seen to start."""
    STARTED = "started"
    """It has started; a job of an earlier controller counts as started unless something else is reported."""
    CLOSING = "closing"
    """It has reported its outcome, which the batch system may correct."""
    ENDED = "ended"
    """Its outcome is final, but not stored yet."""
    STORED = "stored"
    """Its outcome is stored."""
    RETURNED = "returned"
    """It was taken back before it started; that is not stored yet."""
    RELEASED = "released"
    """Its return is stored: it can be given to any site again."""


# Constants, because every look tests them for every job.
_BEGUN = (JobPhase.STARTED, JobPhase.CLOSING)
_STORED = (JobPhase.STORED, JobPhase.RELEASED)
_OVER = (JobPhase.ENDED, JobPhase.RETURNED, *_STORED)
_LATER = frozenset({*_BEGUN, JobPhase.ENDED, JobPhase.RETURNED})
# The valid successors of each phase; any other transition is late news.
FOLLOWING: Mapping[JobPhase, frozenset[JobPhase]] = {
    JobPhase.WAITING: _LATER | {JobPhase.SUBMITTED},
    JobPhase.SUBMITTED: _LATER | {JobPhase.WAITING},
    JobPhase.STARTED: frozenset({JobPhase.CLOSING, JobPhase.ENDED, JobPhase.RETURNED}),
    JobPhase.CLOSING: frozenset({JobPhase.ENDED}),
    JobPhase.ENDED: frozenset({JobPhase.STORED}),
    JobPhase.RETURNED: frozenset({JobPhase.RELEASED}),
    JobPhase.STORED: frozenset(),
    JobPhase.RELEASED: frozenset(),
}


@dataclass(slots=True)
class JobAtSite:
    """A job that was given to a site, and its phase there.

    :param log_path: of its log, relative to Airflow's folder of logs; empty: it has none, or the path is not known yet
    :param bundle: the hash of the content that it reads its Dags from; empty: Lading has not copied any for it
    :param envelope: kept as long as it may have to be sent (again)
    :param reported: the last reported reason for its waiting
    :param log_done: whether its whole log has been copied
    """

    token: str
    log_path: str = ""
    bundle: str = ""
    envelope: Envelope | None = None
    phase: JobPhase = JobPhase.WAITING
    reported: Reason | None = None
    log_done: bool = False

    @property
    def started(self) -> bool:
        """Whether it has started, without a final outcome."""
        return self.phase in _BEGUN

    @property
    def ended(self) -> bool:
        """Whether it will never run (again) at this site."""
        return self.phase in _OVER

    @property
    def stored(self) -> bool:
        """Whether its outcome or its return is stored."""
        return self.phase in _STORED

    def _move(self, phase: JobPhase) -> None:
        if phase in FOLLOWING[self.phase]:
            self.phase = phase

    def submit(self) -> None:
        """Note that it was given to the site."""
        self._move(JobPhase.SUBMITTED)

    def withdraw(self) -> None:
        """Note that the site does not have it any more, so that it waits to be given again."""
        self._move(JobPhase.WAITING)

    def begin(self) -> None:
        self._move(JobPhase.STARTED)

    def close(self) -> None:
        """Note that it has reported its outcome."""
        self._move(JobPhase.CLOSING)

    def end(self) -> None:
        """Note that its outcome is final, even if it has never started."""
        self._move(JobPhase.ENDED)

    def give_back(self) -> None:
        """Note that it was taken back, to wait for any site."""
        self._move(JobPhase.RETURNED)

    def store(self) -> None:
        """Note that its outcome or its return is stored."""
        self._move(JobPhase.RELEASED if self.phase is JobPhase.RETURNED else JobPhase.STORED)


class ShownPhase(str, Enum):
    """The phase of a job that its batch system shows."""

    UNSEEN = "unseen"
    """It has not been shown yet."""
    PENDING = "pending"
    """It waits in its queue."""
    BLOCKED = "blocked"
    """It waits and cannot start, unless an administrator changes something."""
    UNRUNNABLE = "unrunnable"
    """It will never start, so it is cancelled."""
    RUNNING = "running"
    STRANGE = "strange"
    """It is in a state that Lading does not recognize, and counts as running."""
    STRAY = "stray"
    """It has been in an unknown state for too long, and counts as gone."""
    GONE = "gone"
    """It has ended, or the batch system no longer lists it."""


_RUNNING = (ShownPhase.RUNNING, ShownPhase.STRANGE, ShownPhase.STRAY)


@dataclass(frozen=True, slots=True)
class ShownLife:
    """The phase that a job's batch system shows, and since when, by the caller's clock.

    :param ran: whether it ran when it was last listed, which shows how a job that is gone may have ended; None: it was
        never listed
    """

    phase: ShownPhase = ShownPhase.UNSEEN
    since: FiniteFloat = 0.0
    ran: bool | None = None

    @property
    def gone_since(self) -> float | None:
        """Since when its outcome is to be determined; None: it has not been seen to end."""
        is_gone = self.phase in (ShownPhase.UNRUNNABLE, ShownPhase.STRAY, ShownPhase.GONE)
        return self.since if is_gone else None

    def lost(self, at: float) -> ShownLife:
        """Return its life now that it is no longer shown. An unrunnable job was cancelled successfully."""
        return self if self.phase is ShownPhase.UNRUNNABLE else self._gone(at)

    def shown(self, native: NativeJob, at: float, *, blocked_for: float, strange_for: float) -> ShownLife:
        """Return its life now that it is shown as ``native``.

        :param blocked_for: seconds after which a job that cannot start counts as one that never will
        :param strange_for: seconds after which a job in an unknown state counts as gone
        """
        if native.state == "ended":
            return self.lost(at) if native.cause == "cancelled" else self._gone(at)
        phase = self._phase(native)
        is_same = phase is self.phase or (phase is ShownPhase.STRANGE and self.phase is ShownPhase.STRAY)
        since = self.since if is_same else at
        if phase is ShownPhase.STRANGE and at - since >= strange_for:
            return self._to(ShownPhase.STRAY, since)
        if phase is ShownPhase.BLOCKED and at - since >= blocked_for:
            return self._to(ShownPhase.UNRUNNABLE, at)
        return self._to(phase, since)

    def _phase(self, native: NativeJob) -> ShownPhase:
        """Return the phase of a job that has not ended, regardless of time."""
        if native.strange:
            return ShownPhase.STRANGE
        if native.state == "running":
            return ShownPhase.RUNNING
        if native.cause is not None or (native.never and self.phase is ShownPhase.UNRUNNABLE):
            return ShownPhase.UNRUNNABLE
        return ShownPhase.BLOCKED if native.never else ShownPhase.PENDING

    def _gone(self, at: float) -> ShownLife:
        return self._to(ShownPhase.GONE, at if self.gone_since is None else self.gone_since)

    def _to(self, phase: ShownPhase, since: float) -> ShownLife:
        ran = self.ran if phase is ShownPhase.GONE else phase in _RUNNING
        return ShownLife(phase, since, ran)
