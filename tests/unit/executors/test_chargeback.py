"""The sums of a bill are what machines have cost, whoever is charged."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import bills
from lading.executors.store import State, instances
from lading.executors.store.tables import InstanceRow
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands import cost
from lading.scheduling.accounting.bill import total
from lading.scheduling.accounting.chargeback import charges

DAY = 86_400.0
BEGUN = 20_000 * DAY
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0}
# By machine: how long it lived and booted, its price, and its jobs: whose, cpus, from when on and for how long.
JOB = st.tuples(
    st.sampled_from(["genes", "loads", None]), st.integers(1, 4), st.integers(0, 5000), st.integers(1, 5000)
)
MACHINE = st.tuples(st.integers(60, 20_000), st.integers(0, 600), st.floats(0.01, 40), st.lists(JOB, max_size=5))


def new_store() -> Session:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    return Session(engine)


def machine(session: Session, name: str, life: int, boot: int, price: float, jobs: Any, site: str = "cloud") -> None:
    """A machine of four cpus that was bought and has ended, with jobs that never have more than it."""
    ended = BEGUN + life
    for number, (team, cpus, begin, length) in enumerate(jobs):
        started = min(BEGUN + boot + begin, ended)
        store.add_job(
            session, token=f"{name}.{number}", site=site, location=name, cpus=cpus / len(jobs), memory=1,
            state=State.SUCCEEDED, queued_at=BEGUN, started_at=started, ended_at=min(started + length, ended),
            team=team, dag_id=f"dag_{team}", task_id="t", dag_owner="ann, bob" if team == "genes" else None, **COMMON,
        )  # fmt: skip
    row = InstanceRow(
        token=name, site=site, kind="m5.xlarge", cpus=4.0, memory=16_000, disk=0, gpus=0.0, usd_per_hour=price,
        capacity_type="spot", seconds=0.0, state="ended", ordered_at=BEGUN, launched_at=BEGUN,
        ready_at=min(BEGUN + boot, ended), ended_at=ended,
    )  # fmt: skip
    session.add(row)
    session.flush()
    instances.settle(session, site, [name])
    session.flush()


@settings(max_examples=60, deadline=None)
@given(st.lists(MACHINE, min_size=1, max_size=4))
def test_all_that_is_charged_is_what_the_machines_have_cost(fleet: list[Any]) -> None:
    with new_store() as session:
        for number, each in enumerate(fleet):
            machine(session, f"i{number}", *each)
        session.expire_all()
        paid = sum(row.usd for row in session.query(InstanceRow))
        found = bills.bill(session, BEGUN, BEGUN + DAY)
        assert total(found.values()).usd == pytest.approx(paid, abs=1e-6)
        for by in ("team", "dag", "owner", "site"):
            rows = charges(cost.by_name(found, by))
            assert sum(round(100 * (row.usd or 0.0)) for row in rows) == round(100 * (total(found.values()).usd or 0.0))


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> Iterator[Session]:
    with new_store() as session:

        @contextmanager
        def reading(host: AirflowHost) -> Iterator[Session]:
            yield session

        monkeypatch.setattr(cost, "reading_store", reading)
        machine(session, "A", 3600, 600, 3.6, [("genes", 4, 0, 1800)])
        machine(session, "B", 3600, 0, 3.6, [("loads", 4, 0, 3600)], site="other")
        yield session


def asked(by: str, output: str = "json", **more: Any) -> Namespace:
    given = {"since": BEGUN, "until": BEGUN + DAY, "dag_id": None, "run_id": None, "verbose": False, **more}
    return Namespace(by=by, output=output, **given)


def test_each_team_is_charged_its_jobs_and_what_no_job_was_charged_of_its_machines(
    session: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    cost.charge(AirflowHost(), asked("team"))
    rows = json.loads(capsys.readouterr().out)
    assert [(row["kind"], row["team"], row["jobs"], row["usd"]) for row in rows] == [
        ("jobs", "loads", 1, 3.6),
        ("jobs", "genes", 1, 1.8),
        ("idle", "genes", 0, 1.2),
        ("boot", "genes", 0, 0.6),
    ]


def test_a_spreadsheet_gets_the_same(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    cost.charge(AirflowHost(), asked("site", "csv"))
    lines = capsys.readouterr().out.splitlines()
    assert lines == [
        "kind,site,jobs,failed,cpu_hours,usd",
        "jobs,other,1,0,4.0,3.6",
        "jobs,cloud,1,0,2.0,1.8",
        "idle,cloud,0,0,1.333,1.2",
        "boot,cloud,0,0,0.667,0.6",
    ]


def test_who_owns_dags_is_charged_together(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    cost.charge(AirflowHost(), asked("owner"))
    found = {row["owner"]: row["usd"] for row in json.loads(capsys.readouterr().out) if row["kind"] == "jobs"}
    assert found == {"ann, bob": 1.8, None: 3.6}


def test_a_time_in_which_nothing_was_billed_says_so(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cost.charge(AirflowHost(), asked("team", since=BEGUN + 2 * DAY, until=BEGUN + 3 * DAY))
    assert "Nothing was billed from 2024-10-06 to 2024-10-07" in capsys.readouterr().err


def test_a_machine_is_of_one_team_until_another_has_a_job_there(session: Session) -> None:
    row = InstanceRow(
        token="C", site="cloud", kind="m5.xlarge", cpus=4.0, memory=16_000, disk=0, gpus=0.0, seconds=0.0, state="up",
        ordered_at=BEGUN,
    )  # fmt: skip
    session.add(row)
    session.flush()
    assert instances.tenants(session, "cloud") == {}
    for number, (team, dag_id, expected) in enumerate(
        (("genes", "a", ("genes", "a")), ("genes", "b", ("genes", "shared")), (None, None, ("shared", "shared")))
    ):
        store.add_job(
            session, token=f"C.{number}", site="cloud", location="C", cpus=1, memory=1, state=State.PLACED, team=team,
            dag_id=dag_id, queued_at=BEGUN, **COMMON,
        )  # fmt: skip
        assert instances.tenants(session, "cloud") == {"C": expected}, "those of machines that have ended do not count"
