"""How a job's process passes SIGTERM on to what runs its workload."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType


class SignalPassing:
    """Passes SIGTERM on, once: a second one would end what the first one made a program start to tidy up.

    It is made before the program is started, which may have something to tidy up before its job's process has its pid.
    """

    def __init__(self) -> None:
        self.is_asked = False
        self._send: Callable[[int], None] | None = None
        signal.signal(signal.SIGTERM, self._pass_on)

    def start(self, send: Callable[[int], None], *, is_asked: bool) -> None:
        """Pass on from now on, and what has come until now.

        :param send: sends a signal to what was started
        :param is_asked: whether the job was asked to end before
        """
        self._send = send
        if self.is_asked or is_asked:
            signal.raise_signal(signal.SIGTERM)

    def _pass_on(self, number: int, _: FrameType | None) -> None:
        self.is_asked = True
        if (send := self._send) is not None:
            self._send = None
            send(number)
