"""Free TCP ports on the loopback address."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

FIRST, END = 20_000, 65_536
# From these the kernel takes the ports of connections, at any moment.
OF_CONNECTIONS = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Of each port that tests have a file is locked by the process that has it.
TAKEN = Path(tempfile.gettempdir()) / f"lading-test-ports-{os.getuid()}"
_locks: list[int] = []


def free_ports(count: int) -> list[int]:
    """Name ``count`` different ports of 127.0.0.1 on which nothing listens now.

    This process has them until it ends, so a service may be started there later and again: no connection gets them,
    nor do tests in other processes.
    """
    found: list[int] = []
    for port in _candidates():
        if len(found) == count:
            break
        if _take(port):
            found.append(port)
    assert len(found) == count, f"of the ports {FIRST} to {END - 1} too few are free"
    return found


def _candidates() -> Iterator[int]:
    low, high = map(int, OF_CONNECTIONS.read_text().split())
    ports = [port for port in range(FIRST, END) if not low <= port <= high]
    random.SystemRandom().shuffle(ports)  # hypothesis seeds the other one, in all processes alike
    return iter(ports)


def _take(port: int) -> bool:
    """Have a port, where nobody else has."""
    TAKEN.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(TAKEN / str(port), os.O_WRONLY | os.O_CREAT, 0o600)
    with contextlib.suppress(OSError), socket.socket() as probe:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        probe.bind(("127.0.0.1", port))
        _locks.append(lock)
        return True
    os.close(lock)
    return False
