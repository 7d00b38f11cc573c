"""What budgets have spent, where days that are over are not summed up again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, event, insert, update
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows, task_usage
from lading.executors.accounting.share_rows import EndedCosts
from lading.executors.store import JobRow, State
from lading.scheduling.accounting.budgets import PeriodBudget, Unit
from lading.scheduling.accounting.who import Who

DAY = 86400.0
# Noon of the tenth day of November 2026, in UTC.
NOON = 1794312000.0
BUDGETS = (
    PeriodBudget("month", Who(team="a"), 100.0),
    PeriodBudget("week", Who(dag="d*"), 100.0, Unit.CPU_HOURS, "week", "Europe/Berlin"),
    PeriodBudget("day", Who(), 100.0, Unit.USD, "day", "Asia/Kolkata"),
)
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "priority": 1, "try_number": 1, "news": 0, "map_index": -1,
    "unreported": False, "state": State.SUCCEEDED, "cpus": 2.0, "memory": 512, "disk": 0, "gpus": 0.0, "run_id": "run",
    "task_id": "task", "dag_id": "d", "team": "a",
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    yield engine
    engine.dispose()


def spent(session: Session, now: float, known: EndedCosts | None) -> list[tuple[float, float]]:
    found = share_rows.spending(session, BUDGETS, now, lambda _: None, known)
    return [(pytest.approx(each.spent), pytest.approx(each.per_hour)) for each in found]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["end", "end", "end unreported", "begin", "bill", "report", "forget"]),
        st.floats(0, 12),
        st.floats(0.01, 40),
        st.integers(1, 9),
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_what_is_known_of_earlier_days_changes_no_sum(engine: Any, steps: list[tuple[str, float, float, int]]) -> None:
    with Session(engine) as session:
        session.execute(delete(JobRow))
        session.execute(delete(store.tables.UsageRow))
        known, now = EndedCosts(), NOON
        for number, (what, days, hours, usd) in enumerate(steps):
            now += 1800.0
            end = now - days * DAY
            row = {**JOB, "token": f"{number}", "queued_at": 1.0, "started_at": end - hours * 3600, "changed_at": now}
            if what.startswith("end"):
                is_reported = what == "end"
                ended = {"ended_at": end, "usd": float(usd), "unreported": not is_reported}
                session.execute(insert(JobRow), [{**row, **ended}])
            elif what == "begin":
                session.execute(insert(JobRow), [{**row, "state": State.RUNNING, "ended_at": None}])
            elif what == "bill":
                mine = JobRow.ended_at.is_not(None)
                session.execute(update(JobRow).where(mine).values(usd=float(usd), changed_at=now))
            elif what == "report":
                session.execute(update(JobRow).values(unreported=False, changed_at=now))
            else:
                task_usage.forget_ended(session, now - (usd + 2) * DAY)
            assert share_rows.spending(session, BUDGETS, now, lambda _: None, known) is not None
            anew = spent(session, now, None)
            assert [
                (each.spent, each.per_hour)
                for each in share_rows.spending(session, BUDGETS, now, lambda _: None, known)
            ] == anew
        session.rollback()


def test_a_day_whose_jobs_were_forgotten_counts_once_where_an_older_one_is_reported_late(engine: Any) -> None:
    with Session(engine) as session:
        session.execute(delete(JobRow))
        for number, days in enumerate((6, 5, 1)):
            end = NOON - days * DAY
            row = {**JOB, "token": f"{number}", "queued_at": 1.0, "started_at": end - 60, "ended_at": end, "usd": 1.0}
            session.execute(insert(JobRow), [{**row, "unreported": days == 6, "changed_at": end}])
        known = EndedCosts()
        assert spent(session, NOON, known)[0] == (3.0, 0.0)
        task_usage.forget_ended(session, NOON - 4 * DAY)
        session.execute(update(JobRow).values(unreported=False))
        assert spent(session, NOON + 60, known)[0] == (3.0, 0.0)
        session.rollback()


def test_days_that_are_over_are_read_once(engine: Any) -> None:
    with Session(engine) as session:
        session.execute(delete(JobRow))
        rows = [
            {**JOB, "token": f"{n}", "queued_at": 1.0, "ended_at": NOON - n * DAY, "started_at": NOON - n * DAY - 60}
            for n in range(1, 9)
        ]
        session.execute(insert(JobRow), [{**row, "usd": 1.0, "changed_at": NOON - 3600} for row in rows])
        known = EndedCosts()
        statements: list[str] = []
        event.listen(engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
        share_rows.spending(session, BUDGETS[:1], NOON, lambda _: None, known)
        of_first = len(statements)
        statements.clear()
        share_rows.spending(session, BUDGETS[:1], NOON + 30, lambda _: None, known)
        assert of_first >= 10
        # Those at work, today, the days of what may be forgotten, and what has changed.
        assert len(statements) <= 8, statements
        session.rollback()
