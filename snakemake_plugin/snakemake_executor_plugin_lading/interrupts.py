"""Notices every Ctrl-C, including those that Snakemake loses, and defers them while the store is written.

Python raises KeyboardInterrupt wherever the main thread happens to be. It can get lost: Snakemake's log handler
swallows it while writing a line, and Python swallows it in a destructor. It can also be late: if it comes right before
the main thread waits for the next job, it is raised only once that job has finished. But the byte that the signal
writes into a pipe always stays there.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# How many bytes are read from the pipe at once; each signal is one byte.
MOST_SIGNALS = 4096


class Interrupts:
    """Notes whether this process was interrupted, until :meth:`close`.

    It notes nothing outside the main thread, where signals do not interrupt Snakemake, and if the program has set its
    own wakeup file descriptor.
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
        """Whether the process was interrupted at least once."""
        if not self.has_come and self._reader != -1:
            with contextlib.suppress(OSError):  # the pipe is empty, or just being closed
                self.has_come = signal.SIGINT in os.read(self._reader, MOST_SIGNALS)
        return self.has_come

    def close(self) -> None:
        """Stop noting interrupts. Has to be called in the thread that created this object."""
        if self._reader == -1:
            return
        signal.set_wakeup_fd(-1)
        os.close(self._writer)
        os.close(self._reader)
        self._reader = self._writer = -1


@contextmanager
def deferred_interrupts() -> Iterator[None]:
    """Defer KeyboardInterrupt to the end of a block.

    A transaction interrupted at the wrong moment would leave the store locked, or a lock of the connection pool held,
    while the interrupt is handled; but its handling cancels the jobs, which needs the store.
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
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
