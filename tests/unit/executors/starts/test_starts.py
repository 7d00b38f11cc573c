"""What is said of starts, kept, and measured."""

from __future__ import annotations

import heapq
import random
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import create_engine, delete, event, insert, select, update
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import share_rows, task_usage
from lading.executors.controller.answers import changes_by_events
from lading.executors.starts import expected_starts
from lading.executors.store import JobRow, SiteRow, State, leases, reason_values
from lading.scheduling.accounting.share_table import Kept, Share, ShareAmounts, Shares
from lading.scheduling.accounting.share_usage import Mean, Standing, share_standings
from lading.scheduling.accounting.who import Who
from lading.scheduling.model.reasons import Reason, because
from lading.scheduling.starts.expected_starts import ExpectedStart, StartSource

NOW = 1_800_000_000.0
COMMON = {"kind": "ExecuteTask", "subject": "s", "workload": "{}", "disk": 0, "gpus": 0.0, "priority": 0}


@pytest.fixture
def session() -> Iterator[Session]:
    engine = create_engine("sqlite://")
    store.metadata.create_all(engine)
    with Session(engine) as found:
        yield found


def add(session: Session, token: str, **columns: Any) -> None:
    names = {"dag_id": "d", "task_id": "t", "run_id": "r", "cpus": 1.0, "memory": 100, "state": State.QUEUED}
    store.add_job(session, token=token, **{**COMMON, **names, "queued_at": NOW - 60, **columns})


def row(session: Session, token: str) -> JobRow:
    session.expire_all()
    return session.scalars(select(JobRow).where(JobRow.token == token)).one()


def show(session: Session, now: float) -> set[str]:
    """Show when jobs will start; of which ones that is known."""
    return {*expected_starts.show_starts(session, session.execute(select(*expected_starts.COLUMNS)).all(), now)}


def test_what_is_shown_first_is_kept_and_measured(session: Session) -> None:
    for number in range(10):
        times = {"queued_at": NOW - 5000, "started_at": NOW - 5000 + 100 * (number + 1), "ended_at": NOW - 1000}
        add(session, f"old{number}", state=State.SUCCEEDED, **times)
    add(session, "a")
    add(session, "b")
    add(session, "new", queued_at=NOW - 5)
    add(session, "strange", task_id="other")
    before = row(session, "a").changed_at
    assert show(session, NOW) == {"a", "b", "new"}
    said = row(session, "a")
    assert (said.said_since, said.said_until, said.said_source) == (NOW - 60 + 200, NOW - 60 + 900, "past_waits")
    assert said.changed_at == before, "it is no news of the job"
    assert row(session, "new").said_at is None, "it may start at once"
    assert row(session, "strange").said_at is None, "nothing is known of it"
    assert show(session, NOW + 10) == {"a", "b", "new"}
    assert row(session, "a").said_at == NOW
    for token, began in (("a", NOW + 500), ("b", NOW + 5000)):
        store.apply(session, [store.Change(token, {"state": State.RUNNING, "started_at": began})])
    assert expected_starts.accuracy(session, NOW) == [(StartSource.PAST_WAITS, 2, 1)]


FULL = because("site_instances", used=40, most=40).at("hpc")
HELD = (
    (because("paused", site="hpc", by="carol"), "hpc"),
    (because("unreachable", text="no route to host").at("hpc"), "hpc"),
    (because("budget_spent", budget="lab", spent=200.4, most=200, until=2e9), "budget lab"),
    (because("max_usd", spent=10.0, most=10.0), "max_usd"),
    (because("share_bound", share="lab", used=8, most=8, what="cpus"), "share lab"),
    (because("share_by_weight", share="lab", used=8, most=8, what="cpus"), "share lab"),
    (because("share_closed", share="gpu", most=8, what="cpus"), "share gpu"),
)
FREE = (
    because("share_turn", share="lab", used=60.0, entitled=40.0, half_life=3600.0),
    because("budget_promised", budget="lab", spent=1, most=200, promised=199, until=2e9),
    because("max_usd_rate", used=2.0, left=1.0, most=10.0),
    because("stale_token"),
    because("cannot_write", folder="/scratch", text="no space"),
    because("location_state", location="n1", state="unreachable"),
)


