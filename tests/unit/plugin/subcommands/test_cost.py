"""What ``airflow lading cost`` shows."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.store import JobRow, LocationRow, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.cost import amounts, format_parts, short_amounts, unpriced
from lading.plugin.subcommands.records import unknown
from lading.plugin.ui.queries.runs import idle_shares, totals_by_run, totals_by_task

NOW = 23_600.0
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "memory": 1, "disk": 0, "gpus": 0.0, "priority": 0}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        yield found


def add(session: Session, token: str, run_id: str, task_id: str, site: str, **values: object) -> None:
    """A job of two cpus that waited 30 min and ran 2 h unless it is said."""
    times = {"queued_at": 1000.0, "started_at": 2800.0, "ended_at": 10_000.0}
    given = {"cpus": 2.0, "state": State.SUCCEEDED, "cpu_seconds": 3600.0, **times, **values}
    store.add_job(session, token=token, dag_id="d", run_id=run_id, task_id=task_id, site=site, **COMMON, **given)


def test_runs_and_tasks(session: Session) -> None:
    add(session, "a", "one", "align", "cloud", usd=0.5)
    add(session, "b", "one", "align", "cloud", usd=0.25, state=State.FAILED)
    add(session, "c", "one", "align", "lab")
    add(session, "e", "one", "call", "lab", queued_at=20_000.0, started_at=None, ended_at=None, state=State.QUEUED)
    add(session, "f", "two", "align", "cloud", usd=0.125, queued_at=2000.0, nodes=2)
    session.flush()

    both = {name: amounts(found) for name, found in totals_by_run(session, "d", 10, NOW)}
    assert list(both) == ["two", "one"], "the youngest first"
    assert both["two"]["cpu_hours"] == 8.0, "cpus are those of each node"
    assert both["one"] == {
        "jobs": 4, "failed": 1, "wait_hours": 2.5, "cpu_hours": 12.0, "cpu_hours_used": 4.0, "usd": 0.75,
        "usd_idle": 0.0, "of_which": {},
    }  # fmt: skip
    [found] = [found for name, found in totals_by_run(session, "d", 10, NOW) if name == "one"]
    assert short_amounts({**found, "cpu_hours_used": 0.0004}) == {
        "jobs": 4, "failed": 1, "waited": "2 h 30 min", "cpu_hours": "12", "cpu_hours_used": "0.0004", "usd": "0.75",
        "usd_idle": "0.00", "of_which": "",
    }  # fmt: skip
    assert short_amounts({**found, "usd": 0.00002}, 0.00004)["usd"] == "0.00002"
    assert short_amounts({**found, "usd": 0.00002}, 0.00004)["usd_idle"] == "0.00004"
    assert short_amounts({**found, "usd": None})["usd"] is None
    assert [name for name, _ in totals_by_run(session, "d", 1, NOW)] == ["two"]

    tasks = {(task, site): amounts(found) for task, site, found in totals_by_task(session, "d", "one", NOW)}
    assert {key: (row["jobs"], row["usd"]) for key, row in tasks.items()} == {
        ("align", "cloud"): (2, 0.75), ("align", "lab"): (1, None), ("call", "lab"): (1, None),
    }  # fmt: skip
    assert list(tasks)[-1] == ("call", "lab"), "in the order in which they began"


def test_what_idle_machines_cost_is_shared_by_what_was_used(session: Session) -> None:
    amounts_of = {"kind": "m5.large", "cpus": 2.0, "memory": 1, "disk": 0, "gpus": 0.0, "seconds": 0.0}
    machine = {**amounts_of, "site": "cloud", "state": InstanceState.ENDED, "ordered_at": 0.0, "capacity_type": "spot"}
    hour = {"launched_at": 0.0, "ended_at": 3600.0, "usd_per_hour": 1.0}
    named = json.dumps({"volumes": 0.1, "public IPv4": 0.02})
    session.add(InstanceRow(token="A", usd=1.0, usd_idle=0.2, surcharges=named, **machine, **hour))
    session.add(InstanceRow(token="B", usd=1.0, usd_idle=0.5, **machine, **hour))
    session.add(InstanceRow(token="C", usd=None, usd_idle=None, **(machine | {"state": InstanceState.UP}), **hour))
    add(session, "a", "one", "align", "cloud", usd=0.6, location="A")
    add(session, "b", "two", "align", "cloud", usd=0.2, location="A")
    add(session, "c", "one", "call", "cloud", usd=0.5, location="B")
    add(session, "d", "one", "call", "cloud", usd=0.3, location="C")
    session.flush()
    idle, parts = idle_shares(session, "d", "one")
    assert idle == pytest.approx(0.2 * 0.75 + 0.5), "what still runs has no idle time yet"
    assert parts == pytest.approx({"volumes": 0.075, "public IPv4": 0.015})
    assert idle_shares(session, "d", "one", JobRow.task_id == "call") == (pytest.approx(0.5), {})
    [(_, found), _] = totals_by_run(session, "d", 10, NOW)
    assert amounts(found, idle, parts)["usd_idle"] == 0.65
    assert format_parts(amounts(found, idle, parts)["of_which"]) == "public IPv4 0.0150, volumes 0.0750"


def test_what_is_unknown(session: Session) -> None:
    assert "There is no record of a job of Dag 'd'; Dags with jobs: none. Records are kept for 30 days" in unknown(
        AirflowHost(), session, "d", None, NOW
    )
    add(session, "a", "one", "align", "lab")
    session.flush()
    assert "Dags with jobs: d." in unknown(AirflowHost(), session, "e", "one", NOW)
    assert "There is no record of run 'two' of Dag 'd'; its newest runs: one." in unknown(
        AirflowHost(), session, "d", "two", NOW
    )


def test_jobs_from_before_their_site_had_a_price_are_told_from_those_of_a_site_without_one(session: Session) -> None:
    for site, usd in (("local", 0.2), ("hpc", None)):
        session.add(
            LocationRow(
                site=site, name=site, kind="local", cpus=1.0, memory=1, disk=0, gpus=0.0, seen_at=0.0,
                usd_per_cpu_hour=usd,
            )
        )  # fmt: skip
    session.flush()
    before = "Rows without USD: these jobs ran while their site had no price, so they never get a cost."
    assert unpriced(session, []) is None
    assert unpriced(session, ["local"]) == before
    later = "For later jobs, set usd_per_hour or usd_per_cpu_hour of gone, hpc."
    assert unpriced(session, ["local", "hpc", "gone"]) == f"{before} {later}"
