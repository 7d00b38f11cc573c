"""A database with the tables of Airflow and Lading, for what needs no running Airflow."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from tests.services.sqlite import open_sqlite


def create_database(file: Path) -> None:
    """Create an SQLite database with the tables of Airflow and Lading."""
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from lading.executors import store

    engine = open_sqlite(file)
    import_all_models()
    Base.metadata.create_all(engine)
    store.metadata.create_all(engine)
    engine.dispose()


@contextlib.contextmanager
def in_airflows_place(file: Path, patch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """Open a database that Lading takes for Airflow's."""
    from airflow import settings

    engine = open_sqlite(file, timeout=30)
    patch.setattr(settings, "NonScopedSession", sessionmaker(engine, expire_on_commit=False))
    yield engine
    engine.dispose()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("airflow") / "empty.db"
    create_database(file)
    return file.read_bytes()


@pytest.fixture
def airflow_database(empty_database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A database with Airflow's tables and Lading's, in the place of Airflow's."""
    (tmp_path / "airflow.db").write_bytes(empty_database)
    with in_airflows_place(tmp_path / "airflow.db", monkeypatch) as engine:
        yield engine