@pytest.mark.parametrize(("reason", "by"), HELD, ids=[reason.code for reason, _ in HELD])
def test_of_what_is_held_no_start_is_expected_whatever_else_says_one(session: Session, reason: Reason, by: str) -> None:
    for number in range(10):
        times = {"queued_at": NOW - 5000, "started_at": NOW - 4000, "ended_at": NOW - 1000}
        add(session, f"old{number}", state=State.SUCCEEDED, site="hpc", **times)
    add(session, "held", planned_start=NOW + 600, native_start=NOW + 900, **reason_values(reason))
    [found] = expected_starts.show_starts(
        session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW
    ).values()
    assert found == expected_starts.NoStart(f"{reason.meaning.title}: {by}")
    assert row(session, "held").said_at is None, "nothing was promised"


@pytest.mark.parametrize("reason", FREE, ids=lambda reason: reason.code)
def test_of_what_passes_by_itself_a_start_is_expected(session: Session, reason: Reason) -> None:
    add(session, "waits", planned_start=NOW + 600, **reason_values(reason))
    [found] = expected_starts.show_starts(
        session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW
    ).values()
    assert isinstance(found, ExpectedStart)


def test_a_plan_whose_time_has_passed_predicts_nothing(session: Session) -> None:
    """The engine has not looked at the job again, so a start soon would be a guess."""
    add(session, "overdue", planned_start=NOW - 61)
    add(session, "due", planned_start=NOW - 30)
    add(session, "expected", planned_start=NOW - 61, native_start=NOW + 900)
    found = all_starts(session)
    assert {name: start.source for name, start in found.items() if isinstance(start, ExpectedStart)} == {
        "due": StartSource.FORECAST, "expected": StartSource.BATCH_SYSTEM,
    }  # fmt: skip
    rows = expected_starts.together(session, NOW, {"task_id": JobRow.task_id})
    assert [(row.first_planned, row.last_native, row.unsaid) for row in rows] == [(NOW - 30, NOW + 900, 1)]


def add_ended(session: Session, number: int, **columns: Any) -> None:
    """So many have ended within the last hour while others waited."""
    for each in range(number):
        began = NOW - 3600 + 3000 / number * each
        times = {"queued_at": began - 600, "started_at": began, "ended_at": began + 500}
        add(session, f"old{columns.get('run_id')}{each}", state=State.SUCCEEDED, site="hpc", **times, **columns)


def all_starts(session: Session) -> dict[str, ExpectedStart | expected_starts.NoStart]:
    return expected_starts.expected_starts(session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW)


def before(start: Any) -> int:
    assert isinstance(start, ExpectedStart)
    return int(start.text.partition(" ")[0].replace(",", ""))


def test_two_runs_that_are_queued_within_a_minute_are_not_mixed(session: Session) -> None:
    add_ended(session, 20)
    add(session, "runs", state=State.RUNNING, site="hpc", started_at=NOW - 100, queued_at=NOW - 2000)
    minute = NOW // 60 * 60 - 60
    for number in range(8):
        add(session, f"first{number}", queued_at=minute + 2 + number / 10_000)
    for number in range(28):
        add(session, f"second{number}", queued_at=minute + 28 + number / 10_000)
    found = all_starts(session)
    assert [before(found[each]) for each in ("first7", "second0", "second27")] == [7, 8, 35]


def test_the_last_of_jobs_queued_together_is_behind_all_of_them(session: Session) -> None:
    add_ended(session, 20)
    for number in range(1000):
        add(session, f"w{number}", queued_at=NOW - 600, site_hint="hpc", **reason_values(FULL))
    add(session, "young", queued_at=NOW - 400, site_hint="hpc", **reason_values(FULL))
    add(session, "youngest", queued_at=NOW - 399, site_hint="hpc", **reason_values(FULL))
    found = all_starts(session)
    assert (before(found["w7"]), before(found["youngest"])) == (500, 1001)
    why = {expected_starts.why_of(FULL, row(session, "w7"))}
    last = expected_starts.Outlook(session, NOW).last_start(why, {"d"})
    assert last == found["youngest"]
    session.execute(delete(JobRow).where(JobRow.token.like("young%")))
    assert before(expected_starts.Outlook(session, NOW).last_start(why, {"d"})) == 999


