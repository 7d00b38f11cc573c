"""The migrations of Lading's tables, step by step, with what older versions have stored in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, create_engine, insert, inspect, select, update
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.store.gangs.tables import HoldRow
from lading.executors.store.tables import InstanceRow
from lading.scheduling.reasons import because, free_text
from tests.conftest import DATABASES
from tests.services.mariadb import MariaDB

# Airflow runs on MySQL, but not on MariaDB, which stands for it here: Lading's own tables need only what both have.
KINDS = (*DATABASES, "mariadb")
VERSION_TABLE = LadingDBManager.version_table_name


@pytest.fixture(params=KINDS)
def engine(
    request: pytest.FixtureRequest,
    database_url: Callable[[str], str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Engine]:
    """An empty database, which Airflow's configuration names: it says how ids are compared."""
    server = MariaDB(tmp_path / "mariadb") if request.param == "mariadb" else None
    if server is not None:
        server.start()
        url: str | None = server.create_database("airflow")
    else:
        url = database_url(request.param)
    url = url or f"sqlite:///{tmp_path}/airflow.db"
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", url)
    engine = create_engine(url)
    yield engine
    engine.dispose()
    if server is not None:
        server.stop()


def config(connection: Connection) -> Config:
    config = Config(LadingDBManager.alembic_file)
    config.set_main_option("script_location", LadingDBManager.migration_dir)
    config.attributes["connection"] = connection
    return config


def revisions() -> list[str]:
    """Oldest first."""
    script = ScriptDirectory(LadingDBManager.migration_dir)
    return [each.revision for each in reversed(list(script.walk_revisions()))]


def tables(engine: Engine) -> dict[str, Table]:
    found = MetaData()
    found.reflect(engine)
    return {name: table for name, table in found.tables.items() if name != VERSION_TABLE}


def fill(engine: Engine, names: set[str], key: str) -> None:
    """A row in each of these tables, with something in every column."""
    with engine.begin() as connection:
        for name, table in tables(engine).items():
            if name in names:
                connection.execute(insert(table).values({each.name: value(each, key) for each in table.columns}))


def value(column: Any, key: str) -> Any:
    if key == "newer" and column.name in ("reason", "cancel", "placed_because"):
        return because("turn").to_json()
    if column.type.python_type is str:
        return "running" if column.name == "state" else key
    # MySQL has no type of its own for what is true or false.
    return column.type.python_type(1 if column.name in ("unreported", "managed", "given_back") else len(key))


def old_reason() -> str:
    """The sentence ``old`` as the last revision but one has it."""
    return free_text("old").to_json()


def move(engine: Engine, to: str, *, up: bool = True) -> None:
    with engine.connect() as connection:
        (command.upgrade if up else command.downgrade)(config(connection), to)
        connection.commit()


def counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {name: len(connection.execute(select(table)).all()) for name, table in tables(engine).items()}


def test_what_older_versions_have_stored_goes_up_and_down(engine: Engine) -> None:
    first, *later = revisions()
    move(engine, first)
    known = set(tables(engine))
    fill(engine, known, "old")
    for revision in later:
        if revision == later[-1]:
            with engine.begin() as connection:
                connection.execute(update(tables(engine)["lading_job"]).values(placed_because="old"))
        move(engine, revision)
        fill(engine, set(tables(engine)) - known, "old")
        known = set(tables(engine))
    fill(engine, known - {"lading_usage"}, "newer")

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": VERSION_TABLE})
        assert compare_metadata(context, store.metadata) == [], "the tables are those of the models"
    with Session(engine) as session:
        assert {job.token: (job.max_instances, job.max_jobs) for job in session.scalars(select(store.JobRow))} == {
            "old": (None, 3),
            "newer": (5, 5),
        }
        reasons = {job.token: (str(job.reason), job.reason_code) for job in session.scalars(select(store.JobRow))}
        assert reasons["old"] == ("old", "free_text"), "a sentence stays as it is"
        assert reasons["newer"][0] == str(because("turn"))
        for column in (store.JobRow.cancel, store.JobRow.placed_because, InstanceRow.reason, HoldRow.reason):
            assert {str(each) for each in session.scalars(select(column))} == {"old", str(because("turn"))}
        store.apply(session, [store.Change("old", {"state": store.State.SUCCEEDED, "usd": 0.5})])
        session.commit()
        assert session.get_one(store.JobRow, "old").usd == 0.5
    stored = counts(engine)
    assert all(stored[name] for name in known - {"lading_location"})

    for revision in reversed([first, *later[:-1]]):
        move(engine, revision, up=False)
        with engine.connect() as connection:
            job = tables(engine)["lading_job"].columns
            stored_reason = connection.scalar(select(job.reason).where(job.token == "old"))
            assert stored_reason == (old_reason() if revision == later[-2] else "old")
            if revision == later[-2]:
                assert {*connection.scalars(select(job.cancel))} == {"old", "turn"}, "it is to be ended all the same"
                assert {*connection.scalars(select(job.placed_because))} == {"old", None}
        left = counts(engine)
        assert left["lading_job"] == 2
        assert {name: count for name, count in left.items() if name != "lading_location"}.items() <= stored.items()
    move(engine, later[-1])
    assert counts(engine)["lading_job"] == 2
    move(engine, "base", up=False)
    assert not tables(engine)
    assert not set(inspect(engine).get_table_names()) - {VERSION_TABLE}
