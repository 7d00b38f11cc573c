"""Journals: what is reported of jobs to the controller, in batches, each event at least once and in order."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from lading.hooks.files.safe_files import read_regular, visible, write_atomically
from lading.hooks.spool.events import to_json
from lading.hooks.spool.spool import Spool
from lading.scheduling.reasons import Reason

log = logging.getLogger(__name__)

# A controller that renews the JWT of a job may do so after the job has finished. So many tokens are remembered.
REMEMBERED = 20_000
# What a reader takes at once is limited (see lading.hooks.spool.events): so many events are in a file at most.
MOST_IN_BATCH = 1000


# Twice as many tokens as are remembered; what is longer is not our file.
MOST_MEMORY_BYTES = 2 * REMEMBERED * 65
# The names of an agent's batches, but for their ending.
NUMBER = re.compile(r"[0-9]{1,12}")
# No agent writes more of them in the time in which it lives.
BATCHES_PER_SECOND = 100


class Journal(ABC):
    """Collects events and writes them into the spool, a file for each batch.

    Nothing is lost on a full disk: the events are kept and written when there is room again.
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
        """Report that room is held."""
        self._events.append({"event": "held", "token": token, "at": at})

    def not_held(self, token: str, event: str, reason: Reason, *, at: float) -> None:
        """Report that room is not held: ``refused``, or not any more: ``hold_lost``."""
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
        """Report the end of a job; ``cleanup`` removes its files, not before this is on disk. No cause: success."""
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
        """Whether something has not been written yet."""
        return bool(self._events)

    def flush(self) -> None:
        """Write what was collected. On failure everything is kept for the next time."""
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
        """:raises OSError: it was not written; what has been is not written again"""
        while self._events:
            batch = self._events[:MOST_IN_BATCH]
            lines = "".join(to_json(event) + "\n" for event in batch)
            write_atomically(self.spool.events / self._next_name(), lines)
            del self._events[: len(batch)]

    @abstractmethod
    def _next_name(self) -> str:
        """What the next batch is called: no other batch of the spool is, and those that come later sort behind it."""

    @abstractmethod
    def _remember(self, token: str, cleanup: Callable[[], None]) -> None:
        """Take note that a job has finished."""

    @abstractmethod
    def _clean_up(self) -> None:
        """Remove the files of the jobs whose end is on disk now."""


class AgentJournal(Journal):
    """The journal of a node agent: the only one of its spool. It remembers which jobs have finished."""

    def __init__(self, spool: Spool) -> None:
        super().__init__(spool)
        self._tokens: list[str] = []
        self._cleanups: list[Callable[[], None]] = []
        numbers = (int(path.stem) for path in visible(spool.events) if NUMBER.fullmatch(path.stem))
        # No name comes back: a reader of a file of an agent before this one would take a new one for the same.
        self._last = max(int(time.time() * BATCHES_PER_SECOND), *numbers, 0)
        self._memory = spool.root / "finished"
        remembered = self._remembered()
        self._lines_since_cut = len(remembered)
        self._finished = deque(remembered, maxlen=REMEMBERED)
        self._is_finished = set(self._finished)

    def has_finished(self, token: str) -> bool:
        """Whether the end of this job was reported, also by an agent before this one."""
        return token in self._is_finished

    @property
    def pending(self) -> bool:
        return bool(self._events or self._tokens)

    def _next_name(self) -> str:
        self._last += 1
        return f"{self._last:012}.jsonl"

    def _remember(self, token: str, cleanup: Callable[[], None]) -> None:
        if len(self._finished) == REMEMBERED:
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
            # On a full disk half a token may be written; the newline in front parts it from what comes after.
            stream.write("".join(f"\n{token}" for token in self._tokens))
        self._lines_since_cut += len(self._tokens)
        self._tokens.clear()
        if self._lines_since_cut >= REMEMBERED:
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
            return read_regular(self._memory, MOST_MEMORY_BYTES).decode(errors="replace").split()
        except FileNotFoundError:
            return []
        except OSError as error:
            log.error("%s is left alone, which jobs have finished is not known: %s", self._memory, error)
            return []

    def _cut_memory(self) -> None:
        """Forget on disk what is forgotten here."""
        with contextlib.suppress(OSError):  # full: the file stays longer than it need be
            write_atomically(self._memory, "".join(f"\n{token}" for token in self._finished))
            self._lines_since_cut = 0


class JobJournal(Journal):
    """The journal of one job of a batch system, in a spool to which others write, too.

    The job's files stay until the controller has stored its end: while they are there the job is not started anew.

    :ivar nodes: how many nodes it has got that has asked for a range of them; None: it has not
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
        """There is no other job here that it could be taken for."""

    def _clean_up(self) -> None:
        """The controller does."""
