"""A socket whose reader learns of its end."""

from __future__ import annotations

import socket
import threading
import time

from lading.hooks.ssh import paramiko_transport


def test_its_close_ends_what_another_thread_reads() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        made = paramiko_transport.connected(*server.getsockname(), 60.0)
        made.settimeout(60.0)
        found: list[object] = []

        def read() -> None:
            try:
                found.append(made.recv(1))
            except OSError as error:
                found.append(error)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        time.sleep(0.2)
        assert found == []
        made.close()
        reader.join(120)
        assert len(found) == 1
        made.close()
