"""Which process a job belongs to, by the content of its folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lading.executors.agent import job_folder
from lading.hooks.files import host
from lading.hooks.spool.spool import JobFolder

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
