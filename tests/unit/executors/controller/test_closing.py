"""The end of a controller: its jobs, the last news, and the lease."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.jobs.job import Job as AirflowJob
from sqlalchemy import insert, select
from sqlalchemy.engine import Engine
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.controller import leadership, site_threads
from lading.executors.controller.controller import Controller
from lading.executors.store import JobRow, Lease, State
from lading.plugin.host import AirflowHost
from lading.scheduling.model.reasons import free_text
from tests.clusters.sites import FINISHED, FakeElasticSite, FakeSite, close_all_but, make_settings, rest
from tests.reasons import told

Make = Callable[..., Controller]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[FakeSite]:
    made = FakeSite("a", tmp_path / "a")
    yield made
    made.go_on()


@pytest.fixture
def make(airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """A controller that has looked once; the first site runs the job ``t``."""
    monkeypatch.setattr(site_threads, "LAST_NEWS_SECONDS", 3.0)
    made: list[Controller] = []

    def make(on_shutdown: str, *sites: FakeSite) -> Controller:
        settings = make_settings(tmp_path / "state", on_shutdown=on_shutdown, shutdown_seconds=600)
        settings.state_folder.mkdir()
        named = {site.name: site for site in sites}
        made.append(
            Controller(AirflowHost(), named, lambda subject, seconds: "jwt", settings, True, lambda changes: None)
        )
        with Session(airflow_database) as session:
            amounts: dict[str, Any] = {"cpus": 1.0, "memory": 512, "disk": 0, "gpus": 0.0, "priority": 0}
            place = {"state": State.RUNNING, "site": sites[0].name, "location": "here", "placed_at": time.time()}
            store.add_job(
                session, token="t", kind="Probe", subject="s", workload="{}", queued_at=1.0, **amounts, **place
            )
            session.commit()
        made[-1].tick()
        rest(made[-1].threads)
        return made[-1]

    yield make
    for each in made:
        each.leadership.leads_until = 0.0
        each.threads.end()


def state(engine: Engine) -> str:
    with Session(engine) as session:
        return session.scalars(select(JobRow.state)).one()


def holders(engine: Engine) -> list[str]:
    with Session(engine) as session:
        return list(session.scalars(select(Lease.holder).where(Lease.expires_at > time.time())))


def finishing(site: FakeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The site ends its job when it is released, and reports it after that."""

    def close(how: str, timeout: float) -> None:
        site.closed.append(how)
        site.events.append(FINISHED | {"cause": "cancelled"})

    monkeypatch.setattr(site, "close", close)


@pytest.mark.parametrize("on_shutdown", ["cancel", "leave"])
def test_sites_are_let_go_of_as_it_is_set_and_tell_their_last_news(
    make: Make, site: FakeSite, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch, on_shutdown: str
) -> None:
    controller = make(on_shutdown, site)
    finishing(site, monkeypatch)
    assert holders(airflow_database) == [controller.leadership.holder]
    controller.close()
    assert site.closed == [on_shutdown]
    assert state(airflow_database) == State.CANCELLED
    assert sum(site.acknowledged) == 1, "the site need not report it again"
    assert holders(airflow_database) == []
    assert not controller.leadership.lead(), "it is over"


@pytest.mark.parametrize("on_shutdown", ["cancel", "leave"])
def test_jobs_that_were_asked_to_end_since_the_last_tick_are_ended_before_sites_are_let_go_of(
    make: Make, site: FakeSite, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch, on_shutdown: str
) -> None:
    """One that waits at a machine would else still wait there for the next controller."""
    controller = make(on_shutdown, site)

    def close(how: str, timeout: float) -> None:
        site.closed.append(how)
        site.events += [FINISHED | {"token": token, "cause": "cancelled"} for token in site.cancelled]

    monkeypatch.setattr(site, "close", close)
    with Session(airflow_database) as session:
        job = session.get_one(JobRow, "t")
        job.state, job.cancel = State.PLACED, free_text("not wanted")
        session.commit()
    controller.close()
    assert site.cancelled == {"t": free_text("not wanted")}
    assert site.closed == [on_shutdown]
    assert state(airflow_database) == State.CANCELLED


@pytest.mark.parametrize("on_shutdown", ["cancel", "leave"])
def test_while_a_scheduler_lives_everything_is_left_to_the_next_controller(
    make: Make, site: FakeSite, airflow_database: Engine, on_shutdown: str
) -> None:
    controller = make(on_shutdown, site)
    with Session(airflow_database) as session:
        now = datetime.now(timezone.utc)
        session.execute(insert(AirflowJob).values(id=3, job_type="SchedulerJob", state="running", latest_heartbeat=now))
        session.commit()
    controller.close()
    assert site.closed == ["hand_over"]
    assert state(airflow_database) == State.RUNNING
    assert holders(airflow_database) == []


