"""Controllers and schedulers of several machines, whose clocks differ: the lease, and when jobs were queued."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import request_rows, store
from lading.executors.controller import dispatch, housekeeping, leadership
from lading.executors.controller.controller import Controller
from lading.executors.controller.leadership import Leadership
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.controller_process import lives
from lading.executors.request_rows import RequestKind
from lading.executors.requests import Requests
from lading.executors.store import JobRow, State, queue
from lading.executors.store.gangs import rows
from lading.executors.store.gangs.tables import GangRow
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.leases import DatabaseNow
from lading.scheduling.matching.waiting import WaitingJob
from tests.clusters.sites import FakeSite, StoreHost, make_settings, rest
from tests.services.outside_clocks import off, set_clock


@pytest.fixture
def engine(airflow_database: Engine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "elsewhere")
    return airflow_database


@pytest.fixture
def mark(tmp_path: Path) -> PluginMark:
    return PluginMark(tmp_path / "mark")


def standing_by(engine: Engine, mark: PluginMark) -> Leadership:
    return Leadership(StoreHost(engine), (), True, lambda: None, mark)


@off
def test_a_lease_that_is_renewed_cannot_be_taken(
    engine: Engine, mark: PluginMark, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    acting = standing_by(engine, mark)
    assert acting.lead()
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "here")
    set_clock(monkeypatch, ahead)
    assert not standing_by(engine, mark).lead()
    with Session(engine) as session:
        lease = store.lease(session)
        assert lease is not None
        assert lives(lease)
        assert 0 < lease.left <= Leadership.lease_seconds


@off
def test_a_lease_that_has_run_out_is_taken_at_once(
    engine: Engine, mark: PluginMark, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    with monkeypatch.context() as elsewhere:
        set_clock(elsewhere, ahead)
        assert standing_by(engine, mark).lead()
    with Session(engine) as session:  # it is dead, and its seconds are over
        session.execute(update(store.Lease).values(expires_at=store.Lease.expires_at - Leadership.lease_seconds - 1))
        session.commit()
        lease = store.lease(session)
        assert lease is not None
        assert not lives(lease)
    monkeypatch.setattr(leadership.socket, "gethostname", lambda: "here")
    assert standing_by(engine, mark).lead()


def test_the_databases_clock_is_in_seconds_since_the_epoch(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    true = set_clock(monkeypatch, 5000.0)
    with Session(engine) as session:
        assert abs((session.scalar(select(DatabaseNow())) or 0.0) - true()) < 600


def add(session: Session, token: str, **columns: Any) -> None:
    defaults: dict[str, Any] = {
        "kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "cpus": 1.0, "memory": 1, "disk": 0,
        "gpus": 0.0, "priority": 0,
    }  # fmt: skip
    store.add_job(session, token=token, **{**defaults, **columns})


@off
def test_a_job_is_queued_by_the_databases_clock(engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """A scheduler's is off."""
    true = set_clock(monkeypatch, ahead)
    since = true()
    with Session(engine) as session:
        add(session, "t")
        session.commit()
        assert since - 1 <= session.scalars(select(JobRow.queued_at)).one() <= true() + 1


@off
def test_a_controller_dates_jobs_by_its_own_clock(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """Its clock is off, the database's is not: what is decided and what agents get is by its own."""
    set_clock(monkeypatch, ahead)
    settings = make_settings(tmp_path / "state")
    settings.state_folder.mkdir()
    site = FakeSite("a", tmp_path / "a")
    controller = Controller(
        StoreHost(engine), {"a": site}, lambda subject, seconds: "jwt", settings, True, lambda changes: None
    )
    seen: list[Sequence[WaitingJob]] = []
    assign = controller.placing.assign

    def assigned(session: Session, jobs: Sequence[WaitingJob], *rest: Any, **options: Any) -> Any:
        seen.append(jobs)
        return assign(session, jobs, *rest, **options)

    monkeypatch.setattr(controller.placing, "assign", assigned)
    since = time.time()
    with Session(engine) as session:
        add(session, "t")
        session.commit()
    controller.tick()
    until = time.time()
    controller.leadership.leads_until = 0.0
    rest(controller.threads)
    controller.threads.end()
    [[job]] = seen
    # Clocks that differ by less than two seconds are taken to agree, and asking may take its time.
    assert since - 2 <= job.queued_at <= until + 2
    with Session(engine) as session:
        add(session, "sent", state=State.PLACED, site="a", location="here", placed_at=until)
        session.commit()
        there = controller.leadership.database_ahead
        [given] = [each for each in queue.given(session, "a", database_ahead=there) if each.token == "sent"]
        [row] = queue.to_send(session, ["sent"])
        assert since - 2 <= given.job.queued_at <= time.time() + 2
        assert dispatch.envelope(row, "jwt", 0.0, there).queued_at == given.job.queued_at


@off
def test_what_airflow_does_not_want_is_ended_after_a_while_by_the_databases_clock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    true = set_clock(monkeypatch, ahead)
    with Session(engine) as session:
        add(session, "old", kind="ExecuteTask", queued_at=true() - housekeeping.SECONDS_UNTIL_UNWANTED - 1)
        add(session, "young", kind="ExecuteTask", queued_at=true() + 600)
        housekeeping.drop_unwanted(StoreHost(engine), session, ["old", "young"], time.time())
        states = {row.token: row.state for row in session.execute(select(JobRow.token, JobRow.state))}
    assert states["old"] == State.CANCELLED
    assert states["young"] == State.QUEUED


@off
def test_what_is_asked_is_abandoned_by_the_databases_clock(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    """It is asked at an API server whose clock is off, and by the controller's it is long ago, or is to come."""
    instance: dict[str, Any] = {
        "site": "a", "kind": "", "cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "seconds": 60.0,
        "state": InstanceState.UP, "ordered_at": 1.0,
    }  # fmt: skip
    with Session(engine) as session:
        session.add(InstanceRow(token="L1", **instance))
        with monkeypatch.context() as elsewhere:
            set_clock(elsewhere, ahead)
            request = request_rows.ask(session, RequestKind.DRAIN, "a/L1", "ada")
        session.commit()
        asked: list[str] = []
        controller = Requests(lambda site, names: asked.extend(names))
        controller.step(session)
        session.commit()
        session.refresh(request)
        assert (request.done_at, asked) == (None, ["L1"])
        request.at -= 600.0 + 1
        session.commit()
        set_clock(monkeypatch, ahead)
        controller.next_look = 0.0
        controller.step(session)
        assert "has not carried it out within" in str(request.outcome)


@off
def test_a_gang_is_woken_whatever_the_clock_of_the_api_server(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, ahead: float
) -> None:
    with Session(engine) as session:
        session.add(
            GangRow(
                token="g", dag_id="d", run_id="r", attempt=1, stage="attempted", wake_at=time.time() + 900, memory="{}"
            )
        )
        session.flush()
        set_clock(monkeypatch, ahead)
        assert rows.wake(session, "d") == 1
        session.flush()
        wake_at = session.get_one(GangRow, "g").wake_at
        monkeypatch.undo()
        assert wake_at is not None
        assert time.time() >= wake_at, "its next attempt is due"
