"""The FIFO by which one process wakes another."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from lading.hooks.files.bell import Bell


def test_a_ring_ends_the_wait_and_counts_once(tmp_path: Path) -> None:
    with Bell(tmp_path / "bell") as bell:
        Bell(tmp_path / "bell").ring()
        Bell(tmp_path / "bell").ring()
        before = time.monotonic()
        bell.wait(600)
        assert time.monotonic() - before < 300
        bell.wait(0.2)
        assert time.monotonic() - before >= 0.2


def test_a_ring_without_a_listener_is_no_trouble(tmp_path: Path) -> None:
    bell = Bell(tmp_path / "bell")
    bell.ring()
    bell.make()
    bell.make()
    bell.ring()
    assert stat.S_IMODE(bell.path.stat().st_mode) == 0o600


def test_a_bell_that_is_rung_without_end_does_not_block(tmp_path: Path) -> None:
    with Bell(tmp_path / "bell") as bell:
        for _ in range(70_000):  # more than a pipe holds
            bell.ring()


@pytest.mark.parametrize("what", ["file", "folder", "link", "dangling"])
def test_what_lies_where_the_bell_is_to_be_is_not_written_to_and_goes(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "bell", tmp_path / "other"
    other.write_text("of somebody else")
    if what == "folder":
        path.mkdir()
        (path / "inside").touch()
    elif what == "file":
        path.write_text("no bell")
    else:
        path.symlink_to(other if what == "link" else tmp_path / "nowhere")
    Bell(path).ring()
    assert what != "file" or path.read_text() == "no bell"
    with Bell(path) as bell:
        assert stat.S_ISFIFO(path.lstat().st_mode)
        before = time.monotonic()
        bell.wait(0.2)  # a file would be ready for ever
        assert time.monotonic() - before >= 0.2
    assert other.read_text() == "of somebody else"
    assert [each.name for each in tmp_path.iterdir()] == ["other"], "whoever waits takes it away"


def test_a_bell_that_was_taken_away_is_there_again_for_the_next_wait(tmp_path: Path) -> None:
    path = tmp_path / "bell"
    with Bell(path) as bell:
        with Bell(path):
            pass
        assert not path.exists()
        bell.wait(0)
        Bell(path).ring()
        before = time.monotonic()
        bell.wait(600)
        assert time.monotonic() - before < 300
        path.unlink()
        path.touch()
    assert path.exists(), "it is of somebody else"