def test_a_controller_that_does_not_act_lets_go_of_nothing(
    make: Make, site: FakeSite, airflow_database: Engine
) -> None:
    controller = make("cancel", site)
    with Session(airflow_database) as session:
        session.query(Lease).delete()
        store.take_lease(session, "other", "elsewhere", 1, True, 20.0, None)
        session.commit()
    controller.leadership.renew_at = 0.0
    assert not controller.leadership.lead()
    assert controller.stopping
    controller.close()
    assert site.closed == []
    assert holders(airflow_database) == ["other"], "that of another one stays"


def test_one_that_is_stopped_before_it_has_led_lets_go_of_what_a_killed_one_has_left(
    make: Make, site: FakeSite, airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has taken the place of one that was killed, and gets SIGTERM before its first tick."""
    killed = make("cancel", site)
    finishing(site, monkeypatch)
    killed.leadership.leads_until = 0.0  # as after SIGKILL: its lease stays
    monkeypatch.setattr(leadership, "is_dead", lambda lease: lease.holder == killed.leadership.holder)
    looks = site.looks
    begins = Controller(
        AirflowHost(), {"a": site}, lambda subject, seconds: "jwt", killed.settings, True, lambda changes: None
    )
    begins.stop()
    begins.run()
    assert site.looks > looks, "only what is known there can be ended"
    assert site.closed == ["cancel"]
    assert state(airflow_database) == State.CANCELLED
    assert holders(airflow_database) == []


def test_one_that_begins_only_after_an_orderly_stop_lets_go_and_ends(
    make: Make, site: FakeSite, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that was killed had started it, the next one was stopped before it could begin."""
    killed = make("cancel", site)
    finishing(site, monkeypatch)
    killed.settings.stopped.touch()
    killed.leadership.leads_until = 0.0
    monkeypatch.setattr(leadership, "is_dead", lambda lease: lease.holder == killed.leadership.holder)
    begins = Controller(
        AirflowHost(), {"a": site}, lambda subject, seconds: "jwt", killed.settings, True, lambda changes: None
    )
    begins.run()
    assert site.closed == ["cancel"]
    assert state(airflow_database) == State.CANCELLED
    assert holders(airflow_database) == []


@pytest.mark.parametrize(("managed", "lives"), [(False, False), (True, True)])
def test_a_service_and_one_with_a_scheduler_go_on_after_a_stop(
    make: Make, site: FakeSite, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch, managed: bool, lives: bool
) -> None:
    controller = make("cancel", site)
    controller.settings.stopped.touch()
    controller.managed = managed
    if lives:
        with Session(airflow_database) as session:
            columns = {"id": 3, "job_type": "SchedulerJob", "state": "running"}
            columns["latest_heartbeat"] = datetime.now(timezone.utc)
            session.execute(insert(AirflowJob).values(**columns))
            session.commit()
    controller.tick()
    assert not controller.stopping
    assert site.closed == []


def test_a_site_that_hangs_or_fails_at_the_end_costs_the_others_nothing(
    make: Make, site: FakeSite, airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, fails = FakeSite("b", tmp_path / "b"), FakeSite("c", tmp_path / "c")
    controller = make("cancel", site, hangs, fails)
    finishing(site, monkeypatch)
    hangs.hang.add("close")
    monkeypatch.setattr(fails, "close", lambda how, timeout: 1 / 0)
    close_all_but(monkeypatch, controller.threads, {"b"})
    controller.close()
    assert (site.closed, hangs.closed) == (["cancel"], [])
    assert state(airflow_database) == State.CANCELLED
    assert holders(airflow_database) == []
    hangs.go_on()


def test_a_database_that_is_away_at_the_end_keeps_nothing_from_ending(
    make: Make, site: FakeSite, airflow_database: Engine, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    controller = make("leave", site)
    finishing(site, monkeypatch)

    def fail(*_: Any) -> None:
        raise OperationalError("UPDATE", {}, Exception("it is away"))

    with monkeypatch.context() as patch:
        patch.setattr(store, "apply", fail)
        patch.setattr(leadership.store, "drop_lease", fail)
        controller.close()
    assert "the next controller will read them" in caplog.text
    assert state(airflow_database) == State.RUNNING
    assert sum(site.acknowledged) == 0, "what is not stored is reported again"


def test_what_was_launched_stays_in_the_store_for_the_next_controller(
    make: Make, airflow_database: Engine, tmp_path: Path
) -> None:
    site = FakeElasticSite("a", tmp_path / "a")
    site.see("here")
    site.given["here"] = {"t": True}
    controller = make("leave", site)
    site.end("here", cause="cancelled", reason="the scheduler was stopped")
    controller.close()
    assert (site.closed, site.let_go) == (["leave"], {}), "how it is left is for the site to decide"
    with Session(airflow_database) as session:
        [found] = session.scalars(select(store.instances.InstanceRow))
        assert (found.state, told(found.reason)) == ("ended", "the scheduler was stopped")
