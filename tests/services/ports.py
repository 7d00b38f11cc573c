"""Free TCP ports on the loopback address."""

from __future__ import annotations

import fcntl
import os
import random
import socket
import tempfile
from pathlib import Path

# A service binds its port seconds after the port was chosen. Until then no connection that goes out may get the port as
# its own, so it lies below those that the kernel gives; and no other process that runs tests may choose it, so a file
# is locked for it as long as this process lives.
LOWEST = 10_000
LOCKS = Path(tempfile.gettempdir(), f"lading-test-ports-{os.getuid()}")

_taken: dict[int, int] = {}


def free_ports(count: int) -> list[int]:
    """Take ``count`` different ports of 127.0.0.1 on which nothing listens; they are this process's until it ends.

    :raises OSError: there are not so many
    """
    LOCKS.mkdir(exist_ok=True)
    candidates = list(range(LOWEST, first_ephemeral()))
    random.SystemRandom().shuffle(candidates)
    found: list[int] = []
    for port in candidates:
        if len(found) == count:
            break
        if port not in _taken and take(port):
            found.append(port)
    if len(found) < count:
        raise OSError(f"of the ports from {LOWEST} to {first_ephemeral() - 1} only {len(found)} are free, not {count}")
    return found


def first_ephemeral() -> int:
    """The first port that the kernel may give to a connection that goes out."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    return first if first > 2 * LOWEST else 32768


def take(port: int) -> bool:
    """Whether nothing listens on the port, and this process has locked it now."""
    lock = os.open(LOCKS / str(port), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
    except OSError:
        os.close(lock)
        return False
    _taken[port] = lock
    return True
