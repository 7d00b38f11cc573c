"""A FIFO by which one process wakes another on the same machine at once, instead of at its next poll."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import stat
from pathlib import Path
from types import TracebackType


class Bell:
    """A FIFO that any local process can ring, and that one process waits at.

    :param path: the FIFO
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def make(self) -> None:
        """Create the FIFO if it is missing; the folder must exist. Anything else of that name is removed.

        :raises OSError: it cannot be created
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
            import shutil

            shutil.rmtree(self.path)

    def open(self) -> int:
        """Create the FIFO if it is missing, and return a descriptor that becomes readable when the bell rings.

        The descriptor is also open for writing. Otherwise, once the last writer had closed the FIFO, it would report
        end of file and wake the reader forever.

        :raises OSError: it cannot be created
        """
        self.make()
        return os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)

    def ring(self) -> None:
        """Wake the waiting process. Does nothing if no process waits or the path is not a FIFO: whoever comes later
        polls first.

        :raises OSError: the FIFO exists but cannot be opened
        """
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno in (errno.ENXIO, errno.ENOENT, errno.ELOOP, errno.EISDIR):
                return
            raise
        try:
            with contextlib.suppress(BlockingIOError):  # the pipe is full, so the reader will wake anyway
                if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
                    os.write(descriptor, b"!")
        finally:
            os.close(descriptor)

    def remove(self, descriptor: int) -> None:
        """Remove the FIFO, unless another one has taken its name: many programs that copy files hang on a FIFO.

        :param descriptor: that of the process that waited and now exits
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
        if os.fstat(self.descriptor).st_nlink == 0:  # removed, such as by a predecessor that exited as this one started
            with contextlib.suppress(OSError):  # its folder may have been removed as well
                descriptor = self.open()
                os.close(self.descriptor)
                self.descriptor = descriptor
        ready, _, _ = select.select([self.descriptor], [], [], seconds)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.descriptor, 65536)
