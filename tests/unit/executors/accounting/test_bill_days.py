"""Bills that are kept by day: they are what a bill of the jobs and machines themselves says, whatever changes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import bill_days, bills, task_usage
from lading.executors.accounting.bill_days import BillDayRow, Split
from lading.executors.store import Capacity, JobRow, State
from lading.executors.store.tables import InstanceRow, InstanceState, UsageRow
from lading.plugin.ui.queries import bill as page
from lading.plugin.ui.queries.advice import advice
from lading.plugin.ui.queries.bill import bill_page
from lading.plugin.ui.queries.sight import EVERYTHING, Sight
from lading.scheduling.accounting.bill import PARTS, USD_PARTS, BillParts, total
from lading.scheduling.accounting.periods import Period, periods

DAY = 86400.0
# From the 26th of February to the 4th of March 2025.
FIRST = 20_145
BEGUN = FIRST * DAY
NOW = BEGUN + 6 * DAY + 4000
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0, "memory": 100}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    yield engine
    engine.dispose()


def job(session: Session, token: str, day: float, dag: int, **columns: Any) -> None:
    ended = BEGUN + day * DAY
    times = {"queued_at": ended - 4000, "started_at": ended - 3600, "ended_at": ended, "changed_at": ended}
    names = {"dag_id": f"d{dag}" if dag else None, "task_id": f"t{dag % 3}" if dag else None, "cpus": 2.0}
    whose = {"team": [None, "a", "b"][dag % 3], "site": ["hpc", "lab"][dag % 2], "state": State.SUCCEEDED}
    store.add_job(session, token=token, **{**COMMON, **times, **names, **whose, **columns})


def machine(session: Session, number: int, day: float) -> None:
    ended = BEGUN + day * DAY
    session.add(
        InstanceRow(
            token=f"M{number}", site="hpc", kind="", cpus=4.0, memory=16_000, disk=1, gpus=0.0, seconds=0.0,
            state=InstanceState.ENDED, ordered_at=ended - 9000, launched_at=ended - 9000, ready_at=ended - 8000,
            ended_at=ended, usd_per_hour=3.6, changed_at=ended,
        )
    )  # fmt: skip


JOBS = st.lists(
    st.tuples(st.floats(0.2, 6.01), st.integers(0, 5), st.sampled_from([0.0, 1.25, None]), st.integers(0, 4)),
    min_size=1,
    max_size=5,
)


def fill(session: Session, jobs: list[Any], machines: list[float]) -> None:
    for table in (JobRow, InstanceRow, UsageRow, Capacity, BillDayRow):
        session.execute(delete(table))
    session.add(Capacity(site="lab", name="lab", cpus=8.0, memory=1, gpus=0.0, usd_per_hour=0.8, since=BEGUN))
    for number, day in enumerate(machines):
        machine(session, number, day)
    for number, (day, dag, usd, where) in enumerate(jobs):
        job(session, f"j{number}", day, dag, usd=usd, cpu_seconds=1000.0, location=f"M{where}")
    session.flush()


@settings(deadline=None, max_examples=5)
@given(
    jobs=JOBS,
    machines=st.lists(st.floats(0.2, 5.9), max_size=3),
    by=st.tuples(st.sampled_from(Period), st.sampled_from(bill_days.SPLITS)),
    late=st.tuples(st.floats(0.2, 5.9), st.booleans(), st.booleans()),
)
def test_a_bill_of_kept_days_is_that_of_jobs_and_machines(
    engine: Engine, jobs: list[Any], machines: list[float], by: tuple[Period, Split], late: tuple[float, bool, bool]
) -> None:
    with Session(engine) as session:
        fill(session, jobs, machines)
        task_usage.forget_ended(session, BEGUN)  # as a controller does from its first day on
        known = same(session, by, "before any day is kept")
        sum_all(session, NOW)
        kept = {day for day, at in bill_days.summed_up(session).items() if at}
        assert kept == {*range(FIRST, FIRST + 6)}
        same(session, by, "of kept days", known)
        at, is_read_first, is_forgotten = late
        # The end of a job, and what another has cost, are stored late.
        job(session, "late", at, 4, usd=7.0, changed_at=NOW + 30)
        session.execute(update(JobRow).where(JobRow.token == "j0").values(usd=3.0, changed_at=NOW + 30))
        session.flush()
        if is_read_first:
            same(session, by, "of which some are out of date")
        sum_all(session, NOW + 60)
        known = same(session, by, "of days that were summed up again")
        if is_forgotten:
            task_usage.forget_ended(session, BEGUN + 4 * DAY)
            same(session, by, "when jobs were forgotten", known)
        session.rollback()


def sum_all(session: Session, now: float) -> None:
    """Sum up all days that are over, in as many rounds as it takes."""
    for _ in range(30):
        if bill_days.sum_up(session, now):
            return
    pytest.fail("a round sums up one day at least")


def same(session: Session, by: tuple[Period, Split], what: str, raw: list[BillParts] | None = None) -> list[BillParts]:
    """A bill is to the cent that of jobs and machines.

    :param raw: what that was
    """
    since, until = BEGUN, NOW
    spans = periods(since, until, by[0])
    raw = raw or [total(bills.bill(session, begin, min(end, NOW)).values()) for begin, end in spans]
    bill = bill_page(session, EVERYTHING, since, until, *by, NOW)
    for said, known in zip(bill.totals, raw, strict=True):
        assert (said.jobs, said.failed) == (known.jobs, known.failed), what
        assert said.usd == (None if known.usd is None else pytest.approx(known.usd, abs=0.004)), (what, by)
        for name in PARTS:
            assert getattr(said, f"cpu_hours_{name}") * 3600 == pytest.approx(getattr(known, name), abs=0.01)
        if known.is_priced:
            for name in USD_PARTS:
                assert getattr(said, name) == pytest.approx(getattr(known, name), abs=0.004)
    for index in range(len(spans)):
        assert sum(row.usd[index] or 0.0 for row in bill.rows) == pytest.approx(raw[index].usd or 0.0, abs=0.004)
        hours = sum(row.cpu_hours[index] for row in bill.rows)
        assert hours * 3600 == pytest.approx(raw[index].cpu_seconds, abs=0.01)
    assert sum(row.total.jobs for row in bill.rows) == bill.total.jobs
    assert sum(row.total.usd or 0.0 for row in bill.rows) == pytest.approx(bill.total.usd or 0.0, abs=0.004)
    return raw


def test_what_is_beyond_the_rows_that_are_named_is_one(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_ROWS", 2)
    with Session(engine) as session:
        fill(session, [(day, dag, float(dag), 9) for day in (3.5, 6.01) for dag in range(1, 6)], [])
        sum_all(session, NOW)
        bill = bill_page(session, EVERYTHING, BEGUN, NOW, Period.DAY, "dag", NOW)
        assert [row.kind for row in bill.rows] == ["named", "named", "others", "machines"]
        assert [row.dag_id for row in bill.rows] == ["d5", "d4", None, None]
        same(session, (Period.DAY, "dag"), "with others")
        session.rollback()


def test_what_one_dag_cost_cannot_be_derived_by_who_may_not_read_it(engine: Engine) -> None:
    with Session(engine) as session:
        # On the second day two hidden Dags have jobs, on the fourth one has, and one today.
        jobs = [(1.5, 1, 1.0, 9), (1.5, 2, 2.0, 9), (1.6, 3, 4.0, 9), (3.5, 3, 8.0, 9), (3.6, 1, 1.0, 9)]
        fill(session, [*jobs, (6.01, 2, 16.0, 9)], [])
        session.execute(delete(Capacity))
        session.flush()
        for is_kept in (False, True):
            for sight in (Sight(frozenset({"d1"})), Sight(hidden=frozenset({"d2", "d3"}))):
                bill = bill_page(session, sight, BEGUN, NOW, Period.DAY, "dag", NOW)
                usd = {day: amounts.usd for day, amounts in enumerate(bill.totals) if amounts.usd is not None}
                assert usd == pytest.approx({1: 7.0, 3: 1.0} if is_kept else {1: 1.0, 3: 1.0}), sight
                rows = {row.kind: row.total.usd for row in bill.rows}
                assert rows == pytest.approx({"named": 2.0, "hidden": 6.0} if is_kept else {"named": 2.0})
                assert bill.is_partial
            assert not bill_page(session, EVERYTHING, BEGUN, NOW, Period.DAY, "dag", NOW).is_partial
            sum_all(session, NOW)
        session.rollback()


def test_days_are_summed_up_a_few_at_a_time_the_youngest_first(engine: Engine) -> None:
    with Session(engine) as session:
        fill(session, [(0.5, 1, 1.0, 9), (5.5, 1, 1.0, 9)], [])
        assert not bill_days.sum_up(session, NOW, seconds=-1.0)
        assert [*bill_days.summed_up(session)] == [FIRST + 5]
        assert not bill_days.sum_up(session, NOW, seconds=-1.0)
        assert sorted(bill_days.summed_up(session)) == [FIRST + 4, FIRST + 5]
        same(session, (Period.DAY, "dag"), "when a part is kept")
        for _ in range(4):
            bill_days.sum_up(session, NOW, seconds=-1.0)
        assert bill_days.sum_up(session, NOW, seconds=-1.0)
        assert [day for day, at in bill_days.summed_up(session).items() if at < NOW] == []
        # Two days later it is done once more, and then no more.
        later = NOW + 2 * DAY
        sum_all(session, later)
        again = [day for day, at in bill_days.summed_up(session).items() if at == later]
        assert again == [FIRST + day for day in range(4, 8)]
        bill_days.forget(session, FIRST + 3)
        assert min(bill_days.summed_up(session)) == FIRST + 3
        assert bill_days.checked_at(session) == later
        session.rollback()


def test_the_day_that_jobs_are_forgotten_of_stays_up_to_date(engine: Engine) -> None:
    with Session(engine) as session:
        fill(session, [(1.5, 1, 1.0, 0)], [1.6])
        sum_all(session, NOW)
        at = session.scalars(select(InstanceRow.changed_at)).one()
        task_usage.forget_ended(session, BEGUN + 5 * DAY)
        assert session.scalars(select(InstanceRow.changed_at)).one() == at
        assert bill_days.changed_days(session, min(NOW, time.time()), NOW) == set()
        session.rollback()


def test_whole_months_are_read_as_such(engine: Engine) -> None:
    with Session(engine) as session:
        fill(session, [(3.5, 1, 1.0, 9), (20.5, 1, 2.0, 9), (33.9, 2, 4.0, 9), (35.5, 1, 8.0, 9)], [])
        later = BEGUN + 40 * DAY
        sum_all(session, later)
        session.execute(update(BillDayRow).where(BillDayRow.level == "month").values(usd_used=BillDayRow.usd_used + 1))
        bill = bill_page(session, EVERYTHING, BEGUN, later, Period.MONTH, "dag", later)
        usd = {row.dag_id: row.total.usd for row in bill.rows if row.dag_id}
        assert usd == pytest.approx({"d1": 1 + 2 + 1 + 8, "d2": 4 + 1}), "March, and February and April day by day"
        session.rollback()


def test_days_of_which_nothing_is_kept_any_more_are_not_summed_up(engine: Engine) -> None:
    with Session(engine) as session:
        fill(session, [(0.5, 1, 1.0, 9)], [])
        # This machine has been there for longer than anything is kept.
        session.execute(update(Capacity).values(since=BEGUN - 500 * DAY))
        task_usage.forget_ended(session, BEGUN)
        sum_all(session, NOW)
        assert sorted(bill_days.summed_up(session)) == [*range(FIRST, FIRST + 6)]
        session.rollback()


def test_of_a_new_store_no_days_before_it_are_summed_up(engine: Engine) -> None:
    with Session(engine) as session:
        task_usage.forget_ended(session, BEGUN - 30 * DAY)
        assert bill_days.first_known(session) is None
        session.rollback()


def test_dags_without_jobs_on_a_day_do_not_make_it_one_of_several_hidden_dags(engine: Engine) -> None:
    with Session(engine) as session:
        # Jobs of two hidden Dags ended on the second day, the machine on which they were on the fourth.
        jobs = [(1.5, 2, 1.0, 0), (1.6, 3, 2.0, 0)]
        for more in ([], [(3.2, 2, 4.0, 9)]):
            fill(session, [*jobs, *more], [3.5])
            session.execute(delete(Capacity))
            session.flush()
            sum_all(session, NOW)
            bill = bill_page(session, Sight(frozenset({"d1"})), BEGUN, NOW, Period.DAY, "dag", NOW)
            assert [day for day, amounts in enumerate(bill.totals) if amounts.cpu_hours > 1e-6] == [1]
            for index in range(len(bill.periods)):
                hours = sum(row.cpu_hours[index] for row in bill.rows)
                assert hours == pytest.approx(bill.totals[index].cpu_hours)
        session.rollback()


def test_what_belongs_to_no_task_says_nothing_of_what_tasks_need(engine: Engine) -> None:
    with Session(engine) as session:
        fill(session, [(0.5, 1, 1.0, 9)], [])
        job(session, "callback", 0.6, 1, kind="ExecuteCallback", task_id=None, usd=1.0, cpu_seconds=1000.0)
        session.flush()
        for before in (BEGUN, BEGUN + 5 * DAY):
            task_usage.forget_ended(session, before)
            assert [task.task_id for task in advice(session, "d1").tasks] == ["t1"]
            assert task_usage.of_task(session, "d1", "ExecuteCallback").tries == 0
        rows = bill_page(session, EVERYTHING, BEGUN, NOW, Period.DAY, "task", NOW).rows
        assert {row.task_id for row in rows if row.kind == "named"} == {"t1", "ExecuteCallback"}
        session.rollback()
