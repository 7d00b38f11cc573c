"""The descriptors of an agent: the lock by which it is the one agent of its spool, and how many files it may have open.

It needs one for each of its jobs, which may be thousands.

Only the agent may have more: a task finds the limit that it would have without Lading, since some programs close, or
keep a bit for, every descriptor that they might have.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import time

from lading.hooks.spool.spool import Spool

# Somebody who only asks whether an agent lives may hold the lock for a moment.
LOCK_PATIENCE = 1.0

_original = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_limit() -> None:
    """Let this process open as many files as the system lets it."""
    _, hard = _original
    with contextlib.suppress(OSError, ValueError):  # a sandbox may let it have less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_limit() -> None:
    """Give this process, a fork of one that may have raised its limit, the limit that there was before."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _original:
        resource.setrlimit(resource.RLIMIT_NOFILE, _original)


def lock(spool: Spool) -> int | None:
    """Become the one agent of a spool; None when there is one already. The descriptor must stay open."""
    descriptor = os.open(spool.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
