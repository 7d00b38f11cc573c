"""Databases of SQLite that share what SQLAlchemy has made of statements, which is more work than to execute them.

SQLAlchemy keeps it for each engine, and every test has an engine of its own.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine, event
from sqlalchemy.engine import Dialect, Engine

COMPILED: dict[Any, Any] = {}


def open_sqlite(file: Path, timeout: float = 5.0) -> Engine:
    """An engine for a file.

    :param timeout: how long a lock is waited for, seconds
    """
    own = create_engine(f"sqlite:///{file}", connect_args={"timeout": timeout})
    engine = Engine(own.pool, _dialect(), own.url, execution_options={"compiled_cache": COMPILED})
    event.listen(engine, "connect", _hurry)
    return engine


@functools.cache
def _dialect() -> Dialect:
    """That of all engines, for what is compiled is kept by dialect; it is ready when it was connected to once."""
    engine = create_engine("sqlite://")
    engine.connect().close()
    return engine.dialect


def _hurry(connection: Any, record: object) -> None:
    """No test turns the power off: without it thousands of commits would each wait for a disk that others use, too."""
    connection.execute("PRAGMA synchronous = OFF")
