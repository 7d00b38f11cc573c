"""What is left on a disk that jobs and others fill."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from lading.executors.agent.room.scratch import MIB, Scratch


class Disk:
    """A file system with so many MiB free."""

    def __init__(self) -> None:
        self.free = 100

    def usage(self, folder: Path) -> SimpleNamespace:
        return SimpleNamespace(free=self.free * MIB)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    disk = Disk()
    monkeypatch.setattr(shutil, "disk_usage", disk.usage)
    return disk


def test_what_is_promised_is_not_promised_again_used_or_not(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert scratch.look(0) == 100
    assert scratch.look(60) == 40
    disk.free = 50  # the job has used 50 of its 60
    assert scratch.look(60) == 40


def test_what_others_write_is_gone(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert scratch.look(0) == 100
    disk.free = 10
    assert scratch.look(30) == 10
    assert scratch.look(0) == 10
    assert scratch.look(30) == 0


def test_after_a_new_start_nothing_is_known_of_what_jobs_have_used(disk: Disk, tmp_path: Path) -> None:
    assert Scratch(tmp_path).look(60) == 40


def test_what_others_delete_comes_free(disk: Disk, tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert scratch.look(30) == 70
    disk.free = 500
    assert scratch.look(30) == 470
