"""What machines really have, in the store: any controller of the site knows it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.launched import Launched
from lading.executors.store import capacity as capacities
from lading.hooks.site import LocationState, Observation, Seen
from lading.scheduling.catalogue import bundled
from lading.scheduling.location import Location
from lading.scheduling.matching.market import MachineMarket
from lading.scheduling.resources import Resources

MARKET = MachineMarket(bundled().select(["m5.large", "m6g.large"]), images={"x86_64": "ami-1", "aarch64": "ami-2"})
REAL = Resources(2.0, 7400, 8000, 0.0)


@pytest.fixture
def session() -> Session:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    return Session(engine)


def seen(name: str, state: LocationState = LocationState.UP, size: Resources = REAL) -> Seen:
    return Seen(Location(name, size, instance_type="m5.large", arch="x86_64"), state)


def capacity(market: MachineMarket, kind: str = "m5.large") -> Resources:
    return market.catalogue.types[kind].capacity


def test_what_was_seen_at_a_boot_counts_for_each_controller_from_then_on(session: Session) -> None:
    here = Launched("cloud")
    assert here.measured(session, Observation([seen("a", LocationState.BOOTING)], market=MARKET)) == {}
    known = here.measured(session, Observation([seen("a")], market=MARKET))
    assert known == {("m5.large", "ami-1"): REAL}
    session.commit()
    elsewhere = Launched("cloud").measured(session, Observation([], market=MARKET))
    assert elsewhere == known
    assert Launched("other").measured(session, Observation([], market=MARKET)) == {}
    sized = MARKET.sized(elsewhere)
    assert capacity(sized) == REAL
    assert capacity(sized, "m6g.large") == capacity(MARKET, "m6g.large")
    assert replace(MARKET, images={"x86_64": "ami-3"}).sized(elsewhere).catalogue == MARKET.catalogue, "another image"


def test_the_machine_that_booted_last_counts_and_those_that_are_up_change_nothing(session: Session) -> None:
    here, smaller = Launched("cloud"), replace(REAL, memory=7300)
    here.measured(session, Observation([seen("a")], market=MARKET))
    for _ in range(2):  # two that differ do not change it in turns
        assert here.measured(session, Observation([seen("a"), seen("b", size=smaller)], market=MARKET)) == {
            ("m5.large", "ami-1"): smaller
        }


def test_a_name_that_no_column_takes_is_not_kept(session: Session) -> None:
    capacities.keep_sizes(session, "cloud", {("m5.large", "/" + "x" * 300): REAL}, 0.0)
    assert capacities.sizes(session, "cloud") == {}
