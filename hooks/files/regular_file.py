"""Files that others may have left: whatever lies there, it neither holds this process up nor fills its memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotReadable(OSError):
    """What lies there is no regular file, or too large: it will never be read, however often it is tried."""


def open_regular(path: Path, flags: int = os.O_RDONLY, mode: int = 0o600) -> int:
    """A descriptor of a regular file. A link is not followed, a FIFO is not waited for.

    :param flags: as those of ``os.open``
    :param mode: of a file that is made
    :raises NotReadable: it is something else
    :raises OSError: it is not there, or cannot be opened now
    """
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY, mode)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO, errno.EISDIR):  # a link; a socket, or a FIFO nobody reads
            raise NotReadable("it is no regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise NotReadable("it is no regular file")
    os.set_blocking(descriptor, True)
    return descriptor


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file.

    :param most: bytes that are read; a larger file is refused
    :raises NotReadable: it is something else, or larger
    :raises OSError: it is not there, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        size = os.fstat(stream.fileno()).st_size
        content = stream.read(most + 1) if size <= most else b""
    if size > most or len(content) > most:
        raise NotReadable(f"it has {max(size, len(content))} bytes, at most {most} are read")
    return content


def read_end(path: Path, most: int) -> bytes:
    """The last bytes of a regular file.

    :param most: so many
    :raises NotReadable: it is something else
    :raises OSError: it is not there, or cannot be read now
    """
    with os.fdopen(open_regular(path), "rb") as stream:
        stream.seek(max(os.fstat(stream.fileno()).st_size - most, 0))
        return stream.read(most)
