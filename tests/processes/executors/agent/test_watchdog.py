"""How a task ends whose batch job is killed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.executors.agent import watchdog
from lading.executors.agent.job_folder import EndCause, Supervisor
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.resources import Resources


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    sleeping = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield sleeping
    sleeping.kill()
    sleeping.wait()


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path)


def run_by(folder: JobFolder, pid: int, later: int = 0, boot_id: str | None = None) -> None:
    """A supervisor has this pid, and started so many ticks later than the process that has it."""
    started, boot = host.started(pid) + later, boot_id or host.boot_id()
    Supervisor(pid, started, boot, 0.0, 0.0, Resources(1.0, 100), None, None).write(folder)


def test_a_process_of_another_machine_is_not_ended(folder: JobFolder, process: subprocess.Popen[bytes]) -> None:
    run_by(folder, process.pid, boot_id="another")
    watchdog.end_task(folder, "a", 0.1)
    assert (process.poll(), EndCause.read(folder)) == (None, None)


def test_a_process_that_has_the_pid_by_now_is_not_ended(folder: JobFolder, process: subprocess.Popen[bytes]) -> None:
    run_by(folder, process.pid, later=1)
    watchdog.end_task(folder, "a", 0.1)
    assert process.poll() is None


@pytest.mark.parametrize("taken", [False, True])
def test_a_batch_job_ends_only_what_it_has_taken(
    folder: JobFolder, process: subprocess.Popen[bytes], taken: bool
) -> None:
    """The second batch job of a task is killed before it sees that there is nothing to do for it."""
    run_by(folder, process.pid)
    read_end, write_end = os.pipe()
    descriptor = watchdog.make(5.0)
    os.close(write_end)
    if taken:
        watchdog.take_up(descriptor, folder, "a")
    os.close(descriptor)  # it is killed
    assert os.read(read_end, 1) == b"", "its watcher has ended"
    os.close(read_end)
    assert (process.poll() is not None) == taken
