"""The mark that tells the next controller for which job a plugin crashed this one.

It is a file on this machine that names the job a plugin is being called for, and outlives the controller. Plugins are
called far too often to store each call in the database, so a process that dies within a call, by a signal or by
``os._exit``, would leave no trace of the job. The mark costs only a write into the file system's cache. The next
controller on this machine that takes the lease records the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically

log = logging.getLogger(__name__)

# Length of a controller's id and of a job's token, bytes.
LENGTH = 36


class PluginMark:
    """The file that names the job a plugin is being called for.

    :param path: of the file, which belongs to the controller on this machine that took the lease last
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def read(self) -> tuple[str, str] | None:
        """Return which controller left the mark, and for which job; None: for no job."""
        try:
            text = read_regular(self.path, 2 * LENGTH + 1).decode()
        except (OSError, NotReadable, UnicodeDecodeError):
            return None
        words = text.split()
        # After a power failure the file may contain NUL bytes, which no database accepts.
        return (words[0], words[1]) if len(words) == 2 and text.isprintable() else None

    def begin(self, holder: str) -> None:
        """Replace the file by one without a job. A controller that is still alive keeps writing to the old file.

        :param holder: the controller that holds the lease
        """
        try:
            write_atomically(self.path, f"{holder:{LENGTH}} {'':{LENGTH}}")
            self._file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            log.warning("If a plugin crashes this controller, the job it was called for will be unknown: %s", error)

    def put(self, token: str | None) -> None:
        """Mark the job that a plugin is being called for; None: no plugin is running."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk must not stop the controller
                os.pwrite(self._file, (token or "").encode()[:LENGTH].ljust(LENGTH), LENGTH + 1)

    def end(self) -> None:
        """Leave the file to the next controller."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
