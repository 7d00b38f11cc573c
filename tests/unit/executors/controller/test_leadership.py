"""Who leads, and what is concluded from how the one before has ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.leadership import Leadership, Mark
from lading.executors.store import JobRow, State, strikes
from tests.reasons import told


@pytest.fixture
def mark(tmp_path: Path) -> Mark:
    return Mark(tmp_path / "controller.mark")


def leadership(mark: Mark) -> Leadership:
    return Leadership(("local",), True, lambda: None, mark)


@pytest.fixture
def session(airflow_database: Engine) -> Iterator[Session]:
    with Session(airflow_database) as session:
        store.add_job(
            session, token="t", kind="ExecuteTask", subject="s", workload="{}", priority=1, queued_at=1.0, map_index=-1,
            try_number=1, unreported=False, news=0, state=State.QUEUED, cpus=1.0, memory=1, disk=0, gpus=0.0,
            sizing="{}",
        )  # fmt: skip
        session.commit()
        yield session


def noted_by(leader: Leadership, session: Session) -> None:
    """It leads, and begins to examine a job."""
    assert leader.renew()
    strikes.note(session, leader.holder, ["t"])
    session.commit()


def test_a_job_has_failed_when_two_have_died_over_it(session: Session, mark: Mark) -> None:
    first, second, third = leadership(mark), leadership(mark), leadership(mark)
    noted_by(first, session)  # its process is no controller, so it counts as dead
    noted_by(second, session)
    assert [change.values["strikes"] for change in second.struck] == [1]
    assert session.get_one(JobRow, "t", populate_existing=True).state == State.QUEUED
    assert third.renew()
    job = session.get_one(JobRow, "t", populate_existing=True)
    assert (job.state, job.strikes, job.examined_by) == (State.FAILED, 2, None)
    assert [change.values["state"] for change in third.struck] == [State.FAILED]


def test_one_that_ends_in_order_or_renews_its_lease_has_died_over_nothing(session: Session, mark: Mark) -> None:
    first, second = leadership(mark), leadership(mark)
    noted_by(first, session)
    assert first.renew()
    first.give_up()
    assert second.renew()
    job = session.get_one(JobRow, "t", populate_existing=True)
    assert (job.strikes, job.examined_by, second.struck) == (None, None, [])


def test_who_dies_within_a_plugin_has_died_over_that_job_and_no_other(session: Session, mark: Mark) -> None:
    store.add_job(
        session, token="deadly", kind="ExecuteTask", subject="s", workload="{}", priority=1, queued_at=1.0,
        map_index=-1, try_number=1, unreported=False, news=0, state=State.ATTEMPTED, cpus=1.0, memory=1, disk=0,
        gpus=0.0,
    )  # fmt: skip
    session.commit()
    first, second, third = leadership(mark), leadership(mark), leadership(mark)
    noted_by(first, session)  # another job is examined in a thread
    mark.put("deadly")
    noted_by(second, session)
    assert [(change.token, change.values["strikes"]) for change in second.struck] == [("deadly", 1)]
    mark.put("deadly")
    assert third.renew()
    deadly = session.get_one(JobRow, "deadly", populate_existing=True)
    assert (deadly.state, deadly.strikes) == (State.FAILED, 2)
    assert "2 controllers have died or hung while they looked for a place for it" in (told(deadly.reason) or "")
    other = session.get_one(JobRow, "t", populate_existing=True)
    assert (other.state, other.strikes, other.examined_by) == (State.QUEUED, None, None)


def test_who_dies_over_a_task_to_come_is_followed_by_one_that_asks_nothing_ahead(session: Session, mark: Mark) -> None:
    first, second, third = leadership(mark), leadership(mark), leadership(mark)
    noted_by(first, session)
    mark.put("genomes.align")
    assert second.renew()
    assert (first.may_look_ahead, second.may_look_ahead, second.struck) == (True, False, [])
    second.give_up()
    assert third.renew()
    assert third.may_look_ahead


def test_who_dies_when_a_plugin_has_answered_has_died_over_nothing(session: Session, mark: Mark) -> None:
    first, second = leadership(mark), leadership(mark)
    assert first.renew()
    mark.put("t")
    mark.put(None)
    assert second.renew()
    assert second.struck == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"a b c", b"x" * 5000, b"a b\0", b"a \0" + b"\0" * 70])
def test_a_mark_that_makes_no_sense_is_none(mark: Mark, content: bytes) -> None:
    mark.path.write_bytes(content)
    assert mark.found() is None
    mark.begin("holder")
    mark.put("a name that is much longer than any token can be, and has spaces")
    assert mark.found() is None
    mark.put("token")
    assert mark.found() == ("holder", "token")


def test_a_disk_that_takes_no_mark_keeps_no_controller_from_leading(session: Session, tmp_path: Path) -> None:
    leads = leadership(Mark(tmp_path / "missing" / "mark"))
    assert leads.renew()
    leads.mark.put("t")
    assert leads.mark.found() is None
