"""Unreadable files that a site or an agent received: kept for the administrator, and reported once."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from pathlib import Path

from lading.hooks.files.logs import get_logger
from lading.hooks.files.safe_files import write_atomically
from lading.hooks.spool.tokens import JWT

log = get_logger(__name__)


class RejectedFiles:
    """The unreadable files.

    :param folder: where they are kept; None: nowhere, because their content is also stored elsewhere
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        self._said: dict[str, tuple[float, str]] = {}

    @property
    def note(self) -> str | None:
        """What could not be read recently; None: nothing."""
        since = time.monotonic() - 3600.0
        recent = [message for at, message in list(self._said.values()) if at > since]
        if not recent:
            return None
        more = f" (and {len(recent) - 1} more)" if len(recent) > 1 else ""
        return f"set aside unreadable files: {recent[-1]}{more}"

    def report(self, name: str, why: object) -> None:
        """Log what is wrong with a file, unless that was its last report."""
        message = "".join(each if each.isprintable() else "?" for each in f"{name}: {why}"[:300])
        if name in self._said and self._said[name][1] == message:
            return
        log.error("Unreadable file: %s", message)
        self._said.pop(name, None)
        self._said[name] = (time.monotonic(), message)
        # A file that was dropped from the list may be reported again.
        if len(self._said) > 1000:
            del self._said[next(iter(self._said))]

    def keep(self, name: str, content: bytes, why: object) -> None:
        """Keep the content of a file, without its JWTs, and report the fault; report as well if it cannot be kept."""
        try:
            self._write(name, content)
        except OSError as error:
            why = f"{why}; it is not kept: {error}"
        self.report(name, why)

    def move(self, path: Path, why: object) -> None:
        """Move a file of any kind out of its folder, keeping the beginning of its content.

        A file that cannot be moved stays, so that a later call tries again.
        """
        try:
            if stat.S_ISREG(path.lstat().st_mode):
                self._write(path.name, _beginning(path))
                path.unlink()
            elif self.folder is not None:
                self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                os.rename(path, self.folder / f"{path.name[:200]}.{time.time_ns()}")
                self._forget_old()
        except FileNotFoundError:  # another process was faster
            return
        except OSError as error:
            why = f"{why}; it cannot be moved: {error}"
        self.report(path.name, why)

    def remove(self, path: Path) -> None:
        """Remove a file that is not needed; anything that is not a file is kept like other rejected files."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            self.move(path, error)

    def _write(self, name: str, content: bytes) -> None:
        if self.folder is None:
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        text = JWT.sub("(a JWT)", content[: 2**20].decode(errors="replace"))
        write_atomically(self.folder / name.replace("/", "_")[-200:], text)
        self._forget_old()

    def _forget_old(self) -> None:
        assert self.folder is not None
        ages = []
        for entry in os.scandir(self.folder):
            if not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # another process tidies up as well
                    ages.append((entry.stat(follow_symlinks=False).st_mtime, entry.path))
        for _, old in sorted(ages)[:-100]:
            if os.path.isdir(old) and not os.path.islink(old):
                import shutil

                shutil.rmtree(old, ignore_errors=True)
            else:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(old)


def _beginning(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as stream:
        return stream.read(2**20)
