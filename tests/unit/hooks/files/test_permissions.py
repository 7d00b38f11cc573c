"""What Lading keeps on disk is nobody else's business."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from lading.executors.store.scheduler_liveness import Presence
from lading.hooks.files.permissions import make_private, opener
from lading.plugin.service import PrivateFileHandler
from tests.services import forked


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


def test_a_folder_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "state").mkdir(mode=0o755)
    before = mode(tmp_path / "state")
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    with pytest.raises(PermissionError, match=r"state belongs to user \w+.*as user 54321"):
        make_private(tmp_path / "state")
    assert mode(tmp_path / "state") == before


def test_what_a_controller_prints_goes_on_in_its_new_log(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"

    def controller() -> None:
        with path.open("ab") as output:
            for descriptor in (1, 2):
                os.dup2(output.fileno(), descriptor)
        handler = PrivateFileHandler(path, maxBytes=100, backupCount=1)
        for number in range(3):
            os.write(2, b"printed %d\n" % number)
            handler.emit(logging.makeLogRecord({"msg": "x" * 90}))
        os.write(1, b"last words")

    forked.run(controller)
    assert path.read_text().endswith("last words")
    assert path.stat().st_size < 200
