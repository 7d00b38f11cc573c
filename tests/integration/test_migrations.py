"""The migrations of Lading's tables, step by step, with what older versions have stored in them.

The folder ``unreleased`` has the tables as dumps of databases that were made before the migrations became one.
"""

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
from sqlalchemy import Connection, MetaData, Table, create_engine, insert, inspect, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.store.gangs.tables import HoldRow
from lading.executors.store.tables import InstanceRow
from lading.scheduling.model.reasons import because, free_text
from tests.conftest import DATABASES
from tests.services.mariadb import MariaDB

# Airflow runs on MySQL, but not on MariaDB, which stands for it here: Lading's own tables need only what both have.
KINDS = (*DATABASES, "mariadb")
UNRELEASED = Path(__file__).with_name("unreleased")
LAST_UNRELEASED = "1ad1ce5a0031"
OLD, NEW = free_text('it waits for "room" \\ on node\t1, 2 µs'), because("turn")
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


def fill(engine: Engine, names: set[str], key: str, reason: str) -> None:
    """A row in each of these tables, with something in every column."""
    with engine.begin() as connection:
        for name, table in tables(engine).items():
            if name in names:
                connection.execute(
                    insert(table).values({each.name: value(each, key, reason) for each in table.columns})
                )


def value(column: Any, key: str, reason: str) -> Any:
    if column.name in ("reason", "cancel", "placed_because"):
        return reason
    if column.type.python_type is str:
        return "running" if column.name == "state" else key
    # MySQL has no type of its own for what is true or false.
    return column.type.python_type(1 if column.name in ("unreported", "managed", "given_back") else len(key))


def make_unreleased_tables(engine: Engine) -> None:
    """The tables as the migrations before the first release have made them, at their last revision."""
    statements = (UNRELEASED / f"{engine.dialect.name}.sql").read_text().split(";\n")
    version = f"CREATE TABLE {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL PRIMARY KEY)"
    with engine.begin() as connection:
        for statement in (*filter(None, statements), version):
            connection.exec_driver_sql(statement)
        connection.exec_driver_sql(f"INSERT INTO {VERSION_TABLE} VALUES ('{LAST_UNRELEASED}')")


def move(engine: Engine, to: str, *, up: bool = True) -> None:
    with engine.connect() as connection:
        (command.upgrade if up else command.downgrade)(config(connection), to)
        connection.commit()


def counts(engine: Engine) -> dict[str, int]:
    with engine.connect() as connection:
        return {name: len(connection.execute(select(table)).all()) for name, table in tables(engine).items()}


def test_tables_of_before_the_release_with_jobs_in_them_go_up_and_down(engine: Engine) -> None:
    make_unreleased_tables(engine)
    known = set(tables(engine))
    fill(engine, known, "old", OLD.to_json())
    first, *later = revisions()
    assert first == LAST_UNRELEASED
    move(engine, first)
    for revision in later:
        move(engine, revision)
    fill(engine, set(tables(engine)), "newer", NEW.to_json())

    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": VERSION_TABLE})
        assert compare_metadata(context, store.metadata) == [], "the tables are those of the models"
    with Session(engine) as session:
        jobs = session.scalars(select(store.JobRow))
        assert {(job.token, job.state, job.reason) for job in jobs} == {
            ("old", store.State.RUNNING, OLD),
            ("newer", store.State.RUNNING, NEW),
        }
        for column in (store.JobRow.cancel, store.JobRow.placed_because, InstanceRow.reason, HoldRow.reason):
            assert {*session.scalars(select(column))} == {OLD, NEW}
        store.apply(session, [store.Change("old", {"state": store.State.SUCCEEDED, "usd": 0.5})])
        session.commit()
        assert session.get_one(store.JobRow, "old").usd == 0.5
    stored = counts(engine)
    assert all(stored.values())

    for revision in reversed([first, *later[:-1]]):
        move(engine, revision, up=False)
        assert counts(engine).items() <= stored.items()
    move(engine, "head")
    assert counts(engine)["lading_job"] == 2
    move(engine, "base", up=False)
    assert not set(inspect(engine).get_table_names()) - {VERSION_TABLE}


def test_the_first_migration_makes_the_tables_of_before_the_release(engine: Engine) -> None:
    make_unreleased_tables(engine)
    before = shapes(engine)
    move(engine, "base", up=False)
    assert not tables(engine)
    move(engine, revisions()[0])
    assert shapes(engine) == before


def shapes(engine: Engine) -> dict[str, Any]:
    """What there is to know of each table: columns with types, keys, indexes."""
    inspector = inspect(engine)
    return {
        name: (
            {column["name"]: (str(column["type"]), column["nullable"]) for column in inspector.get_columns(name)},
            inspector.get_pk_constraint(name),
            sorted((index["name"] or "", index["column_names"]) for index in inspector.get_indexes(name)),
        )
        for name in tables(engine)
    }
