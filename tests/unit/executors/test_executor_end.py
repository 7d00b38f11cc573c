"""The end of the executor: what it stops, and when it stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path

import pytest
from airflow.jobs.job import Job as AirflowJob
from airflow.utils.net import get_hostname
from sqlalchemy import Engine, insert
from sqlalchemy.orm import Session

from lading.executors import LadingExecutor
from lading.executors.orchestrator.airflow_schedulers import living
from lading.executors.orchestrator.presence import Presence, has_ended


class Controller:
    """Takes the place of the controller's process."""

    def __init__(self) -> None:
        self.stopped = False

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def executor(monkeypatch: pytest.MonkeyPatch) -> LadingExecutor:
    executor = LadingExecutor()
    monkeypatch.setattr(executor, "controller", Controller())
    monkeypatch.setattr(executor, "sync", lambda: None)
    return executor


def end_after(error: BaseException, end: Callable[[], None]) -> None:
    """As Airflow's scheduler ends its executors."""
    try:
        raise error
    finally:
        end()


def test_an_orderly_end_stops_the_controller(executor: LadingExecutor) -> None:
    with pytest.raises(SystemExit):
        end_after(SystemExit(0), executor.end)
    assert executor.controller.stopped


def test_an_error_leaves_the_controller_and_its_jobs_alone(executor: LadingExecutor) -> None:
    with pytest.raises(ConnectionError):
        end_after(ConnectionError("the database is away"), executor.end)
    assert not executor.controller.stopped


def test_a_presence_is_seen_until_it_ends(tmp_path: Path) -> None:
    presence = Presence(tmp_path / "schedulers", 7)
    assert not has_ended(presence.path)
    presence.end()
    assert has_ended(presence.path)


def test_of_a_scheduler_without_a_presence_nothing_is_known(tmp_path: Path) -> None:
    assert not has_ended(tmp_path / "8")


def test_a_scheduler_of_this_machine_lives_when_its_executor_has_started(
    airflow_database: Engine, tmp_path: Path
) -> None:
    """One that died right before that would else keep the next one, which is stopped in order, from ending anything."""
    now = datetime.now(timezone.utc)
    with Session(airflow_database) as session:
        for number, host in ((1, get_hostname()), (2, get_hostname()), (3, "elsewhere"), (4, get_hostname())):
            columns = {"id": number, "job_type": "SchedulerJob", "state": "running", "hostname": host}
            session.execute(insert(AirflowJob).values(**columns, latest_heartbeat=now))
        lives, ended = Presence(tmp_path, 2), Presence(tmp_path, 4)
        ended.end()
        assert living(session, tmp_path) == {2, 3}
        lives.end()
        assert living(session, tmp_path) == {3}
