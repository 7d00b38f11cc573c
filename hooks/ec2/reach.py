"""Which of many machines answer on a port: asked of all at once, so that no one that boots is waited for."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Mapping

# A machine that does not answer within this is asked again in the next round, seconds.
PATIENCE = 0.5


def answering(places: Mapping[str, tuple[str, int]], patience: float = PATIENCE) -> set[str]:
    """Those that accept a connection, by their names.

    :param places: address and port, by name
    :param patience: seconds that all together may take
    """
    found, pending, poll = set(), {}, select.poll()
    for name, place in places.items():
        made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        error = made.connect_ex(place)
        if error in (0, errno.EINPROGRESS):
            pending[made.fileno()] = name, made
            poll.register(made, select.POLLOUT)
        else:
            made.close()
    end = time.monotonic() + patience
    while pending and (left := end - time.monotonic()) > 0:
        for descriptor, _ in poll.poll(left * 1000):
            name, made = pending.pop(descriptor)
            poll.unregister(descriptor)
            if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                found.add(name)
            made.close()
    for _, made in pending.values():
        made.close()
    return found
