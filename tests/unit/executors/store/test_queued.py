"""The queue of the active controller while other processes change the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import State
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import UnseenRow
from lading.scheduling.model.reasons import because
from tests.services.sqlite import open_sqlite

JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 1, "cpus": 1.0, "memory": 512,
    "disk": 0, "gpus": 0.0, "dag_id": "d", "run_id": "r", "task_id": "t",
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = open_sqlite(tmp_path / "store.db")
    store.metadata.create_all(engine)
    with Session(engine) as session:
        assert store.take_lease(session, "me", "host", 1, True, 3600.0, None)
        session.commit()
    yield engine
    engine.dispose()


def add(engine: Engine, *tokens: str, **columns: Any) -> None:
    with Session(engine) as session:
        for number, token in enumerate(tokens):
            store.add_job(session, token=token, **{**JOB, "queued_at": 1.0 + number, **columns})
        session.commit()


def read(engine: Engine, queued: QueuedJobs) -> list[str]:
    with Session(engine) as session:
        tokens = [row.token for row in queued.read(session).unlimited()]
        session.commit()
    return tokens


def unseen(engine: Engine) -> int:
    with Session(engine) as session:
        return session.scalar(select(func.count()).select_from(UnseenRow)) or 0


def test_a_job_whose_transaction_is_committed_late_is_found_then(engine: Engine) -> None:
    add(engine, "early")
    queued = QueuedJobs("me")
    assert read(engine, queued) == ["early"]
    # Older by its number and by its time than what is read before it.
    with Session(engine) as late:
        late.add(UnseenRow(id=1, token="late"))
        store.add_job(late, token="later", **{**JOB, "queued_at": 9.0})
        late.rollback()
    add(engine, "b")
    assert read(engine, queued) == ["b", "early"]
    with Session(engine) as late:
        late.add(UnseenRow(id=1, token="late"))
        late.execute(store.JobRow.__table__.insert(), {**JOB, "token": "late", "queued_at": 0.5})
        late.commit()
    assert read(engine, queued) == ["late", "b", "early"]
    assert unseen(engine) == 0


def test_nothing_is_read_of_jobs_of_which_nothing_has_changed(engine: Engine) -> None:
    add(engine, *(f"{number:04}" for number in range(1200)))
    queued = QueuedJobs("me")
    read(engine, queued)
    statements: list[str] = []
    event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    read(engine, queued)
    assert len(statements) == 1
    with Session(engine) as session:
        for each in ("0001", "0002"):
            store.apply(session, [store.Change(each, {"state": State.PLACED, "site": "a"})])
        session.commit()
    queued.note(["0001", "0002"])
    statements.clear()
    assert len(read(engine, queued)) == 1198
    assert len(statements) == 2


def test_what_nobody_has_told_of_is_missed_and_found(engine: Engine) -> None:
    add(engine, "stays", "ends")
    queued = QueuedJobs("me")
    read(engine, queued)
    by_hand = store.JobRow.__table__
    with Session(engine) as session:
        assert queued.missed(session) == set()
        session.execute(by_hand.insert(), {**JOB, "token": "older", "queued_at": 0.5})
        session.commit()
    assert read(engine, queued) == ["stays", "ends"], "no tick pays for what is told"
    with Session(engine) as session:
        assert queued.missed(session) == {"older"}
        assert [row.token for row in queued.read(session).unlimited()] == ["older", "stays", "ends"]
        session.execute(by_hand.delete().where(by_hand.c.token.in_(("ends", "older"))))
        assert queued.missed(session) == {"ends", "older"}
        assert [row.token for row in queued.read(session).unlimited()] == ["stays"]
        session.commit()


def test_what_is_told_between_two_statements_is_not_missed(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    queued = QueuedJobs("me")
    read(engine, queued)
    with Session(engine) as session:
        monkeypatch.setattr(queued, "read", lambda session: add(engine, "told"))
        assert queued.missed(session) == set()


def test_a_job_that_is_read_anew_and_is_the_same_is_not_new(engine: Engine) -> None:
    add(engine, "a", chosen="{}")
    queued = QueuedJobs("me")
    read(engine, queued)
    entry, queued.new_chosen = queued.jobs["a"], set()
    queued.note(["a"])
    read(engine, queued)
    assert (queued.jobs["a"], queued.new_chosen) == (entry, set())
    with Session(engine) as session:
        session.execute(store.JobRow.__table__.update().values(priority=7))
        session.commit()
    queued.note(["a"])
    read(engine, queued)
    assert (queued.jobs["a"].row.priority, queued.new_chosen) == (7, {("d", "t")})


def test_who_has_lost_the_lease_takes_nothing_from_who_has_it(engine: Engine) -> None:
    old, new = QueuedJobs("me"), QueuedJobs("other")
    read(engine, old)
    with Session(engine) as session:
        assert store.take_lease(session, "other", "host", 2, True, 3600.0, "me")
        session.commit()
    assert read(engine, new) == []
    add(engine, "a")
    assert read(engine, old) == ["a"]
    assert unseen(engine) == 1
    assert read(engine, new) == ["a"]
    assert unseen(engine) == 0


def test_a_reason_is_written_once(engine: Engine) -> None:
    add(engine, "a", "b")
    queued = QueuedJobs("me")
    read(engine, queued)
    [lane] = queued.lanes.values()
    turn = because("turn")
    with Session(engine) as session:
        assert queued.others(lane, turn, 1.5) == ["a"], "the other is young"
        queued.explain(session, turn, ["a"])
        assert queued.others(lane, turn, 9.0) == ["b"]
        queued.explain(session, turn, ["b"])
        assert queued.others(lane, turn, 9.0) == []
        assert (queued.without_reason(9.0, are_unsized=False), dict(queued.counts)) == ([], {(turn, None): 2})
        session.commit()
    with Session(engine) as session:
        store.forget_reasons(session, "turn")
        session.commit()
    read(engine, queued)
    assert sorted(queued.without_reason(9.0, are_unsized=False)) == ["a", "b"]


def test_what_it_has_is_what_the_store_has(engine: Engine) -> None:
    add(engine, "plain", cpus=512.0)
    add(engine, "limited", max_jobs=1)
    add(engine, "unsized", sizing="{}")
    add(engine, "ganged", gang="g", gang_terms="{}")
    add(engine, "chosen", chosen="{}")
    queued = QueuedJobs("me")
    read(engine, queued)
    [plain] = queued.rows(["plain"])
    assert (type(plain.memory), type(plain.cpus)) == (int, float)
    assert {row.token for row in queued.unlimited()} == {"plain", "chosen"}
    assert [row.token for row in queued.first(queued.groups.values())] == ["limited"]
    assert ([*queued.unsized], queued.ganged, queued.chosen) == (
        ["unsized"],
        {"ganged"},
        {("d", "t"): {"chosen": None}},
    )
    tokens = [*queued.jobs]
    with Session(engine) as session:
        store.apply(session, [store.Change(each, {"state": State.CANCELLED, "ended_at": 2.0}) for each in tokens])
        session.commit()
    queued.note(tokens)
    read(engine, queued)
    names = "jobs", "lanes", "groups", "unsized", "ganged", "chosen", "unexplained", "counts"
    assert [name for name in names if getattr(queued, name)] == []
