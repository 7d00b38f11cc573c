"""The agent's inbox: the jobs that wait to start on this location."""

from __future__ import annotations

import logging
import os
import time
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import partial
from math import isfinite
from pathlib import Path

from lading.executors.agent.journal import SECONDS_UNTIL_REPORTED, AgentJournal
from lading.hooks.files.safe_files import NotReadable, read_regular
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import MOST_ENVELOPE_BYTES, Envelope, Spool
from lading.hooks.spool.tokens import TOKEN
from lading.hooks.spool.values import LATEST
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.queueing import QueuedJob

log = logging.getLogger(__name__)


STALE_TOKEN = because("stale_token")
CANNOT_START = because("cannot_start")


@dataclass(slots=True)
class InboxEntry:
    """A job that waits.

    :param runner: the module that preloads the job's program; empty: none
    :param not_before: do not try to start it before this, on the monotonic clock
    :param failure: why it could not be started
    :param reported: the last reported reason for its wait
    """

    waiting: QueuedJob
    memory_limit: int | None
    time_limit: int | None
    expires_at: float
    inode: int
    runner: str = ""
    not_before: float = 0.0
    failure: Reason | None = None
    reported: Reason | None = None

    def has_waited_long(self, now: float) -> bool:
        return now - self.waiting.queued_at >= SECONDS_UNTIL_REPORTED


