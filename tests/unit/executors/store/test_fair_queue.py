"""Which of many waiting jobs a tick looks at where shares go in turn, and how often that is found out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import create_engine, event, insert, select, update
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import JobRow, State, fair_queue, queue, shapes
from lading.executors.store.fair_queue import FairTurns, FirstJobs, FoundJobs
from lading.executors.store.queued import QueuedJobs
from lading.scheduling.accounting.budgets import BudgetTerms
from lading.scheduling.accounting.share_table import ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing
from lading.scheduling.accounting.who import Tenant
from lading.scheduling.model.reasons import because

MOST = 40
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "priority": 1, "try_number": 1, "news": 0, "map_index": -1,
    "unreported": False, "state": State.QUEUED, "cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0, "run_id": "run",
    "task_id": "task", "changed_at": 0.0,
}  # fmt: skip


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    monkeypatch.setattr(queue, "MOST_JOBS_PER_TICK", MOST)
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    rows = [{**JOB, "token": f"{dag}{n:03}", "dag_id": dag, "queued_at": 1.0 + n} for dag in "abcd" for n in range(50)]
    rows += [{**JOB, "token": f"z{n}", "dag_id": "a", "queued_at": 900.0 + n, "gpus": 1.0} for n in range(3)]
    with Session(engine) as found:
        found.execute(insert(JobRow), rows)
        yield found


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often jobs of each shape were looked for, and the first of all."""
    found = {"of_each": 0, "_first": 0}
    for module, name in ((shapes, "of_each"), (fair_queue, "_first")):
        monkeypatch.setattr(module, name, counting(found, name, getattr(module, name)))
    return found


def counting(found: dict[str, int], name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def counted(*given: Any) -> Any:
        found[name] += 1
        return real(*given)

    return counted


def look(session: Session, known: FirstJobs, turn: int = 0) -> list[str]:
    fair = FairTurns(Shares(), Standing(ShareAmounts(cpus=8.0, gpus=1.0)), 1e6, first=known)
    return [job.name for job in queue.waiting(session, turn, fair=fair)]


def test_in_the_next_ticks_the_same_jobs_are_looked_at_without_a_search(
    session: Session, calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(fair_queue, "PAUSE_BETWEEN_LOOKS", 0.0)
    known = FirstJobs()
    first = look(session, known)
    assert {name[0] for name in first[:MOST]} == set("abcd")
    assert first[-3:] == ["z0", "z1", "z2"], "of another shape, behind many"
    assert calls == {"of_each": 1, "_first": 1}
    known.first.due_at = known.others.due_at = 1005.0  # it has taken long
    session.execute(update(JobRow).where(JobRow.token.in_([first[0], "z0"])).values(state=State.PLACED))
    second = look(session, known, 1)
    assert calls == {"of_each": 1, "_first": 1}
    assert not {first[0], "z0"} & set(second)
    assert second[-2:] == ["z1", "z2"]
    session.execute(insert(JobRow), [{**JOB, "token": "new", "dag_id": "e", "queued_at": 950.0, "memory": 600}])
    now[0] = 1005.0
    assert "new" in look(session, known, 2)
    assert calls == {"of_each": 1, "_first": 2}, "of no shape there are too few"


def test_others_are_sought_for_their_shapes_when_few_of_them_are_left(
    session: Session, calls: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    known = FirstJobs()
    look(session, known)
    now[0] = 1010.0
    assert look(session, known, 1)[-3:] == ["z0", "z1", "z2"]
    assert calls == {"of_each": 1, "_first": 2}
    more = [{**JOB, "token": f"y{n}", "dag_id": "a", "queued_at": 950.0 + n, "gpus": 1.0} for n in range(9)]
    session.execute(insert(JobRow), more)
    assert look(session, known, 2)[-9:] == [f"y{n}" for n in range(9)], "three of twelve were known"
    assert calls == {"of_each": 2, "_first": 3}
    now[0] += 30.0
    look(session, known, 3)
    assert calls == {"of_each": 3, "_first": 4}


def test_what_takes_longer_to_find_out_holds_longer_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    known = FoundJobs()
    known.note([], 999.98)
    assert known.due_at == pytest.approx(1001.0)
    known.note([], 998.0)
    assert (known.due_at, known.ends_at) == (1005.0, 1005.0)


def test_of_a_shape_of_which_enough_are_among_the_first_no_others_are_looked_at(session: Session) -> None:
    found = look(session, FirstJobs())
    # Two shapes: twenty of each are looked at, and of the one there are more than that among the first.
    assert (len(found), found[MOST:]) == (MOST + 3, ["z0", "z1", "z2"])


def test_jobs_are_given_the_reason_of_a_budget_once(session: Session) -> None:
    held = because("budget_spent_cpu_hours", budget="all", spent=9.0, most=9.0, until=2e6)

    def allowed(tenant: Tenant) -> BudgetTerms:
        return BudgetTerms((), None if tenant.dag_id == "d" else held)

    session.execute(update(JobRow).where(JobRow.dag_id == "b").values(team="genes", dag_owner="ann", dag_tags='["x"]'))
    fair = FairTurns(Shares(), Standing(ShareAmounts(cpus=8.0)), 1e6, budgets=allowed)
    assert {job.dag_id for job in queue.waiting(session, 0, fair=fair)} == {"d"}
    statements: list[str] = []
    event.listen(session.get_bind(), "before_cursor_execute", lambda *given: statements.append(given[2]))
    queued = QueuedJobs().read(session)
    statements.clear()
    fair.explain_held(session, queued, 1e6)
    assert {each.split()[0] for each in statements} == {"UPDATE"}
    statements.clear()
    fair.explain_held(session, queued, 1e6)
    assert statements == []
    reasons = {row.dag_id: row.reason_code for row in session.execute(select(JobRow.dag_id, JobRow.reason_code))}
    assert reasons == {"a": held.code, "b": held.code, "c": held.code, "d": None}
