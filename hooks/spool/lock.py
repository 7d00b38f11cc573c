"""The lock by which one agent alone serves a spool."""

from __future__ import annotations

import fcntl
import os
import time

from lading.hooks.files.safe_files import NotReadable, open_regular
from lading.hooks.spool.rejected import RejectedFiles
from lading.hooks.spool.spool import Spool

# Somebody who only asks whether an agent lives may hold the lock for a moment.
LOCK_PATIENCE = 1.0


def lock(spool: Spool) -> int | None:
    """Become the one agent of a spool; None when there is one already. The descriptor must stay open."""
    try:
        descriptor = open_regular(spool.lock, os.O_RDWR | os.O_CREAT)
    except NotReadable as error:
        RejectedFiles(spool.rejected).move(spool.lock, error)
        descriptor = open_regular(spool.lock, os.O_RDWR | os.O_CREAT)
    deadline = time.monotonic() + LOCK_PATIENCE
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(descriptor)
                return None
            time.sleep(0.05)
