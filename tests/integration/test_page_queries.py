"""The numbers of the page, by queries on the real databases."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
from airflow.models import import_all_models
from airflow.models.base import Base
from sqlalchemy import create_engine, event, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows, task_usage
from lading.executors.controller import metrics
from lading.executors.starts import expected_starts
from lading.executors.store import Capacity, JobRow, LocationRow, SiteRow, State, reason_values
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.jobs import CHUNK
from lading.plugin.host import AirflowHost
from lading.plugin.subcommands.jobs import youngest
from lading.plugin.subcommands.top import screen
from lading.plugin.ui.queries import explorer
from lading.plugin.ui.queries.advice import advice, savings
from lading.plugin.ui.queries.bill import bill_page
from lading.plugin.ui.queries.chart import packing
from lading.plugin.ui.queries.explorer import JobChoice, csv_rows, find_jobs
from lading.plugin.ui.queries.failures import failures
from lading.plugin.ui.queries.gantt import Predictor, RunWaits, gantt, last_starts
from lading.plugin.ui.queries.now import WaitGroups, summary, waits
from lading.plugin.ui.queries.runs import run, runs, tries
from lading.plugin.ui.queries.sight import EVERYTHING, Sight
from lading.scheduling.accounting.periods import Period
from lading.scheduling.accounting.share_table import Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Standing, share_standings
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.reasons import because
from lading.scheduling.model.resources import Resources
from lading.scheduling.starts.expected_starts import ExpectedStart
from tests.conftest import DATABASES

NOW, HOUR, DAY = 1_800_000_000.0, 3600.0, 86400.0
AMOUNTS = {"memory": 1024, "disk": 0, "gpus": 0.0}


@pytest.fixture(scope="module", params=DATABASES)
def engine(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    engine = create_engine(database_url(request.param) or f"sqlite:///{tmp_path_factory.mktemp('page')}/store.db")
    import_all_models()
    Base.metadata.create_all(engine)
    store.metadata.create_all(engine)
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session whose work is undone in the end."""
    with engine.connect() as connection, Session(connection) as session:
        yield session
        session.rollback()


def add(session: Session, token: str, **columns: Any) -> None:
    defaults = {"kind": "ExecuteTask", "subject": token, "workload": "{}", "cpus": 1.0, "priority": 0, "map_index": -1}
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "try_number": 1, "state": State.RUNNING}
    store.add_job(session, token=token, **{**defaults, **AMOUNTS, **names, "queued_at": NOW - 600, **columns})


def add_sites(session: Session) -> None:
    """This machine, a queue with a price, and a site that has a queue and an allocation."""
    for position, (name, kind, rate) in enumerate(
        (("local", "local", 0.1), ("sge", "sge", 0.5), ("hpc", "slurm", 0.25))
    ):
        session.add(SiteRow(name=name, kind=kind, position=position, limits="{}", contact_at=NOW))
        location = {"site": name, "name": "host" if name == "local" else name, "kind": kind, "seen_at": NOW}
        session.add(LocationRow(cpus=64.0, state="up", usd_per_cpu_hour=rate, **AMOUNTS, **location))
    session.add(Capacity(site="local", name="host", cpus=16.0, memory=1, gpus=0.0, usd_per_hour=1.6, since=NOW - DAY))
    session.add(
        InstanceRow(
            token="L1", site="hpc", kind="", cpus=32.0, seconds=60.0, state=InstanceState.UP, ordered_at=NOW - 900,
            launched_at=NOW - 850, ready_at=NOW - 800, usd_per_hour=8.0, **AMOUNTS,
        )
    )  # fmt: skip


def add_work(session: Session) -> None:
    """Jobs that run: 4 cpus here, 8 in the allocation, 1,800 in one queue, and 24 on three nodes of the other one."""
    since = {"started_at": NOW - 600, "placed_at": NOW - 600}
    add(session, "here", site="local", location="host", cpus=4.0, **since)
    add(session, "allocated", site="hpc", location="L1", cpus=8.0, **since)
    add(session, "queued", site="sge", location="sge", node="n1", cpus=1800.0, **since)
    add(session, "nodes", site="hpc", location="hpc", node="n2", cpus=8.0, nodes=3, **since)
    session.flush()


