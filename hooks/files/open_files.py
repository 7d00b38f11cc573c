"""How many files a process may have open: a controller and a node agent need one for each connection and each job.

Only they may have more: what they start finds the limit that it would have without Lading, since some programs close,
or keep a bit for, every descriptor that they might have, and batch systems hand the limit on to jobs.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
from collections.abc import Sequence

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


def with_first_limit(command: Sequence[str]) -> list[str]:
    """The command, with the limit that this process had before it raised its own.

    :raises FileNotFoundError: there is no such program, which the shell that sets the limit would say in its own way
    """
    soft, _ = _original
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft:
        return list(command)
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    number = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return ["/bin/sh", "-c", f'ulimit -S -n {number}; exec "$@"', "sh", *command]
