"""What people ask of live runs, and what is forecast of them, in the store."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.models.dag import DagModel
from airflow.models.dagbundle import DagBundleModel
from airflow.models.dagrun import DagRun
from airflow.utils.types import DagRunType
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.orchestrator import airflow_run_requests
from lading.executors.store import State, run_rows
from lading.executors.store.run_rows import RunForecast, RunForecastRow, RunRequest, RunRequestRow
from lading.scheduling.hints.finish_by import parse_finish_by
from lading.scheduling.text.units import format_moment

NOW = 1_800_000_000.0


@pytest.fixture
def session(airflow_database: Engine) -> Iterator[Session]:
    with Session(airflow_database) as session:
        session.add(DagBundleModel(name="b"))
        session.flush()
        session.add(DagModel(dag_id="d", bundle_name="b"))
        session.flush()
        for run_id, state in (("r", "running"), ("q", "queued"), ("over", "success")):
            session.add(DagRun(dag_id="d", run_id=run_id, run_type=DagRunType.MANUAL, state=state))
        session.commit()
        yield session


def test_what_is_asked_is_known_as_long_as_the_run_lives(session: Session) -> None:
    row = airflow_run_requests.ask(session, "d", "r", " fast ", " 06:00 ", "a" * 300)
    assert row is not None
    assert (row.hurry, row.finish_by, row.by) == (10.0, "06:00", "a" * 250)
    assert abs(row.at - time.time()) < 60
    airflow_run_requests.ask(session, "d", "q", None, "2030-01-01T06:00+01:00", "bob")
    assert airflow_run_requests.asked(session) == {
        ("d", "r"): RunRequest(10.0, parse_finish_by("06:00")),
        ("d", "q"): RunRequest(None, parse_finish_by("2030-01-01T06:00+01:00", is_of_one_run=True)),
    }
    session.execute(update(DagRun).where(DagRun.run_id == "r").values(state="failed"))
    assert list(airflow_run_requests.asked(session)) == [("d", "q")]


@pytest.mark.parametrize("run_id", ["none", "over", "a\0b", "\ud800"])
def test_of_a_run_that_does_not_live_nothing_can_be_asked(session: Session, run_id: str) -> None:
    with pytest.raises(LookupError, match=r"has no live run .*; valid"):
        airflow_run_requests.ask(session, "d", run_id, 1, None, "x")


def test_what_is_not_valid_changes_nothing(session: Session) -> None:
    airflow_run_requests.ask(session, "d", "r", 1, None, "x")
    for hurry, finish_by in (
        (-1, None),
        ("soon", None),
        (1, "soon"),
        (None, "2020-01-01T00:00Z"),
        (None, "2020-01-01T00:00"),
    ):
        with pytest.raises(ValueError, match=r"; valid: "):
            airflow_run_requests.ask(session, "d", "r", hurry, finish_by, "y")
    assert airflow_run_requests.asked(session) == {("d", "r"): RunRequest(1.0)}


def test_a_forecast_is_stored_where_it_has_changed_and_forgotten_with_its_run(session: Session) -> None:
    def noted(**runs: RunForecast) -> dict[str, tuple[float | None, float]]:
        run_rows.note(session, {("d", run_id): each for run_id, each in runs.items()})
        session.commit()
        return {row.run_id: (row.ends_at, row.at) for row in session.scalars(select(RunForecastRow))}

    far = time.time() + 10_000
    first = noted(r=RunForecast(1.0, None, far), q=RunForecast())
    assert {run_id: ends_at for run_id, (ends_at, _) in first.items()} == {"r": far, "q": None}
    assert noted(r=RunForecast(1.0, None, far + 50), q=RunForecast()) == first, "less than a hundredth of what is left"
    assert noted(r=RunForecast(1.0, None, far + 150))["r"][0] == far + 150
    late = noted(r=RunForecast(1.0, far + 151, far + 150))["r"]
    assert late[0] == far + 150
    assert noted(r=RunForecast(1.0, far + 151, far + 152))["r"][0] == far + 152, "it ends later than it shall"
    assert noted(q=RunForecast()) == {"q": (None, pytest.approx(time.time(), abs=60))}


def add_job(session: Session, **columns: Any) -> None:
    store.add_job(
        session, token="t", kind="ExecuteTask", subject="s", workload="{}", cpus=1.0, memory=1, disk=0, gpus=0.0,
        priority=1, state=State.QUEUED, queued_at=NOW, dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1,
        **columns,
    )  # fmt: skip


def test_what_a_run_goes_by_as_text(session: Session) -> None:
    def lines(run_id: str = "r") -> list[str]:
        return list(airflow_run_requests.terms(session, "d", run_id)[run_id].lines())

    assert airflow_run_requests.terms(session, "d") == {}, "nothing is asked or forecast"
    assert airflow_run_requests.terms(session, "d", "over") == {}
    assert lines() == ["it is not in Lading's plan: " + run_rows.WHO_PLANS]
    add_job(session, planned_start=NOW)
    assert lines() == ["Lading's plan includes only some of its jobs"]
    run_rows.note(session, {("d", "r"): RunForecast(2.5, NOW, NOW + 2400)})
    six, later = format_moment(NOW), format_moment(NOW + 2400)
    assert lines() == ["hurry 2.5, as its Dag says", f"cannot end by {six}: about {later} at the earliest"]
    airflow_run_requests.ask(session, "d", "r", "fast", "06:00", "alice")
    assert lines()[2:] == ["a plan that follows the request is made within seconds"], "no plan is of what is asked"
    run_rows.note(session, {("d", "r"): RunForecast(10.0, NOW + 3600, NOW + 2400)})
    assert lines() == [
        "hurry 10, requested by alice",
        "finish_by 06:00, requested by alice",
        f"planned to finish at about {later}, due by {format_moment(NOW + 3600)}",
    ]
    run_rows.note(session, {("d", "q"): RunForecast(None, NOW)})
    assert lines("q") == ["hurry as set for each site", f"due by {six}; when it will finish is not planned yet"]
    assert sorted(airflow_run_requests.terms(session, "d")) == ["q", "r"]


def test_what_was_asked_is_forgotten_with_the_jobs_of_its_run(session: Session) -> None:
    for run_id in ("r", "q"):
        airflow_run_requests.ask(session, "d", run_id, 1, None, "x")
    add_job(session)
    session.commit()
    run_rows.forget(session, time.time() - 3600)
    assert len(session.scalars(select(RunRequestRow)).all()) == 2
    run_rows.forget(session, time.time() + 3600)
    assert [row.run_id for row in session.scalars(select(RunRequestRow))] == ["r"]
