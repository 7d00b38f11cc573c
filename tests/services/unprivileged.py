"""Run a command without any of root's privileges: ``python -m tests.services.unprivileged COMMAND...``.

Root without capabilities is a user like any other, but for what belongs to root: it may not look into processes that
have made themselves undumpable, nor kill those of others. Other users may read nothing below the home of root, where
the interpreter may be.
"""

from __future__ import annotations

import ctypes
import os
import sys

PR_CAPBSET_DROP = 24
LAST_CAPABILITY = "/proc/sys/kernel/cap_last_cap"


def command(*words: str) -> list[str]:
    """The command, such that it runs without privileges; the working directory must be the root of the repository."""
    return [sys.executable, "-m", "tests.services.unprivileged", *words]


def main() -> None:
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        with open(LAST_CAPABILITY) as stream:
            last = int(stream.read())
        for capability in range(last + 1):  # what is not in the bounding set is gone after the exec
            if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0):
                raise OSError(ctypes.get_errno(), f"cannot drop capability {capability}")
    os.execv(sys.argv[1], sys.argv[1:])


if __name__ == "__main__":
    main()
