"""Files by which processes that collect the results of jobs show each other that they are alive.

Each process holds a lock on its own file in the state folder. The kernel releases the lock when the process ends for
any reason, so everyone who shares the folder sees that at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from lading.hooks.files.safe_files import make_private, visible


class Presence:
    """Shows others that this process is alive, until ``end`` is called or the process ends.

    :param folder: the folder of the files
    :param number: identifies this process, for example the id of the scheduler's Airflow job
    """

    def __init__(self, folder: Path, number: int) -> None:
        make_private(folder)
        forget_old(folder)
        self.path = folder / str(number)
        hidden = folder / f".{number}"
        descriptor = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        # Locked before it becomes visible, because a file without a lock means that its process has ended.
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        self.descriptor: int | None = descriptor
        os.rename(hidden, self.path)

    def end(self) -> None:
        """Signal that this process no longer needs Lading. Can be called more than once."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked process may hold the same descriptor open
                os.close(descriptor)


def has_ended(path: Path) -> bool:
    """Whether the file of a process proves that it has ended."""
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
    for path in visible(folder):
        with contextlib.suppress(OSError):
            # After a day, the end of a process has long been detected in other ways, so its file is useless.
            if path.stat().st_mtime < time.time() - 86400 and has_ended(path):
                path.unlink()
