"""The clock that renews a controller's lease."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

from lading.executors.controller import leadership
from lading.executors.controller.leadership import LeaseClock


def test_a_renewal_that_fails_again_and_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    number, over = itertools.count(1), threading.Event()

    def renew() -> None:
        count = next(number)
        if count <= 5:
            raise OSError(f"the database is away, attempt {count}")
        if count == 7:
            over.set()

    clock = LeaseClock(0.01, renew)
    clock.start()
    assert over.wait(120)
    clock.stop()
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".leadership")]
    assert len(said) == 2
    assert "attempt 1 (said once" in said[0]
    assert said[1].endswith("no more")


def test_a_loop_that_hangs_is_noted_until_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "SECONDS_UNTIL_HUNG", -1.0)
    noted, twice, over, renewed = list[bool](), threading.Event(), threading.Event(), threading.Event()
    clock = LeaseClock(0.01, renewed.set)

    def note_hang(hangs: bool) -> None:
        noted.append(hangs)
        if noted.count(True) == 2:
            twice.set()
        if not hangs:
            over.set()
        raise OSError("the database is away")

    clock.note_hang = note_hang
    clock.start()
    assert twice.wait(120)
    assert not renewed.is_set()
    monkeypatch.setattr(leadership, "SECONDS_UNTIL_HUNG", 3600.0)
    assert over.wait(120)
    assert renewed.wait(120)
    clock.stop()
    assert noted.count(False) == 1
