"""Folders and files that only Airflow's user may read, whatever its umask allows."""

from __future__ import annotations

import os
import pwd
import stat
from pathlib import Path

FOLDER = 0o700
FILE = 0o600


def make_private(folder: Path) -> None:
    """Make a folder for this user only, and those above it that are missing; one that is there is closed to others.

    :raises OSError: it cannot be made, or belongs to somebody else
    """
    for missing in reversed([each for each in (folder, *folder.parents) if not each.exists()]):
        missing.mkdir(mode=FOLDER, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(
            f"folder {folder} belongs to user {name(found.st_uid)}, and what lies in it is trusted: as user "
            f"{name(os.geteuid())} take a folder of your own, or let chown give you this one"
        )
    if stat.S_IMODE(found.st_mode) != FOLDER:
        folder.chmod(FOLDER)


def name(uid: int) -> str:
    """What a user is called."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def opener(path: str, flags: int) -> int:
    """For ``open``: a new file is for this user only."""
    return os.open(path, flags, FILE)
