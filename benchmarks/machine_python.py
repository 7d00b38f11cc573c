"""Python on the machines of a benchmark, which is started once for all of them.

Each machine would start its own on processors of its own; started a hundred times on those of the controller it would
be most of what is measured. What begins here is a fork for each machine that serves its spool, and nothing else.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lading.hooks.spool import server

ROOT = Path(__file__).parents[1]
# In the place of the program that serves the spool ``$3``: its folder is sent first, then all input of the program.
COMMAND = 'exec 3<>/dev/tcp/127.0.0.1/{port}; echo "${{3%/spool}}" >&3; cat <&3 & exec cat >&3'


@contextmanager
def command() -> Iterator[str]:
    """Start it; the text for bash that serves the spool in ``$3``, as :mod:`lading.executors.host` does at last."""
    started = [sys.executable, "-m", "benchmarks.machine_python"]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield COMMAND.format(port=int(process.stdout.readline()))
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with what serves machines whose connections are not closed


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # no code waits for those that have ended
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            made, _ = listener.accept()
            if os.fork() == 0:
                try:
                    serve(made)
                finally:
                    os._exit(0)
            made.close()


def serve(made: socket.socket) -> None:
    said = b""
    while not said.endswith(b"\n"):
        if not (part := made.recv(1)):
            return
        said += part
    for descriptor in (0, 1):
        os.dup2(made.fileno(), descriptor)
    made.close()
    server.serve(said.decode().strip())


if __name__ == "__main__":
    main()
