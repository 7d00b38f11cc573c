"""How commands access the database."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

    from lading.plugin.host import Host


def read_connections() -> None:
    """Let this process read connections from the database, like ``airflow connections test``."""
    os.environ["_AIRFLOW_PROCESS_CONTEXT"] = "server"


@contextmanager
def reading_store(host: Host) -> Iterator[Session]:
    """Open a session for a command that reads the store.

    :raises SystemExit: the store cannot be read; the text says why, and what to do
    """
    with host.session() as session:
        if (fault := host.store_fault(session)) is not None:
            raise SystemExit(f"store: {fault}")
        yield session
