"""What becomes of a task whose batch job is killed: it must not go on where the batch system thinks that nobody is.

Some batch systems kill without a warning, and some kill only the processes that they know of. A small process watches
the batch job, and when that dies it ends what it has left: first asking, then not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

from lading.executors import process_tree
from lading.executors.job_folder import Supervisor
from lading.hooks.spool import JobFolder

DONE = b"."
# A job's process takes milliseconds until it has written who it is; this long is waited for it, seconds.
CLAIM_PATIENCE = 5.0
# A supervisor whose task was killed has this long to upload the log, seconds.
UPLOAD_GRACE = 10.0


def make(folder: JobFolder, token: str, grace: float, deaf_to: tuple[signal.Signals, ...]) -> int:
    """Start the watcher of this process; the descriptor keeps it waiting, and no child may have it.

    To be called before anything large is imported: the watcher is a copy of this process.

    :param grace: seconds between asking the task to end and killing it
    :param deaf_to: what the watcher does not listen to
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    if os.fork():
        os.close(read_end)
        return write_end
    try:
        os.setsid()
        for number in deaf_to:
            signal.signal(number, signal.SIG_IGN)
        os.close(write_end)
        if os.read(read_end, 1) != DONE:
            fulfil(folder, token, grace)
    finally:
        os._exit(0)


def revoke(descriptor: int) -> None:
    """The batch job has done its work: its watcher ends."""
    os.write(descriptor, DONE)
    os.close(descriptor)
    with contextlib.suppress(ChildProcessError):
        while os.wait():
            pass


def fulfil(folder: JobFolder, token: str, grace: float) -> None:
    """End the task of a batch job that is no more."""
    deadline = time.monotonic() + CLAIM_PATIENCE
    while (owner := Supervisor.read(folder)) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
    process_tree.send(process_tree.tree(owner.pid)[:1], signal.SIGTERM)
    _wait(owner, grace)
    process_tree.kill_descendants(owner.pid)
    _wait(owner, UPLOAD_GRACE)
    process_tree.kill_leftovers(owner.pid, owner.started, token)


def _wait(owner: Supervisor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while owner.alive and time.monotonic() < deadline:
        time.sleep(0.05)
