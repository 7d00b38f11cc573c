"""What becomes of a site some of whose allocations never run a job."""

from __future__ import annotations

import pytest

from lading.hooks import cluster_pressure
from lading.hooks.allocation_folder import AllocationFolder, Terms
from lading.hooks.allocation_ledger import Allocation, Fleet
from lading.hooks.allocation_script import PLAIN
from lading.hooks.allocation_starts import AllocationStarts
from lading.hooks.cluster_folder import ClusterFolder
from lading.hooks.cluster_ledger import Ledger
from lading.scheduling.allocations import Launch
from lading.scheduling.resources import Resources

NODE = Resources(8, 16384)


class Clock:
    now = 100.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(cluster_pressure.time, "monotonic", lambda: clock.now)
    return clock


@pytest.fixture
def starts() -> AllocationStarts:
    return AllocationStarts(Fleet(Ledger(), Resources()))


def allocation(starts: AllocationStarts, kind: str, name: str = "L1") -> Allocation:
    terms = Terms(NODE, 3600.0, 1800.0, 60.0, 10.0, kind)
    made = Allocation.of(AllocationFolder(ClusterFolder("/w"), name), terms, "1")
    starts.fleet.allocations[name] = made
    return made


def launch(kind: str) -> Launch:
    return Launch(kind, NODE, 3600.0, ())


def test_only_a_kind_that_fails_pauses(starts: AllocationStarts, clock: Clock) -> None:
    starts.failed("a", "no python")
    assert starts.stopped({"a", "b"}) == {"a": "no python"}
    clock.now += cluster_pressure.FIRST_PAUSE
    assert starts.stopped({"a", "b"}) == {}


def test_one_allocation_shows_whether_others_work(starts: AllocationStarts, clock: Clock) -> None:
    launches = [launch(kind) for kind in "aabb"]
    assert starts.singly(launches) == launches
    starts.failed("a", "no python")
    clock.now += cluster_pressure.FIRST_PAUSE
    assert [each.kind for each in starts.singly(launches)] == ["a", "b", "b"]
    tried = allocation(starts, "a")
    assert starts.stopped({"a", "b"}) == {"a": "no python; waits for what becomes of allocation L1"}
    tried.worked = True
    starts.worked("a")
    assert starts.stopped({"a", "b"}) == {}
    assert starts.singly(launches) == launches


def test_an_allocation_that_has_vanished_is_looked_into_first(starts: AllocationStarts) -> None:
    allocation(starts, "a").batch.gone_since = 1.0
    assert starts.stopped({"a", "b"}) == {"a": "allocation L1 has ended before it could run a job"}


def test_what_can_go_elsewhere_is_told_of_a_site_that_never_works(starts: AllocationStarts, clock: Clock) -> None:
    for kind in (PLAIN, "directives"):
        starts.failed(kind, "no python")
        assert starts.trouble({kind}) is None, "once"
        starts.failed(kind, "still no python")
    assert starts.trouble({PLAIN, "directives"}) == "still no python"
    assert starts.trouble({"directives"}) is None, "who named the queue is told, nobody else"
    assert starts.trouble(()) is None, "nothing waits, so nothing would ever try it again"
    clock.now += cluster_pressure.LONGEST_PAUSE
    assert starts.trouble({PLAIN}) == "still no python", "until one works"
    other = allocation(starts, "directives", "L2")
    other.worked, other.ends_at = True, 1.0
    assert starts.trouble({PLAIN}) is None, "others would wait for nothing"
    del starts.fleet.allocations["L2"]
    starts.worked(PLAIN)
    assert starts.trouble({PLAIN}) is None