def test_a_job_is_said_to_start_the_same_alone_and_among_others(session: Session) -> None:
    add_ended(session, 20)
    for number in range(30):
        placed = {"state": State.PLACED, "site": "hpc", "location": "hpc", "queued_at": NOW - 3000 + 90 * number}
        add(session, f"w{number:02}", native_start=NOW - 600, **placed)
    add(session, "other", queued_at=NOW - 60, site_hint="hpc")
    found = all_starts(session)
    alone = select(*expected_starts.COLUMNS).where(JobRow.token == "w29")
    assert expected_starts.expected_starts(session, session.execute(alone).all(), NOW)["w29"] == found["w29"]
    assert before(found["w29"]) == 29
    assert expected_starts.Outlook(session, NOW).last_start({(None, None, "hpc")}, {"d"}) == found["w29"]


def test_the_last_start_of_a_group_is_in_the_last_minute_in_which_its_site_got_jobs(session: Session) -> None:
    add_ended(session, 20)
    for number in range(42):
        # Most of them were placed in the first minutes.
        placed_at = NOW - 3000 + 60 * (number // 10 if number < 40 else number)
        placed = {"state": State.PLACED, "site": "hpc", "location": "hpc", "placed_at": placed_at}
        add(session, f"w{number:02}", queued_at=NOW - 3600 + number, **placed)
    found = all_starts(session)
    assert before(found["w41"]) == 41
    assert expected_starts.Outlook(session, NOW).last_start({(None, None, "hpc")}, {"d"}) == found["w41"]


def test_the_last_start_of_a_group_is_in_the_share_with_the_least_weight(session: Session) -> None:
    weights = {"a": 10.0, "b": 10.0, "c": 10.0, "small": 0.1}
    table = tuple(Share(name, Who(dag=name), weight) for name, weight in weights.items())
    share_rows.save_standings(session, share_standings(Shares(table), Standing(ShareAmounts(4))), NOW)
    for name in weights:
        add_ended(session, 5, dag_id=name, run_id=name)
    for name, jobs in (("a", 9), ("b", 8), ("c", 7), ("small", 5)):
        for number in range(jobs):
            add(session, f"{name}{number}", dag_id=name, queued_at=NOW - 600 + number, site_hint="hpc")
    found = all_starts(session)
    known = {token: start.at for token, start in found.items() if isinstance(start, ExpectedStart)}
    assert max(known, key=lambda token: known[token]) == "small4"
    assert expected_starts.Outlook(session, NOW).last_start({(None, None, None)}, {"small"}) == found["small4"]


def test_the_first_and_last_starts_of_each_dag_of_a_group_are_those_of_its_jobs(session: Session) -> None:
    for name in ("a", "b", "c"):
        add_ended(session, 5, dag_id=name, run_id=name)
    session.add(SiteRow(name="gpu", position=0, kind="slurm", limits="{}", contact_at=NOW, paused_by="carol"))
    for name, jobs in (("a", 9), ("b", 5), ("c", 40)):
        for number in range(jobs):
            add(session, f"{name}{number:02}", dag_id=name, queued_at=NOW - 900 + 20 * number, site_hint="hpc")
    add(session, "planned", dag_id="b", queued_at=NOW - 60, site_hint="hpc", planned_start=NOW + 5)
    add(session, "held", dag_id="c", queued_at=NOW - 60, site_hint="gpu")
    found, outlook = all_starts(session), expected_starts.Outlook(session, NOW)
    by_dag = outlook.starts_by_dag({(None, None, None)}, {"a", "b", "c"})
    assert by_dag["a"] == (found["a00"], found["a08"])
    assert by_dag["b"] == (found["planned"], found["b04"])
    assert by_dag["c"] == (found["c00"], expected_starts.NoStart("Its site is paused: gpu"))
    assert outlook.last_start({(None, None, None)}, {"a", "b", "c"}) == by_dag["c"][1]


def test_the_first_of_jobs_queued_together_is_ahead_of_all_of_them(session: Session) -> None:
    add_ended(session, 20)
    for number in range(1000):
        add(session, f"w{number}", queued_at=NOW - 600, site_hint="hpc", **reason_values(FULL))
    first, last = expected_starts.Outlook(session, NOW).starts_by_dag(
        {expected_starts.why_of(FULL, row(session, "w7"))}, {"d"}
    )["d"]
    assert isinstance(first, ExpectedStart)
    assert "no job ahead of it" in first.text
    assert before(last) == 999


def test_of_a_group_of_which_some_are_held_no_start_is_expected(session: Session) -> None:
    session.add(SiteRow(name="gpu", position=0, kind="slurm", limits="{}", contact_at=NOW, paused_by="carol"))
    for number, site in enumerate(("hpc", "gpu", "sge")):  # of the others nothing is known
        add(session, site, site_hint=site, queued_at=NOW - 600 + number)
    for hints in ("gpu", "hpc"):
        session.execute(update(JobRow).where(JobRow.token == hints).values(priority=1))
        found = expected_starts.Outlook(session, NOW).last_start({(None, None, None)}, {"d"})
        assert found == expected_starts.NoStart("Its site is paused: gpu")


def test_a_limit_of_a_dag_says_nothing_of_other_dags(session: Session) -> None:
    limit = because("run_jobs", most=2)
    for dag, jobs in (("mine", 6), ("theirs", 600)):
        add_ended(session, 20, dag_id=dag, run_id=dag)
        for number in range(jobs):
            names = {"dag_id": dag, "run_id": dag, "queued_at": NOW - 900 + number / 10}
            add(session, f"{dag}{number:03}", site_hint="hpc", **names, **reason_values(limit))
    found = all_starts(session)
    mine = expected_starts.Outlook(session, NOW).last_start(
        {expected_starts.why_of(limit, row(session, "mine000"))}, {"d", "mine", "theirs"}
    )
    assert mine == found["mine005"]
    assert before(mine) == 5
    theirs = expected_starts.Outlook(session, NOW).last_start(
        {expected_starts.why_of(limit, row(session, "theirs000"))}, {"d", "mine", "theirs"}
    )
    assert before(theirs) == 599


def test_a_group_of_very_many_runs_takes_few_queries(session: Session) -> None:
    limit = because("run_jobs", most=2)
    for number in range(200):
        add(session, f"{number}", run_id=f"r{number}", queued_at=NOW - 900 + number, **reason_values(limit))
    session.flush()
    asked: list[str] = []
    event.listen(session.connection(), "before_cursor_execute", lambda *given: asked.append(given[2]))
    expected_starts.Outlook(session, NOW).last_start(
        {expected_starts.why_of(limit, row(session, "7"))}, {"d", "mine", "theirs"}
    )
    assert len(asked) <= 25


def test_no_start_is_expected_at_sites_that_are_paused_or_away_but_of_what_they_have_been_given(
    session: Session,
) -> None:
    away = {"kind": "slurm", "limits": "{}", "contact_at": NOW}
    session.add(SiteRow(name="gpu", position=0, paused_by="carol", **away))
    session.add(SiteRow(name="old", position=1, trouble="no route to host", **away))
    for site in ("gpu", "old"):
        add(session, f"waits {site}", site_hint=site, planned_start=NOW + 600)
        add(session, f"given {site}", state=State.PLACED, site=site, native_start=NOW + 600)
    found = expected_starts.expected_starts(session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW)
    assert {token: getattr(each, "text", "")[:28] for token, each in found.items()} == {
        "waits gpu": "Its site is paused: gpu", "given gpu": "the batch system's estimate ",
        "waits old": "The site is unavailable: old", "given old": "The site is unavailable: old",
    }  # fmt: skip


def replayed(chance: random.Random, jobs: int, slots: int, seconds: float) -> list[dict[str, Any]]:
    """Jobs of three sizes at a site that runs so many at a time, a third of them within the first minute; times are
    seconds from the beginning.
    """
    arrivals = sorted(
        chance.uniform(0, 60) if number % 3 == 0 else chance.uniform(0, seconds) for number in range(jobs)
    )
    free = [0.0] * slots
    found = []
    for number, at in enumerate(arrivals):
        started = max(at + 1, heapq.heappop(free) + 1)
        ended = started + chance.choice([60, 300, 900]) * chance.lognormvariate(0, 0.4)
        heapq.heappush(free, ended)
        found.append({"token": f"{number}", "queued_at": at, "started_at": started, "ended_at": ended})
    return found


def seen(job: dict[str, Any], at: float, begin: float) -> dict[str, Any]:
    """A job as the store has it at a time."""
    names = {"dag_id": "d", "run_id": "r", "task_id": "t", "cpus": 1.0, "memory": 100, "unreported": False, "news": 0}
    times = {name: begin + job[name] if job[name] <= at else None for name in ("started_at", "ended_at")}
    waits = times["started_at"] is None
    state = State.QUEUED if waits else State.RUNNING if times["ended_at"] is None else State.SUCCEEDED
    there = {"site": None if waits else "hpc", "location": None if waits else "L1"}
    return {
        **COMMON, **names, **times, **there, **reason_values(FULL if waits else None), "token": job["token"],
        "state": state, "queued_at": begin + job["queued_at"], "map_index": -1, "try_number": 1,
    }  # fmt: skip


def test_most_jobs_of_a_full_site_start_within_what_was_said(session: Session) -> None:
    """Said at ten times, while the backlog grows, lasts and shrinks; of jobs whose tries never waited for as long."""
    jobs = replayed(random.Random(3), 1800, 40, 6 * 3600)
    said: list[tuple[float, ExpectedStart]] = []
    for at in range(1800, 6 * 3600, 1800):
        session.execute(delete(JobRow))
        begin = NOW - at
        rows = [seen(job, at, begin) for job in jobs if job["queued_at"] <= at]
        session.execute(insert(JobRow.__table__), rows)
        began = {job["token"]: begin + job["started_at"] for job in jobs}
        for token, start in expected_starts.expected_starts(
            session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW
        ).items():
            assert isinstance(start, ExpectedStart)
            said.append((began[token], start))
    assert len(said) > 1000
    assert {start.source for _, start in said} == {StartSource.BACKLOG}
    assert sum(start.since <= began <= start.until for began, start in said) >= 0.8 * len(said)
    for _, start in said:
        first, last = start.since - NOW, start.until - NOW
        assert last - first <= 60.001 or last <= 3.001 * first


def test_jobs_that_a_limit_of_their_task_holds_wait_for_its_jobs_alone(session: Session) -> None:
    limit = because("task_jobs", most=2, task="t")
    for number in range(20):
        # Two at a time, ten minutes each; others of the site go a hundred times as fast.
        ended = {"queued_at": NOW - 6000, "started_at": NOW - 600 * (number // 2 + 1) - 1}
        add(session, f"old{number}", state=State.SUCCEEDED, site="hpc", ended_at=NOW - 600 * (number // 2) - 1, **ended)
        for more in range(5):
            fast = {"queued_at": NOW - 100, "started_at": NOW - 40, "ended_at": NOW - 1 - number}
            add(session, f"fast{number}.{more}", task_id="other", state=State.SUCCEEDED, site="hpc", **fast)
        add(session, f"waits{number}", queued_at=NOW - 6000 + 60 * number, site_hint="hpc", **reason_values(limit))
    found = expected_starts.expected_starts(session, session.execute(select(*expected_starts.COLUMNS)).all(), NOW)
    last = found["waits19"]
    assert isinstance(last, ExpectedStart)
    assert last.source is StartSource.BACKLOG
    assert re.search(r"jobs ahead of it in task t; about one start every \d+ min( \d+ s)?$", last.text)
    assert last.since <= NOW + 6000 <= last.until, "after nineteen others, two at a time"


def add_budget(session: Session, unit: str, **columns: Any) -> None:
    """A budget of the Dags d*, used up in 15 minutes; its period ends in two hours."""
    period = {"since": NOW - 7200, "until": NOW + 7200, "at": NOW, "hours_of_work": 10.0}
    amounts = {"most": 12.0, "spent": 10.0, "per_hour": 8.0}
    whose = {"name": "lab", "who": str(Who(dag="d*")), "unit": unit, "per": "day"}
    session.add(share_rows.BudgetRow(**{**whose, **amounts, **period, **columns}))


def starts_beside_budgets(session: Session) -> dict[str, ExpectedStart | expected_starts.NoStart]:
    add(session, "early", planned_start=NOW + 600)
    add(session, "late", planned_start=NOW + 1800)
    add(session, "next period", planned_start=NOW + 7300)
    add(session, "other", planned_start=NOW + 1800, dag_id="x")
    add(session, "batch", state=State.PLACED, site="hpc", native_start=NOW + 1800)
    return all_starts(session)


USED_UP = "udget lab is expected to be used up at 2027-01-15 08:15:00 UTC"


def test_no_job_starts_after_its_cpu_hours_are_used_up_and_before_they_reset(session: Session) -> None:
    add_budget(session, "cpu-hours")
    found = starts_beside_budgets(session)
    held = expected_starts.NoStart(f"B{USED_UP}, and resets at 2027-01-15 10:00:00 UTC")
    assert (found["late"], found["batch"]) == (held, held)
    rest = {token for token, start in found.items() if isinstance(start, ExpectedStart)}
    assert rest == {"early", "next period", "other"}
    session.execute(delete(JobRow).where(JobRow.token == "next period"))
    outlook = expected_starts.Outlook(session, NOW)
    assert outlook.last_start({(None, None, None)}, ()) == held, "the last of a group is held"
    first = outlook.starts_by_dag({(None, None, None)}, ("d",))["d"][0]
    assert isinstance(first, ExpectedStart)
    assert first.at == NOW + 600


def test_after_its_budget_for_money_is_used_up_a_job_only_starts_on_machines_that_run(session: Session) -> None:
    add_budget(session, "USD")
    add_budget(session, "USD", name="all", who="everyone", most=13.0)
    found = starts_beside_budgets(session)
    texts = {token: getattr(start, "text", "") for token, start in found.items()}
    machines = "no machines are launched for it from then until 2027-01-15 10:00:00 UTC"
    assert texts["late"] == f"Lading's plan; b{USED_UP}: {machines}", "the first one"
    assert "budget all" in texts["other"]
    assert not any("budget" in texts[token] for token in ("early", "next period", "batch"))


@pytest.mark.parametrize("columns", [{"lifted": NOW - 7200}, {"per_hour": 0.1, "spent": 0.1}])
def test_a_budget_that_is_lifted_or_lasts_holds_no_job(session: Session, columns: dict[str, float]) -> None:
    add_budget(session, "cpu-hours", **columns)
    assert all(isinstance(start, ExpectedStart) for start in starts_beside_budgets(session).values())


def test_plans_and_batch_systems_go_before_earlier_tries(session: Session) -> None:
    add(session, "planned")
    add(session, "batch", state=State.PLACED, site="hpc", location="hpc")
    expected_starts.note_plans(session, {"planned": NOW + 600}, {}, NOW)
    store.apply(session, changes_by_events([{"event": "estimated", "token": "batch", "starts_at": NOW + 900}]), "hpc")
    jobs = session.scalars(select(JobRow)).all()
    found = expected_starts.expected_starts(session, jobs, NOW)
    said = {token: each for token, each in found.items() if isinstance(each, ExpectedStart)}
    assert {token: (each.source.value, each.since) for token, each in said.items()} == {
        "planned": ("forecast", NOW + 450), "batch": ("batch_system", NOW + 225),
    }  # fmt: skip
    expected_starts.note_plans(session, {"planned": NOW + 605}, {"planned": NOW + 600}, NOW)
    assert row(session, "planned").planned_start == NOW + 600, "a moment later is the same"
    expected_starts.note_plans(session, {}, {"planned": NOW + 600}, NOW)
    assert row(session, "planned").planned_start is None
    back = {"event": "returned", "token": "batch", "location": "hpc"}
    store.apply(session, changes_by_events([back]), "hpc")
    assert (row(session, "batch").state, row(session, "batch").native_start) == (State.QUEUED, None)


def test_a_plan_that_slips_a_little_each_time_is_stored_in_the_end(session: Session) -> None:
    add(session, "late")
    add(session, "left")
    stored = expected_starts.note_plans(session, {"late": NOW + 60, "left": NOW + 60}, {}, NOW)
    for seconds in range(3, 30, 3):
        stored = expected_starts.note_plans(session, {"late": NOW + 60 + seconds}, stored, NOW + seconds)
    assert abs(row(session, "late").planned_start - (NOW + 87)) <= 12
    assert expected_starts.stored_plans(session) == stored == {"late": row(session, "late").planned_start}


def test_the_clock_of_the_database_is_allowed_for(session: Session) -> None:
    ahead = 600.0
    store.take_lease(session, "controller", "host", 1, True, 60.0, None, ahead)
    for number in range(10):
        times = {"started_at": NOW - 5000 + 100 * (number + 1), "ended_at": NOW - 1000}
        add(session, f"old{number}", state=State.SUCCEEDED, queued_at=NOW - 5000 + ahead, **times)
    add(session, "a", queued_at=NOW - 60 + ahead)
    assert show(session, NOW) == {"a"}
    said = row(session, "a")
    assert (said.said_since, said.said_until) == (NOW - 60 + 200, NOW - 60 + 900), "by the controller's clock"
    waits = [
        max(0.0, job.started_at - job.queued_at)
        for job in session.execute(select(*task_usage.COLUMNS))
        if job.started_at
    ]
    assert sorted(waits) == [100.0 * (number + 1) for number in range(10)]
    assert leases.database_ahead(session) == ahead
    said_by_database = session.scalar(select(leases.DatabaseNow()))
    assert leases.controller_now(session) <= (said_by_database or 0.0) - ahead + 60


def test_a_share_with_little_weight_waits_longer_behind_jobs_of_the_same_length(session: Session) -> None:
    table = Shares((Share("a", Who(team="a"), 3), Share("b", Who(dag="etl_*"), 1)))
    share_rows.save_standings(session, share_standings(table, Standing(ShareAmounts(4))), NOW)
    for number in range(20):
        times = {
            "queued_at": NOW - 3600,
            "started_at": NOW - 3000 + 100 * number,
            "ended_at": NOW - 2600 + 100 * number,
        }
        add(session, f"old{number}", state=State.SUCCEEDED, site="hpc", **times)
    for number in range(4):
        add(session, f"runs{number}", state=State.RUNNING, site="hpc", started_at=NOW - 100 * number, team="a")
    for number in range(40):
        waits = {"site_hint": "hpc", "queued_at": NOW - 900 + number, **reason_values(FULL)}
        add(session, f"a{number:02}", team="a", **waits)
        add(session, f"b{number:02}", dag_id="etl_x", **waits)
    found = all_starts(session)
    last = {name: found[name] for name in ("a39", "b39", "b09")}
    assert all(isinstance(each, ExpectedStart) for each in last.values())
    a_end, b_end, b_part = (each.at for each in last.values() if isinstance(each, ExpectedStart))
    assert a_end < b_end, "b has a quarter while a has jobs"
    assert b_part - NOW == pytest.approx(0.75 * (a_end - NOW), rel=0.3), "ten of b start with thirty of a"
    assert (
        expected_starts.Outlook(session, NOW).last_start({expected_starts.why_of(FULL, row(session, "a00"))}, {"d"})
        == found["b39"]
    )


def test_runs_that_another_share_often_queues_are_expected_to_overtake(session: Session) -> None:
    table = Shares((Share("a", Who(team="a"), 2), Share("b", Who(team="b"), 1)))
    share_rows.save_standings(session, share_standings(table, Standing(ShareAmounts(4))), NOW)
    for number in range(40):
        began = NOW - 2200 + 50 * number
        times = {"queued_at": began - 100, "started_at": began, "ended_at": began + 200}
        add(session, f"old{number:02}", state=State.SUCCEEDED, site="hpc", team="b", **times)
    for number in range(4):
        times = {"started_at": NOW - 50 * number, "queued_at": NOW - 300}
        add(session, f"runs{number}", state=State.RUNNING, site="hpc", team="b", **times)
    for number in range(40):
        add(session, f"b{number:02}", team="b", site_hint="hpc", queued_at=NOW - 290 + number / 100)
    alone = all_starts(session)["b07"]
    session.execute(update(JobRow).where(JobRow.token.like("old%")).values(team="a"))
    overtaken = all_starts(session)["b07"]
    assert isinstance(alone, ExpectedStart)
    assert isinstance(overtaken, ExpectedStart)
    assert overtaken.since > alone.since + 20
    assert overtaken.until > alone.until + 60


def test_the_shares_that_were_stored_are_those_of_the_sites_file(session: Session) -> None:
    kept = (Kept("hpc", {"cpus": 8.0}), Kept(None, {"memory": 4096.0}))
    table = (
        Share("a", Who(team="a"), 3, kept, lends=False),
        Share("z", Who(dag="x_*", owner="o", tag="t"), borrows=False),
    )
    standing = Standing(ShareAmounts(24.0, 16384.0), {}, {"a": 0.25})
    share_rows.save_standings(session, share_standings(Shares(table), standing), NOW)
    share_rows.save_means(session, {"a": Mean(0.1, 0.4), "z": Mean(0.0, 0.4)}, NOW, 3600.0)
    shares, lately = share_rows.stored_shares(session)
    assert shares == Shares(table, 3600.0)
    assert lately == {"a": Mean(0.1, 0.4), "z": Mean(0.0, 0.4)}


def busy(session: Session, site: str, cpus: int) -> None:
    """Let a site run one job per cpu, as it has for an hour; each takes 400 seconds."""
    for number in range(20):
        times = {
            "queued_at": NOW - 3600,
            "started_at": NOW - 2900 + 100 * number,
            "ended_at": NOW - 2500 + 100 * number,
        }
        add(session, f"{site}-old{number}", state=State.SUCCEEDED, site=site, **times)
    for number in range(cpus):
        started = NOW - 400 * (number + 0.5) / cpus
        add(session, f"{site}-runs{number}", state=State.RUNNING, site=site, started_at=started)


def test_jobs_for_any_site_start_after_those_that_the_sites_have_been_given(session: Session) -> None:
    busy(session, "hpc", 4)
    for number in range(8):
        add(session, f"given{number}", state=State.PLACED, site="hpc", queued_at=NOW - 100 + number)
    for number in range(8):
        add(session, f"any{number}", queued_at=NOW - 50 + number, **reason_values(FREE[0]))
    found = {token: start for token, start in all_starts(session).items() if isinstance(start, ExpectedStart)}
    assert found["any0"].at >= found["given7"].at
    assert found["any0"].at == pytest.approx(NOW + 800, abs=150), "eight jobs before it, on four cpus, of 400 s each"


def test_only_in_the_queue_of_a_batch_system_do_earlier_waits_say_more_than_the_jobs_ahead(session: Session) -> None:
    busy(session, "hpc", 4)
    add(session, "at_agent", state=State.PLACED, site="hpc", queued_at=NOW - 40)
    add(session, "in_batch", state=State.PLACED, site="hpc", queued_at=NOW - 40, native_id="17")
    found = {token: start for token, start in all_starts(session).items() if isinstance(start, ExpectedStart)}
    assert found["at_agent"].source is StartSource.BACKLOG
    assert found["in_batch"].source is StartSource.PAST_WAITS


def test_a_site_gets_its_part_of_the_jobs_for_any_site(session: Session) -> None:
    busy(session, "hpc", 6)
    busy(session, "small", 2)
    add(session, "last", site_hint="hpc", queued_at=NOW - 40)
    alone = all_starts(session)["last"]
    for number in range(40):
        add(session, f"any{number}", queued_at=NOW - 50 + number / 10, **reason_values(FREE[0]))
    among = all_starts(session)["last"]
    assert isinstance(alone, ExpectedStart)
    assert isinstance(among, ExpectedStart)
    assert among.at - alone.at == pytest.approx(30 * 400 / 6, rel=0.2), "three of four go to the site of six cpus"


def test_the_first_jobs_of_a_task_to_finish_are_its_shortest(session: Session) -> None:
    for number in range(3):
        times = {"queued_at": NOW - 3600, "started_at": NOW - 1000, "ended_at": NOW - 800}
        add(session, f"first{number}", task_id="new", state=State.SUCCEEDED, site="hpc", **times)
    known = expected_starts.known_lengths(session, [SimpleNamespace(dag_id="d", task_id="new", jobs=1)])["d", "new"]
    assert known.mean == pytest.approx(200)
    assert known.tries == 3
    assert known.with_running([]) == known
    assert known.with_running([10.0] * 5).mean == pytest.approx(200, rel=0.01), "those that have just begun say nothing"
    assert 300 < known.with_running([1000.0] * 5).mean < 2000, "and those that take longer say a lot"


@pytest.mark.parametrize(("finished", "is_said"), [(2, False), (3, True)])
def test_no_start_is_expected_while_the_lengths_of_the_jobs_ahead_are_a_guess(
    session: Session, finished: int, is_said: bool
) -> None:
    add_ended(session, 20)
    for number in range(30):
        add(session, f"known{number}", queued_at=NOW - 300, site_hint="hpc", **reason_values(FULL))
        add(session, f"new{number}", task_id="new", queued_at=NOW - 200, site_hint="hpc", cpus=4, **reason_values(FULL))
    add(session, "last", queued_at=NOW - 100, site_hint="hpc", **reason_values(FULL))
    for number in range(finished):
        ended = {"queued_at": NOW - 900, "started_at": NOW - 800, "ended_at": NOW - 700}
        add(session, f"done{number}", task_id="new", state=State.SUCCEEDED, site="hpc", **ended)
    found = all_starts(session)
    assert isinstance(found["known0"], ExpectedStart), "new jobs are behind it"
    assert ("last" in found) == is_said