def test_what_a_user_sees_is_asked_of_the_database(session: Session) -> None:
    for dag in ("mine", "other", "gone", ""):
        add(session, f"of {dag}", dag_id=dag or None, run_id=None if not dag else "r", started_at=NOW - 5)
    session.flush()
    many = frozenset(f"dag {number}" for number in range(3 * CHUNK))  # more than one list may have
    for sight, seen in (
        (EVERYTHING, {"of mine", "of other", "of gone", "of "}),
        (Sight(frozenset({"mine"})), {"of mine", "of "}),
        (Sight(frozenset()), {"of "}),
        (Sight(many | {"mine"}), {"of mine", "of "}),
        (Sight(hidden=frozenset({"other"})), {"of mine", "of gone", "of "}),
        (Sight(hidden=many | {"other"}), {"of mine", "of gone", "of "}),
    ):
        assert set(session.scalars(select(JobRow.token).where(sight.condition()))) == seen, sight
        for dag in ("mine", "other", "gone", None):
            assert sight.sees(dag) == (f"of {dag or ''}" in seen)


def test_cpus_in_use_are_those_of_what_is_up_and_batch_jobs_are_apart(session: Session) -> None:
    add_sites(session)
    add_work(session)
    found = summary(session, EVERYTHING, NOW)
    assert (found.cpus_used, found.cpus_up, found.cpus_batch) == (12, 48, 1824)
    assert {site.name: (site.cpus_used, site.cpus_up, site.cpus_batch) for site in found.sites} == {
        "local": (4, 16, 0), "sge": (0, None, 1800), "hpc": (8, 32, 24),
    }  # fmt: skip
    assert {site.name: site.usd_per_hour for site in found.sites} == {"local": 1.6, "sge": 900.0, "hpc": 8 + 24 * 0.25}
    gauges = metrics.by_site(session, any_run=True)
    assert gauges["hpc"] == {
        "lading.cpus.used": 8, "lading.cpus.batch": 24, "lading.cpus.up": 32, "lading.usd_per_hour": 14.0,
    }  # fmt: skip
    head = str(screen(AirflowHost(), found, WaitGroups(now=NOW, jobs=0, groups=[])).renderables[0])
    assert "12 of 48 cpus requested, 1824 in batch jobs" in head


def test_a_machine_of_the_name_of_its_site_is_no_queue(session: Session) -> None:
    session.add(SiteRow(name="lab", kind="ssh", position=0, limits="{}", contact_at=NOW))
    session.add(LocationRow(site="lab", name="lab", kind="ssh", cpus=8.0, state="up", seen_at=NOW, **AMOUNTS))
    session.add(Capacity(site="lab", name="lab", cpus=8.0, memory=1, gpus=0.0, since=NOW - DAY))
    add(session, "there", site="lab", location="lab", started_at=NOW - 5)
    session.flush()
    found = summary(session, EVERYTHING, NOW)
    assert (found.cpus_used, found.cpus_up, found.cpus_batch) == (1, 8, 0)


def test_a_machine_that_does_not_answer_is_said_to_be_unreachable_since_then(session: Session) -> None:
    add_sites(session)
    session.add(LocationRow(site="hpc", name="L1", kind="slurm", cpus=32.0, state="up", seen_at=NOW - 800, **AMOUNTS))
    session.flush()

    def seen(name: str, state: str, at: float, note: str | None) -> None:
        row = {"site": "local" if name == "host" else "hpc", "name": name, "kind": "k", "cpus": 16.0, "seen_at": at}
        others = session.scalars(
            select(LocationRow).where(LocationRow.site == row["site"], LocationRow.name != name)
        ).all()
        kept = [
            LocationRow(
                site=each.site, name=each.name, kind=each.kind, cpus=each.cpus, state=each.state, seen_at=at, **AMOUNTS
            )
            for each in others
        ]
        store.save_locations(session, str(row["site"]), [LocationRow(state=state, note=note, **row, **AMOUNTS), *kept])
        session.flush()

    def shown(cursor: float | None = None) -> dict[str, tuple[str, float | None, str | None]]:
        found = packing(session, EVERYTHING, NOW - HOUR, NOW, NOW, cursor)
        return {each.name: (each.state, each.unreachable_since, each.reason) for each in found.machines}

    up = {"host": ("up", None, None), "L1": ("up", None, None)}
    assert shown() == up
    assert "host" not in shown(NOW + 30), "nothing has changed"
    seen("host", "unreachable", NOW - 300, "no route to host")
    seen("L1", "unreachable", NOW - 200, "it has not answered for 10 s")
    seen("host", "unreachable", NOW - 100, "connection refused")
    silent = {
        "host": ("up", NOW - 300, "connection refused"),
        "L1": ("up", NOW - 200, "it has not answered for 10 s"),
    }
    assert shown() == silent
    assert shown(NOW + 900) == silent, "though nothing else of it has changed"
    seen("host", "up", NOW - 5, None)
    seen("L1", "up", NOW - 5, None)
    assert shown(NOW) == up


