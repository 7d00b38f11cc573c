"""How long machines boot: the first guess of the site, and what was measured there since."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import launched
from lading.executors.store import instances
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.site import LocationState, ObservedLocation
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.model.location import Location
from lading.scheduling.model.resources import Resources
from tests.services.packing import catalogue

MARKET = MachineMarket(catalogue(small=(2, 4096, 0.1), large=(8, 16384, 0.4)), boot_seconds=60.0)
NOW = 5_000.0


def row(token: str, kind: str = "small", **columns: Any) -> InstanceRow:
    known = {"cpus": 2.0, "memory": 4096, "disk": 0, "gpus": 0.0, "seconds": 0.0, "ordered_at": 100.0}
    state = {"site": "cloud", "state": InstanceState.ENDED, "capacity_type": "on-demand"}
    return InstanceRow(token=token, kind=kind, **{**known, **state, **columns})


def test_the_last_boots_are_measured_from_the_order_to_the_first_answer() -> None:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        session.add_all(
            [
                row("oldest", launched_at=101.0, ready_at=900.0),
                row("old", "large", launched_at=1001.0, ordered_at=1000.0, ready_at=1080.0),
                row("new", state=InstanceState.UP, launched_at=1999.0, ordered_at=2000.0, ready_at=2040.0),
                row("never up", launched_at=2100.0, ordered_at=2100.0),
                row("found", launched_at=100.0, ordered_at=3000.0, ready_at=3001.0),
                row("elsewhere", site="other", launched_at=101.0, ready_at=4000.0),
            ]
        )
        assert instances.last_boots(session, "cloud", most=2) == [("small", 40.0), ("large", 80.0)]
        assert launched.Launched("cloud").last_boots(session)[:2] == [("small", 40.0), ("large", 80.0)]
        assert instances.last_boots(session, "none") == []


@pytest.mark.parametrize(
    ("measured", "of_site", "small", "large"),
    [
        ([], 60.0, 60.0, 60.0),
        ([("small", 10.0)] * 2, 60.0, 60.0, 60.0),
        ([("small", 10.0), ("small", 90.0), ("small", 20.0)], 20.0, 20.0, 20.0),
        ([*[("small", 10.0)] * 6, *[("large", 200.0)] * 5], 10.0, 10.0, 200.0),
    ],
    ids=["nothing", "too little", "the site", "each type"],
)
def test_the_median_counts_where_enough_have_booted(
    measured: Sequence[tuple[str, float]], of_site: float, small: float, large: float
) -> None:
    found = MARKET.booting_as(measured)
    assert (found.boot_seconds, found.boot_of("small"), found.boot_of("large")) == (of_site, small, large)


def test_what_boots_is_expected_by_our_own_clock() -> None:
    """Also by a controller that has not ordered it, and before its site says anything of it."""
    market = MARKET.booting_as([("large", 200.0)] * 5)
    rows = [row(name, "large", state=InstanceState.ORDERED, ordered_at=NOW) for name in ("ordered", "boots", "up")]
    size = Resources(8, 16384)
    seen = [
        ObservedLocation(Location("boots", size, instance_type="large"), LocationState.BOOTING, frozenset()),
        ObservedLocation(Location("up", size, instance_type="large"), LocationState.UP, frozenset()),
    ]
    found = launched.live(rows, seen, market, NOW + 5)
    assert {each.name: each.ready_at for each in found} == {"ordered": NOW + 200, "boots": NOW + 200, "up": None}
    assert {each.ready_at for each in launched.live(rows, seen, None, NOW + 5)} == {None}
