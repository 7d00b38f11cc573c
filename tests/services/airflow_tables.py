"""A database with the tables of Airflow and Lading, for what needs no running Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from tests.services.sqlite import open_sqlite


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from lading.executors import store

    file = tmp_path_factory.mktemp("airflow") / "empty.db"
    engine = open_sqlite(file)
    import_all_models()
    Base.metadata.create_all(engine)
    store.metadata.create_all(engine)
    engine.dispose()
    return file.read_bytes()


@pytest.fixture
def airflow_database(empty_database: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    """A database with Airflow's tables and Lading's, in the place of Airflow's."""
    from airflow import settings

    (tmp_path / "airflow.db").write_bytes(empty_database)
    engine = open_sqlite(tmp_path / "airflow.db", timeout=30)
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(engine, expire_on_commit=False))
    yield engine
    engine.dispose()