class Inbox:
    """The envelopes in the spool's inbox, kept in the order in which their jobs should start.

    :param is_running: whether a job with this token runs here; its envelope is then a late copy
    """

    def __init__(self, spool: Spool, journal: AgentJournal, is_running: Callable[[str], bool]) -> None:
        self.spool = spool
        self.journal = journal
        self.is_running = is_running
        self.rejected = RejectedFiles(spool.rejected)
        self.entries: dict[str, InboxEntry] = {}
        self._order: list[QueuedJob] = []
        self._seen: tuple[int, float, float] = (0, 0.0, 0.0)

    def refresh(self) -> None:
        """Read new and replaced envelopes, and forget removed ones. A closed inbox counts as empty."""
        now = time.monotonic()
        try:
            modified = os.stat(self.spool.inbox).st_mtime_ns
        except FileNotFoundError:
            if not self.spool.closed.exists():
                raise
            for token in list(self.entries):
                self.forget(token)
            return
        seen, since, read_at = self._seen
        # A folder's modification time is only as fine as the clock that sets it, so a file that arrives in
        # the same tick could be missed. Whether a tick has passed since then is measured by our own clock, as
        # a file server's may differ.
        if modified == seen and read_at > since + 0.1:
            return
        found = self._found()
        self._seen = (modified, since if modified == seen else now, now)
        for token in self.entries.keys() - found.keys():
            self.forget(token)
        for token, inode in found.items():
            known = self.entries.get(token)
            if known is None or known.inode != inode:
                self._read(token, inode)

    def ready(self, now: float) -> list[QueuedJob]:
        """Return the jobs that could be started now if there is room, in order."""
        return [job for job in self._order if self._hindrance(self.entries[job.token], now) is None]

    def overtake(self, token: str, clock: float) -> None:
        """Note that a job was overtaken for the first time.

        :param clock: the time, on the monotonic clock
        """
        entry = self.entries[token]
        self._replace(entry, replace(entry.waiting, overtaken_since=clock))

    def has_unreported(self, now: float) -> bool:
        """Return whether a job that has waited for a while has no reported reason yet."""
        return any(entry.reported is None and entry.has_waited_long(now) for entry in self.entries.values())

    def report_reasons(self, reasons: dict[str, Reason], now: float) -> None:
        """Report changed reasons of jobs that have waited for a while."""
        for token, entry in self.entries.items():
            if not entry.has_waited_long(now):
                continue
            reason = self._hindrance(entry, now) or reasons.get(token)
            if reason is not None and reason != entry.reported:
                entry.reported = reason
                self.journal.waiting(token, reason)

    def take(self, token: str) -> InboxEntry | None:
        """Move a job's envelope to its folder, where its process will claim it; None: it cannot be started now."""
        entry = self.entries[token]
        folder = self.spool.job(token)
        try:
            folder.root.mkdir(mode=0o700, exist_ok=True)
            os.rename(self.spool.envelope(token), folder.workload)
        except FileNotFoundError:
            folder.root.rmdir()
            self.forget(token)
            return None
        except OSError as error:
            self.hold(token, error)
            return None
        self.forget(token)
        return entry

    def hold(self, token: str, error: object) -> None:
        """Do not start a job for a while, because starting it has failed."""
        log.error("cannot start job %s, will try again: %s", token, error)
        if token in self.entries:
            self.entries[token].not_before = time.monotonic() + 5.0
            self.entries[token].failure = CANNOT_START

    def cancel(self, token: str, reason: Reason, cleanup: Callable[[], None]) -> None:
        """Cancel a job that waits.

        :param cleanup: called after the end has been written to disk
        """
        self.forget(token)
        self._finish(token, "cancelled", reason, cleanup)

    def refuse(self, token: str, reason: Reason) -> None:
        self.forget(token)
        self._finish(token, "error", reason, lambda: None)

    def forget(self, token: str) -> None:
        entry = self.entries.pop(token, None)
        if entry is not None:
            self._take_out(entry.waiting)

    def _hindrance(self, entry: InboxEntry, now: float) -> Reason | None:
        # The API server would refuse a JWT that expires this soon.
        if entry.expires_at - now < 30.0:
            return STALE_TOKEN
        if time.monotonic() < entry.not_before:
            return entry.failure
        return None

    def _found(self) -> dict[str, int]:
        """Return the tokens of all envelopes with their inodes, and set files with other names aside."""
        inodes = {}
        for entry in os.scandir(self.spool.inbox):
            token, _, ending = entry.name.rpartition(".")
            if not entry.name.startswith("."):
                if ending == "json" and TOKEN.fullmatch(token):
                    inodes[token] = entry.inode()
                else:
                    self.rejected.move(
                        Path(entry.path), "its file name does not have the form TOKEN.json, which envelopes have"
                    )
        return inodes

    def _read(self, token: str, inode: int) -> None:
        path = self.spool.envelope(token)
        if self.is_running(token) or self.journal.has_finished(token):
            if not self.journal.pending:  # otherwise, a new agent would know about this job only from its envelope
                self.rejected.remove(path)
            return
        try:
            content = read_regular(path, MOST_ENVELOPE_BYTES)
            if not content.strip(b"\0"):  # torn by a power failure; the controller will send it again
                log.warning("ignoring the empty envelope %s", path)
                path.unlink()
                return
            envelope = _checked(Envelope.from_json(content.decode()), token)
        except FileNotFoundError:
            return
        except NotReadable as error:
            self._set_aside(token, str(error))
            return
        except OSError as error:
            self.rejected.report(path.name, f"{error}, tried again")
            self._seen = (0, 0.0, 0.0)
            return
        except Exception as error:  # whatever is wrong with it must affect only this job
            self._set_aside(token, f"{type(error).__name__}: {error}")
            return
        amounts = envelope.resources, envelope.priority, envelope.queued_at
        waiting = QueuedJob(token, *amounts, rest=envelope.rest, turn=envelope.turn)
        known = self.entries.get(token)
        if known is None:
            self.entries[token] = InboxEntry(
                waiting, envelope.memory_limit, envelope.time_limit, envelope.expires_at, inode, envelope.runner
            )
            insort(self._order, waiting, key=lambda job: job.rank)
        else:
            # A new JWT does not move the job behind those that have arrived meanwhile.
            kept = known.waiting
            self._replace(known, replace(waiting, overtaken_since=kept.overtaken_since, turn=kept.turn))
            known.memory_limit, known.time_limit = envelope.memory_limit, envelope.time_limit
            known.expires_at, known.inode = envelope.expires_at, inode

    def _replace(self, entry: InboxEntry, waiting: QueuedJob) -> None:
        self._take_out(entry.waiting)
        entry.waiting = waiting
        insort(self._order, waiting, key=lambda job: job.rank)

    def _take_out(self, waiting: QueuedJob) -> None:
        del self._order[bisect_left(self._order, waiting.rank, key=lambda job: job.rank)]

    def _set_aside(self, token: str, fault: str) -> None:
        """Fail the job of an unreadable envelope, and move the file out of the inbox for examination."""
        reason = because("envelope_unreadable", text=fault)
        log.error("%s (%s)", reason, token)
        self.forget(token)
        move = partial(self.rejected.move, self.spool.envelope(token), str(reason))
        self.journal.finished(token, at=time.time(), cause="error", reason=reason, cleanup=move)

    def _finish(self, token: str, cause: str, reason: Reason, cleanup: Callable[[], None]) -> None:
        def remove() -> None:
            self.spool.envelope(token).unlink(missing_ok=True)
            cleanup()

        self.journal.finished(token, at=time.time(), cause=cause, reason=reason, cleanup=remove)


def _checked(envelope: Envelope, token: str) -> Envelope:
    """Return the envelope if its numbers are valid.

    :raises ValueError: it belongs to another job, or a number is invalid
    """
    if envelope.token != token:
        raise ValueError(f"the file contains job {envelope.token!r}")
    amounts = {field.name: getattr(envelope.resources, field.name) for field in fields(Resources)}
    amounts.update(priority=envelope.priority, queued_at=envelope.queued_at, expires_at=envelope.expires_at)
    amounts.update(rest=envelope.rest, turn=envelope.turn)
    limits = {"memory_limit": envelope.memory_limit, "time_limit": envelope.time_limit}
    amounts.update({name: limit for name, limit in limits.items() if limit is not None})
    for name, amount in amounts.items():
        if isinstance(amount, bool) or not isinstance(amount, (int, float)) or not isfinite(amount):
            raise ValueError(f"{name} is {amount!r}; a number is expected")
        if not 0 <= amount <= LATEST and name != "priority":
            raise ValueError(f"{name} is {amount!r}; a number from 0 to {LATEST:g} is expected")
    return envelope
