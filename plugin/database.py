"""How commands access the database."""

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
    """Let this process read connections from the database, like ``airflow connections test``."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


def store_fault(session: Session) -> str | None:
    """Return why the tables cannot be read, and what to do; None: they can be read."""
    return host().store_fault(session)


@contextmanager
def reading_store() -> Iterator[Session]:
    """Open a session for a command that reads the store.

    :raises SystemExit: the store cannot be read; the text says why, and what to do
    """
    with open_session() as session:
        if (fault := store_fault(session)) is not None:
            raise SystemExit(f"store: {fault}")
        yield session
