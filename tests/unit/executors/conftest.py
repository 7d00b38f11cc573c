"""What the tests of the engine have in common."""

from __future__ import annotations

import pytest

from lading.executors.controller import housekeeping


@pytest.fixture(autouse=True)
def _are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most jobs of these tests are in no table of Airflow's: they stay wanted, however slow the machine is."""
    monkeypatch.setattr(housekeeping, "SECONDS_UNTIL_UNWANTED", 3600.0)
