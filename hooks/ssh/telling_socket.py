"""A TCP connection that tells the thread which reads it of its end, so that this thread need not look for it."""

from __future__ import annotations

import contextlib
import socket

# Seconds that sent bytes may stay without an acknowledgement before the kernel gives the connection up.
UNACKNOWLEDGED = 60


class TellingSocket(socket.socket):
    """A socket whose ``close`` ends what another thread reads from it, which would else go on to its time-out."""

    def close(self) -> None:
        with contextlib.suppress(OSError):  # it is no longer connected, so nobody waits for it
            self.shutdown(socket.SHUT_RDWR)
        super().close()


def connected(host: str, port: int, timeout: float) -> TellingSocket:
    """A connection for paramiko. Its own would wait for 44 ms at each command, for Nagle's algorithm and a delayed
    acknowledgement wait for each other.

    :param timeout: seconds until it stands
    :raises OSError: it cannot be made
    """
    made = TellingSocket(fileno=socket.create_connection((host, port), timeout).detach())
    made.settimeout(timeout)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED * 1000)
    return made
