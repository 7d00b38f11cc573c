"""The signals by which an agent, or a batch job, is asked to end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)


class EndSignals:
    """Which of these signals have come, and a descriptor that is readable when one comes or a child process ends.

    :param numbers: of the signals
    """

    def __init__(self, numbers: Iterable[signal.Signals]) -> None:
        self.numbers = tuple(numbers)
        self.wakeup, self.wakeup_writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.received = False
        """Whether one has come, which may be at any moment; a job that began then would be ended."""
        self._unlogged: list[int] = []

    @property
    def descriptors(self) -> tuple[int, int]:
        """What jobs must not keep."""
        return self.wakeup, self.wakeup_writer

    def receive(self) -> None:
        """Take them from now on, in place of what they do to a process."""
        signal.set_wakeup_fd(self.wakeup_writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # the wake-up is all that matters
        for number in self.numbers:
            signal.signal(number, self._note)

    def log_new(self) -> None:
        """Say which have come since the last time."""
        while self._unlogged:
            log.info("received %s", signal.Signals(self._unlogged.pop(0)).name)

    def _note(self, number: int, frame: Any) -> None:
        # Not logged here: where the signal interrupts what logs, the same stream raises RuntimeError.
        self.received = True
        self._unlogged.append(number)
