"""Debian's Node.js with npm, by which the page's own modules are tested."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.services import debian


def npm() -> str:
    """The program; its Debian packages are installed where it is missing.

    :raises debian.MissingPackagesError: that is not possible
    """
    if not shutil.which("npm"):
        debian.install("nodejs", "npm")
    found = shutil.which("npm")
    if found is None:
        raise debian.MissingPackagesError("npm is installed, but there is no program npm on the path")
    return found


def install_locked(folder: Path) -> None:
    """Install what the lock file of a folder names, unless that has been done since it changed.

    :raises debian.MissingPackagesError: npm is missing, or its registry does not answer
    """
    lock, done = folder / "package-lock.json", folder / "node_modules" / ".package-lock.json"
    if done.exists() and done.stat().st_mtime >= lock.stat().st_mtime:
        return
    found = subprocess.run([npm(), "ci"], cwd=folder, capture_output=True, text=True)
    if found.returncode:
        raise debian.MissingPackagesError(f"npm ci in {folder} failed: {found.stderr.strip()[-400:]}")
