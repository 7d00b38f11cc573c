"""How many files a process may have open: an agent needs one for each of its jobs, which may be thousands.

Only the agent may have more: a task finds the limit that it would have without Lading, since some programs close, or
keep a bit for, every descriptor that they might have.
"""

from __future__ import annotations

import contextlib
import os
import resource

from lading.hooks.spool.spool import Spool

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


def part_log(spool: Spool) -> None:
    """Go on in a new log when the old one has become large, where the log is what this process writes to."""
    if not spool.log_is_full():
        return
    full = os.stat(spool.log)
    ours = [output for output in (1, 2) if os.path.samestat(os.fstat(output), full)]
    if ours:
        spool.part_log()
        new = os.open(spool.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for output in ours:
            os.dup2(new, output)
        os.close(new)
