"""What machines that were bought have cost, as the store keeps it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.launched import Launched
from lading.executors.store import Change, State
from lading.executors.store.tables import InstanceRow, JobRow
from lading.hooks.site import LocationState, ObservedLocation, Order
from lading.scheduling.model.location import Location
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.provisioning import Launch, Provision

BEGUN = 1_000_000.0
CAPACITY = Resources(4, 16_000, 100_000)
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        yield found


@pytest.fixture
def launched(session: Session) -> Launched:
    """An instance of 3.60 USD per hour that is there since ``BEGUN``."""
    found = Launched("cloud")
    launch = Launch("m5.xlarge", CAPACITY, math.inf, (), "us-east-1b", "spot", 3.6)
    found.record(session, [Order("L1", launch)], Provision(), BEGUN - 10)
    found.refresh(session, [seen()], is_new=True)
    return found


def seen(usd: float = 3.6, state: LocationState = LocationState.UP, priced_at: float | None = None) -> ObservedLocation:
    kind = {"instance_type": "m5.xlarge", "capacity_type": "spot", "usd_per_hour": usd, "priced_at": priced_at}
    location = Location("L1", CAPACITY, launched_at=BEGUN, **kind)  # type: ignore[arg-type]
    return ObservedLocation(location, state, native_id="i-1")


def ran(session: Session, token: str, cpus: float, since: float, until: float | None, memory: int = 1000) -> None:
    state = State.RUNNING if until is None else State.SUCCEEDED
    times = {"queued_at": BEGUN, "started_at": since, "ended_at": until, "state": state}
    store.add_job(session, token=token, site="cloud", location="L1", cpus=cpus, memory=memory, **times, **COMMON)


def end(session: Session, launched: Launched, at: float) -> InstanceRow:
    launched.ended(session, [{"event": "released", "token": "L1", "at": at, "reason": because("empty")}])
    session.expire_all()
    return session.scalars(select(InstanceRow)).one()


def usd(session: Session, token: str) -> float | None:
    session.expire_all()
    return session.scalars(select(JobRow.usd).where(JobRow.token == token)).one()


def test_a_row_says_where_it_was_bought_and_at_which_price(session: Session, launched: Launched) -> None:
    row = session.scalars(select(InstanceRow)).one()
    assert (row.kind, row.zone, row.capacity_type, row.usd_per_hour) == ("m5.xlarge", "us-east-1b", "spot", 3.6)
    assert (row.launched_at, row.seconds, row.usd) == (BEGUN, 0.0, None)


def test_its_end_is_billed_and_shared(session: Session, launched: Launched) -> None:
    ran(session, "a", 2, BEGUN + 100, BEGUN + 300)
    ran(session, "b", 1, BEGUN + 100, BEGUN + 300, memory=8000)
    ran(session, "dies", 4, BEGUN + 300, None)
    row = end(session, launched, BEGUN + 400)
    assert row.usd == pytest.approx(0.4)
    assert [usd(session, token) for token in ("a", "b", "dies")] == pytest.approx([0.1, 0.1, 0.1])
    assert row.usd_idle == pytest.approx(0.1)
    # Its death is reported later, when what it cost there is no longer known.
    ended = {"state": State.FAILED, "cause": "node_failure", "ended_at": BEGUN + 460}
    store.apply(session, [Change("dies", ended)])
    assert usd(session, "dies") == pytest.approx(0.1)


def test_each_second_costs_what_it_cost_then(
    session: Session, launched: Launched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.executors.controller.launched.time.time", lambda: BEGUN + 100)
    launched.refresh(session, [seen(usd=7.2)], is_new=True)
    assert session.scalars(select(InstanceRow.usd)).one() == pytest.approx(0.1)
    assert end(session, launched, BEGUN + 200).usd == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("priced_at", "usd"),
    [(BEGUN + 50, 0.05 + 0.3), (BEGUN - 500, 0.4), (BEGUN + 9999, 0.1 + 0.2)],
    ids=["seen later", "before it was launched", "by a clock that is ahead"],
)
def test_a_price_counts_from_its_change_on(
    session: Session, launched: Launched, monkeypatch: pytest.MonkeyPatch, priced_at: float, usd: float
) -> None:
    monkeypatch.setattr("lading.executors.controller.launched.time.time", lambda: BEGUN + 100)
    launched.refresh(session, [seen(usd=7.2, priced_at=priced_at)], is_new=True)
    assert end(session, launched, BEGUN + 200).usd == pytest.approx(usd)


def test_what_was_never_seen_alive_is_billed_by_what_its_end_says(session: Session) -> None:
    found = Launched("cloud")
    launch = Launch("m5.xlarge", CAPACITY, math.inf, (), "us-east-1b", "spot", 3.6)
    found.record(session, [Order("L1", launch)], Provision(), BEGUN - 10)
    known = {"native_id": "i-1", "launched_at": BEGUN, "cause": "lost"}
    found.ended(session, [{"event": "released", "token": "L1", "at": BEGUN + 100, **known}])
    session.expire_all()
    row = session.scalars(select(InstanceRow)).one()
    assert (row.native_id, row.launched_at, row.usd) == ("i-1", BEGUN, pytest.approx(0.1))


def test_a_minute_is_the_least_and_what_was_never_there_costs_nothing(session: Session, launched: Launched) -> None:
    assert end(session, launched, BEGUN + 10).usd == pytest.approx(0.06)
    again = Launched("cloud")
    again.record(session, [Order("L2", Launch("m5.xlarge", CAPACITY, math.inf, (), None, "spot", 1.0))], Provision(), 0)
    again.ended(session, [{"event": "released", "token": "L2", "at": 100.0}])
    assert session.scalars(select(InstanceRow.usd).where(InstanceRow.token == "L2")).one() is None


def test_an_end_that_was_taken_back_is_not_billed_twice(session: Session, launched: Launched) -> None:
    end(session, launched, BEGUN + 100)
    launched.refresh(session, [seen()], is_new=True)
    assert end(session, launched, BEGUN + 300).usd == pytest.approx(0.3)


def test_allocations_are_not_bought(session: Session) -> None:
    found = Launched("hpc", lambda capacity: 0.1)
    found.record(session, [Order("L3", Launch("[]", CAPACITY, 3600.0, ()))], Provision(), BEGUN)
    row = session.scalars(select(InstanceRow)).one()
    assert (row.capacity_type, row.usd_per_hour, row.seconds) == (None, 0.4, 3600.0)
