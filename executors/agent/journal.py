"""Journals: they report events of jobs to the controller in batches, each event at least once and in order."""

from __future__ import annotations

import contextlib
import os
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from lading.hooks.files.logs import get_logger
from lading.hooks.files.safe_files import read_regular, visible, write_atomically
from lading.hooks.spool.spool import Spool
from lading.hooks.spool.values import to_json
from lading.scheduling.model.reasons import Reason

log = get_logger(__name__)

# Shorter waits are not reported, as each report becomes an entry in Airflow's event log. Seconds.
SECONDS_UNTIL_REPORTED = 10.0
# The names of an agent's batches, without their suffix.
NUMBER = re.compile(r"[0-9]{1,12}")


class Journal(ABC):
    """Collects events and writes them to the spool, one file per batch.

    On a full disk no event is lost: events are kept, and written when there is room again.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.failing = False
        self._events: list[dict[str, Any]] = []

    def started(self, token: str, *, at: float, pid: int) -> None:
        self._events.append({"event": "started", "token": token, "at": at, "pid": pid})

    def waiting(self, token: str, reason: Reason) -> None:
        self._events.append({"event": "waiting", "token": token, "reason": reason})

    def measured(self, token: str, *, peak_memory: int) -> None:
        """Report the most memory that a running job has used so far, MiB."""
        self._events.append({"event": "measured", "token": token, "peak_memory": peak_memory})

    def held(self, token: str, *, at: float) -> None:
        self._events.append({"event": "held", "token": token, "at": at})

    def not_held(self, token: str, event: str, reason: Reason, *, at: float) -> None:
        """Report that room was not granted (``refused``) or is no longer held (``hold_lost``)."""
        self._events.append({"event": event, "token": token, "at": at, "reason": reason})

    def finished(
        self,
        token: str,
        *,
        at: float,
        started_at: float | None = None,
        exit_code: int | None = None,
        cause: str | None,
        reason: Reason | None,
        peak_memory: int | None = None,
        cpu_seconds: float | None = None,
        outputs: Mapping[str, int] | None = None,
        cleanup: Callable[[], None],
    ) -> None:
        """Report the end of a job.

        :param cause: None: success
        :param cleanup: removes the job's files; called after the event has been written to disk
        """
        self._events.append(
            {
                "event": "finished",
                "token": token,
                "at": at,
                "started_at": started_at,
                "exit_code": exit_code,
                "cause": cause,
                "reason": reason,
                **({"outputs": outputs} if outputs else {}),
                "peak_memory": peak_memory,
                "cpu_seconds": cpu_seconds,
            }
        )
        self._remember(token, cleanup)

    @property
    def pending(self) -> bool:
        return bool(self._events)

    def flush(self) -> None:
        """Write the collected events. If that fails, they are kept for the next time."""
        try:
            self._write()
        except OSError as error:
            if not self.failing:
                log.error("cannot write to %s, will try until it works: %s", self.spool.root, error)
            self.failing = True
            return
        if self.failing:
            log.info("can write to %s again", self.spool.root)
        self.failing = False
        self._clean_up()

    def _write(self) -> None:
        """:raises OSError: a batch was not written; batches that were are not written again"""
        while self._events:
            # Readers limit how much they take at once (see lading.hooks.spool.events).
            batch = self._events[:1000]
            lines = "".join(to_json(event) + "\n" for event in batch)
            write_atomically(self.spool.events / self._next_name(), lines)
            del self._events[: len(batch)]

    @abstractmethod
    def _next_name(self) -> str:
        """Return the name of the next batch, which is unique in the spool and sorts after all earlier ones."""

    @abstractmethod
    def _remember(self, token: str, cleanup: Callable[[], None]) -> None:
        """Note that a job has finished."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Remove the files of the jobs whose end has been written to disk."""


class AgentJournal(Journal):
    """The journal of a node agent, which is the only one in its spool and remembers finished jobs."""

    most_remembered = 20_000
    """Finished jobs: a controller can renew the JWT of a job that has just finished."""

    def __init__(self, spool: Spool) -> None:
        super().__init__(spool)
        self._tokens: list[str] = []
        self._cleanups: list[Callable[[], None]] = []
        numbers = (int(path.stem) for path in visible(spool.events) if NUMBER.fullmatch(path.stem))
        # Never reuse a name: a reader that knows an earlier agent's file would take the new one for the same file.
        # An agent writes batches more slowly than this, so numbers that start from the time never repeat.
        self._last = max(int(time.time() * 100), *numbers, 0)
        self._memory = spool.root / "finished"
        remembered = self._remembered()
        self._lines_since_cut = len(remembered)
        self._finished = deque(remembered, maxlen=self.most_remembered)
        self._is_finished = set(self._finished)

    def has_finished(self, token: str) -> bool:
        """Return whether the end of this job was reported, by this agent or an earlier one."""
        return token in self._is_finished

    @property
    def pending(self) -> bool:
        return bool(self._events or self._tokens)

    def _next_name(self) -> str:
        self._last += 1
        return f"{self._last:012}.jsonl"

    def _remember(self, token: str, cleanup: Callable[[], None]) -> None:
        if len(self._finished) == self.most_remembered:
            self._is_finished.discard(self._finished[0])
        self._finished.append(token)
        self._is_finished.add(token)
        self._tokens.append(token)
        self._cleanups.append(cleanup)

    def _write(self) -> None:
        super()._write()
        if not self._tokens:
            return
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(self._memory, flags, 0o600), "w") as stream:
            # On a full disk, half a token may be written; the leading newline separates it from the next one.
            stream.write("".join(f"\n{token}" for token in self._tokens))
        self._lines_since_cut += len(self._tokens)
        self._tokens.clear()
        if self._lines_since_cut >= self.most_remembered:
            self._cut_memory()

    def _clean_up(self) -> None:
        cleanups, self._cleanups = self._cleanups, []
        for cleanup in cleanups:
            try:
                cleanup()
            except OSError as error:
                log.error("cannot clean up: %s", error)

    def _remembered(self) -> list[str]:
        try:
            # At most twice as many tokens as are remembered: a larger file is not ours.
            return read_regular(self._memory, 2 * self.most_remembered * 65).decode(errors="replace").split()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("%s cannot be read, so finished jobs are unknown: %s", self._memory, error)
            return []

    def _cut_memory(self) -> None:
        """Drop tokens from the file that are no longer remembered."""
        with contextlib.suppress(OSError):  # on a full disk, the file stays longer than necessary
            write_atomically(self._memory, "".join(f"\n{token}" for token in self._finished))
            self._lines_since_cut = 0


class JobJournal(Journal):
    """The journal of one batch job, in a spool that other jobs write to as well.

    The job's files stay until the controller has stored its end: while they exist, the job is not started again.

    :ivar nodes: number of nodes the job was given if it requested a range; None: it did not
    """

    def __init__(self, spool: Spool, token: str) -> None:
        super().__init__(spool)
        self.token = token
        self.nodes: int | None = None
        self._since = time.time_ns()
        self._batches = 0

    def started(self, token: str, *, at: float, pid: int) -> None:
        super().started(token, at=at, pid=pid)
        if self.nodes is not None:
            self._events[-1]["nodes"] = self.nodes

    def _next_name(self) -> str:
        self._batches += 1
        return f"{self._since:020}.{self._batches:06}.{self.token}.jsonl"

    def _remember(self, token: str, cleanup: Callable[[], None]) -> None:
        """Do nothing: this journal has only one job."""

    def _clean_up(self) -> None:
        """Do nothing: the controller removes the files."""
