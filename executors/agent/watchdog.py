"""Ends a task's processes when its batch job is killed, so that none runs on a node that counts as free.

Some batch systems kill without a warning, and some kill only the processes that they know of. A small process watches
the batch job, and when that dies it ends what it has left: first asking, then not.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable

from lading.executors.agent import process_tree
from lading.executors.agent.job_folder import TERMINATED, EndCause, Supervisor, task_has_ended
from lading.hooks.files import host
from lading.hooks.files.safe_files import visible
from lading.hooks.spool.spool import JobFolder, Spool
from lading.hooks.spool.tokens import TOKEN

DONE, TAKEN = b".", b"+"
# A job's process takes milliseconds until it has written who it is; this long is waited for it, seconds.
CLAIM_PATIENCE = 5.0
# A supervisor whose task was killed has this long to upload the log, seconds.
UPLOAD_GRACE = 10.0


def make(folder: JobFolder, token: str, grace: float, deaf_to: tuple[signal.Signals, ...]) -> int:
    """Start the watcher of this process; the descriptor keeps it waiting, and no child may have it.

    To be called before anything large is imported: the watcher is a copy of this process. It has nothing to do before
    :func:`take_up`.

    :param grace: seconds between asking the task to end and killing it
    :param deaf_to: what the watcher does not listen to
    """

    def fulfil_taken(state: bytes) -> None:
        if state == TAKEN:
            end_task(folder, token, grace)

    return _watch(fulfil_taken, deaf_to)


def make_for_all(spool: Spool, grace: float, deaf_to: tuple[signal.Signals, ...]) -> int:
    """The same for a process that runs all jobs of a spool."""

    def fulfil_all(state: bytes) -> None:
        threads = [
            threading.Thread(target=end_task, args=(spool.job(path.name), path.name, grace))
            for path in visible(spool.jobs)
            if TOKEN.fullmatch(path.name)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return _watch(fulfil_all, deaf_to)


def take_up(descriptor: int) -> None:
    """The batch job has taken its task: what runs it from now on dies with it.

    Before, it is another batch job of the same task that may run it, maybe on this very machine.
    """
    with contextlib.suppress(BrokenPipeError):  # the watcher was killed
        os.write(descriptor, TAKEN)


def revoke(descriptor: int) -> None:
    """The batch job has done its work: its watcher ends."""
    with contextlib.suppress(BrokenPipeError):  # the watcher was killed
        os.write(descriptor, DONE)
    os.close(descriptor)


def end_task(folder: JobFolder, token: str, grace: float) -> None:
    """End the task of a batch job that is no more."""
    deadline = time.monotonic() + CLAIM_PATIENCE
    while (owner := Supervisor.read(folder)) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
    if owner.boot_id != host.boot_id():  # its pid is another process here
        return
    if EndCause.read(folder) is None and not task_has_ended(folder):
        # The supervisor then leaves it to the controller to report the failure to Airflow, with its reason.
        with contextlib.suppress(OSError):
            TERMINATED.write(folder)
    if owner.alive:
        process_tree.send(process_tree.tree(owner.pid)[:1], signal.SIGTERM)
        _wait(owner, grace)
    if owner.alive:
        process_tree.kill_descendants(owner.pid)
        _wait(owner, UPLOAD_GRACE)
    process_tree.kill_leftovers(owner.pid, owner.started, token)
    if owner.container is not None:
        from lading.executors.agent import container  # not at the top: the watcher is a copy of a small process

        container.remove(owner.container, token)


def _watch(will: Callable[[bytes], None], deaf_to: tuple[signal.Signals, ...]) -> int:
    """Start a process that does something if this one ends before it says that all is done.

    :param will: what it does, by the last byte that it has got
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    if between := os.fork():
        os.close(read_end)
        os.waitpid(between, 0)
        return write_end
    try:
        if os.fork():  # the watcher must not be our child: children that a task leaves behind are ended with it
            os._exit(0)
        os.setsid()
        for number in deaf_to:
            signal.signal(number, signal.SIG_IGN)
        os.close(write_end)
        state = b""
        while byte := os.read(read_end, 1):
            state = byte
        if state != DONE:
            will(state)
    finally:
        os._exit(0)


def _wait(owner: Supervisor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while owner.alive and time.monotonic() < deadline:
        time.sleep(0.05)
