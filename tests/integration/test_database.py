"""Lading's tables live and die with Airflow's: what an administrator does to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine

from lading.executors.store import metadata
from tests.conftest import DATABASES
from tests.services.airflow import Airflow, AirflowError

MANAGER = "lading.executors.migrations.db_manager.LadingDBManager"
VERSION_TABLE = "alembic_version_lading"
TABLES = {*metadata.tables, VERSION_TABLE}


@pytest.fixture(scope="module", params=DATABASES)
def airflow(
    request: pytest.FixtureRequest, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    """An Airflow of which nothing runs, on a database with all tables; each test leaves them there."""
    home = tmp_path_factory.mktemp("airflow-database")
    service = Airflow(home, database=database_url(request.param), components=(), preloaded=True)
    home.joinpath("dags").mkdir()
    service.cli("db", "migrate")
    yield service
    service.stop()


@pytest.fixture
def engine(airflow: Airflow) -> Iterator[Engine]:
    engine = create_engine(airflow.environment["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"])
    yield engine
    engine.dispose()


def tables(engine: Engine) -> set[str]:
    return set(inspect(engine).get_table_names())


def version(engine: Engine) -> list[str]:
    with engine.connect() as connection:
        return list(connection.scalars(text(f"select version_num from {VERSION_TABLE}")))


def leases(engine: Engine) -> int | None:
    with engine.connect() as connection:
        return connection.scalar(text("select count(*) from lading_lease"))


def test_the_tables_go_and_come_again(airflow: Airflow, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    # `airflow db` finds the manager by the provider info, `airflow db-manager` of Airflow 3.3 only by this option.
    monkeypatch.setitem(airflow.environment, "AIRFLOW__DATABASE__EXTERNAL_DB_MANAGERS", MANAGER)
    assert tables(engine) >= TABLES
    head = version(engine)
    with engine.begin() as connection:
        lease = "('controller', 'a', 'here', 1, true, 1.0)"
        connection.execute(
            text(f"insert into lading_lease (name, holder, host, pid, managed, expires_at) values {lease}")
        )

    shown = airflow.cli("db-manager", "downgrade", MANAGER, "--to-revision", "base", "--show-sql-only")
    assert "DROP TABLE lading_job" in shown
    assert leases(engine) == 1, "showing changes nothing"
    airflow.cli("db-manager", "downgrade", MANAGER, "--to-revision", "base", "--yes")
    assert tables(engine) & TABLES <= {VERSION_TABLE}
    assert version(engine) == []
    assert "dag_run" in tables(engine), "Airflow's own stay"
    for command in (["sites"], ["cost", "a_dag"]):
        with pytest.raises(AirflowError) as raised:
            airflow.cli("lading", *command)
        assert "store: the tables are missing or old; run `airflow db migrate`" in str(raised.value)
        assert "Traceback" not in str(raised.value)

    airflow.cli("db", "migrate")
    assert (version(engine), leases(engine)) == (head, 0)


def test_a_reset_makes_them_anew(airflow: Airflow, engine: Engine) -> None:
    head = version(engine)
    with engine.begin() as connection:
        columns = "site, name, kind, cpus, memory, disk, gpus, seen_at"
        connection.execute(text(f"insert into lading_location ({columns}) values ('a', 'a', 'local', 1, 1, 1, 0, 1)"))
    airflow.cli("db", "reset", "--yes", "--skip-init")
    assert tables(engine) & TABLES == set()
    airflow.cli("db", "migrate")
    airflow.cli("db", "reset", "--yes")
    assert tables(engine) >= TABLES
    with engine.connect() as connection:
        assert connection.scalar(text("select count(*) from lading_location")) == 0
    assert version(engine) == head
