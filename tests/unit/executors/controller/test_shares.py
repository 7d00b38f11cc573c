"""Shares and budgets in a controller that leads one machine."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import request_rows, store
from lading.executors.accounting import share_rows, task_usage
from lading.executors.controller.controller import Controller
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.airflow_facts import DagFacts
from lading.executors.orchestrator.orchestrator import TaskNote
from lading.executors.request_rows import RequestKind
from lading.executors.store import JobRow, State, fair_queue
from lading.executors.store.fair_queue import FairTurns
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import LocationRow
from lading.scheduling.accounting.budgets import BudgetTerms, BudgetUse, PeriodBudget, Unit
from lading.scheduling.accounting.share_table import Shares
from lading.scheduling.accounting.share_usage import Mean, Standing
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.reasons import because
from tests.clusters.agents import AgentSite
from tests.clusters.sites import StoreHost, make_settings, make_store, rest

NOW = 1_790_000_000.0
JOB: dict[str, Any] = {
    "kind": "Test", "subject": "s", "workload": "{}", "priority": 1, "try_number": 1, "news": 0, "map_index": -1,
    "unreported": False, "state": State.QUEUED, "cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0, "run_id": "run",
    "task_id": "task", "changed_at": 0.0,
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Engine:
    return make_store(tmp_path)


@pytest.fixture(autouse=True)
def notes(monkeypatch: pytest.MonkeyPatch) -> list[TaskNote]:
    """What the event log is given."""
    found: list[TaskNote] = []
    monkeypatch.setattr(AirflowOrchestrator, "note", lambda self, session, notes: found.extend(notes))
    return found


def queue(engine: Engine, dag: str, number: int, **columns: Any) -> None:
    with Session(engine) as session:
        rows = [
            {**JOB, "token": f"{dag}-{n:03}", "dag_id": dag, "queued_at": time.time() - 500 + n, **columns}
            for n in range(number)
        ]
        session.execute(insert(JobRow), rows)
        store.tell(session, [row["token"] for row in rows])
        session.commit()


def jobs(engine: Engine, state: State) -> list[JobRow]:
    with Session(engine, expire_on_commit=False) as session:
        return list(session.scalars(select(JobRow).where(JobRow.state == state)))


class Machine:
    """A controller that leads one machine of eight cpus."""

    def __init__(self, engine: Engine, folder: Path, file: str) -> None:
        folder.mkdir(exist_ok=True)
        self.site = AgentSite("lab", folder)
        path = folder / "sites.toml"
        path.write_text(f'[sites.lab]\nkind = "fake"\n{file}')
        settings = make_settings(folder / "state", sites_file=path)
        settings.state_folder.mkdir(exist_ok=True)
        self.made = Controller(
            StoreHost(engine), {"lab": self.site}, lambda subject, seconds: "", settings, True, lambda some: None
        )

    def tick(self) -> None:
        made = self.made
        made.leadership.leads_until = time.monotonic() + 60
        rest(made.threads)
        made.threads.request_observations()
        rest(made.threads)
        seen, any_wait = made.observe(), made.any_wait()
        decision = made.decide(seen, any_wait)
        made.record(decision, any_wait, time.time())
        made.act(decision)
        rest(made.threads)


def test_of_a_budget_that_was_raised_is_warned_again(engine: Engine) -> None:
    def warned(spent: float, most: float) -> list[str]:
        budget = PeriodBudget("b", Who(team="b"), most)
        with Session(engine) as session:
            found = share_rows.save_spending(session, [BudgetUse(budget, spent, 0.0, 0.0, 100.0)], 1.0)
            session.commit()
        return [each.budget.name for each in found]

    assert [warned(5.0, 10.0), warned(8.0, 10.0), warned(9.0, 10.0)] == [[], ["b"], []]
    assert [warned(9.0, 20.0), warned(16.0, 20.0), warned(17.0, 20.0)] == [[], ["b"], []]


def test_whose_cpu_hours_are_used_waits_until_the_next_period_or_a_lift(
    engine: Engine, tmp_path: Path, notes: list[TaskNote], caplog: pytest.LogCaptureFixture
) -> None:
    spent = {"state": State.SUCCEEDED, "started_at": time.time() - 7200, "ended_at": time.time(), "team": "b"}
    queue(engine, "old", 1, cpus=50.0, **spent)
    queue(engine, "b", 4, team="b")
    queue(engine, "a", 4, team="a")
    machine = Machine(engine, tmp_path, '[[budgets]]\nteam = "b"\ncpu_hours = 1.5\nper = "month"\n')
    machine.tick()
    machine.tick()
    assert {token.partition("-")[0] for token in machine.site.jobs} == {"a"}
    waiting = jobs(engine, State.QUEUED)
    assert {job.token[0] for job in waiting} == {"b"}
    assert {job.reason_code for job in waiting} == {"budget_spent_cpu_hours"}
    assert "no more jobs start until" in str(waiting[0].reason)
    assert [note.event for note in notes] == ["lading budget"], "said once"
    assert caplog.text.count("The budget team b is at") == 1
    with Session(engine) as session:
        [budget] = share_rows.budgets(session)
        assert (budget.name, budget.unit, budget.is_lifted) == ("team b", "cpu-hours", False)
        with pytest.raises(LookupError, match="there is no budget 'team c'; valid: team b"):
            request_rows.ask(session, RequestKind.LIFT, "team c", "ann")
        request_rows.ask(session, RequestKind.LIFT, "team b", "ann")
        session.commit()
    machine.made.requests.next_look = 0.0
    machine.tick()
    assert {job.token[0] for job in jobs(engine, State.PLACED)} | {each[0] for each in machine.site.jobs} >= {"b"}
    with Session(engine) as session:
        [budget] = share_rows.budgets(session)
        assert (budget.is_lifted, budget.lifted_by) == (True, "ann")
        [request] = request_rows.latest(session, 0.0, 5)
        assert (request.outcome, request.by) == ("it is lifted until its next period", "ann")
        request_rows.ask(session, RequestKind.RESTORE, "team b", "bob")
        session.commit()
    machine.made.requests.next_look = 0.0
    machine.tick()
    with Session(engine) as session:
        assert not share_rows.budgets(session)[0].is_lifted


def test_what_is_spent_counts_by_whose_it_is_and_by_the_part_of_the_period(engine: Engine) -> None:
    budget = PeriodBudget("b", Who(team="b"), 100.0, Unit.USD, "day")
    since, _ = budget.period(NOW)
    now = since + 7200
    with Session(engine) as session:
        amounts = {"cpus": 4.0, "memory": 1, "disk": 0, "gpus": 0.0}
        session.add(LocationRow(site="lab", name="m", kind="ssh", usd_per_cpu_hour=0.5, seen_at=1.0, **amounts))
        session.commit()
    at = {"site": "lab", "location": "m", "team": "b"}
    half = {"started_at": since - 3600, "ended_at": since + 3600, "usd": 6.0, "state": State.SUCCEEDED}
    queue(engine, "half", 1, **half, **at)
    queue(engine, "before", 1, **{**half, "ended_at": since - 1, "started_at": since - 60}, **at)
    queue(engine, "runs", 1, state=State.RUNNING, cpus=2.0, started_at=since + 3600, **at)
    queue(engine, "other", 1, **{**half, **at, "team": "c"})
    queue(engine, "waits", 1, team="b")
    with Session(engine) as session:
        hours = PeriodBudget("hours", Who(dag="runs"), 10.0, Unit.CPU_HOURS, "day")
        usd, cpus = share_rows.spending(session, [budget, hours], now, lambda dag: None)
    assert (usd.spent, usd.per_hour) == (pytest.approx(3.0 + 2 * 0.5), pytest.approx(1.0))
    assert (cpus.spent, cpus.per_hour) == (pytest.approx(2.0), pytest.approx(2.0))


def test_what_shares_have_used_outlives_the_controller(engine: Engine, tmp_path: Path) -> None:
    with Session(engine) as session:
        share_rows.save_means(session, {"team a": Mean(0.9, 1.0), "team b": Mean(0.0, 1.0)}, time.time())
        session.commit()
    queue(engine, "a", 20, team="a")
    queue(engine, "b", 20, team="b")
    machine = Machine(engine, tmp_path, '[[shares]]\nteam = "a"\n[[shares]]\nteam = "b"\n')
    machine.tick()
    machine.tick()
    assert Counter(token[0] for token in machine.site.jobs)["b"] >= 7
    machine.tick()
    why = {job.reason_code for job in jobs(engine, State.QUEUED) if job.team == "a"}
    assert "share_turn" in why
    text = {str(job.reason) for job in jobs(engine, State.QUEUED) if job.reason_code == "share_turn"}
    assert any(
        "share team a used 90 % of the capacity in the last day, and is entitled to 50 %" in each for each in text
    ), text


def test_what_shares_have_is_stored_and_forgotten_with_the_table(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "a", 3, team="a")
    machine = Machine(engine, tmp_path / "one", '[[shares]]\nteam = "a"\ncpus = 2\n')
    for _ in range(3):
        machine.made.shares._next_note = 0.0
        machine.tick()
    with Session(engine) as session:
        [row] = share_rows.standings(session)
    assert (row.name, row.who, row.entitled, row.lately) == ("team a", "team a", 1.0, None)
    [guarantee] = json.loads(row.kept)
    assert guarantee == {"site": None, "what": "cpus", "kept": 2, "used": 3.0}
    Machine(engine, tmp_path / "two", "").tick()
    with Session(engine) as session:
        assert share_rows.standings(session) == []


def test_what_does_not_borrow_stays_within_what_is_kept(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "a", 20, team="a")
    machine = Machine(engine, tmp_path, '[[shares]]\nteam = "a"\ncpus = 3\nborrow = false\n')
    for _ in range(3):
        machine.tick()
    assert len(machine.site.jobs) + len(machine.site.inbox) == 3
    waiting = jobs(engine, State.QUEUED)
    assert {job.reason_code for job in waiting} == {"share_bound"}
    assert "share team a uses 3 of the 3 cpus reserved for it, and cannot use more (borrow = false)" in str(
        waiting[0].reason
    )


def test_what_is_not_lent_stays_free(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "b", 20, team="b")
    machine = Machine(engine, tmp_path, '[[shares]]\nteam = "a"\ncpus = 3\nlend = false\n')
    for _ in range(3):
        machine.tick()
    assert len(machine.site.jobs) + len(machine.site.inbox) == 5
    assert {job.reason_code for job in jobs(engine, State.QUEUED)} == {"share_closed"}
    queue(engine, "a", 3, team="a")
    machine.tick()
    assert Counter(token[0] for token in machine.site.jobs) == {"b": 5, "a": 3}


def test_where_none_of_many_may_start_none_is_read(engine: Engine) -> None:
    queue(engine, "b", 20, team="b")
    used = because("budget_spent_cpu_hours", budget="b", spent=2.0, most=1.0, until=NOW)
    fair = FairTurns(Shares(), Standing(), NOW, budgets=lambda tenant: BudgetTerms((), used))
    with Session(engine) as session:
        assert fair_queue.first(QueuedJobs().read(session), 5, fair, {}) == ([], True)


def test_what_the_sites_file_has_no_more_is_forgotten(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "b", 1, team="b")
    shares = '[[shares]]\nteam = "a"\n[[shares]]\nteam = "b"\n'
    Machine(engine, tmp_path / "one", shares + '[[budgets]]\nteam = "b"\nusd = 5\n').tick()
    with Session(engine) as session:
        share_rows.save_means(session, {"team a": Mean(0.5, 1.0)}, time.time())
        session.commit()
        assert [each.name for each in share_rows.budgets(session)] == ["team b"]
    Machine(engine, tmp_path / "two", "").tick()
    with Session(engine) as session:
        assert (share_rows.budgets(session), share_rows.means(session)) == ([], ({}, None))


@pytest.mark.parametrize(("who", "questions"), [('team = "b"', 0), ('tag = "x"', 2)])
def test_the_tags_of_dags_are_asked_for_where_a_budget_goes_by_them(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, who: str, questions: int
) -> None:
    asked: list[str | None] = []
    monkeypatch.setattr(DagFacts, "columns", lambda self, session, dag_id: asked.append(dag_id) or {})
    with Session(engine) as session:
        for dag in ("one", "two"):
            task_usage.row_of(session, dag, "t", int(time.time() // 86400), 0, "lab")
        session.commit()
    machine = Machine(engine, tmp_path, f"[[budgets]]\n{who}\nusd = 5\n")
    machine.tick()
    assert len(asked) == questions


def test_promised_cpu_hours_count(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "b", 8, team="b", time_limit=7200)
    machine = Machine(engine, tmp_path, '[[budgets]]\nname = "b"\nteam = "b"\ncpu_hours = 5\nper = "month"\n')
    for _ in range(3):
        machine.tick()
    assert len(machine.site.jobs) == 2, "two hours of each: a third one would need more than what is left"
    waiting = jobs(engine, State.QUEUED)
    assert len(waiting) == 6
    assert {job.reason_code for job in waiting} == {"budget_promised"}
    assert "promised" not in str(waiting[0].reason)
    machine.site.advance()
    machine.tick()
    machine.tick()
    assert len(machine.site.jobs) == 2, "what ended early leaves its hours to others"


def test_one_job_may_use_more_than_is_left_but_only_one(engine: Engine, tmp_path: Path) -> None:
    queue(engine, "b", 3, team="b", time_limit=36000)
    machine = Machine(engine, tmp_path, '[[budgets]]\nteam = "b"\ncpu_hours = 5\nper = "month"\n')
    for _ in range(3):
        machine.tick()
    assert len(machine.site.jobs) == 1


def test_a_budget_is_charged_the_larger_of_asked_and_used(engine: Engine) -> None:
    ended = {"state": State.SUCCEEDED, "started_at": NOW - 3600, "ended_at": NOW, "team": "b"}
    queue(engine, "greedy", 1, cpus=0.01, cpu_seconds=4 * 3600.0, **ended)
    queue(engine, "idle", 1, cpus=2.0, cpu_seconds=1.0, **ended)
    budget = PeriodBudget("b", Who(team="b"), 10.0, Unit.CPU_HOURS)
    with Session(engine) as session:
        [use] = share_rows.spending(session, [budget], NOW + 1, lambda dag: None)
        [row] = share_rows.excess(session, ["greedy-000", "idle-000"])
    assert use.spent == pytest.approx(4.0 + 2.0)
    assert row.seconds == pytest.approx(4 * 3600.0 - 36.0)
