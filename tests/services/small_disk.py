"""A file system that is soon full."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path | None = None, *, mebibytes: int = 8, mode: str = "1777") -> Iterator[Path]:
    """A file system of so many MiB, at a folder that is made.

    :param folder: None: one to which everybody comes, also on machines that boot now
    """
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="lading-disk-"))
    else:
        folder.mkdir()
    sudo = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size={mebibytes}m,mode={mode},uid={os.getuid()}"
    mount = [*sudo, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        # What ends may have it open for a moment longer.
        subprocess.run([*sudo, "umount", "--lazy", str(folder)], check=True)
        folder.rmdir()
