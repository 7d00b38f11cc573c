"""Files that are there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` (mode 0600) so that a reader sees all of it or nothing."""
    hidden = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(hidden, flags, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(text)
        os.rename(hidden, path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk nothing is left that takes room
            os.unlink(hidden)
        shutil.rmtree(hidden, ignore_errors=True)  # else a folder of that name would be in the way for ever
        raise


def visible(folder: Path) -> list[Path]:
    """The finished files of a folder, by name."""
    return sorted(Path(entry.path) for entry in os.scandir(folder) if not entry.name.startswith("."))
