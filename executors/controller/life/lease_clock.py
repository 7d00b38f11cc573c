"""The clock that renews a controller's lease, beside its loop and only as long as the loop goes on."""

from __future__ import annotations

import faulthandler
import logging
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial

from lading.hooks.files.logs import Trouble

log = logging.getLogger(__name__)

# A loop that has not come to its next step for so long hangs, seconds. Each step is one site or a few queries.
SECONDS_UNTIL_HUNG = 30.0
# The process of a loop that does not even go on then is of no use, seconds.
SECONDS_UNTIL_HOPELESS = 60.0
# What fails, in the log.
RENEWAL = "The lease could not be renewed"
NOTE = "The job over which the controller hangs could not be noted"


class LeaseClock:
    """Renews the lease every few seconds while the loop says that it lives; of one that hangs the lease runs out.

    :param seconds: between two renewals
    :param renew: renews the lease
    """

    def __init__(self, seconds: float, renew: Callable[[], object]) -> None:
        self.seconds = seconds
        self.renew = renew
        self.hung = False
        """Whether the loop hangs now, so that the lease is not renewed."""
        self.give_up: Callable[[], None] = lambda: None
        """Called when there is no hope any more that the loop goes on."""
        self.note_hang: Callable[[bool], None] = lambda hangs: None
        """Called in each round in which the loop hangs, and with False in the first in which it does no more."""
        self._trouble = Trouble(log)
        self._alive_at = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Begin; the loop lives."""
        self.beat()
        self._thread.start()

    def beat(self) -> None:
        """The loop has come to its next step."""
        self._alive_at = time.monotonic()

    def stop(self) -> None:
        """Renew no more. A renewal that hangs is not waited for beyond the next one's time."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join(self.seconds)

    def _run(self) -> None:
        while not self._ended.wait(self.seconds):
            still = time.monotonic() - self._alive_at
            hung = still > SECONDS_UNTIL_HUNG
            if hung and not self.hung:
                log.error("The controller hangs, so it gives up its lease. This is what it does:\n%s", stacks())
            if hung or self.hung:
                self._try(NOTE, partial(self.note_hang, hung))
            self.hung = hung
            if still > SECONDS_UNTIL_HOPELESS:
                self.give_up()
            if not hung:
                self._try(RENEWAL, self.renew)

    def _try(self, what: str, act: Callable[[], object]) -> None:
        try:
            act()
            self._trouble.end(what)
        except Exception as error:  # such as a database that is away
            self._trouble.begin(what, error, traceback=True)


def stacks() -> str:
    """What each thread of this process does now."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()
