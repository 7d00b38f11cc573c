"""What is said of starts, kept, and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.answers import changes_by_events
from lading.executors.store import JobRow, State, leases, starts, usage
from lading.scheduling.insight.starts import StartSource

NOW = 1_800_000_000.0
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        yield found


def add(session: Session, token: str, **columns: Any) -> None:
    names = {"dag_id": "d", "task_id": "t", "run_id": "r", "cpus": 1.0, "memory": 100, "state": State.QUEUED}
    store.add_job(session, token=token, **{**COMMON, **names, "queued_at": NOW - 60, **columns})


def row(session: Session, token: str) -> JobRow:
    session.expire_all()
    return session.scalars(select(JobRow).where(JobRow.token == token)).one()


def show(session: Session, now: float) -> set[str]:
    """Show when jobs will start; of which ones that is known."""
    return {*starts.show_starts(session, session.execute(select(*starts.COLUMNS)).all(), now)}


def test_what_is_shown_first_is_kept_and_measured(session: Session) -> None:
    for number in range(10):
        times = {"queued_at": NOW - 5000, "started_at": NOW - 5000 + 100 * (number + 1), "ended_at": NOW - 1000}
        add(session, f"old{number}", state=State.SUCCEEDED, **times)
    add(session, "a")
    add(session, "b")
    add(session, "new", queued_at=NOW - 5)
    add(session, "strange", task_id="other")
    before = row(session, "a").changed_at
    assert show(session, NOW) == {"a", "b", "new"}
    said = row(session, "a")
    assert (said.said_since, said.said_until, said.said_source) == (NOW - 60 + 200, NOW - 60 + 900, "past_waits")
    assert said.changed_at == before, "it is no news of the job"
    assert row(session, "new").said_at is None, "it may start at once"
    assert row(session, "strange").said_at is None, "nothing is known of it"
    assert show(session, NOW + 10) == {"a", "b", "new"}
    assert row(session, "a").said_at == NOW
    for token, began in (("a", NOW + 500), ("b", NOW + 5000)):
        store.apply(session, [store.Change(token, {"state": State.RUNNING, "started_at": began})])
    assert starts.accuracy(session, NOW) == [(StartSource.PAST_WAITS, 2, 1)]


def test_plans_and_batch_systems_go_before_earlier_tries(session: Session) -> None:
    add(session, "planned")
    add(session, "batch", state=State.PLACED, site="hpc", location="hpc")
    starts.note_plans(session, {"planned": NOW + 600}, {}, NOW)
    store.apply(session, changes_by_events([{"event": "estimated", "token": "batch", "starts_at": NOW + 900}]), "hpc")
    jobs = session.scalars(select(JobRow)).all()
    found = starts.expected_starts(session, jobs, NOW)
    assert {token: (each.source.value, each.since) for token, each in found.items()} == {
        "planned": ("forecast", NOW + 450), "batch": ("batch_system", NOW + 225),
    }  # fmt: skip
    starts.note_plans(session, {"planned": NOW + 605}, {"planned": NOW + 600}, NOW)
    assert row(session, "planned").planned_start == NOW + 600, "a moment later is the same"
    starts.note_plans(session, {}, {"planned": NOW + 600}, NOW)
    assert row(session, "planned").planned_start is None
    back = {"event": "returned", "token": "batch", "location": "hpc"}
    store.apply(session, changes_by_events([back]), "hpc")
    assert (row(session, "batch").state, row(session, "batch").native_start) == (State.QUEUED, None)


def test_a_plan_that_slips_a_little_each_time_is_stored_in_the_end(session: Session) -> None:
    add(session, "late")
    add(session, "left")
    stored = starts.note_plans(session, {"late": NOW + 60, "left": NOW + 60}, {}, NOW)
    for seconds in range(3, 30, 3):
        stored = starts.note_plans(session, {"late": NOW + 60 + seconds}, stored, NOW + seconds)
    assert abs(row(session, "late").planned_start - (NOW + 87)) <= 12
    assert starts.stored_plans(session) == stored == {"late": row(session, "late").planned_start}


def test_the_clock_of_the_database_is_allowed_for(session: Session) -> None:
    ahead = 600.0
    store.take_lease(session, "controller", "host", 1, True, 60.0, None, ahead)
    for number in range(10):
        times = {"started_at": NOW - 5000 + 100 * (number + 1), "ended_at": NOW - 1000}
        add(session, f"old{number}", state=State.SUCCEEDED, queued_at=NOW - 5000 + ahead, **times)
    add(session, "a", queued_at=NOW - 60 + ahead)
    assert show(session, NOW) == {"a"}
    said = row(session, "a")
    assert (said.said_since, said.said_until) == (NOW - 60 + 200, NOW - 60 + 900), "by the controller's clock"
    waits = [
        max(0.0, job.started_at - job.queued_at) for job in session.execute(select(*usage.COLUMNS)) if job.started_at
    ]
    assert sorted(waits) == [100.0 * (number + 1) for number in range(10)]
    assert leases.database_ahead(session) == ahead
    said_by_database = session.scalar(select(leases.DatabaseNow()))
    assert leases.controller_now(session) <= (said_by_database or 0.0) - ahead + 60
