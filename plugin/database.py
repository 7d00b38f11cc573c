"""The way of commands to Airflow's database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from airflow.utils.session import create_session
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from lading.executors.migrations.db_manager import LadingDBManager


def read_connections() -> None:
    """Let this process find connections in the database, as ``airflow connections test`` does."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def store_fault(session: Session) -> str | None:
    """What keeps the tables from being read, and what to do; None: nothing."""
    try:
        migrated = LadingDBManager(session).check_migration()
    except SQLAlchemyError as error:
        return f"the database cannot be read: {error}"
    return None if migrated else "the tables are missing or old; run `airflow db migrate`"


@contextmanager
def reading_store() -> Iterator[Session]:
    """A session for a command that reads the store.

    :raises SystemExit: it cannot be read; its text says why, and what to do
    """
    with create_session(scoped=False) as session:
        if (fault := store_fault(session)) is not None:
            raise SystemExit(f"store: {fault}")
        yield session
