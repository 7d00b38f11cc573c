"""What the tests of a controller on a simulated clock share."""

from __future__ import annotations

import pytest

from tests.clusters import workflow_runs


@pytest.fixture(autouse=True)
def few_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tick every 3 s: more ticks while nothing happens prove nothing, and each takes a real controller's time."""
    monkeypatch.setattr(workflow_runs, "TICK", 3.0)
