"""Ctrl-C, also one that Snakemake loses, and none while the store is written.

Python raises KeyboardInterrupt wherever the main thread is at that moment. Snakemake's log handler drops one that is
raised while it writes a line, Python drops one in a destructor, and one that comes right before the main thread begins
to wait for the next job to end is raised only when that job has ended. What the signal writes into a pipe stays there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

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


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Raise KeyboardInterrupt at the end of a block, and not in it.

    A transaction that is interrupted at the wrong moment leaves the store locked as long as the interrupt is handled,
    or a lock of the connections' pool held: what is to cancel the jobs would wait for it.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt


@contextmanager
def ignored_interrupts() -> Iterator[None]:
    """Ignore Ctrl-C in a block that ends soon."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
