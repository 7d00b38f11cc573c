"""The mark by which the next controller finds the job over which a plugin has ended this one.

It says for which job a plugin is asked, in a file of this machine that outlives the controller. Plugins are asked far
too often for each question to be noted in the store, so a process that dies within an answer, by a signal or by
``os._exit``, would leave nothing by which the job is known. It leaves the mark, which costs no more than a write into
the cache of the file system; the next controller of this machine that takes the lease notes the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

from lading.hooks.files.safe_files import NotReadable, read_regular, write_atomically

log = logging.getLogger(__name__)

# The length of the ids of controllers and the tokens of jobs, bytes.
LENGTH = 36


class PluginMark:
    """The file with the job for which a plugin is asked now.

    :param path: of the file, which belongs to the controller of this machine that has taken the lease last
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: int | None = None

    def read(self) -> tuple[str, str] | None:
        """By which controller, and over which job, the mark was left; None: over none."""
        try:
            text = read_regular(self.path, 2 * LENGTH + 1).decode()
        except (OSError, NotReadable, UnicodeDecodeError):
            return None
        words = text.split()
        # What a disk makes of it at a power failure may have NUL, which no database takes.
        return (words[0], words[1]) if len(words) == 2 and text.isprintable() else None

    def begin(self, holder: str) -> None:
        """Take the file over, with no job in it. A controller that still lives elsewhere keeps the old one.

        :param holder: by which the lease is held
        """
        try:
            write_atomically(self.path, f"{holder:{LENGTH}} {'':{LENGTH}}")
            self._file = os.open(self.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            log.warning("If this controller dies within a plugin, it is not known over which job: %s", error)

    def put(self, token: str | None) -> None:
        """Mark the job for which a plugin is asked from now on; None: for none."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # a disk that is full stops no controller
                os.pwrite(self._file, (token or "").encode()[:LENGTH].ljust(LENGTH), LENGTH + 1)

    def end(self) -> None:
        """Leave the file to the next controller."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
