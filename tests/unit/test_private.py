"""What Lading keeps on disk is nobody else's business."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.executors.schedulers import Presence
from lading.hooks.private import make_private, opener
from lading.plugin.service import PrivateFileHandler


@pytest.fixture(autouse=True)
def open_to_everybody() -> Iterator[None]:
    """The umask of an administrator who shares everything."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_folder_and_those_above_it_that_were_missing(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    make_private(tmp_path / "state" / "spool")
    assert (mode(tmp_path), mode(tmp_path / "state"), mode(tmp_path / "state" / "spool")) == (0o755, 0o700, 0o700)


def test_a_folder_that_is_there_is_closed(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir(mode=0o777)
    make_private(tmp_path / "state")
    assert mode(tmp_path / "state") == 0o700


def test_the_schedulers_folder(tmp_path: Path) -> None:
    presence = Presence(tmp_path / "state" / "schedulers", 7)
    presence.end()
    assert (mode(tmp_path / "state"), mode(tmp_path / "state" / "schedulers")) == (0o700, 0o700)
    assert mode(presence.path) == 0o600


def test_a_file(tmp_path: Path) -> None:
    with open(tmp_path / "log", "ab", opener=opener) as log:
        log.write(b"words")
    assert mode(tmp_path / "log") == 0o600


def test_the_controllers_log_and_those_before_it(tmp_path: Path) -> None:
    handler = PrivateFileHandler(tmp_path / "controller.log", maxBytes=10, backupCount=1)
    for _ in range(3):
        handler.emit(logging.makeLogRecord({"msg": "more than ten bytes"}))
    handler.close()
    assert [mode(path) for path in tmp_path.glob("controller.log*")] == [0o600, 0o600]
