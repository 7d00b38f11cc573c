"""Who leads, what is concluded from how the one before has ended, and the clock that renews a lease."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller.leadership import Leadership, LeaseClock
from lading.executors.controller.plugin_mark import PluginMark
from lading.executors.store import JobRow, State, strikes
from lading.plugin.host import AirflowHost
from tests.reasons import told


@pytest.fixture
def mark(tmp_path: Path) -> PluginMark:
    return PluginMark(tmp_path / "controller.mark")


def make_leadership(mark: PluginMark) -> Leadership:
    return Leadership(AirflowHost(), ("local",), True, lambda: None, mark)


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


def test_a_job_has_failed_when_two_have_died_over_it(session: Session, mark: PluginMark) -> None:
    first, second, third = make_leadership(mark), make_leadership(mark), make_leadership(mark)
    noted_by(first, session)  # its process is no controller, so it counts as dead
    noted_by(second, session)
    assert [change.values["strikes"] for change in second.struck] == [1]
    assert session.get_one(JobRow, "t", populate_existing=True).state == State.QUEUED
    assert third.renew()
    job = session.get_one(JobRow, "t", populate_existing=True)
    assert (job.state, job.strikes, job.examined_by) == (State.FAILED, 2, None)
    assert [change.values["state"] for change in third.struck] == [State.FAILED]


def test_one_that_ends_in_order_or_renews_its_lease_has_died_over_nothing(session: Session, mark: PluginMark) -> None:
    first, second = make_leadership(mark), make_leadership(mark)
    noted_by(first, session)
    assert first.renew()
    first.release()
    assert second.renew()
    job = session.get_one(JobRow, "t", populate_existing=True)
    assert (job.strikes, job.examined_by, second.struck) == (None, None, [])


def test_who_dies_within_a_plugin_has_died_over_that_job_and_no_other(session: Session, mark: PluginMark) -> None:
    store.add_job(
        session, token="deadly", kind="ExecuteTask", subject="s", workload="{}", priority=1, queued_at=1.0,
        map_index=-1, try_number=1, unreported=False, news=0, state=State.ATTEMPTED, cpus=1.0, memory=1, disk=0,
        gpus=0.0,
    )  # fmt: skip
    session.commit()
    first, second, third = make_leadership(mark), make_leadership(mark), make_leadership(mark)
    noted_by(first, session)  # another job is examined in a thread
    mark.put("deadly")
    noted_by(second, session)
    assert [(change.token, change.values["strikes"]) for change in second.struck] == [("deadly", 1)]
    mark.put("deadly")
    assert third.renew()
    deadly = session.get_one(JobRow, "deadly", populate_existing=True)
    assert (deadly.state, deadly.strikes) == (State.FAILED, 2)
    assert "2 controllers died or hung while looking for a place for it" in (told(deadly.reason) or "")
    other = session.get_one(JobRow, "t", populate_existing=True)
    assert (other.state, other.strikes, other.examined_by) == (State.QUEUED, None, None)


def test_who_dies_over_a_task_to_come_is_followed_by_one_that_asks_nothing_ahead(
    session: Session, mark: PluginMark
) -> None:
    first, second, third = make_leadership(mark), make_leadership(mark), make_leadership(mark)
    noted_by(first, session)
    mark.put("genomes.align")
    assert second.renew()
    assert (first.may_look_ahead, second.may_look_ahead, second.struck) == (True, False, [])
    second.release()
    assert third.renew()
    assert third.may_look_ahead


def test_who_dies_when_a_plugin_has_answered_has_died_over_nothing(session: Session, mark: PluginMark) -> None:
    first, second = make_leadership(mark), make_leadership(mark)
    assert first.renew()
    mark.put("t")
    mark.put(None)
    assert second.renew()
    assert second.struck == []


@pytest.mark.parametrize("content", [b"", b"\xff" * 40, b"a b c", b"x" * 5000, b"a b\0", b"a \0" + b"\0" * 70])
def test_a_mark_that_makes_no_sense_is_none(mark: PluginMark, content: bytes) -> None:
    mark.path.write_bytes(content)
    assert mark.read() is None
    mark.begin("holder")
    mark.put("a name that is much longer than any token can be, and has spaces")
    assert mark.read() is None
    mark.put("token")
    assert mark.read() == ("holder", "token")


def test_a_disk_that_takes_no_mark_keeps_no_controller_from_leading(session: Session, tmp_path: Path) -> None:
    leads = make_leadership(PluginMark(tmp_path / "missing" / "mark"))
    assert leads.renew()
    leads.mark.put("t")
    assert leads.mark.read() is None


def test_a_renewal_that_fails_again_and_again_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    number, over = itertools.count(1), threading.Event()

    def renew() -> None:
        count = next(number)
        if count <= 5:
            raise OSError(f"the database is away, attempt {count}")
        if count == 7:
            over.set()

    clock = LeaseClock(0.01, renew)
    clock.start()
    assert over.wait(120)
    clock.stop()
    said = [record.getMessage() for record in caplog.records if record.name.endswith(".leadership")]
    assert len(said) == 2
    assert "attempt 1 (logged once" in said[0]
    assert said[1].endswith("resolved")


def test_a_loop_that_hangs_is_noted_until_it_goes_on() -> None:
    noted, twice, over, renewed = list[bool](), threading.Event(), threading.Event(), threading.Event()
    clock = LeaseClock(0.01, renewed.set)
    clock.seconds_until_hung = -1.0

    def note_hang(hangs: bool) -> None:
        noted.append(hangs)
        if noted.count(True) == 2:
            twice.set()
        if not hangs:
            over.set()
        raise OSError("the database is away")

    clock.note_hang = note_hang
    clock.start()
    assert twice.wait(120)
    assert not renewed.is_set()
    clock.seconds_until_hung = 3600.0
    assert over.wait(120)
    assert renewed.wait(120)
    clock.stop()
    assert noted.count(False) == 1
