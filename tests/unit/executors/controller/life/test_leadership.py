"""Who leads, and what is concluded from how the one before has ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.life.leadership import Leadership
from lading.executors.store import Job, State, strikes


def leadership() -> Leadership:
    return Leadership(("local",), True, lambda: None)


@pytest.fixture
def session(airflow_database: Engine) -> Iterator[Session]:
    with Session(airflow_database) as session:
        store.add_job(
            session, token="t", kind="ExecuteTask", subject="s", workload="{}", priority=1, queued_at=1.0, map_index=-1,
            try_number=1, unreported=False, news=0, state=State.QUEUED, cpus=1.0, memory=1, disk=0, gpus=0.0,
            appraisal="{}",
        )  # fmt: skip
        session.commit()
        yield session


def noted_by(leader: Leadership, session: Session) -> None:
    """It leads, and begins to examine a job."""
    assert leader.renew()
    strikes.note(session, leader.holder, ["t"])
    session.commit()


def test_a_job_has_failed_when_two_have_died_over_it(session: Session) -> None:
    first, second, third = leadership(), leadership(), leadership()
    noted_by(first, session)  # its process is no controller, so it counts as dead
    noted_by(second, session)
    assert [change.values["strikes"] for change in second.struck] == [1]
    assert session.get_one(Job, "t", populate_existing=True).state == State.QUEUED
    assert third.renew()
    job = session.get_one(Job, "t", populate_existing=True)
    assert (job.state, job.strikes, job.examined_by) == (State.FAILED, 2, None)
    assert [change.values["state"] for change in third.struck] == [State.FAILED]


def test_one_that_ends_in_order_or_renews_its_lease_has_died_over_nothing(session: Session) -> None:
    first, second = leadership(), leadership()
    noted_by(first, session)
    assert first.renew()
    first.give_up()
    assert second.renew()
    job = session.get_one(Job, "t", populate_existing=True)
    assert (job.strikes, job.examined_by, second.struck) == (None, None, [])
