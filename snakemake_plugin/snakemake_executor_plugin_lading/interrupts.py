"""Ctrl-C, also one that Snakemake loses.

Python raises KeyboardInterrupt wherever the main thread is at that moment. Snakemake's log handler drops one that is
raised while it writes a line, Python drops one in a destructor, and one that comes right before the main thread begins
to wait for the next job to end is raised only when that job has ended. What the signal writes into a pipe stays there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

# Of what is in the pipe so much is read at once, bytes: one is one signal.
MOST_SIGNALS = 4096


class Interrupts:
    """Notes from now on whether this process was interrupted, until :meth:`close`.

    In another thread than the main one, where Snakemake is not interrupted by signals, and beside a program that has
    signals write elsewhere, nothing is noted.
    """

    def __init__(self) -> None:
        self.has_come = False
        self._reader = self._writer = -1
        if threading.current_thread() is not threading.main_thread():
            return
        if (other := signal.set_wakeup_fd(-1)) != -1:
            signal.set_wakeup_fd(other)
            return
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)

    def look(self) -> bool:
        """Whether the process was interrupted, once or more often."""
        if not self.has_come and self._reader != -1:
            with contextlib.suppress(OSError):  # there is nothing, or it is closed at this moment
                self.has_come = signal.SIGINT in os.read(self._reader, MOST_SIGNALS)
        return self.has_come

    def close(self) -> None:
        """Note nothing any more. To be called in the thread that has made it."""
        if self._reader == -1:
            return
        signal.set_wakeup_fd(-1)
        os.close(self._writer)
        os.close(self._reader)
        self._reader = self._writer = -1
