"""Free TCP ports on the loopback address."""

from __future__ import annotations

import contextlib
import socket


def free_ports(count: int) -> list[int]:
    """Name ``count`` different ports of 127.0.0.1 on which nothing listens now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
