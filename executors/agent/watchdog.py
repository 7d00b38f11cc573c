"""Terminate a task's processes when its batch job is killed, so that none keep running on a node that counts as free.

Some batch systems kill without warning, and some kill only the processes that they know. A small process watches the
batch job. When the batch job dies, the watcher terminates the remaining processes with SIGTERM, then SIGKILL.

The watcher is made before the batch job imports anything large, because it is a copy of that process; what it needs to
terminate processes, it imports itself. The batch job tells it through a pipe which task it has taken, and that it is
done. If the pipe closes without that message, the batch job has died.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from lading.executors.agent.job_folder import Supervisor
    from lading.hooks.spool.spool import JobFolder, Spool

# Signals that batch systems send before they kill a job: Grid Engine and LSF send SIGUSR2, Grid Engine also SIGXCPU.
# The watcher ignores them.
ANNOUNCEMENTS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2, signal.SIGXCPU)
# The last byte that the watcher receives from a batch job that is done; no path contains it.
DONE = b"\0"


def make(grace: float) -> int:
    """Start the watcher of this process. It does nothing before :func:`take_up`.

    :param grace: seconds between SIGTERM and SIGKILL
    :returns: a descriptor that keeps the watcher waiting while it is open; no child must inherit it
    """

    def terminate_taken(message: bytes) -> None:
        if message:
            from pathlib import Path

            from lading.hooks.spool.spool import JobFolder

            token, _, path = os.fsdecode(message).partition(" ")
            end_task(JobFolder(Path(path)), token, grace)

    return _watch(terminate_taken)


def make_for_all(spool: Spool, grace: float) -> int:
    """Start a watcher like :func:`make`, for a process that runs all jobs of a spool."""

    def terminate_all(message: bytes) -> None:
        import threading

        from lading.hooks.files.safe_files import visible
        from lading.hooks.spool.tokens import TOKEN

        threads = [
            threading.Thread(target=end_task, args=(spool.job(path.name), path.name, grace))
            for path in visible(spool.jobs)
            if TOKEN.fullmatch(path.name)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return _watch(terminate_all)


def take_up(descriptor: int, folder: JobFolder, token: str) -> None:
    """Tell the watcher that the batch job has taken its task, whose processes must die with it from now on.

    Before that, another batch job of the same task may be running it, possibly on this machine.
    """
    with contextlib.suppress(BrokenPipeError):  # the watcher was killed
        os.write(descriptor, os.fsencode(f"{token} {folder.root}"))


def revoke(descriptor: int) -> None:
    """Tell the watcher that the batch job is done, so that the watcher exits."""
    with contextlib.suppress(BrokenPipeError):  # the watcher was killed
        os.write(descriptor, DONE)
    os.close(descriptor)


def end_task(folder: JobFolder, token: str, grace: float) -> None:
    """Terminate the task of a batch job that has died."""
    from lading.executors.agent import process_tree
    from lading.executors.agent.job_folder import TERMINATED, EndCause, Supervisor, task_has_ended
    from lading.hooks.files import host

    # A job's process usually writes its identity within milliseconds.
    deadline = time.monotonic() + 5.0
    while (owner := Supervisor.read(folder)) is None:
        if time.monotonic() > deadline:
            return
        time.sleep(0.1)
    if owner.boot_id != host.boot_id():  # on this machine, the pid is another process
        return
    if EndCause.read(folder) is None and not task_has_ended(folder):
        # With this, the supervisor leaves it to the controller to report the failure and its reason to Airflow.
        with contextlib.suppress(OSError):
            TERMINATED.write(folder)
    if owner.alive:
        process_tree.send(process_tree.tree(owner.pid)[:1], signal.SIGTERM)
        _wait(owner, grace)
    if owner.alive:
        process_tree.kill_descendants(owner.pid)
        # A supervisor whose task was killed has ten seconds to upload the log.
        _wait(owner, 10.0)
    process_tree.kill_leftovers(owner.pid, owner.started, token)
    if owner.container is not None:
        from lading.executors.agent import container

        container.remove(owner.container, token)


def _watch(terminate: Callable[[bytes], None]) -> int:
    """Start a process that acts if this one dies before it reports that it is done.

    :param terminate: called with the bytes that the process has sent to the watcher
    """
    read_end, write_end = os.pipe2(os.O_CLOEXEC)
    if between := os.fork():
        os.close(read_end)
        os.waitpid(between, 0)
        return write_end
    try:
        if os.fork():  # the watcher must not be our child, as children left behind by a task are terminated
            os._exit(0)
        os.setsid()
        for number in ANNOUNCEMENTS:
            signal.signal(number, signal.SIG_IGN)
        os.close(write_end)
        message = b""
        while part := os.read(read_end, 65536):
            message += part
        if not message.endswith(DONE):
            terminate(message)
    finally:
        os._exit(0)


def _wait(owner: Supervisor, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while owner.alive and time.monotonic() < deadline:
        time.sleep(0.05)
