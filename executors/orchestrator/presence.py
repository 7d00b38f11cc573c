"""The files by which processes that take the ends of jobs show each other that they live.

Each holds a lock on a file of its own in the state folder, which the kernel lets go when the process ends, however it
ends: all that share the folder see it at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from lading.hooks.files.safe_files import make_private, visible

# Seconds of silence after which it has long been noticed otherwise, so that the file adds nothing.
SECONDS_UNTIL_FORGOTTEN = 86400


class Presence:
    """Shows others that this process lives, until ``end`` or the end of the process.

    :param folder: where the files are
    :param number: of this process, such as that of the scheduler's Airflow job
    """

    def __init__(self, folder: Path, number: int) -> None:
        make_private(folder)
        forget_old(folder)
        self.path = folder / str(number)
        hidden = folder / f".{number}"
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Locked before it can be seen: a file without a lock means that its process has ended.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.descriptor: int | None = descriptor
        os.rename(hidden, self.path)

    def end(self) -> None:
        """Say that this process needs Lading no more. It may be said again."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may hold the same descriptor open
                os.close(descriptor)


def has_ended(path: Path) -> bool:
    """Whether a process is known to have ended, by its file."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def forget_old(folder: Path) -> None:
    """Delete the files of processes that ended long ago."""
    for path in visible(folder):
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < time.time() - SECONDS_UNTIL_FORGOTTEN and has_ended(path):
                path.unlink()
