"""The threads of sites, and the controller's loop: nothing that hangs holds up anything else."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DataError
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.controller.site_threads import SiteThread
from lading.executors.settings import Settings
from lading.executors.store import JobRow, Lease, State
from lading.plugin.host import AirflowHost
from lading.scheduling.model.reasons import free_text
from tests.clusters.sites import FakeSite, close_all_but, make_settings, rest
from tests.reasons import told
from tests.services.processes import wait_until


@pytest.fixture
def engine(airflow_database: Engine) -> Engine:
    return airflow_database


@pytest.fixture(autouse=True)
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is tried again soon, and a tick has all that there is to be seen."""
    monkeypatch.setattr(site_threads, "SECONDS_BETWEEN_LOOKS", 0.0)
    monkeypatch.setattr("lading.hooks.polling.rounds.PAUSE_AFTER_TROUBLE", 0.2)
    monkeypatch.setattr(site_threads, "LAST_NEWS_SECONDS", 1.0)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path, on_shutdown="leave", shutdown_seconds=1)


class Sites(dict[str, FakeSite]):
    def __init__(self, folder: Path, *names: str) -> None:
        super().__init__({name: FakeSite(name, folder / name, known=True) for name in names})

    def hang(self, where: str, *names: str) -> None:
        for name in names:
            self[name].hang.add(where)


@pytest.fixture
def sites(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sites]:
    sites = Sites(tmp_path, *(f"s{number}" for number in range(getattr(request, "param", 2))))
    yield sites
    for site in sites.values():
        site.go_on()


@pytest.fixture
def controller(sites: Sites, settings: Settings, engine: Engine) -> Iterator[Controller]:
    made = Controller(AirflowHost(), sites, lambda subject, seconds: "jwt", settings, False, lambda changes: None)
    yield made
    for site in sites.values():
        site.go_on()
    made.stop()
    made.leadership.leads_until = 0.0
    made.threads.end()


def add_job(engine: Engine, token: str, **columns: Any) -> None:
    defaults: dict[str, Any] = {
        "kind": "ExecuteTask", "subject": token, "workload": "{}", "state": State.QUEUED, "cpus": 1.0, "memory": 1,
        "disk": 0, "gpus": 0.0, "priority": 0, "queued_at": time.time(), "dag_id": "d", "run_id": "r", "task_id": "t",
    }  # fmt: skip
    with Session(engine) as session:
        store.add_job(session, token=token, **{**defaults, **columns})
        session.commit()


def job(engine: Engine, token: str) -> JobRow:
    with Session(engine) as session:
        return session.scalars(select(JobRow).where(JobRow.token == token)).one()


def holder(engine: Engine) -> str | None:
    with Session(engine) as session:
        return session.scalar(select(Lease.holder).where(Lease.expires_at > time.time()))


def expiry(engine: Engine) -> float | None:
    with Session(engine) as session:
        return session.scalar(select(Lease.expires_at))


def ticks_until(controller: Controller, there: Callable[[], bool], seconds: float = 120.0) -> None:
    """Tick until something is there. A tick that waits for a site that hangs never ends."""
    deadline = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < deadline, "it did not come"
        controller.tick()
        rest(controller.threads)


@pytest.mark.parametrize("sites", [10], indirect=True, ids=["ten"])
@pytest.mark.parametrize("where", ["observe", "put", "cancel", "acknowledge"])
def test_of_ten_sites_two_that_hang_cost_the_others_nothing(
    controller: Controller, sites: Sites, engine: Engine, where: str
) -> None:
    sites.hang(where, "s3", "s7")
    for name in sites:
        add_job(engine, name, site_hint=name)
    well = [name for name in sites if name not in ("s3", "s7")]
    ticks_until(controller, lambda: all(job(engine, name).state == State.RUNNING for name in well))
    with Session(engine) as session:
        session.execute(update(JobRow).where(JobRow.state == State.RUNNING).values(cancel=free_text("enough")))
        session.commit()
    ticks_until(controller, lambda: all(sites[name].cancelled for name in well))
    for name in well:
        sites[name].events.append(finished(name))
    ticks_until(controller, lambda: all(job(engine, name).state == State.SUCCEEDED for name in well))
    assert all(sites[name].hangs for name in ("s3", "s7")), "nothing has waited for them"
    if where == "observe":
        assert {job(engine, name).state for name in ("s3", "s7")} == {State.QUEUED}


