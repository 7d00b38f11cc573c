"""Pass SIGTERM from a job's process on to the program that runs its workload."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class SignalPassing:
    """Passes SIGTERM on once: a second one would interrupt the clean-up that the first one started.

    Create it before starting the program, which may need a clean-up even before the job's process knows its pid.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._send: Callable[[int], None] | None = None
        signal.signal(signal.SIGTERM, self._pass_on)

    def start(self, send: Callable[[int], None], *, is_asked: bool) -> None:
        """Begin to pass signals on, including one that has already arrived.

        :param send: sends a signal to the program
        :param is_asked: whether the job's termination was already requested
        """
        self._send = send
        if self.is_asked or is_asked:
            signal.raise_signal(signal.SIGTERM)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.is_asked = True
        if (send := self._send) is not None:
            self._send = None
            send(number)
