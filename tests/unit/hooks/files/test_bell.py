"""The FIFO by which one process wakes another."""

from __future__ import annotations

import stat
import time
from pathlib import Path

import pytest

from lading.hooks.files.bell import Bell


def test_a_ring_ends_the_wait_and_is_heard_once(tmp_path: Path) -> None:
    with Bell(tmp_path / "bell") as bell:
        Bell(tmp_path / "bell").ring()
        Bell(tmp_path / "bell").ring()
        before = time.monotonic()
        bell.wait(60)
        assert time.monotonic() - before < 30
        bell.wait(0.2)
        assert time.monotonic() - before >= 0.2


def test_a_ring_that_nobody_waits_for_is_no_trouble(tmp_path: Path) -> None:
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


def test_a_bell_of_somebody_else_is_told(tmp_path: Path) -> None:
    (tmp_path / "bell").mkdir()
    with pytest.raises(IsADirectoryError):
        Bell(tmp_path / "bell").ring()