def finished(token: str) -> dict[str, Any]:
    usage = {"exit_code": 0, "peak_memory": 1, "cpu_seconds": 0.1}
    return {"event": "finished", "token": token, "at": time.time(), "cause": None, "reason": None, **usage}


def test_a_site_that_hangs_is_taken_for_one_that_could_not_be_asked(
    controller: Controller, sites: Sites, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    add_job(engine, "runs", site_hint="s0")
    ticks_until(controller, lambda: job(engine, "runs").state == State.RUNNING)
    sites.hang("observe", "s0")
    # Only now: on a busy machine a site that answers may take as long.
    monkeypatch.setattr(site_threads, "SECONDS_UNTIL_SILENT", 0.5)
    for each in controller.compared.values():
        each.seconds_until_repeated = each.seconds_until_lost = 0.1
    ticks_until(controller, lambda: "s0" in controller.threads.silent)
    add_job(engine, "waits", site_hint="s0")
    ticks_until(controller, lambda: told(job(engine, "waits").reason) is not None)
    assert "site 's0' could not be queried: it has not answered for more than" in (
        told(job(engine, "waits").reason) or ""
    )
    for _ in range(10):
        controller.tick()
        time.sleep(0.04)
    assert job(engine, "runs").state == State.RUNNING, "an answer that is missing is not one"
    warnings = [record for record in caplog.records if "'s0' could not be polled" in record.getMessage()]
    assert len(warnings) == 1, "the same trouble is said once"
    sites["s0"].go_on()
    ticks_until(controller, lambda: job(engine, "waits").state == State.RUNNING)


def test_ticks_that_follow_each_other_put_off_no_look(tmp_path: Path) -> None:
    """While one site has much to say, or many jobs come, a tick asks for the next look again before the last is due."""
    site = FakeSite("s", tmp_path, known=True)
    thread = SiteThread(site, lambda: None, lambda: True)
    thread.request_observation(3600.0)
    due_at = thread.rounds._not_before
    for _ in range(3):
        thread.request_observation(7200.0)
    assert thread.rounds._not_before == due_at
    thread.end(60.0)


def test_a_site_that_has_found_something_is_observed_before_the_next_tick(tmp_path: Path) -> None:
    site, rung = FakeSite("s", tmp_path), threading.Event()
    thread = SiteThread(site, rung.set, lambda: True)
    thread.request_observation()
    assert rung.wait(120)
    thread.take()
    thread.settle()
    rung.clear()
    site.events = [{"event": "started", "token": "t", "at": 1.0}]
    site.notify()
    assert rung.wait(120), "no tick has requested an observation"
    thread.end(120)


def test_no_event_is_lost_that_came_while_others_were_stored(tmp_path: Path) -> None:
    """An acknowledgement says how many events it covers: that of an observation made meanwhile would cover others."""
    site, rung = FakeSite("s", tmp_path), threading.Event()
    thread = SiteThread(site, rung.set, lambda: True)

    def store() -> list[str]:
        assert rung.wait(120)
        rung.clear()
        taken = [event["token"] for event in thread.take() or ()]
        thread.settle()
        return taken

    def report(token: str) -> None:
        site.events.append({"event": "started", "token": token, "at": 1.0})

    report("a")
    thread.request_observation()
    assert rung.wait(120)
    site.hang.add("observe")
    thread.request_observation()
    assert wait_until(lambda: site.hangs, 120, 0.005)
    stored = store()
    report("b")
    rung.clear()
    site.go_on()
    assert wait_until(lambda: sum(site.acknowledged) == 1, 120, 0.005)
    report("c")
    stored += store()
    while "c" not in stored:
        thread.request_observation()
        stored += store()
    assert stored == ["a", "b", "c"]
    thread.end(120)


def test_an_answer_is_used_once(controller: Controller, sites: Sites, engine: Engine) -> None:
    add_job(engine, "a", site_hint="s0")
    ticks_until(controller, lambda: job(engine, "a").state == State.RUNNING)
    sites["s0"].events.append(finished("a"))
    ticks_until(controller, lambda: job(engine, "a").state == State.SUCCEEDED)
    assert wait_until(lambda: sum(sites["s0"].acknowledged) == 2, 60, 0.05)


def test_events_that_could_not_be_stored_are_read_again(
    controller: Controller, sites: Sites, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    ticks_until(controller, lambda: sites["s0"].looks > 1)
    add_job(engine, "a", site="s0", location="here", state=State.PLACED)
    sites["s0"].known = False  # else it would be given the job again after a while
    real, failures = store.apply, iter([RuntimeError("full"), ValueError("bad")])

    def apply(session: Session, changes: Any, site: str | None = None) -> Any:
        changes = list(changes)
        if changes and (error := next(failures, None)):
            raise error
        return real(session, changes, site)

    monkeypatch.setattr(store, "apply", apply)
    sites["s0"].events.append({"event": "started", "token": "a", "at": 1.0})
    ticks_until(controller, lambda: job(engine, "a").state == State.RUNNING)
    assert wait_until(lambda: sum(sites["s0"].acknowledged) == 1, 60, 0.05)
    assert [name for name, _ in tracebacks(caplog)] == [RuntimeError, ValueError]


def tracebacks(caplog: Any) -> list[tuple[type, str]]:
    """Of each traceback that was logged: what was raised, and by what function."""
    found = [record.exc_info for record in caplog.records if record.exc_info]
    return [(kind, traceback.extract_tb(where)[-1].name) for kind, _, where in found]


@pytest.mark.parametrize("error", [OSError("no route"), KeyError("x")], ids=["its own error", "a fault"])
@pytest.mark.parametrize("where", ["observe", "put"])
def test_the_traceback_of_a_fault_is_logged_once(
    controller: Controller, sites: Sites, engine: Engine, error: Exception, where: str, caplog: Any
) -> None:
    def fails(*_: object) -> Any:
        nonlocal times
        times += 1
        raise error

    times, what = 0, "polled" if where == "observe" else "given its jobs"
    setattr(sites["s0"], where, fails)
    add_job(engine, "a", site_hint="s0")
    ticks_until(controller, lambda: times > (where == "observe"))
    controller.tick()
    assert [record.getMessage() for record in caplog.records if "s0'" in record.getMessage()] == [
        f"Site 's0' could not be {what}: {error} (logged once, retrying)"
    ]
    assert tracebacks(caplog) == ([] if isinstance(error, OSError) else [(KeyError, "fails")])


def test_a_site_in_trouble_is_none_of_the_others_business(controller: Controller, sites: Sites, engine: Engine) -> None:
    sites["s0"].trouble = RuntimeError("no route")
    add_job(engine, "a", site_hint="s0")
    add_job(engine, "b", site_hint="s1")
    ticks_until(controller, lambda: job(engine, "b").state == State.RUNNING)
    why = "waits: site 's0' could not be queried: no route"
    ticks_until(controller, lambda: told(job(engine, "a").reason) == why)
    sites["s0"].trouble = None
    ticks_until(controller, lambda: job(engine, "a").state == State.RUNNING)


def test_an_answer_that_no_column_holds_affects_its_site_alone(
    controller: Controller, sites: Sites, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PostgreSQL and MySQL refuse a number that is too large, and a text that is too long, where SQLite takes both."""
    real = store.save_locations

    def save(session: Session, site: str, locations: Any) -> None:
        if site == "s0":
            raise DataError("INSERT", {}, Exception("integer out of range"))
        real(session, site, locations)

    monkeypatch.setattr(store, "save_locations", save)
    add_job(engine, "a", site_hint="s0")
    add_job(engine, "b", site_hint="s1")
    ticks_until(controller, lambda: job(engine, "b").state == State.RUNNING)
    ticks_until(controller, lambda: "integer out of range" in (told(job(engine, "a").reason) or ""))


@pytest.mark.parametrize("sites", [10], indirect=True, ids=["ten"])
def test_all_sites_are_let_go_of_at_the_same_time(
    controller: Controller, sites: Sites, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    close_all_but(monkeypatch, controller.threads, {"s3", "s5", "s7"})
    monkeypatch.setattr(site_threads, "LAST_NEWS_SECONDS", 5.0)
    controller.settings = replace(controller.settings, shutdown_seconds=600)
    add_job(engine, "a", site_hint="s0")
    ticks_until(controller, lambda: job(engine, "a").state == State.RUNNING)
    sites.hang("close", "s3", "s7")
    sites.hang("observe", "s5")
    sites["s0"].events.append(finished("a"))
    controller.close()
    assert {name for name, site in sites.items() if not site.closed} - {"s5"} == {"s3", "s7"}
    assert job(engine, "a").state == State.SUCCEEDED, "the last news are taken in"
    assert sum(sites["s0"].acknowledged) == 2
    assert holder(engine) is None


def test_the_lease_is_renewed_while_a_tick_takes_long(
    controller: Controller, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    controller.leadership.clock.seconds = 0.2
    monkeypatch.setattr(controller, "any_wait", goes_on.wait)
    loop = threading.Thread(target=controller.run, daemon=True)
    loop.start()
    assert wait_until(lambda: holder(engine) is not None, 60, 0.02)
    ends = []
    for _ in range(4):
        assert wait_until(lambda: expiry(engine) not in ends, 60, 0.05)
        ends.append(expiry(engine))
    assert ends == sorted(ends)
    assert holder(engine) == controller.leadership.holder
    controller.stop()
    goes_on.set()
    loop.join(120)
    assert holder(engine) is None


def test_of_a_loop_that_hangs_the_lease_is_abandoned_and_it_never_takes_it_again(
    sites: Sites, settings: Settings, engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    monkeypatch.setattr(leadership, "is_dead", lambda lease: False)  # both are of this process
    hangs, goes_on = threading.Event(), threading.Event()
    first, second = (
        Controller(AirflowHost(), sites, lambda subject, seconds: "jwt", settings, False, lambda changes: None)
        for _ in range(2)
    )
    for each in (first.leadership, second.leadership):
        each.lease_seconds = 3.0
        each.renewal_seconds = each.clock.seconds = 0.2

    def hang() -> bool:
        hangs.set()
        return goes_on.wait()

    monkeypatch.setattr(first, "any_wait", hang)
    loops = [threading.Thread(target=each.run, daemon=True) for each in (first, second)]
    loops[0].start()
    assert hangs.wait(120)
    assert wait_until(lambda: holder(engine) == first.leadership.holder, 60, 0.02)
    loops[1].start()
    first.leadership.clock._alive_at -= first.leadership.clock.seconds_until_hung  # it has hung for so long
    assert wait_until(lambda: holder(engine) == second.leadership.holder, 60, 0.05)
    assert "hangs, so it lets its lease expire" in caplog.text
    assert not first.leadership.may_act()
    goes_on.set()
    loops[0].join(120)
    assert not loops[0].is_alive(), "it ends"
    for _ in range(20):
        time.sleep(0.1)
        assert holder(engine) in (second.leadership.holder, None), "None: on a busy machine it is renewed late"
    second.stop()
    loops[1].join(120)


def test_nothing_is_done_at_a_site_without_the_lease(controller: Controller, sites: Sites, engine: Engine) -> None:
    add_job(engine, "a", site_hint="s0")
    sites.hang("put", "s0")
    ticks_until(controller, lambda: job(engine, "a").state == State.PLACED)
    time.sleep(0.2)
    controller.threads.threads["s0"].cancel({"here": {"b": free_text("late")}})
    controller.leadership.leads_until = 0.0
    sites["s0"].go_on()
    time.sleep(0.5)
    assert sites["s0"].cancelled == {}
