"""Clocks that are not ours: how far they may be off in tests."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

# Seconds by which another clock is ahead of ours.
OFFSETS = (-3600.0, -300.0, -5.0, 5.0, 300.0, 3600.0)
off = pytest.mark.parametrize("ahead", OFFSETS)


def set_clock(monkeypatch: pytest.MonkeyPatch, seconds: float) -> Callable[[], float]:
    """Have the clock of this process, and no other, be before the true time; returns the true time."""
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + seconds)
    return true
