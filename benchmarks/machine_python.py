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
# In the place of ``python OPTIONS -c PROGRAM FOLDER``: the folder is said first, then all that is said to the program.
COMMAND = """exec /bin/bash -c 'exec 3<>/dev/tcp/127.0.0.1/{port}; echo "$5" >&3; cat <&3 & exec cat >&3' bash "$@" """


@contextmanager
def command() -> Iterator[str]:
    """Start it; the shell text that takes the place of a start of Python with the words in ``$@``."""
    started = [sys.executable, "-m", "benchmarks.machine_python"]
    with subprocess.Popen(started, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            yield COMMAND.format(port=int(process.stdout.readline())).strip()
        finally:
            os.killpg(process.pid, signal.SIGKILL)  # with what serves machines whose connections are not closed


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that have ended
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
    """Be the program that a controller sends, without reading it."""
    said = b""
    while not said.endswith(b"\n"):
        if not (part := made.recv(1)):
            return
        said += part
    left = Path(server.__file__).stat().st_size
    while left:
        if not (part := made.recv(left)):
            return
        left -= len(part)
    for descriptor in (0, 1):
        os.dup2(made.fileno(), descriptor)
    made.close()
    server.serve(said.decode().strip())


if __name__ == "__main__":
    main()
