"""Decides when a failed action can be tried again.

Nothing here sleeps: a controller that waited for one site would delay the others.
"""

from __future__ import annotations

import random
import time

from lading.hooks.files.logs import COUNTDOWN
from lading.hooks.ssh.answer import TransportError
from lading.scheduling.model.reasons import Reason


def pause(failures: int, first: float, longest: float) -> float:
    """Return the seconds until the next try after ``failures`` failures in a row.

    :param first: the most seconds after the first failure, doubled by each further one
    :param longest: the most seconds in any case
    """
    # Jitter, so that many clients of a failed server do not reconnect at the same time.
    return min(longest, first * 2.0 ** min(failures - 1, 32)) * random.uniform(0.5, 1.0)


class Backoff:
    """Counts consecutive failures of an action, and decides when it can be tried again; see :func:`pause`."""

    def __init__(self, first: float = 1.0, longest: float = 60.0) -> None:
        self.first = first
        self.longest = longest
        self.failures = 0
        self.message = ""
        self.not_before = 0.0

    @property
    def left(self) -> float:
        """Seconds until it can be tried again; 0 or less: now."""
        return self.not_before - time.monotonic()

    @property
    def held(self) -> str | None:
        """The last failure if it is too early to try again; None: it can be tried."""
        return self.message if self.left > 0 else None

    def check(self) -> None:
        """Check that it can be tried now.

        :raises TransportError: it is too early; with the last failure
        """
        if (message := self.held) is not None:
            raise self._error(f"{message}{COUNTDOWN}{self.left:.0f} s")

    def failed(self, message: str, *, at_least: float = 0.0) -> TransportError:
        """Note a failure, and return the error to raise.

        :param at_least: seconds to wait at least, for example after a refused login, since many of them lock the
            account
        """
        self.failures += 1
        # Without the countdown, so that the same trouble always has the same text.
        self.message = message.partition(COUNTDOWN)[0]
        seconds = max(pause(self.failures, self.first, self.longest), at_least * random.uniform(0.5, 1.0))
        self.not_before = time.monotonic() + seconds
        return self._error(self.message)

    def _error(self, message: str) -> TransportError:
        error = TransportError(message)
        error.retry_in = self.left
        return error

    def succeeded(self) -> None:
        self.failures = 0
        self.not_before = 0.0


class ReasonedBackoff(Backoff):
    _why: Reason | None = None

    @property
    def reason(self) -> Reason | None:
        """Why it is too early to try again; None: it can be tried."""
        return self._why if self.left > 0 else None

    def failed_for(self, reason: Reason) -> None:
        self._why = reason
        self.failed(reason.sentence)
