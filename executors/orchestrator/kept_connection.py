"""A database connection for frequent polls: it stays open, and commits each statement on its own.

A session of the pool tests its connection and sends BEGIN and COMMIT, which are three statements in addition to the
poll itself.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

Answer = TypeVar("Answer")


class KeptConnection(threading.local):
    """The connection of each thread."""

    def __init__(self) -> None:
        # By process id, because a forked process must neither use nor close the connection of its parent.
        self._connections: dict[int, Connection] = {}
        self._until = 0.0

    def ask(self, engine: Engine, query: Callable[[Session], Answer]) -> Answer:
        kept = self._connections.get(os.getpid())
        if kept is not None and kept.engine is engine and time.monotonic() < self._until:
            try:
                return self._ask(kept, query)
            except DBAPIError as error:
                if not error.connection_invalidated:
                    raise
        self._close()
        kept = self._connections[os.getpid()] = engine.connect()
        # The connection is replaced in time, so that it does not keep using a database that has moved.
        self._until = time.monotonic() + 300.0
        return self._ask(kept.execution_options(isolation_level="AUTOCOMMIT"), query)

    def _ask(self, connection: Connection, query: Callable[[Session], Answer]) -> Answer:
        try:
            with Session(connection, expire_on_commit=False) as session, session.begin():
                return query(session)
        except BaseException:
            self._close()
            raise

    def _close(self) -> None:
        kept = self._connections.pop(os.getpid(), None)
        if kept is not None:
            kept.close()


_kept = KeptConnection()


def poll(open_session: Callable[[], AbstractContextManager[Session]], query: Callable[[Session], Answer]) -> Answer:
    """Return the answer of a query whose statements need no common transaction.

    :param open_session: opens a session of the database
    :param query: is called again if the connection was lost, so it must be repeatable
    :raises SQLAlchemyError: the database is unreachable, or a statement failed
    """
    with open_session() as session:
        engine = session.get_bind()
        if engine.dialect.name == "sqlite":
            # It has no server to spare, and a connection that stays open would not notice that its file was removed.
            answer = query(session)
            session.expunge_all()
            return answer
    assert isinstance(engine, Engine)
    return _kept.ask(engine, query)
