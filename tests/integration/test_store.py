"""The store on the real databases."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from sqlalchemy import create_engine, event, select
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.accounting import task_usage
from lading.executors.accounting.task_usage import OF_JOBS
from lading.executors.controller import dispatch
from lading.executors.locality.staging import Staging
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.sizing import sizing
from lading.executors.store import Change, JobRow, LocationRow, State, data, groups, instances, queue, strikes
from lading.executors.store.durations import PastWaits
from lading.executors.store.figures import LiveKey, count_live
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.executors.store.leases import DatabaseNow
from lading.executors.store.queued import QueuedJobs
from lading.executors.store.tables import UsageRow
from lading.scheduling.model.job import LAYOUT
from lading.scheduling.model.reasons import because, free_text
from lading.scheduling.model.resources import Layout
from lading.scheduling.sizing.usage import Usage
from tests.clusters.sites import FakeSite
from tests.conftest import DATABASES


def migrations(connection: Connection) -> Config:
    """Lading's migrations, for alembic's commands."""
    config = Config(LadingDBManager.alembic_file)
    config.set_main_option("script_location", LadingDBManager.migration_dir)
    config.attributes["connection"] = connection
    return config


@pytest.fixture(scope="module", params=DATABASES)
def engine(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Engine]:
    """A database with Lading's tables as the migrations make them."""
    url = database_url(request.param) or f"sqlite:///{tmp_path_factory.mktemp('store')}/store.db"
    # As Airflow has it.
    engine = create_engine(url, **{"executemany_mode": "values_plus_batch"} if request.param == "postgresql" else {})
    with engine.connect() as connection:
        command.upgrade(migrations(connection), "head")
        connection.commit()
    yield engine
    engine.dispose()


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    """A session whose work is undone in the end."""
    with engine.connect() as connection, Session(connection) as session:
        yield session
        session.rollback()


def add(session: Session, token: str, **columns: Any) -> None:
    defaults = {
        "kind": "ExecuteTask",
        "subject": token,
        "workload": "{}",
        "cpus": 1.0,
        "memory": 100,
        "disk": 0,
        "gpus": 0.0,
        "priority": 0,
        "state": State.QUEUED,
        "queued_at": 1.0,
        "owner": 7,
    }
    store.add_job(session, token=token, **{**defaults, **columns})


def test_a_job_is_queued_by_the_clock_of_the_database(session: Session) -> None:
    columns = {"kind": "Probe", "subject": "s", "workload": "{}", "state": State.QUEUED, "priority": 0}
    amounts = {"cpus": 1.0, "memory": 100, "disk": 0, "gpus": 0.0}
    store.add_job(session, token="t", **columns, **amounts)
    now = session.execute(select(DatabaseNow())).scalar_one()
    assert now - 600 <= session.scalars(select(JobRow.queued_at).where(JobRow.token == "t")).one() <= now