def test_jobs_that_still_wait_have_waited_until_now(session: Session) -> None:
    add(session, "began", queued_at=NOW - 600, started_at=NOW - 570)
    for number in range(3):
        add(session, f"waits{number}", state=State.QUEUED, queued_at=NOW - HOUR * (number + 1))
    session.flush()
    found = run(session, "d", "r", NOW)
    assert found.totals.wait_seconds == 30 + HOUR * (1 + 2 + 3)
    assert [each.id for each in found.waits] == ["waits2", "waits1", "waits0", "began"]
    assert runs(session, "d", NOW, 10).runs[0].wait_seconds == 30 + HOUR * (1 + 2 + 3)


def test_a_run_and_its_jobs_have_cost_until_now_what_runs_of_them(session: Session) -> None:
    add_sites(session)
    add_work(session)
    ended = {"state": State.SUCCEEDED, "started_at": NOW - HOUR, "ended_at": NOW - 60}
    add(session, "ended", site="local", location="host", usd=2.0, **ended)
    add(session, "waits", state=State.QUEUED)
    session.flush()
    running = {"here": 4 * 0.1 / 6, "allocated": 8 * 0.25 / 6, "queued": 1800 * 0.5 / 6, "nodes": 24 * 0.25 / 6}
    found = run(session, "d", "r", NOW)
    assert found.totals.usd == pytest.approx(2.0 + sum(running.values()))
    assert found.totals.cpu_hours == pytest.approx((3540 + (4 + 8 + 1800 + 24) * 600) / HOUR)
    of_jobs = {each.id: each.usd for each in tries(session, EVERYTHING, NOW, [], 10).jobs}
    assert of_jobs == pytest.approx({**running, "ended": 2.0, "waits": None})
    assert {each.id: each.usd for each in found.waits} == of_jobs


def test_a_run_takes_until_its_last_job_has_ended(session: Session) -> None:
    ended = {"state": State.SUCCEEDED, "queued_at": NOW - HOUR, "started_at": NOW - HOUR, "ended_at": NOW - 3500}
    add(session, "ended", **ended)
    add(session, "over", run_id="r2", **ended)
    add(session, "waits", state=State.QUEUED, queued_at=NOW - 3000)
    session.flush()
    found = {each.run_id: (each.live, each.began_at, each.ended_at) for each in runs(session, "d", NOW, 10).runs}
    assert found == {"r": (1, NOW - HOUR, NOW - 3500), "r2": (0, NOW - HOUR, NOW - 3500)}
    assert (run(session, "d", "r", NOW).seconds, run(session, "d", "r2", NOW).seconds) == (HOUR, 100)


def test_the_share_of_what_was_used_is_of_those_of_which_it_is_known(session: Session) -> None:
    ran = {"started_at": NOW - HOUR, "cpus": 2.0}
    add(session, "ended", state=State.SUCCEEDED, ended_at=NOW, cpu_seconds=HOUR, **ran)
    add(session, "lost", state=State.FAILED, ended_at=NOW, cause="lost", **ran)
    add(session, "runs", started_at=NOW - 10 * HOUR, cpus=8.0)
    session.flush()
    totals = run(session, "d", "r", NOW).totals
    assert (totals.cpu_hours, totals.cpu_hours_measured, totals.cpu_hours_used) == pytest.approx((84, 2, 1))


def test_the_window_of_an_old_run_has_its_jobs(session: Session) -> None:
    old = NOW - 20 * DAY
    add(session, "own", state=State.SUCCEEDED, site="local", location="host", started_at=old, ended_at=old + 60)
    add(session, "young", run_id="other", site="local", location="host", started_at=NOW - 60)
    session.flush()
    assert packing(session, EVERYTHING, old - 60, old + 120, NOW).jobs.id == ["own"]


def test_the_chart_knows_what_batch_jobs_have_and_cost(session: Session) -> None:
    add_sites(session)
    add_work(session)
    found = packing(session, EVERYTHING, NOW - HOUR, NOW, NOW)
    assert found.queues == {"sge": 0.5, "hpc": 0.25}
    jobs = found.jobs
    assert {token: size for token, *size in zip(jobs.id, jobs.cpus, jobs.nodes, strict=True)} == {
        "here": [4, 1], "allocated": [8, 1], "queued": [1800, 1], "nodes": [8, 3],
    }  # fmt: skip


