"""Folders and files that only Airflow's user may read, whatever its umask allows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

FOLDER = 0o700
FILE = 0o600


def make_private(folder: Path) -> None:
    """Make a folder for this user only, and those above it that are missing; one that is there is closed to others.

    :raises OSError: it cannot be made, or belongs to somebody else and is open to others
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER, exist_ok=True)
    if stat.S_IMODE(folder.stat().st_mode) != FOLDER:
        folder.chmod(FOLDER)


def opener(path: str, flags: int) -> int:
    """For ``open``: a new file is for this user only."""
    return os.open(path, flags, FILE)
