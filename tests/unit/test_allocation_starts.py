"""What becomes of a site some of whose allocations never run a job."""

from __future__ import annotations

import pytest

from lading.hooks import cluster_pressure
from lading.hooks.allocation_starts import AllocationStarts


def test_only_what_goes_on_failing_is_the_site_s_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(cluster_pressure.time, "monotonic", lambda: now)
    starts = AllocationStarts()
    assert starts.trouble({"a"}) is None
    starts.failed("a", "no python")
    assert (starts.held("a"), starts.held("b")) == ("no python", None)
    assert starts.trouble({"a"}) is None, "once"
    starts.failed("a", "still no python")
    assert starts.trouble({"a"}) == "still no python"
    assert starts.trouble({"a", "b"}) is None, "another queue may work"
    assert starts.trouble(()) is None, "nothing waits, so nothing would ever try it again"
    now += cluster_pressure.LONGEST_PAUSE
    assert starts.held("a") is None
    assert starts.trouble({"a"}) is None, "it is tried again now"
    starts.failed("a", "no")
    starts.worked("a")
    starts.failed("a", "once more")
    assert starts.trouble({"a"}) is None
