"""The way of commands to the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from lading.executors.orchestrator.current import open_session
from lading.plugin.command_host import host

if TYPE_CHECKING:
    from sqlalchemy.orm import Session


def read_connections() -> None:
    """Let this process find connections in the database, as ``airflow connections test`` does."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def store_fault(session: Session) -> str | None:
    """What keeps the tables from being read, and what to do; None: nothing."""
    return host().store_fault(session)


@contextmanager
def reading_store() -> Iterator[Session]:
    """A session for a command that reads the store.

    :raises SystemExit: it cannot be read; its text says why, and what to do
    """
    with open_session() as session:
        if (fault := store_fault(session)) is not None:
            raise SystemExit(f"store: {fault}")
        yield session
