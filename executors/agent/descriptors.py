"""How many files a process may have open: an agent needs one for each of its jobs, which may be thousands.

Only the agent may have more: a task finds the limit that it would have without Lading, since some programs close, or
keep a bit for, every descriptor that they might have.
"""

from __future__ import annotations

import contextlib
import resource

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
