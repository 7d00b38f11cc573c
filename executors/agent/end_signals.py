"""The signals that request the shutdown of an agent or a batch job."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from typing import Any

from lading.hooks.files.logs import get_logger

log = get_logger(__name__)


class EndSignals:
    """Receives these signals, and wakes a ``select`` when one arrives or a child process ends."""

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self.numbers = tuple(numbers)
        self.wakeup, self.wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.received = False
        """Whether a signal has arrived. This can change at any moment; a job started after that would be terminated."""
        self._unlogged: list[int] = []

    @property
    def descriptors(self) -> tuple[int, int]:
        """Descriptors that jobs must not inherit."""
        return self.wakeup, self.wakeup_writer

    def receive(self) -> None:
        """Install the handlers, so that the signals no longer kill this process."""
        signal.set_wakeup_fd(self.wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # only the wake-up matters
        for number in self.numbers:
            signal.signal(number, self._note)

    def log_new(self) -> None:
        while self._unlogged:
            log.info("received %s", signal.Signals(self._unlogged.pop(0)).name)

    def _note(self, number: int, frame: Any) -> None:
        # Do not log here: if the signal interrupts a call that is logging, the stream raises RuntimeError.
        self.received = True
        self._unlogged.append(number)
