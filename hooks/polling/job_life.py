"""The life of a job at a site: its phases and what leads from one to the next, and what its batch system shows. Pure.

Two sources tell of a job: itself, by its events (:class:`JobPhase`), and the batch system that has it, if the site has
one (:class:`ShownPhase`). Neither overrules the other: what follows from both is decided by those who ask.

| read | concluded | until |
|---|---|---|
| news that comes late or twice, such as a start after the end | nothing: the phase stays | for good |
| not shown by the batch system | ``gone`` | it is shown again |
| a strange state for ``lost_after`` | ``stray``, which counts as gone since the state began | a known state |
| it will never start (a cause) | ``unrunnable``: it is taken out | another reason |
| it cannot start for ``cancel_unrunnable_after`` | the same | another reason |
| ``unrunnable``, then cancelled or not shown | ``unrunnable``: Lading has taken it out | for good |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from lading.hooks.batch.system import NativeJob
from lading.hooks.spool.spool import Envelope
from lading.scheduling.reasons import Reason


class JobPhase(str, Enum):
    """Where a job is in its life at a site."""

    WAITING = "waiting"
    """It is to be given to the site, and nothing of it is there."""
    SUBMITTED = "submitted"
    """The site has it, or may have it; as far as is known it has not begun."""
    STARTED = "started"
    """It has begun; what an earlier controller has given counts as begun where nothing else is known."""
    CLOSING = "closing"
    """It has reported how it ended, and its batch system may know better."""
    ENDED = "ended"
    """Its end is known; it is not stored yet."""
    STORED = "stored"
    """Its end is stored."""
    RETURNED = "returned"
    """It was taken back without having begun; that is not stored yet."""
    RELEASED = "released"
    """That is stored: it may be given to any site again."""


# Asked of every job in each look, so they are not made anew.
_BEGUN = (JobPhase.STARTED, JobPhase.CLOSING)
_STORED = (JobPhase.STORED, JobPhase.RELEASED)
_OVER = (JobPhase.ENDED, JobPhase.RETURNED, *_STORED)
_LATER = frozenset({*_BEGUN, JobPhase.ENDED, JobPhase.RETURNED})
# What may follow each phase; anything else is news that comes late.
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
    """A job that was given to a site, and how far it has come.

    :param log_path: of its log, relative to Airflow's folder of logs; empty: it has none, or it is not known yet
    :param bundle: the hash of the content that it reads its Dags from; empty: none that Lading has brought
    :param envelope: as long as it may have to be brought there (again)
    :param reported: the reason for its waiting that was reported last
    :param log_done: whether its log has been copied to the end
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
        """Whether it has begun, and its end is not known."""
        return self.phase in _BEGUN

    @property
    def ended(self) -> bool:
        """Whether nothing of it will ever run at this site."""
        return self.phase in _OVER

    @property
    def stored(self) -> bool:
        """Whether its end, or that it was taken back, is stored."""
        return self.phase in _STORED

    def _move(self, phase: JobPhase) -> None:
        if phase in FOLLOWING[self.phase]:
            self.phase = phase

    def submit(self) -> None:
        """It is given to the site."""
        self._move(JobPhase.SUBMITTED)

    def withdraw(self) -> None:
        """It is not at the site, or is taken out of it, and waits to be given to it again."""
        self._move(JobPhase.WAITING)

    def begin(self) -> None:
        self._move(JobPhase.STARTED)

    def close(self) -> None:
        """It has reported how it ended."""
        self._move(JobPhase.CLOSING)

    def end(self) -> None:
        """Its end is known, or that it never begins."""
        self._move(JobPhase.ENDED)

    def give_back(self) -> None:
        """It is taken back, to wait for any site."""
        self._move(JobPhase.RETURNED)

    def store(self) -> None:
        """Its end, or that it was taken back, is stored."""
        self._move(JobPhase.RELEASED if self.phase is JobPhase.RETURNED else JobPhase.STORED)


class ShownPhase(str, Enum):
    """What its batch system shows of a job."""

    UNSEEN = "unseen"
    """Nothing yet."""
    PENDING = "pending"
    """It waits in its queue."""
    BLOCKED = "blocked"
    """It waits, and cannot start as things are, which an administrator may change."""
    UNRUNNABLE = "unrunnable"
    """It will never start: it is taken out."""
    RUNNING = "running"
    STRANGE = "strange"
    """It is in a state that Lading does not know, and counts as running."""
    STRAY = "stray"
    """It has been in such a state for too long, and counts as gone."""
    GONE = "gone"
    """It has ended, or the batch system does not know it any more."""


@dataclass(frozen=True, slots=True)
class ShownLife:
    """What its batch system shows of a job, and since when, on the clock of who asks.

    :param ran: whether it was ever shown as running
    """

    phase: ShownPhase = ShownPhase.UNSEEN
    since: float = 0.0
    ran: bool = False

    @property
    def gone_since(self) -> float | None:
        """Since when how it has ended is to be found out; None: it lives, as far as is known."""
        is_gone = self.phase in (ShownPhase.UNRUNNABLE, ShownPhase.STRAY, ShownPhase.GONE)
        return self.since if is_gone else None

    def lost(self, at: float) -> ShownLife:
        """It is not shown any more. What was to be taken out is out."""
        return self if self.phase is ShownPhase.UNRUNNABLE else self._gone(at)

    def shown(self, native: NativeJob, at: float, *, blocked_for: float, strange_for: float) -> ShownLife:
        """It is shown so.

        :param blocked_for: seconds after which a job that cannot start as things are never will
        :param strange_for: seconds after which a job in a strange state counts as gone
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
        """The phase of a job that has not ended, whatever its time in that."""
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
        ran = self.ran or phase in (ShownPhase.RUNNING, ShownPhase.STRANGE, ShownPhase.STRAY)
        return ShownLife(phase, since, ran)
