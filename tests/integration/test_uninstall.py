"""``airflow lading uninstall`` on the real databases."""

from __future__ import annotations

import os
import socket
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow import settings as airflow_settings
from alembic import command
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session, sessionmaker

from lading.executors import store
from lading.executors.orchestrator.presence import Presence
from lading.executors.settings import Settings
from lading.executors.store import Lease, State
from lading.executors.store.instances import InstanceRow, InstanceState
from lading.hooks.spool.spool import Spool, lock_spool
from lading.plugin.subcommands import uninstall as module
from tests.clusters.sites import make_settings
from tests.conftest import DATABASES
from tests.integration.test_store import add, migrations


@pytest.fixture(params=DATABASES)
def engine(
    request: pytest.FixtureRequest,
    database_url: Callable[[str], str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Engine]:
    """A database in place of Airflow's, with a foreign table in addition to Lading's."""
    engine = create_engine(database_url(request.param) or f"sqlite:///{tmp_path}/store.db")
    with engine.connect() as connection:
        command.upgrade(migrations(connection), "head")
        connection.execute(text("CREATE TABLE dag_of_airflow (dag_id VARCHAR(10))"))
        connection.commit()
    monkeypatch.setattr(airflow_settings, "NonScopedSession", sessionmaker(engine, expire_on_commit=False))
    yield engine
    engine.dispose()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Options whose state folder has all that is ever in it."""
    made = make_settings(tmp_path / "state")
    Spool(made.spool_folder / "local").create()
    made.published_sites.write_text("{}")
    made.controller_log.write_text("")
    made.controller_log.with_name("controller.log.1").write_text("")
    made.controller_mark.write_text("")
    (made.state_folder / ".sites.json.4711").write_text("{")
    made.stopped.touch()
    made.schedulers_folder.mkdir()
    monkeypatch.setattr(module.Settings, "load", lambda: made)
    return made


def tables(engine: Engine) -> set[str]:
    return {*inspect(engine).get_table_names()}


def uninstall(*, yes: bool = True) -> None:
    function: Any = module.uninstall
    while hasattr(function, "__wrapped__"):  # what Airflow puts around it reads its own configuration
        function = function.__wrapped__
    function(Namespace(yes=yes))


def test_the_tables_and_the_state_folder_are_removed(
    engine: Engine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(engine) as session:
        add(session, "ended", state=State.SUCCEEDED)
        add(session, "waits")
        session.commit()
    uninstall()
    assert tables(engine) == {"dag_of_airflow"}
    assert not settings.state_folder.exists()
    # And the one that says which migrations there were.
    assert f"{len(store.metadata.tables) + 1} tables were dropped" in capsys.readouterr().out
    uninstall()
    assert "There is nothing to remove" in capsys.readouterr().out


@pytest.mark.parametrize("answer", ["", "n", "yes"])
def test_it_asks_first(engine: Engine, settings: Settings, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    monkeypatch.setattr("builtins.input", lambda _: answer)
    if answer == "yes":
        uninstall(yes=False)
    else:
        with pytest.raises(SystemExit, match="Nothing was removed"):
            uninstall(yes=False)
    assert settings.published_sites.exists() == (answer != "yes")
    assert ("lading_job" in tables(engine)) == (answer != "yes")


def test_what_is_not_ours_in_the_folder_is_kept(
    engine: Engine, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    (settings.state_folder / "thesis.tex").write_text("years of work")
    uninstall()
    assert [path.name for path in settings.state_folder.iterdir()] == ["thesis.tex"]
    assert "thesis.tex" in capsys.readouterr().out


def test_it_refuses_while_something_needs_them(engine: Engine, settings: Settings) -> None:
    spool = Spool(settings.spool_folder / "local")
    agent = lock_spool(spool)
    assert agent is not None
    scheduler = Presence(settings.schedulers_folder, 7)
    there = {"site": "hpc", "kind": "{}", "cpus": 1.0, "memory": 1, "disk": 0, "gpus": 0.0, "seconds": 1.0}
    with Session(engine) as session:
        add(session, "runs", state=State.RUNNING)
        session.add(
            Lease(
                name="controller", holder="c", host="elsewhere", pid=os.getpid(), managed=False,
                expires_at=time.time() + 60,
            )
        )  # fmt: skip
        session.add(InstanceRow(token="lading-1", state=InstanceState.UP, ordered_at=1.0, **there))
        session.commit()
    before = tables(engine)
    with pytest.raises(SystemExit) as refused:
        uninstall()
    words = str(refused.value)
    assert "scheduler 7 uses Lading as its executor; set another one in [core] executor" in words
    assert f"a controller is running, pid {os.getpid()} on elsewhere; stop it" in words
    assert "a job is running" in words
    assert (
        "launched machines or allocations have not ended: lading-1; terminate them: airflow lading instances terminate"
        in words
    )
    assert "the node agent of site local is running" in words
    assert (tables(engine), spool.lock.exists()) == (before, True)
    scheduler.end()
    os.close(agent)
    with Session(engine) as session:
        session.execute(text("UPDATE lading_job SET state = 'succeeded'"))
        session.execute(text("DELETE FROM lading_instance"))
        session.execute(text("UPDATE lading_lease SET host = :host, pid = 0"), {"host": socket.gethostname()})
        session.commit()
    uninstall()
    assert tables(engine) == {"dag_of_airflow"}
