"""Which process a job belongs to, by the content of its folder."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from unittest import mock

import pytest

from lading.executors.agent import job_folder
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder
from lading.scheduling.model.resources import Resources

ODD = ("claimed.x.y.json", "claimed.1.2.3.json", "claimed.-1.5.json", "claimed..json", f"claimed.{'9' * 99}.1.json")


@pytest.mark.parametrize("name", ODD)
def test_what_a_task_has_left_is_no_claim(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    folder = JobFolder(tmp_path)
    assert job_folder.owner(folder) is None
    assert not folder.workload.exists()
    folder.claim(2**22 + 1, 1).write_text("{}")  # of a process that there cannot be
    assert job_folder.owner(folder) is None
    assert folder.workload.read_text() == "{}", "it waits again"


def test_a_claim_of_a_process_that_lives_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_folder, "CLAIM_PATIENCE", 0.05)
    folder = JobFolder(tmp_path)
    folder.claim(os.getpid(), host.started(os.getpid())).touch()
    with pytest.raises(TimeoutError, match="has claimed the job"):
        job_folder.owner(folder)


def test_a_job_that_begins_on_a_full_disk_is_not_taken_for_one_that_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, pid = JobFolder(tmp_path), os.getpid()
    job_folder.Supervisor(pid, host.started(pid), host.boot_id(), 1.0, 1.0, Resources(), None, None).write(folder)
    job_folder.mark_unanswered(folder)
    monkeypatch.setattr(job_folder, "write_atomically", mock.Mock(side_effect=OSError(errno.ENOSPC, "full")))
    with pytest.raises(OSError, match="full"):
        job_folder.begin_anew(folder)
    assert not job_folder.is_unanswered(folder)
