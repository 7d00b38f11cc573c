"""Bills: what is billed is what machines have cost, before and after jobs are forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine, delete, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import bills, task_usage
from lading.executors.store import Capacity, JobRow, State, instances
from lading.executors.store.tables import InstanceRow, InstanceState, UsageRow
from lading.scheduling.accounting.bill import BillParts, total

DAY = 86400.0
BEGUN = 20_000 * DAY
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0, "memory": 100}
CPUS, RATE = 4.0, 3.6


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    yield engine
    engine.dispose()


def machine(session: Session, number: int, since: float, seconds: float, boot: float, is_bought: bool) -> None:
    session.add(
        InstanceRow(
            token=f"M{number}", site="cloud" if is_bought else "hpc", kind="", cpus=CPUS, memory=16_000, disk=100_000,
            gpus=0.0, seconds=0.0, state=InstanceState.ENDED, ordered_at=since, launched_at=since,
            ready_at=since + boot if boot < seconds else None, ended_at=since + seconds, usd_per_hour=RATE,
            capacity_type="spot" if is_bought else None,
        )
    )  # fmt: skip


def job(session: Session, token: str, site: str, location: str, since: float, seconds: float, **columns: Any) -> None:
    times = {"queued_at": since - 5, "started_at": since, "ended_at": since + seconds}
    names = {"dag_id": f"d{len(token) % 2}", "task_id": token[0], "cpus": 1.0, "state": State.SUCCEEDED}
    store.add_job(session, token=token, site=site, location=location, **{**COMMON, **names, **times, **columns})


JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.floats(0, 0.9), st.floats(0.01, 1), st.sampled_from([0.0, 0.3, 2.0, None])),
    max_size=8,
)
MACHINES = st.lists(
    st.tuples(st.floats(0, 5 * DAY), st.floats(1, 2 * DAY), st.floats(0, 4000), st.booleans()), min_size=1, max_size=4
)


def whole(session: Session, since: float, until: float) -> BillParts:
    return total(bills.bill(session, since, until).values())


def cost(session: Session, row: InstanceRow) -> float:
    """What a machine has cost; an allocation at least what its jobs were charged, where more were in it than fit."""
    if row.capacity_type is not None:
        return row.usd or 0.0
    hired = sum(session.scalars(select(JobRow.usd).where(JobRow.location == row.token, JobRow.usd.is_not(None))))
    return max(0.0 if row.ready_at is None else ((row.ended_at or 0.0) - row.ready_at) / 3600 * RATE, hired or 0.0)


@settings(deadline=None, max_examples=60)
@given(machines=MACHINES, jobs=JOBS, cuts=st.lists(st.integers(0, 9), max_size=3))
def test_what_is_billed_is_what_machines_have_cost(
    engine: Engine, machines: list[Any], jobs: list[Any], cuts: list[int]
) -> None:
    with Session(engine) as session:
        for table in (JobRow, InstanceRow, UsageRow, Capacity):
            session.execute(delete(table))
        for number, (since, seconds, boot, is_bought) in enumerate(machines):
            machine(session, number, BEGUN + since, seconds, boot, is_bought)
        for number, (which, after, part, used) in enumerate(jobs):
            number_of, (since, seconds, boot, is_bought) = which % len(machines), machines[which % len(machines)]
            if boot >= seconds:
                continue  # none came up
            ready = since + boot
            begun = ready + after * (seconds - boot)
            ran = part * (since + seconds - begun)
            site, charged = ("cloud", None) if is_bought else ("hpc", ran / 3600 * RATE / CPUS)
            asked = {"cpu_seconds": None if used is None else used * ran, "usd": charged, "cpus": 1.0}
            job(session, f"j{number}", site, f"M{number_of}", BEGUN + begun, ran, **asked)
        session.flush()
        instances.settle(session, "cloud", [f"M{number}" for number in range(len(machines))])
        rows = session.scalars(select(InstanceRow)).all()
        end = BEGUN + 20 * DAY
        before = whole(session, BEGUN, end)
        assert (before.usd or 0.0) == pytest.approx(sum(cost(session, row) for row in rows), abs=0.005)
        days = [whole(session, BEGUN + day * DAY, BEGUN + (day + 1) * DAY) for day in range(20)]
        assert (total(days).usd or 0.0) == pytest.approx(before.usd or 0.0, abs=0.005)
        assert total(days).cpu_seconds == pytest.approx(before.cpu_seconds)
        for cut in sorted(cuts):
            task_usage.forget_ended(session, BEGUN + cut * DAY)
            task_usage.keep_launched(session, BEGUN + cut * DAY)
            instances.forget_ended(session, BEGUN + cut * DAY)
        after = whole(session, BEGUN, end)
        for name in ("jobs", "used", "unused", "idle", "boot", "usd_used", "usd_unused", "usd_idle", "usd_boot"):
            assert getattr(after, name) == pytest.approx(getattr(before, name), abs=0.005), name
        session.rollback()


def test_a_machine_at_hand_costs_all_the_time_and_its_days_are_kept(engine: Engine) -> None:
    with Session(engine) as session:
        session.add(Capacity(site="local", name="host", cpus=4.0, memory=1, gpus=0.0, usd_per_hour=2.4, since=BEGUN))
        # It is over midnight: what it has cost is billed when it has ended, what idles meanwhile each day.
        job(session, "a", "local", "host", BEGUN + DAY - 3600, 7200.0, cpus=2.0, usd=2.4, cpu_seconds=7200.0)
        session.flush()
        days = [whole(session, BEGUN + day * DAY, BEGUN + (day + 1) * DAY) for day in range(3)]
        assert [each.usd_idle for each in days] == pytest.approx([24 * 2.4 - 1.2, 24 * 2.4 - 1.2, 24 * 2.4])
        assert [each.usd_used + each.usd_unused for each in days] == pytest.approx([0, 2.4, 0])
        assert total(days).usd == pytest.approx(3 * 24 * 2.4)
        before = whole(session, BEGUN, BEGUN + 5 * DAY)
        for day in range(1, 4):
            task_usage.forget_ended(session, BEGUN + day * DAY + 5000)
        assert session.scalars(select(JobRow.token)).all() == []
        after = whole(session, BEGUN + DAY, BEGUN + 5 * DAY)
        assert after.usd == pytest.approx((before.usd or 0.0) - days[0].usd_idle)  # type: ignore[operator]
        assert bills.kept_until(session) == BEGUN + 4 * DAY
        session.rollback()


def test_costs_are_of_teams_and_owners_as_well(engine: Engine) -> None:
    with Session(engine) as session:
        times = (BEGUN + 10, 3600.0)
        job(session, "a", "hpc", "hpc", *times, usd=1.0, team="genomics", dag_owner="ann")
        job(session, "b", "hpc", "hpc", *times, usd=2.0, dag_owner="bob")
        session.flush()
        before = {(key.team, key.owner): parts.usd for key, parts in bills.bill(session, BEGUN, BEGUN + DAY).items()}
        assert before == {("genomics", "ann"): 1.0, (None, "bob"): 2.0}
        task_usage.forget_ended(session, BEGUN + DAY)
        after = {(key.team, key.owner): parts.usd for key, parts in bills.bill(session, BEGUN, BEGUN + DAY).items()}
        assert {key: usd for key, usd in after.items() if key != (None, None)} == before
        session.rollback()


def test_jobs_without_a_dag_are_billed_when_they_are_forgotten(engine: Engine) -> None:
    with Session(engine) as session:
        machine(session, 1, BEGUN, 7200.0, 600.0, is_bought=False)
        ran = {"usd": 0.9, "cpu_seconds": 1800.0}
        job(session, "a", "hpc", "M1", BEGUN + 600, 3600.0, dag_id=None, task_id=None, kind="callback", **ran)
        session.flush()
        before = whole(session, BEGUN, BEGUN + DAY)
        assert before.usd == pytest.approx(RATE * 6600 / 3600)
        assert task_usage.forget_ended(session, BEGUN + DAY) == 1
        [(key, after)] = [each for each in bills.bill(session, BEGUN, BEGUN + DAY).items() if each[1].jobs]
        assert (key.dag_id, key.task_id, key.site) == (None, "callback", "hpc")
        assert (after.usd, after.cpu_seconds) == pytest.approx((before.usd, before.cpu_seconds))
        session.rollback()
