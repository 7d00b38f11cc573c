"""The lease between controllers of several machines, whose clocks differ."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.life import leadership
from lading.executors.controller.life.leadership import LEASE_SECONDS, Leadership
from lading.executors.controller.life.process import lives
from lading.executors.store.leases import DatabaseNow
from tests.services.outside_clocks import off, set_clock


@pytest.fixture
def engine(airflow_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    @contextlib.contextmanager
    def create_session(**_: object) -> Iterator[Session]:
        with Session(airflow_database) as session:
            yield session
            session.commit()

    monkeypatch.setattr(leadership, "create_session", create_session)
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "elsewhere")
    return airflow_database


def standing_by() -> Leadership:
    return Leadership((), True, lambda: None)


@off
def test_a_lease_that_is_renewed_is_nobody_elses(engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    acting = standing_by()
    assert acting.lead()
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "here")
    set_clock(monkeypatch, ahead)
    assert not standing_by().lead()
    with Session(engine) as session:
        lease = store.lease(session)
        assert lease is not None
        assert lives(lease)
        assert 0 < lease.left <= LEASE_SECONDS


@off
def test_a_lease_that_has_run_out_is_taken_at_once(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    with monkeypatch.context() as elsewhere:
        set_clock(elsewhere, ahead)
        assert standing_by().lead()
    with Session(engine) as session:  # it is dead, and its seconds are over
        session.execute(update(store.Lease).values(expires_at=store.Lease.expires_at - LEASE_SECONDS - 1))
        session.commit()
        lease = store.lease(session)
        assert lease is not None
        assert not lives(lease)
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "here")
    assert standing_by().lead()


def test_the_databases_clock_is_in_seconds_since_the_epoch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    true = set_clock(monkeypatch, 5000.0)
    with Session(engine) as session:
        assert abs((session.scalar(select(DatabaseNow())) or 0.0) - true()) < 600
