"""The clock that renews a controller's lease."""

from __future__ import annotations

import itertools
import logging
import threading

import pytest

from lading.executors.controller.life.lease_clock import LeaseClock


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
    assert over.wait(10)
    clock.stop()
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".lease_clock")]
    assert len(said) == 2
    assert "attempt 1 (said once" in said[0]
    assert said[1].endswith("no more")
