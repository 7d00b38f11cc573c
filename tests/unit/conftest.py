"""How hypothesis tests here, and a database for what needs Airflow's tables."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import create_engine
from sqlalchemy.engine import Engine
from sqlalchemy.orm import sessionmaker

from tests.services.examples import EXAMPLES

# A machine that is busy with something else is slow; that is no failure. CI tries the same examples every time.
settings.register_profile("lading", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("lading"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "lading")


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from lading.executors import store

    file = tmp_path_factory.mktemp("airflow") / "empty.db"
    engine = create_engine(f"sqlite:///{file}")
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
    monkeypatch.setattr(settings, "NonScopedSession", sessionmaker(engine, expire_on_commit=False))
    yield engine
    engine.dispose()
