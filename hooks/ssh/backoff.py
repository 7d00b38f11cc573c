"""When what has failed may be tried again. Nothing here sleeps: a controller that waits for one site would hold up the
others.
"""

from __future__ import annotations

import random
import time

from lading.hooks.files.logs import COUNTDOWN
from lading.hooks.ssh.answer import TransportError
from lading.scheduling.reasons import Reason


def pause(failures: int, first: float, longest: float) -> float:
    """Seconds until the next try after so many failures in a row.

    :param first: seconds at most after the first failure, doubled by each further one
    :param longest: seconds at most
    """
    # Jitter, so that many who lost the same server do not come back together.
    return min(longest, first * 2.0 ** min(failures - 1, 32)) * random.uniform(0.5, 1.0)


class Backoff:
    """The failures in a row of one thing, and when it may be tried again; see :func:`pause`."""

    def __init__(self, first: float = 1.0, longest: float = 60.0) -> None:
        self.first = first
        self.longest = longest
        self.failures = 0
        self.message = ""
        self.not_before = 0.0

    @property
    def left(self) -> float:
        """Seconds until it may be tried again; 0 or less: now."""
        return self.not_before - time.monotonic()

    @property
    def held(self) -> str | None:
        """What has failed, as text, where it is too early; None: it may be tried."""
        return self.message if self.left > 0 else None

    def check(self) -> None:
        """:raises TransportError: it is too early; with what failed"""
        if (message := self.held) is not None:
            raise TransportError(f"{message}{COUNTDOWN}{self.left:.0f} s")

    def failed(self, message: str, *, at_least: float = 0.0) -> TransportError:
        """Note a failure, and return the error to raise.

        :param at_least: seconds to wait, as for a refused login: many of them lock the account
        """
        self.failures += 1
        # Without a time: the same trouble should have the same text.
        self.message = message.partition(COUNTDOWN)[0]
        seconds = max(pause(self.failures, self.first, self.longest), at_least * random.uniform(0.5, 1.0))
        self.not_before = time.monotonic() + seconds
        return TransportError(self.message)

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before = 0.0


class ReasonedBackoff(Backoff):
    """The same, where why it may not be tried is shown to people as a reason."""

    _why: Reason | None = None

    @property
    def reason(self) -> Reason | None:
        """Why it is too early; None: it may be tried."""
        return self._why if self.left > 0 else None

    def failed_for(self, reason: Reason) -> None:
        """Note a failure."""
        self._why = reason
        self.failed(reason.sentence)