def test_the_youngest_jobs_and_how_many_more_there_are(session: Session) -> None:
    for number in range(8):
        add(session, f"{number}", queued_at=NOW - number, state=State.FAILED if number < 5 else State.QUEUED)
    session.flush()
    rows, older = youngest(session, 3)
    assert ([row.token for row in rows], older) == (["0", "1", "2"], 5)
    assert youngest(session, 3, [State.FAILED], "d", "r")[1] == 2
    assert youngest(session, 8)[1] == 0
    assert youngest(session, 3, dag_id="other") == ([], 0)


def explored(session: Session, sort: Any = "queued", order: Any = "desc", **choice: Any) -> list[str]:
    """The jobs that the explorer finds, through all its pages, in their order."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = find_jobs(session, EVERYTHING, JobChoice(**choice), NOW, sort, order, 3, after)
        found += [job.id for job in page.jobs]
        assert len(found) == len({*found}), "no page repeats what another one has"
        if (after := page.after) is None:
            assert page.matching == len(found)
            return found


def test_the_explorer_finds_the_same_on_every_database(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(10):
        ran = {"started_at": NOW - 500 + number, "ended_at": NOW - 10 * number, "usd": number % 3 or None}
        names = {"task_id": f"t_{number % 2}", "run_id": f"scheduled__{number}", "native_id": f"47{number}"}
        add(session, f"{number}", state=State.SUCCEEDED, site="hpc", location=f"L{number}", node="n1", **ran, **names)
    add(session, "F", dag_id="other", state=State.FAILED, ended_at=NOW - 5, cause="error", started_at=NOW - 50)
    add(session, "W", dag_id="w", task_id="w", state=State.QUEUED, site_hint="gpu")
    session.flush()
    for most in (1_000, 0):  # as names that are asked for one by one, and as too many of them
        monkeypatch.setattr(explorer, "MOST_NAMES", most)
        for choice, tokens in (
            ({"q": "T_1"}, "13579"), ({"q": "%"}, ""), ({"q": "scheduled__4"}, "4"), ({"q": "47"}, "0123456789"),
            ({"q": "473"}, "3"), ({"q": "n1 t_0"}, "02468"), ({"q": "L7"}, "7"), ({"q": "other"}, "F"),
            ({"location": "n1"}, "0123456789"), ({"cause": ("error",)}, "F"), ({"state": ("failed",)}, "F"),
            ({"dag_id": ("d",), "state": ("succeeded", "failed")}, "0123456789"), ({"site": ("hpc",)}, "0123456789"),
            ({"site": ("gpu",)}, "W"), ({"site": ("gpu", "hpc"), "state": ("queued",)}, "W"),
            ({"dag_id": ("other",), "state": ("failed",)}, "F"), ({"dag_id": ("d",), "state": ("failed",)}, ""),
            ({"dag_id": ("d", "other"), "cause": ("error", "lost")}, "F"),
        ):  # fmt: skip
            assert "".join(sorted(explored(session, **choice))) == tokens, choice
    assert explored(session, "started", dag_id=("d",)) == list("9876543210")
    assert explored(session, ended_since=NOW - 25) == ["F", "2", "1", "0"]
    assert explored(session, "ended", "asc", dag_id=("d",)) == list("9876543210")
    assert explored(session, "usd", dag_id=("d",)) == list("8527419630"), "what has no price is last"
    file = list(
        csv.DictReader(io.StringIO("".join(csv_rows(lambda: nullcontext(session), EVERYTHING, JobChoice(), NOW))))
    )
    assert [row["run_id"][-1] for row in file if row["dag_id"] == "d"] == list("9876543210")
    few = Sight(frozenset({"other"}))
    assert [job.id for job in find_jobs(session, few, JobChoice(state=("failed",)), NOW).jobs] == ["F"]


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_jobs_with_the_same_share_of_memory_are_in_one_page_each(session: Session, order: str) -> None:
    for number in range(10):  # a third has no end, neither as a decimal nor as a binary number
        add(session, f"{number}", state=State.SUCCEEDED, peak_memory=[1000, 2000][number % 2], memory=3000)
    session.flush()
    found = explored(session, "memory_used", order, dag_id=("d",))
    assert found == (list("0246813579") if order == "asc" else list("9753186420"))


def test_many_jobs_are_found_as_few_are(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "MOST_COUNTED", 4)
    monkeypatch.setattr(explorer, "MOST_SORTED", 6)
    for number in range(9):
        ran = {"started_at": NOW - 50, "ended_at": NOW - 10, "usd": float(number)}
        add(session, f"{number}", state=State.SUCCEEDED, site="hpc", queued_at=NOW - 900 + number, **ran)
    session.flush()
    page = find_jobs(session, EVERYTHING, JobChoice(q="t"), NOW, limit=3)
    assert ([job.id for job in page.jobs], page.matching, page.is_more) == (["8", "7", "6"], 4, True)
    page = find_jobs(session, EVERYTHING, JobChoice(dag_id=("d",)), NOW, "usd", "asc", 4)
    assert ([job.id for job in page.jobs], page.is_partial) == (["3", "4", "5", "6"], True), "of the youngest six"
    page = find_jobs(session, EVERYTHING, JobChoice(dag_id=("d",)), NOW, "usd", "asc", 4, page.after)
    assert ([job.id for job in page.jobs], page.after) == (["7", "8"], None)


def test_failures_waits_starts_and_bills_are_the_same_on_every_database(session: Session) -> None:
    add_sites(session)
    for number in range(8):
        ran = {"queued_at": NOW - 900, "started_at": NOW - 900 + 60 * (number + 1), "ended_at": NOW - 100}
        cause = {"state": State.FAILED, "cause": "node_failure", "node": "n7"} if number < 2 else {}
        add(session, f"{number}", **{"state": State.SUCCEEDED, "site": "hpc", "location": "L1", **ran, **cause})
    reason = because("max_allocations", used=8, most=8).at("hpc")
    add(session, "w", state=State.QUEUED, queued_at=NOW - 50, **reason_values(reason))
    add(session, "p", state=State.PLACED, site="sge", task_id="new", queued_at=NOW - 50, native_start=NOW + 60)
    session.flush()
    [group] = failures(session, EVERYTHING, NOW - DAY, NOW).groups
    assert (group.cause, group.site, group.node, group.jobs) == ("node_failure", "hpc", "n7", 2)
    assert summary(session, EVERYTHING, NOW).failed == 2
    wait = next(each for each in waits(session, EVERYTHING, NOW).groups if each.key == "max_allocations")
    assert (wait.params["most"], wait.site, wait.share) == (8, "hpc", 0.5)
    assert "of site hpc" in wait.remedy
    found = {job.id: job.start for job in find_jobs(session, EVERYTHING, JobChoice(), NOW).jobs if job.start}
    assert {token: start.source for token, start in found.items()} == {"w": "past_waits", "p": "batch_system"}
    assert wait.start == found["w"]
    said = select(JobRow.token, JobRow.said_source).where(JobRow.said_at.is_not(None))
    assert dict(session.execute(said).tuples().all()) == {"w": "past_waits", "p": "batch_system"}, "as it was shown"
    day = NOW // DAY * DAY - DAY
    bill = bill_page(session, EVERYTHING, day, NOW + DAY, Period.DAY, "task", NOW)
    assert bill.total.jobs == 8
    assert bill.total.cpu_hours == pytest.approx(sum(each.cpu_hours for each in bill.totals))
    assert task_usage.forget_ended(session, NOW + 1) == 8
    again = bill_page(session, EVERYTHING, day, NOW + DAY, Period.DAY, "task", NOW)
    assert again.total.cpu_hours_used == pytest.approx(bill.total.cpu_hours_used)
    assert savings(session, EVERYTHING, NOW).tasks == []
    assert [run.upstream for run in gantt(session, "d", "r", NOW).tasks] == [[], []]


def test_the_last_start_of_a_group_is_that_of_its_last_job_on_every_database(session: Session) -> None:
    """Whether a database cuts off or rounds the minute in which a job was queued."""
    for number in range(20):  # in an hour
        began = NOW - 3600 + 150 * number
        times = {"queued_at": began - 600, "started_at": began, "ended_at": began + 500}
        add(session, f"old{number}", state=State.SUCCEEDED, site="hpc", **times)
    full = because("max_allocations", used=8, most=8).at("hpc")
    for number in range(100):
        add(session, f"w{number:02}", state=State.QUEUED, queued_at=NOW - 2000 + 7 * number, **reason_values(full))
    session.flush()
    rank = {}
    for job in find_jobs(session, EVERYTHING, JobChoice(state=("queued",)), NOW, limit=200).jobs:
        assert job.start is not None
        assert job.start.source == "backlog"
        is_next = job.start.text.startswith("no job ahead")
        rank[int(job.id[1:])] = 0 if is_next else int(job.start.text.partition(" ")[0])
    assert len(rank) == 100
    assert all(abs(rank[number] - number) <= 5 for number in rank), "half a minute's jobs"
    assert rank[99] == 99
    [group] = waits(session, EVERYTHING, NOW).groups
    assert group.start is not None
    assert group.start.text.startswith("99 jobs ahead of it")


def test_limits_of_dags_that_the_user_may_not_see_say_nothing(session: Session) -> None:
    limit = because("run_jobs", most=2)

    def group(sight: Sight) -> Any:
        [found] = waits(session, sight, NOW).groups
        return found.start

    for dag_id, jobs in (("mine", 4), ("theirs", 90)):
        names = {"dag_id": dag_id, "run_id": dag_id}
        for number in range(20):
            began = NOW - 3600 + 150 * number
            times = {"queued_at": began - 600, "started_at": began, "ended_at": began + 500}
            add(session, f"{dag_id} old{number}", state=State.SUCCEEDED, **names, **times)
        for number in range(jobs):
            waits_since = NOW - 900 + number
            add(
                session, f"{dag_id}{number}", state=State.QUEUED, queued_at=waits_since, **names, **reason_values(limit)
            )
        session.flush()
        if dag_id == "mine":
            alone = group(Sight(frozenset({"mine"})))
    mine, theirs = Sight(frozenset({"mine"})), Sight(frozenset({"theirs"}))
    starts_of = {
        name: [each.start for each in waits(session, sight, NOW).groups if each.dags]
        for name, sight in (("mine", mine), ("theirs", theirs))
    }
    assert [(each.since, each.until) for each in starts_of["mine"] if each] == [(alone.since, alone.until)]
    [other] = [each for each in starts_of["theirs"] if each]
    assert other.until > 5 * (alone.until - NOW) + NOW
    none = waits(session, Sight(frozenset({"neither"})), NOW).groups
    assert [(each.jobs, each.start) for each in none] == [(94, None)]


def test_a_group_names_no_task_of_a_dag_that_the_user_may_not_see(session: Session) -> None:
    """Jobs of another Dag wait for the same limit, which is named for Dags alone that the user may see."""
    full = because("max_allocations", used=8, most=8).at("hpc")
    for number in range(10):
        ended = {"queued_at": NOW - 9000, "started_at": NOW - 5000, "ended_at": NOW - 4000}
        add(session, f"old{number}", state=State.SUCCEEDED, dag_id="theirs", task_id="secret", **ended)
    for dag_id, task_id in (("mine", "t"), ("theirs", "secret")):
        names = {"dag_id": dag_id, "task_id": task_id, "queued_at": NOW - 90 + len(dag_id)}
        add(session, dag_id, state=State.QUEUED, **names, **reason_values(full))
    session.flush()
    assert "secret" in waits(session, EVERYTHING, NOW).model_dump_json()
    assert "secret" not in waits(session, Sight(frozenset({"mine"})), NOW).model_dump_json()


def test_starts_follow_from_shares_and_from_what_runs_and_has_finished(session: Session) -> None:
    """Four jobs run at a time, for 400 s each; of two shares of one weight, one has jobs of two cpus."""
    shares = Shares((Share("a", Who(team="a")), Share("b", Who(team="b"))))
    share_rows.save_standings(session, share_standings(shares, Standing(ShareAmounts(4.0))), NOW)
    for number in range(20):
        times = {
            "queued_at": NOW - 3600,
            "started_at": NOW - 2400 + 100 * number,
            "ended_at": NOW - 2000 + 100 * number,
        }
        add(session, f"old{number:02}", state=State.SUCCEEDED, site="hpc", **times)
    for number in range(4):
        add(session, f"runs{number}", state=State.RUNNING, site="hpc", started_at=NOW - 100 * number, team="a")
    full = reason_values(because("max_allocations", used=4, most=4).at("hpc"))
    for number in range(8):
        for team, cpus in (("a", 1.0), ("b", 2.0)):
            names = {"team": team, "cpus": cpus, "queued_at": NOW - 900 + number, "site_hint": "hpc"}
            add(session, f"{team}{number}", state=State.QUEUED, **names, **full)
    session.flush()
    found = expected_starts.expected_starts(session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW)
    at = {token: start.at - NOW for token, start in found.items() if isinstance(start, ExpectedStart)}
    assert len(at) == 16
    assert at["a0"] < at["a7"] < at["b7"], "b needs twice as much"
    assert at["b7"] == pytest.approx(24 * 400 / 4, rel=0.3), "24 cpus on 4, 400 s each"


def test_a_job_that_has_just_been_queued_leaves_the_end_of_its_run_known(session: Session) -> None:
    for number in range(10):
        times = {"queued_at": NOW - 900, "started_at": NOW - 900, "ended_at": NOW - 600}
        add(session, f"old{number}", run_id="old", state=State.SUCCEEDED, **times)
    add(session, "works", state=State.RUNNING, queued_at=NOW - 100, started_at=NOW - 100)
    add(session, "new", state=State.QUEUED, queued_at=NOW - 5, map_index=1)
    session.flush()
    assert last_starts(Predictor(session, NOW), "d", "r") == RunWaits({"t": NOW})
    for number in range(9):
        add(session, f"long{number}", state=State.QUEUED, queued_at=NOW - 500, map_index=2 + number)
    session.flush()
    assert last_starts(Predictor(session, NOW), "d", "r") == RunWaits({"t": None})


def test_advice_for_many_tasks_takes_few_queries(session: Session) -> None:
    for number in range(90):
        used = {"started_at": NOW - 100, "ended_at": NOW - number, "cpu_seconds": 50.0, "peak_memory": 500}
        add(session, f"{number}", task_id=f"t{number % 30}", state=State.SUCCEEDED, map_index=number, **used)
    session.flush()
    assert task_usage.forget_ended(session, NOW - 45) == 44
    asked: list[str] = []
    connection = session.connection()
    event.listen(connection, "before_cursor_execute", lambda *given: asked.append(given[2]))
    found = advice(session, "d")
    assert len(asked) <= 6
    assert {each.task_id: each.tries for each in found.tasks} == {f"t{number}": 3 for number in range(30)}
    of_all = task_usage.of_tasks(session, "d", ["t1", "t2", "none"])
    assert of_all == {name: task_usage.of_task(session, "d", name) for name in ("t1", "t2", "none")}


def test_of_tries_without_number_the_youngest_count(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_usage, "MOST_TRIES", 5)
    for number in range(12):
        ran = {"started_at": NOW - 100, "ended_at": NOW - number * DAY, "peak_memory": 100 + number}
        add(session, f"{number}", state=State.SUCCEEDED, map_index=number, **ran)
    session.flush()
    assert task_usage.of_tasks(session, "d", ["t"]) == {"t": task_usage.of_task(session, "d", "t")}
    assert task_usage.forget_ended(session, NOW - 2.5 * DAY) == 9
    of_task = task_usage.of_task(session, "d", "t")
    assert of_task.tries == 5
    assert task_usage.of_tasks(session, "d", ["t"]) == {"t": of_task}


def test_a_file_of_jobs_holds_no_connection_while_it_is_read(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explorer, "ROWS_AT_A_TIME", 3)
    for number in range(7):
        add(session, f"{number}", state=State.SUCCEEDED, queued_at=NOW - 900 + number // 2)
    session.flush()
    opened, is_open = [], False

    @contextmanager
    def open_session() -> Iterator[Session]:
        nonlocal is_open
        opened.append(is_open := True)
        yield session
        is_open = False

    file = ""
    for part in csv_rows(open_session, EVERYTHING, JobChoice(), NOW):
        assert not is_open
        file += part
    assert len(opened) == 3
    assert len([*csv.DictReader(io.StringIO(file))]) == 7


def test_a_search_asks_few_queries_however_many_dags_there_are(session: Session) -> None:
    for number in range(150):
        names = {"dag_id": f"dag{number}", "task_id": f"load{number}", "run_id": f"load{number}"}
        add(session, f"{number}", state=State.SUCCEEDED, queued_at=NOW - 900 + number, **names)
    session.flush()
    asked: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *given: asked.append(given[2]))
    page = find_jobs(session, EVERYTHING, JobChoice(q="load"), NOW, limit=3)
    assert ([job.id for job in page.jobs], page.matching) == (["149", "148", "147"], 150)
    assert len(asked) <= 25
    assert [job.id for job in find_jobs(session, EVERYTHING, JobChoice(q="load149"), NOW).jobs] == ["149"]


def test_jobs_of_a_group_of_waits_are_those_of_its_site(session: Session) -> None:
    limit = because("max_allocations", used=8, most=8)
    full = because("machine_full", needs=Resources(4.0, 8192), taken=["cpus"])
    for token, reason, site in (
        ("hpc", limit.at("hpc"), None), ("lab", limit.at("lab_%"), None), ("given", full, "hpc"), ("none", full, None),
    ):  # fmt: skip
        add(session, token, state=State.QUEUED, site=site, queued_at=NOW - 50, **reason_values(reason))
    # Why else it waits is about another site.
    composed = full.with_also(limit.at("lab"))
    add(session, "composed", state=State.QUEUED, site="sge", queued_at=NOW - 50, **reason_values(composed))
    session.flush()

    def found(**choice: Any) -> set[str]:
        return {job.id for job in find_jobs(session, EVERYTHING, JobChoice(state=("queued",), **choice), NOW).jobs}

    assert found(reason_site="hpc") == {"hpc", "given"}
    assert found(reason_site="lab_%") == {"lab"}
    assert found(reason_site="hpc", reason_code=("max_allocations",)) == {"hpc"}
    assert found(reason_site="lab", reason_code=("max_allocations",)) == set()
    assert found(reason_site="sge", reason_code=("machine_full",)) == {"composed"}
    for group in waits(session, EVERYTHING, NOW).groups:
        if group.site is not None:
            assert len(found(reason_site=group.site, reason_code=(group.key,))) == group.jobs


def test_groups_of_failures_are_bounded(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lading.plugin.ui.queries.failures.MOST_GROUPS", 2)
    for number in range(9):
        of_node = {"cause": "node_failure", "node": f"n{number // 2}", "site": "hpc"}
        add(session, f"{number}", state=State.FAILED, started_at=NOW - 50, ended_at=NOW - 10, **of_node)
    session.flush()
    found = failures(session, EVERYTHING, NOW - DAY, NOW)
    assert [group.jobs for group in found.groups] == [2, 2]
    assert (found.jobs, found.groups_left_out, found.jobs_left_out) == (9, 3, 5)


def test_of_a_group_of_failures_is_told_what_most_of_its_jobs_said(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lading.plugin.ui.queries.failures.MOST_SAID", 2)
    failed = {"state": State.FAILED, "cause": "error", "started_at": NOW - 50, "ended_at": NOW - 10}
    for task_id, jobs in (("few", 1), ("some", 2), ("many", 3), ("silent", 4)):
        said = reason_values(None if task_id == "silent" else because("free_text", text=f"of {task_id}"))
        for number in range(jobs):
            add(session, f"{task_id}{number}", task_id=task_id, **failed, **said)
    add(session, "hidden", dag_id="other", **failed, **reason_values(because("free_text", text="of another Dag")))
    session.flush()
    [group] = failures(session, Sight(frozenset({"d"})), NOW - DAY, NOW).groups
    assert (group.jobs, group.sentences, group.hidden) == (11, ["of many", "of some"], True)


def test_the_last_run_is_the_youngest_before_that_has_ended(session: Session) -> None:
    for number, run_id in enumerate(("old", "last", "lives", "now")):
        ended = {} if run_id in ("lives", "now") else {"ended_at": NOW - 3000 + number, "state": State.SUCCEEDED}
        for job in range(3):
            add(session, f"{run_id}{job}", run_id=run_id, queued_at=NOW - 4000 + 100 * number + job, **ended)
    add(session, "of no run", run_id=None, queued_at=NOW - 3900)
    session.flush()
    last = gantt(session, "d", "now", NOW).last_run
    assert last is not None
    assert (last.run_id, last.seconds) == ("last", pytest.approx(901.0))
    assert gantt(session, "d", "old", NOW).last_run is None


def test_a_run_that_lives_for_long_hides_no_run_that_has_ended(session: Session) -> None:
    for job, at in enumerate((5000, 4100, 3500)):
        ended = {"ended_at": NOW - 3400, "state": State.SUCCEEDED} if job else {}
        add(session, f"long{job}", run_id="long", queued_at=NOW - at, **ended)
    add(session, "last", run_id="last", queued_at=NOW - 4000, ended_at=NOW - 3900, state=State.SUCCEEDED)
    add(session, "now", run_id="now", queued_at=NOW - 3000)
    session.flush()
    last = gantt(session, "d", "now", NOW).last_run
    assert last is not None
    assert (last.run_id, last.seconds) == ("last", pytest.approx(100.0))