def test_the_migrations_make_what_the_models_say(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(
            connection,
            opts={
                "compare_type": True,
                "version_table": LadingDBManager.version_table_name,
                "include_object": lambda _, name, kind, *rest: kind != "table" or name in store.metadata.tables,
            },
        )
        assert compare_metadata(context, store.metadata) == []


def test_instances_are_changed_by_site_revived_ended_and_forgotten(session: Session) -> None:
    for token, site in (("a", "hpc"), ("b", "hpc"), ("c", "gone")):
        session.add(
            InstanceRow(
                token=token, site=site, kind="", state=InstanceState.ORDERED, cpus=1.0, memory=1, disk=0, gpus=0.0,
                seconds=60.0, ordered_at=1.0,
            )
        )  # fmt: skip
    session.flush()

    def states() -> dict[str, str]:
        session.expire_all()
        return {row.token: row.state for row in session.scalars(select(InstanceRow))}

    ended = {"state": InstanceState.ENDED, "ended_at": 5.0, "cause": "lost"}
    instances.change(session, "hpc", {"b": ended, "c": ended})
    assert states() == {"a": "ordered", "b": "ended", "c": "ordered"}
    assert [row.token for row in instances.living(session, "hpc")] == ["a"]
    instances.revive(session, "hpc", ["b", "c"])
    assert states()["b"] == "ordered"
    instances.end_at_other_sites(session, ["hpc"], free_text("its site is gone"), 6.0)
    assert states() == {"a": "ordered", "b": "ordered", "c": "ended"}
    instances.forget_ended(session, 7.0)
    assert sorted(states()) == ["a", "b"]
    instances.end_at_other_sites(session, [], free_text("all are gone"), 8.0)
    assert instances.count_living(session) == 0


def test_an_instance_may_have_any_name_as_long_as_that_of_a_location(session: Session) -> None:
    longest = "L" * 250
    columns = {"cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "seconds": 60.0, "ordered_at": 1.0}
    session.add(InstanceRow(token=longest, site="hpc", kind="x" * 999, state=InstanceState.UP, **columns))
    session.flush()
    assert instances.known(session, [longest, "other"]) == {longest}


def test_a_layout_goes_from_the_hints_to_the_envelope(session: Session) -> None:
    add(session, "a", cpus=2.0)
    add(session, "b", cpus=2.0, nodes=2, ppn=2, threads=1)
    assert {job.name: LAYOUT in job.hints for job in queue.waiting(session)} == {"a": False, "b": True}
    store.apply(session, [Change(token, {"state": State.PLACED}) for token in "ab"])
    sent = [dispatch.envelope(job, "", 1.0) for job in queue.to_send(session, ["a", "b"])]
    assert {each.token: each.layout for each in sent} == {"a": None, "b": Layout(2, 2, 1)}


def test_a_job_that_was_queued_twice_is_one_job(session: Session) -> None:
    add(session, "a")
    add(session, "a", priority=99)
    assert session.scalars(select(JobRow.priority)).all() == [0]


def test_an_ended_job_stays_as_it_is(session: Session) -> None:
    add(session, "a")
    store.apply(session, [Change("a", {"state": State.SUCCEEDED, "ended_at": 2.0}, report=True)])
    store.apply(session, [Change("a", {"state": State.RUNNING}, report=True)])
    assert store.find(session, ["a", "unknown"]) == {"a": State.SUCCEEDED}


def test_changes_of_a_thousand_jobs_are_a_few_statements_and_only_those_count_that_changed_something(
    session: Session,
) -> None:
    tokens = [f"job{number:03}" for number in range(600)]
    for number, token in enumerate(tokens):
        columns = {"state": State.SUCCEEDED, "ended_at": 1.0} if number % 100 == 0 else {"state": State.PLACED}
        add(session, token, site="lab" if number % 10 else "hpc", location="m1", usd=None, **columns)
    started = [Change(token, {"state": State.RUNNING, "started_at": 2.0 + n}, True) for n, token in enumerate(tokens)]
    ended = [Change(each, {"state": State.FAILED, "ended_at": 900.0 + n}, True) for n, each in enumerate(tokens[:300])]
    pairs = [each for pair in zip(started, ended, strict=False) for each in pair] + started[300:]
    statements: list[str] = []
    count = lambda _, __, statement, *___: statements.append(statement)  # noqa: E731
    event.listen(session.connection(), "before_cursor_execute", count)
    applied = store.apply(session, pairs, "lab")
    assert [each.token for each in applied] == [each.token for each in pairs if int(each.token[3:]) % 10]
    assert len(statements) < 10
    mine = select(JobRow.started_at, JobRow.ended_at, JobRow.state, JobRow.news).where(
        JobRow.token.in_(("job001", "job010", "job301"))
    )
    assert session.execute(mine.order_by(JobRow.token)).all() == [
        (3.0, 901.0, State.FAILED, 2),
        (None, None, State.PLACED, 0),
        (303.0, None, State.RUNNING, 1),
    ]
    assert store.apply(session, started, "lab") == started[301:310] + [
        each for each in started[310:] if int(each.token[3:]) % 10
    ], "what has ended stays as it is"


def test_a_job_that_has_begun_has_no_more_nodes_than_it_was_to_have(session: Session) -> None:
    add(session, "range", nodes=8)
    add(session, "few", nodes=2)
    add(session, "one")
    began = {"state": State.RUNNING, "started_at": 2.0, "nodes": 3}
    store.apply(session, [store.Change(token, dict(began)) for token in ("range", "few", "one")])
    rows = session.execute(select(JobRow.token, JobRow.nodes).where(JobRow.token.in_(["range", "few", "one"])))
    assert dict(rows.tuples().all()) == {"range": 3, "few": 2, "one": None}


def test_a_change_is_made_only_where_the_job_has_the_values_that_it_asks_for(session: Session) -> None:
    add(session, "here", state=State.PLACED, site="lab", location="m1")
    add(session, "moved", state=State.PLACED, site="lab", location="m2")
    add(session, "nowhere", state=State.PLACED, site="lab")
    back = {"state": State.QUEUED, "site": None, "location": None}

    def returned(place: str | None) -> list[str]:
        only_if = {"state": State.PLACED, "location": place}
        found = store.apply(session, [Change(each, back, only_if=only_if) for each in ("here", "moved", "nowhere")])
        return [each.token for each in found]

    assert (returned("m1"), returned("m3"), returned(None)) == (["here"], [], ["nowhere"])


def test_news_goes_to_the_owner_once(session: Session) -> None:
    add(session, "a")
    add(session, "b", owner=8)
    store.apply(session, [Change(token, {"state": State.RUNNING}, report=True) for token in "ab"])
    [job] = store.unreported(session, 7, 10)
    assert job.token == "a"
    store.mark_reported(session, [job])
    assert store.unreported(session, 7, 10) == []
    assert len(store.unreported(session, 8, 10)) == 1


def test_news_that_came_after_it_was_reported_is_reported_as_well(session: Session) -> None:
    add(session, "a")
    store.apply(session, [Change("a", {"state": State.RUNNING}, report=True)])
    told = store.unreported(session, 7, 10)
    session.expunge_all()
    store.apply(
        session, [Change("a", {"state": State.FAILED, "cause": "lost", "reason": free_text("gone")}, report=True)]
    )
    store.mark_reported(session, told)
    assert [job.state for job in store.unreported(session, 7, 10)] == [State.FAILED]


def test_a_new_owner_gets_what_has_ended(session: Session) -> None:
    add(session, "ended", state=State.FAILED)
    add(session, "live", state=State.RUNNING)
    store.adopt(session, ["ended", "live"], 9)
    assert [job.token for job in store.unreported(session, 9, 10)] == ["ended"]


def test_the_jobs_of_a_dead_scheduler_are_taken_over(session: Session) -> None:
    add(session, "live")
    add(session, "untold", state=State.FAILED, unreported=True)
    add(session, "told", state=State.SUCCEEDED)
    assert store.foreign_owners(session, 9) == [7]
    assert store.adopt_from(session, 7, 9) == {"live": State.QUEUED, "untold": State.FAILED}
    assert store.foreign_owners(session, 9) == []


def live(session: Session) -> dict[LiveKey, int]:
    return count_live(session, QueuedJobs().read(session))


def test_each_executor_has_the_jobs_of_its_team(session: Session) -> None:
    for token, team in (("all", None), ("genes", "genes"), ("gone", "gone")):
        add(session, token, executor_team=team, team=team, unreported=True)
    assert [job.token for job in store.unreported(session, 7, 10)] == ["all"]
    assert [job.token for job in store.unreported(session, 7, 10, "genes")] == ["genes"]
    assert store.adopt_from(session, 7, 9, "genes", but=None) == {"genes": State.QUEUED}
    assert store.adopt_from(session, 7, 9, None, but=["genes"]) == {"all": State.QUEUED, "gone": State.QUEUED}
    session.expire_all()
    assert {job.token for job in store.unreported(session, 9, 10)} == {"all", "gone"}
    assert set(live(session)) == {LiveKey(None, State.QUEUED, team) for team in (None, "genes", "gone")}


def test_more_jobs_than_one_statement_takes(session: Session) -> None:
    tokens = [f"job{number}" for number in range(2 * store.CHUNK + 1)]
    for token in tokens:
        add(session, token)
    assert len(store.find(session, tokens)) == len(tokens)
    assert live(session) == {LiveKey(None, State.QUEUED, None): len(tokens)}


def test_one_controller_holds_the_lease(session: Session) -> None:
    def take(holder: str, dead: str | None = None, seconds: float = 3600.0) -> bool:
        return store.take_lease(session, holder, "host", 1, True, seconds, dead)

    assert take("a")
    assert not take("b")
    assert take("a", seconds=7200.0), "the holder renews it"
    held = store.lease(session)
    assert held is not None
    assert 3600.0 < held.left <= 7200.0
    assert abs(held.expires_at - held.left - time.time()) < 600.0, "the database's clock, in seconds since the epoch"
    assert not take("b")
    assert take("a", seconds=-1.0)
    assert take("b"), "it has run out"
    assert take("c", dead="b"), "its holder is known to be dead"
    store.drop_lease(session, "b")
    assert store.lease(session) is not None, "only the holder releases it"
    store.drop_lease(session, "c")
    assert take("d")


def test_old_jobs_are_forgotten_when_airflow_has_their_ends(session: Session) -> None:
    task = {"dag_id": "d", "task_id": "t", "input_size": 2**40, "usd": 0.5}
    add(session, "old", state=State.SUCCEEDED, started_at=5.0, ended_at=10.0, **task)
    add(session, "untold", state=State.SUCCEEDED, ended_at=10.0, unreported=True)
    add(session, "young", state=State.SUCCEEDED, ended_at=30.0)
    add(session, "live")
    assert task_usage.forget_ended(session, 20.0) == 1
    assert set(store.find(session, ["old", "untold", "young", "live"])) == {"untold", "young", "live"}
    [kept] = session.scalars(select(UsageRow).where(UsageRow.dag_id == "d"))  # beside what no job used on that day
    assert (kept.jobs, kept.cpu_seconds, kept.usd, kept.size_class) == (1, 5.0, 0.5, OF_JOBS)
    assert [use.input_size for use in Usage.load(kept.usage).sample] == [2**40]


def test_a_long_wait_gets_a_reason_once(session: Session) -> None:
    now = time.time()
    add(session, "long", queued_at=now - 60)
    add(session, "short", queued_at=now)
    for _ in range(2):
        store.explain_the_rest(session, because("turn"), now - 10)
    [job] = store.unreported(session, 7, 10)
    assert (job.token, job.reason, job.reason_code, job.news) == ("long", because("turn"), "turn", 1)


def test_another_code_or_limit_is_reported_to_airflow_and_another_number_is_not(session: Session) -> None:
    add(session, "a", queued_at=1.0)
    quotas = [("standard", 8), ("standard", 9), ("gpu", 9)]
    news = []
    for quota, used in quotas:
        reason = because("quota", quota=quota, used=used, most=9, type="t", vcpus=2)
        store.explain(session, reason, ["a"])
        session.expire_all()
        job = session.get_one(store.JobRow, "a")
        assert (job.reason, job.reason_code, job.reason_limit) == (reason, "quota", f"quota {quota}")
        news.append(job.news)
    assert news == [1, 1, 2]
    store.forget_reasons(session, "turn")
    session.expire_all()
    assert session.get_one(store.JobRow, "a").reason is not None
    store.forget_reasons(session, "quota")
    session.expire_all()
    job = session.get_one(store.JobRow, "a")
    assert (job.reason, job.reason_code, job.reason_limit) == (None, None, None)


def test_locations_are_replaced(session: Session) -> None:
    def location(name: str, cpus: float) -> LocationRow:
        return LocationRow(site="s", name=name, kind="local", cpus=cpus, memory=1, disk=1, gpus=0.0, seen_at=1.0)

    store.save_locations(session, "s", [location("a", 1), location("b", 2)])
    store.save_locations(session, "s", [location("b", 3)])
    session.flush()
    session.expire_all()
    assert [(row.name, row.cpus) for row in session.scalars(select(LocationRow))] == [("b", 3.0)]


def test_many_locations_are_looked_up_at_once(session: Session) -> None:
    def locations(cpus: float) -> list[LocationRow]:
        amounts = {"cpus": cpus, "memory": 1, "disk": 1, "gpus": 0.0, "seen_at": 1.0}
        return [LocationRow(site="s", name=f"m{number}", kind="ec2", **amounts) for number in range(20)]

    statements: list[str] = []
    engine = session.get_bind()
    event.listen(engine, "before_cursor_execute", lambda _, __, statement, *___: statements.append(statement))
    for cpus in (1.0, 2.0):
        store.save_locations(session, "s", locations(cpus))
        session.flush()
    session.expire_all()
    assert {row.cpus for row in session.scalars(select(LocationRow))} == {2.0}
    assert sum(each.startswith("SELECT") for each in statements) == 3


def test_the_jobs_of_one_site_do_not_hide_those_of_another(session: Session) -> None:
    for number in range(queue.MOST_JOBS_PER_TICK):
        add(session, f"a{number}", site_hint="a", queued_at=1.0 + number)
    add(session, "b", site_hint="b", queued_at=1e6)
    add(session, "anywhere", site_hint=None, queued_at=2e6, priority=1)
    tokens = [job.name for job in queue.waiting(session)]
    assert (tokens[0], tokens[1], tokens[-1]) == ("anywhere", "a0", "b")


def test_the_first_jobs_by_the_rests_of_their_runs_are_looked_at(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MOST_JOBS_PER_TICK", 5)
    for number in range(20):
        add(session, f"a{number:02}", queued_at=1.0 + number)
    add(session, "urgent", queued_at=99.0, priority=9)
    rests = {"a15": 500.0, "a03": 20.0, "a19": 600.0}
    jobs = queue.waiting(session, rests=rests)
    assert [job.name for job in jobs[:5]] == ["urgent", "a19", "a15", "a03", "a00"]
    assert [job.rest for job in jobs[:5]] == [0.0, 600.0, 500.0, 20.0, 0.0]
    assert all(job.is_ahead for job in jobs[5:])
    assert jobs[-1].hidden == 21 - len(jobs)


def test_of_groups_with_a_limit_the_longest_rest_is_admitted_first(session: Session) -> None:
    add_limited(session, "short", 1, run_max_jobs=1)
    add_limited(session, "long", 1, run_max_jobs=1, queued_at=20.0)
    [short] = queue.waiting(session)
    assert short.task_id == "short"
    [long] = queue.waiting(session, rests={"longState.QUEUED0": 60.0})
    assert (long.task_id, long.rest) == ("long", 60.0)


@pytest.mark.parametrize(
    "other",
    [
        {"instance_type": "c7i"},
        {"cpus": 2.0},
        {"memory": 101},
        {"disk": 1},
        {"gpus": 0.5},
        {"site_hint": "b"},
        {"queue_hint": "long"},
        {"native_hint": "{}"},
        {"arch": "aarch64"},
        {"os": "linux"},
        {"features": "avx512,nvme"},
        {"capacity_type": "spot"},
        {"instance_type": "c7i", "priority": -5},
    ],
)
def test_the_jobs_of_one_shape_do_not_hide_those_of_another(session: Session, other: dict[str, Any]) -> None:
    for number in range(queue.MOST_JOBS_PER_TICK + 5):
        add(session, f"a{number:05}", queued_at=1.0 + number)
    add(session, "other", **{"queued_at": 1e6, **other})
    jobs = queue.waiting(session)
    assert [job.name for job in jobs] == [*(f"a{number:05}" for number in range(len(jobs) - 1)), "other"]
    assert len(jobs) >= queue.MOST_JOBS_PER_TICK + 1
    assert jobs[-1].may_overtake == any(job.hidden for job in jobs)


def test_with_more_shapes_than_one_look_takes_each_has_its_turn(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "MOST_JOBS_PER_TICK", 5)
    for number in range(40):
        add(session, f"a{number:02}", queued_at=1.0 + number, memory=100 + number // 2)
    looks = [[job.name for job in queue.waiting(session, turn)] for turn in range(4)]
    assert all(look[:5] == ["a00", "a01", "a02", "a03", "a04"] and len(look) <= 10 for look in looks)
    assert {token for look in looks for token in look} >= {f"a{number:02}" for number in range(0, 40, 2)}
    assert [job.name for job in queue.waiting(session, 4)] == looks[0]


def add_limited(session: Session, task_id: str, count: int, state: State = State.QUEUED, **columns: Any) -> None:
    for number in range(count):
        names = {"dag_id": "d", "run_id": "r", "task_id": task_id, "map_index": number}
        token = f"{columns.get('run_id', '')}{task_id}{state}{number}"
        add(session, token, **{**names, "state": state, "queued_at": 10.0 + number, **columns})


def waiting(session: Session) -> list[str]:
    return [job.name.replace("State.QUEUED", "") for job in queue.waiting(session)]


def test_of_a_limited_group_as_many_wait_for_room_as_may_start(session: Session) -> None:
    add(session, "free", queued_at=11.5)
    add_limited(session, "two", 5, max_jobs=2)
    assert waiting(session) == ["two0", "two1", "free"]
    add_limited(session, "two", 1, State.RUNNING, max_jobs=2, map_index=9)
    assert waiting(session) == ["two0", "free"]
    add_limited(session, "two", 1, State.PLACED, max_jobs=2, map_index=10)
    assert waiting(session) == ["free"]
    groups.explain(session, QueuedJobs().read(session), before=12.5)
    reasons = dict(session.execute(select(JobRow.token, JobRow.reason).where(JobRow.reason.is_not(None))).all())
    assert reasons == dict.fromkeys(
        [f"two{State.QUEUED}{number}" for number in range(3)],
        because("task_jobs", most=2, task="two"),
    )
    add_limited(session, "two", 1, run_id="another", max_jobs=2, priority=5)
    assert waiting(session)[0] == "anothertwo0", "another run has a limit of its own"


def test_tasks_of_a_run_share_its_limit(session: Session) -> None:
    add_limited(session, "a", 3, run_max_jobs=3)
    add_limited(session, "b", 3, run_max_jobs=3, max_jobs=1, priority=1)
    assert waiting(session) == ["b0", "a0", "a1"]
    add_limited(session, "b", 1, State.RUNNING, run_max_jobs=3, max_jobs=1)
    assert waiting(session) == ["a0", "a1"]


def test_a_job_whose_resources_are_not_known_is_not_placed(session: Session) -> None:
    add(session, "unknown", sizing='{"hints": {"memory": "input_size"}, "sources": {}}', try_number=2, dag_id="d")
    add(session, "unknown2", sizing='{"hints": {}, "sources": {}}', max_jobs=1, dag_id="d")
    assert waiting(session) == []
    assert [job.token for job in sizing.unsized_jobs(session, [])] == ["unknown", "unknown2"]
    assert [job.token for job in sizing.unsized_jobs(session, ["unknown"])] == ["unknown2"]
    queued = QueuedJobs().read(session)
    queued.explain(session, sizing.UNKNOWN, queued.without_reason(2.0, are_unsized=True))
    assert set(session.scalars(select(JobRow.reason))) == {sizing.UNKNOWN}
    store.apply(session, [Change("unknown", {"memory": 77, "sizing": None})])
    assert [job.resources.memory for job in queue.waiting(session)] == [77]


def test_jobs_whose_machines_are_limited_are_looked_at_with_what_is_at_work(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    add_limited(session, "two", 5, max_instances=2, run_max_instances=4)
    add_limited(session, "two", 1, State.RUNNING, max_instances=2, run_max_instances=4, site="a", location="n1")
    add_limited(session, "sort", 1, State.PLACED, run_max_instances=4, site="a", location="n2", nodes=3)
    add_limited(session, "free", 1, State.RUNNING, site="a", location="n3")
    add_limited(session, "two", 1, State.RUNNING, run_id="other", max_instances=2, site="a", location="n4")
    found = queue.waiting(session)
    assert [(job.name, job.task, job.run, job.max_instances, job.run_max_instances) for job in found[:1]] == [
        (f"two{State.QUEUED}0", "d r two", "d r", 2, 4)
    ]
    assert len(found) == 5
    at_work = [(job.task, job.run, job.nodes, site, place) for job, site, place in queue.on_machines(session, found)]
    assert sorted(at_work, key=str) == [("d r two", "d r", 1, "a", "n1"), (None, "d r", 3, "a", "n2")]
    monkeypatch.setattr(queue, "MOST_JOBS_PER_TICK", 4)
    add_limited(session, "other", 9, max_instances=1)
    assert set(waiting(session)) == {"two0", "other0", "two1", "other1"}, "together they are no more than others"


def test_a_job_takes_along_what_it_asks_of_machines(session: Session) -> None:
    add(session, "a", arch="aarch64", os="linux", features="avx512,nvme", capacity_type="spot")
    [job] = queue.waiting(session)
    assert (job.arch, job.os, job.capacity_type) == ("aarch64", "linux", "spot")
    assert job.features == {"avx512", "nvme"}


def test_how_long_jobs_will_wait_is_known_from_twenty_waits_on(session: Session) -> None:
    for number in range(40):
        begun = {"submitted_at": 1000.0, "started_at": 1000.0 + number, "state": State.RUNNING, "site": "hpc"}
        columns = {"queue": "long"} if number < 20 else {"queue_hint": "short", "cpus": 4.0, "nodes": 2}
        add(session, f"begun{number}", **begun, **columns)
    for number in range(19):
        add(session, f"few{number}", site="lab", submitted_at=1.0, started_at=2.0, state=State.SUCCEEDED)
    add(session, "waits", site="hpc", queue="long", submitted_at=1.0)
    add(session, "no batch job", site="local", started_at=2.0, state=State.SUCCEEDED)
    waits = PastWaits().read(session)
    assert [waits.expected("hpc", "long", cpus) for cpus in (1, 64)] == [14.0, 14.0], "three of four"
    assert waits.expected("hpc", "short", 8) == 34.0
    assert [waits.expected(site, None, 1) for site in ("hpc", "lab", "local")] == [None, None, None]
    add(session, "last", site="lab", submitted_at=1.0, started_at=5.0, state=State.SUCCEEDED)
    assert PastWaits().read(session).expected("lab", None, 1) == 1.0


def test_files_are_staged_and_copies_removed(session: Session, tmp_path: Path) -> None:
    """The queries of staging, at a site that takes no files and one that is gone."""
    placed = {"site": "lab", "location": "here", "state": State.PLACED, "dag_id": "d", "run_id": "r", "task_id": "t"}
    add(session, "a", **placed, stage='{"/file": null}')
    add(session, "b", **placed)
    add(session, "c", **{**placed, "site": "gone"}, stage='{"/file": null}')
    for token in ("x", "y"):
        add(session, token, **{**placed, "state": State.SUCCEEDED})
    for size in (1, 2):
        ends = [{"event": "finished", "token": token, "outputs": {"/file": size}} for token in ("x", "y")]
        data.note(session, "lab", ends)
        session.flush()
    staging = Staging({"lab": FakeSite("lab", tmp_path)}, lambda: None)
    staging.sweep(session)
    ready, changes = staging.ready(session, "lab", {"here": ["a", "b"]})
    assert ready == {"here": ["b"]}
    assert [change.values["state"] for change in changes] == [State.FAILED]


def test_jobs_that_were_noted_are_struck_and_have_failed_the_second_time(session: Session) -> None:
    asks = {"sizing": "{}", "dag_id": "d", "run_id": "r", "task_id": "t"}
    for index, token in enumerate("abc"):
        add(session, token, map_index=index, **asks)
    strikes.note(session, "first", "ab")
    assert strikes.charge(session, "first") == []
    assert {change.token for change in strikes.charge(session, "second")} == {"a", "b"}
    assert sizing.waiting_dags(session) == {"d": True}
    assert [job.token for job in sizing.unsized_jobs(session, [], are_struck=True)] == ["a", "b"]
    assert [job.token for job in sizing.unsized_jobs(session, [])] == ["c"]
    strikes.note(session, "second", "b")
    strikes.passed(session, "b")
    strikes.note(session, "second", "ac")
    strikes.take_all_back(session, "second")
    strikes.note(session, "second", "a")
    [change] = strikes.charge(session, "third")
    assert (change.token, change.values["state"]) == ("a", State.FAILED)
    assert strikes.repeated(session, ("d", "r", "t")) == {"{}": [0]}
    assert [job.token for job in sizing.unsized_jobs(session, [])] == ["b", "c"]


def test_a_change_that_no_column_takes_is_the_end_of_its_job_alone(session: Session) -> None:
    for token in "abc":
        add(session, token)
    found = sizing.stored(session, [Change(each, {"input_size": 10**30 if each == "b" else 5}) for each in "abc"])
    assert [change.values.get("input_size") for change in found] == [5, None, 5]
    states = {job.token: (job.state, job.input_size) for job in session.scalars(select(JobRow))}
    assert states == {"a": (State.QUEUED, 5), "b": (State.FAILED, None), "c": (State.QUEUED, 5)}
