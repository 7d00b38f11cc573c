"""Back-pressure: how much a batch system is given at a time, and for how long nothing, as its answers tell."""

from __future__ import annotations

from lading.hooks.ssh.backoff import Backoff

# A refused submission is tried again after 5, 10, 20 ... seconds, at most this many.
FIRST_PAUSE = 5.0
LONGEST_PAUSE = 60.0


class BackPressure:
    """What the answers to submissions have taught about the limits of a site.

    :param largest: elements that a job array may ever have; 1: no arrays
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self.chunk = largest
        self.backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)

    def held(self) -> str | None:
        """Why nothing is submitted now, in words; None: it is."""
        return self.backoff.words if self.backoff.left > 0 else None

    def hold(self, words: str) -> None:
        """Submit nothing for a while, each time in a row for longer."""
        self.backoff.failed(words)

    def accept(self, count: int) -> None:
        """So many jobs were taken in one submission: a larger one may be taken, too."""
        self.backoff.succeeded()
        if count == self.chunk < self.largest:
            self.chunk = min(self.largest, self.chunk * 2)

    def shrink(self, count: int) -> None:
        """So many jobs in one submission were too many: a part of it may be allowed, at once."""
        self.chunk = max(1, count // 2)

    def release(self) -> None:
        """A job has ended: where each job is submitted by itself there is room for one."""
        if self.chunk == 1:
            self.backoff.not_before = 0.0
