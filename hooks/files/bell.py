"""A bell: a FIFO by which one process wakes another on the same machine, at once instead of at its next look."""

from __future__ import annotations

import contextlib
import errno
import os
import select
from pathlib import Path
from types import TracebackType


class Bell:
    """Rung by anybody; whoever answers it enters it and waits.

    :param path: the FIFO
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make the FIFO where it is missing, in a folder that exists."""
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)

    def ring(self) -> None:
        """Wake whoever waits; where nobody does nothing happens, it looks when it comes.

        :raises OSError: the FIFO is there but may not be used
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT):
                return
            raise
        try:
            with contextlib.suppress(BlockingIOError):  # full: it has been rung often enough
                os.write(descriptor, b"!")
        finally:
            os.close(descriptor)

    def __enter__(self) -> Bell:
        self.make()
        # Opened for writing as well, so that the last writer's close is no end of file that would wake us for ever.
        self.descriptor = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.close(self.descriptor)

    def wait(self, seconds: float) -> None:
        """Return when the bell rings, at the latest after ``seconds``."""
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.descriptor, 65536)
