"""The agent's journal: what it tells the controller, in batches, each event at least once and in order."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections import deque
from collections.abc import Callable
from typing import Any

from lading.hooks.spool import Spool, visible, write_atomically

log = logging.getLogger(__name__)

# A controller that renews the JWT of a job may do so after the job has finished. So many tokens are remembered.
REMEMBERED = 20_000


class Journal:
    """Collects events and writes them; what must not happen before they are on disk waits for that.

    Nothing is lost on a full disk: the events are kept and written when there is room again.
    """

    def __init__(self, spool: Spool) -> None:
        self.spool = spool
        self.failing = False
        self._events: list[dict[str, Any]] = []
        self._tokens: list[str] = []
        self._cleanups: list[Callable[[], None]] = []
        numbers = [int(path.stem) for path in visible(spool.events) if path.stem.isdecimal()]
        self._next = max(numbers, default=0) + 1
        self._memory = spool.root / "finished"
        remembered = self._remembered()
        self._lines_since_cut = len(remembered)
        self._finished = deque(remembered, maxlen=REMEMBERED)
        self._is_finished = set(self._finished)

    def started(self, token: str, *, at: float, pid: int) -> None:
        self._events.append({"event": "started", "token": token, "at": at, "pid": pid})

    def waiting(self, token: str, reason: str) -> None:
        self._events.append({"event": "waiting", "token": token, "reason": reason})

    def finished(
        self,
        token: str,
        *,
        at: float,
        started_at: float | None = None,
        exit_code: int | None = None,
        cause: str | None,
        message: str | None,
        peak_memory: int | None = None,
        cpu_seconds: float | None = None,
        cleanup: Callable[[], None],
    ) -> None:
        """Tell the end of a job; ``cleanup`` removes its files once this is on disk. No cause means success."""
        self._events.append(
            {
                "event": "finished",
                "token": token,
                "at": at,
                "started_at": started_at,
                "exit_code": exit_code,
                "cause": cause,
                "message": message,
                "peak_memory": peak_memory,
                "cpu_seconds": cpu_seconds,
            }
        )
        if len(self._finished) == REMEMBERED:
            self._is_finished.discard(self._finished[0])
        self._finished.append(token)
        self._is_finished.add(token)
        self._tokens.append(token)
        self._cleanups.append(cleanup)

    def has_finished(self, token: str) -> bool:
        """Whether the end of this job was told, also by an agent before this one."""
        return token in self._is_finished

    def flush(self) -> None:
        """Write what was collected. On failure everything is kept for the next time."""
        try:
            if self._events:
                lines = "".join(json.dumps(event) + "\n" for event in self._events)
                write_atomically(self.spool.events / f"{self._next:012}.jsonl", lines)
                self._next += 1
                self._events.clear()
            if self._tokens:
                with open(os.open(self._memory, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "w") as stream:
                    # On a full disk half a token may be written; the newline in front parts it from what comes after.
                    stream.write("".join(f"\n{token}" for token in self._tokens))
                self._lines_since_cut += len(self._tokens)
                self._tokens.clear()
                if self._lines_since_cut >= REMEMBERED:
                    self._cut_memory()
        except OSError as error:
            if not self.failing:
                log.error("cannot write to %s, will try until it works: %s", self.spool.root, error)
            self.failing = True
            return
        if self.failing:
            log.info("can write to %s again", self.spool.root)
        self.failing = False
        cleanups, self._cleanups = self._cleanups, []
        for cleanup in cleanups:
            try:
                cleanup()
            except OSError as error:
                log.error("cannot clean up: %s", error)

    @property
    def pending(self) -> bool:
        """Whether something has not been written yet."""
        return bool(self._events or self._tokens)

    def _remembered(self) -> list[str]:
        try:
            tokens = self._memory.read_text().split()
        except FileNotFoundError:
            return []
        return tokens

    def _cut_memory(self) -> None:
        """Forget on disk what is forgotten here."""
        with contextlib.suppress(OSError):  # full: the file stays longer than it need be
            write_atomically(self._memory, "".join(f"\n{token}" for token in self._finished))
            self._lines_since_cut = 0
