"""A bell: a FIFO by which one process wakes another on the same machine, at once instead of at its next look."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import stat
from pathlib import Path
from types import TracebackType


class Bell:
    """A bell that any process may ring; the one that answers it waits at it.

    :param path: the FIFO
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Make the FIFO where it is missing, in a folder that exists; what else has its name goes.

        :raises OSError: it cannot be made
        """
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISFIFO(os.lstat(self.path).st_mode):
                self._clear()
        with contextlib.suppress(FileExistsError):
            os.mkfifo(self.path, 0o600)

    def _clear(self) -> None:
        try:
            os.unlink(self.path)
        except IsADirectoryError:
            shutil.rmtree(self.path)

    def open(self) -> int:
        """Make the FIFO where it is missing; return a descriptor that is readable when it is rung.

        It is opened for writing as well, so that the last writer's close is no end of file that would wake forever.

        :raises OSError: it cannot be made
        """
        self.make()
        return os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def ring(self) -> None:
        """Wake the process that waits; where none does, or something else lies there, nothing happens: it looks when it
        comes.

        :raises OSError: the FIFO is there but may not be used
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT, errno.ELOOP, errno.EISDIR):
                return
            raise
        try:
            with contextlib.suppress(BlockingIOError):  # full: it has been rung often enough
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.write(descriptor, b"!")
        finally:
            os.close(descriptor)

    def remove(self, descriptor: int) -> None:
        """Remove the FIFO, unless another one has its name: many a program that copies files stumbles over one.

        :param descriptor: of the process that has waited at it, which ends
        """
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(self.path), os.fstat(descriptor)):
                os.unlink(self.path)

    def __enter__(self) -> Bell:
        self.descriptor = self.open()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove(self.descriptor)
        os.close(self.descriptor)

    def wait(self, seconds: float) -> None:
        """Return when the bell rings, at the latest after ``seconds``."""
        if os.fstat(self.descriptor).st_nlink == 0:  # such as by one that ended as this one began
            with contextlib.suppress(OSError):  # its folder may be gone as well
                descriptor = self.open()
                os.close(self.descriptor)
                self.descriptor = descriptor
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.descriptor, 65536)
