"""Reading files that others may have left: whatever lies there, it neither holds the reader up nor fills its memory."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotReadable(OSError):
    """What lies there is no regular file, or too large: it will never be read, however often it is tried."""


def read_regular(path: Path, most: int) -> bytes:
    """The content of a regular file. A link is not followed, a FIFO is not waited for.

    :param most: bytes that are read; a larger file is refused
    :raises NotReadable: it is something else, or larger
    :raises OSError: it is not there, or cannot be read now
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link; a socket
            raise NotReadable("it is no regular file") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise NotReadable("it is no regular file")
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(most + 1) if found.st_size <= most else b""
    if found.st_size > most or len(content) > most:
        raise NotReadable(f"it has {max(found.st_size, len(content))} bytes, at most {most} are read")
    return content
