"""What waiting jobs ask for, brought up to date by what has ended of their tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from typing import Any

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import task_usage
from lading.executors.sizing.needs import Needs
from lading.executors.store import JobRow, State
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.auto import SizeChoice, as_text

UNSAID = as_text({"cpus": SizeChoice(0.25), "memory": SizeChoice(512)})
ASKED = as_text({"memory": SizeChoice(8192, is_asked=True)})


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        yield session


def add(session: Session, token: str, task_id: str = "t", **columns: Any) -> None:
    defaults: dict[str, Any] = {
        "kind": "ExecuteTask", "subject": token, "workload": "{}", "state": State.QUEUED, "cpus": 0.25, "memory": 512,
        "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": 1.0, "dag_id": "d", "run_id": "r", "map_index": -1,
        "try_number": 1, "chosen": UNSAID,
    }  # fmt: skip
    store.add_job(session, token=token, task_id=task_id, **{**defaults, **columns})


def add_ended(session: Session, token: str, **columns: Any) -> None:
    used = {"peak_memory": 100, "cpu_seconds": 10.0, "started_at": 1.0, "ended_at": 101.0, "state": State.SUCCEEDED}
    add(session, token, **{**used, **columns})


def asked(session: Session, token: str) -> tuple[float, int, int | None]:
    session.expire_all()
    row = session.scalars(select(JobRow).where(JobRow.token == token)).one()
    return row.cpus, row.memory, row.memory_limit


def book(largest: Resources | None = None) -> Needs:
    found = Needs(lambda site: largest)
    found.due_at = float("-inf")
    found.seconds_per_tick = 600.0
    return found


def resize(known: Needs, session: Session) -> list[str]:
    known.due_at = float("-inf")
    return [note.text for note in known.resize(session)]


def test_siblings_that_wait_are_packed_by_what_the_first_have_used(session: Session) -> None:
    add_ended(session, "first", map_index=0)
    add(session, "waits", map_index=2)
    add(session, "other", "u")
    known = book()
    assert resize(known, session) == []
    assert asked(session, "waits") == (0.25, 512, None), "one try tells too little"
    add_ended(session, "second", map_index=1)
    known.note_ends(session, ["second"])
    assert resize(known, session) == [], "no event log of a task says that it is packed as usual"
    cpus, memory, limit = asked(session, "waits")
    assert (0.1 < cpus < 0.12, 100 < memory < 125, limit) == (True, True, None)
    assert asked(session, "other") == (0.25, 512, None)


def test_new_jobs_are_packed_by_what_is_known_before_they_can_be_placed(session: Session) -> None:
    for token in "abc":
        add_ended(session, token)
    add(session, "old", "u", queued_at=100.0)
    known = book()
    known.resize(session)
    known.due_at = float("inf")
    add(session, "new", queued_at=120.0)
    assert known.resize(session) == []
    assert asked(session, "new")[1] < 125


def test_what_was_written_or_is_not_to_be_packed_by_use_stays(session: Session) -> None:
    for token in "abc":
        add_ended(session, token)
    add(session, "written", chosen=as_text({"cpus": SizeChoice(0.25)}), memory=2048, memory_limit=2048)
    add(session, "hints", chosen=None)
    add(session, "gang", gang="g", gang_terms="{}")
    add(session, "runs", state=State.RUNNING)
    add(session, "unsized", sizing="{}")
    resize(book(), session)
    assert asked(session, "written") == (0.1015625, 2048, 2048)
    for token in ("hints", "gang", "runs", "unsized"):
        assert asked(session, token) == (0.25, 512, None), token


def test_a_waiting_job_that_asks_for_auto_gets_its_new_limit_and_its_event_log_says_so(session: Session) -> None:
    add(session, "waits", chosen=ASKED, memory=8192, memory_limit=8192, try_number=3, map_index=7)
    known = book(Resources(4, 2**20))
    assert resize(known, session) == []
    for token in "abc":
        add_ended(session, token, memory_limit=8192)
    known.note_ends(session, "abc")
    assert resize(known, session) == ["requests 104 MiB of memory: sized by 3 tries (auto)"]
    assert asked(session, "waits") == (0.25, 104, 104)
    assert resize(known, session) == []


def test_no_job_asks_for_more_than_there_is(session: Session) -> None:
    for token in "abc":
        add_ended(session, token, peak_memory=9000, cpu_seconds=800.0)
    add(session, "waits")
    resize(book(Resources(2, 4096)), session)
    assert asked(session, "waits") == (2.0, 4096, None)


def test_what_is_stored_wrong_of_one_job_keeps_no_other(session: Session) -> None:
    for token in "abc":
        add_ended(session, token)
    for number, text in enumerate(('{"cpus": [1, 2, 3, 4, 5]}', "[", '{"cpus": 5}')):
        add(session, f"torn{number}", chosen=text)
    add(session, "fine")
    resize(book(), session)
    assert asked(session, "fine")[1] < 125


def test_of_many_new_tasks_some_are_read_in_each_tick(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    monkeypatch.setattr(task_usage, "of_task", lambda session, *task: reads.append(task) or task_usage.Usage())
    for number in range(5):
        add(session, str(number), f"t{number}")
    known = book()
    known.seconds_per_tick = 0.0
    for count in (1, 2, 3, 4, 5, 5):
        resize(known, session)
        assert len(reads) == count
    known.most_tasks = 5
    add(session, "new", "new")
    resize(known, session)
    assert (len(known.known), len(reads)) == (5, 6)


def test_what_sizing_frees(session: Session) -> None:
    add(session, "runs", state=State.RUNNING, cpus=0.05, memory=100)
    add(session, "placed", state=State.PLACED, cpus=1.25, memory=100)
    add(session, "waits", cpus=0.05, memory=100)
    add(session, "hints", state=State.RUNNING, chosen=None)
    add_ended(session, "ended", started_at=1000.0, ended_at=8200.0, cpus=0.125, memory=256)
    add_ended(session, "long ago", started_at=10.0, ended_at=20.0, memory=1)
    found = task_usage.freed(session, 20.0 + 86401.0)
    assert astuple(found) == pytest.approx((0.2 - 1.0, 2 * 412 / 1024, 0.25, 0.5))
    assert (task_usage.freed(session, 1e9).cpu_hours, task_usage.freed(session, 1e9).gib_hours) == (0.0, 0.0)
