"""A database with the tables of Airflow and Lading, for what needs no running Airflow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker


def hurried(connection: Any, record: object) -> None:
    """No test turns the power off: without it thousands of commits would each wait for a disk that others use, too."""
    connection.execute("PRAGMA synchronous = OFF")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from lading.executors import store

    file = tmp_path_factory.mktemp("airflow") / "empty.db"
    engine = create_engine(f"sqlite:///{file}")
    event.listen(engine, "connect", hurried)
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
    engine = create_engine(f"sqlite:///{tmp_path}/airflow.db", connect_args={"timeout": 30})
    event.listen(engine, "connect", hurried)
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(engine, expire_on_commit=False))
    yield engine
    engine.dispose()
