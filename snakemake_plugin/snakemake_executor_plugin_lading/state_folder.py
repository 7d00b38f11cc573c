"""The folder in which Lading keeps what belongs to a workflow, and the store in it."""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from sqlalchemy import Engine, create_engine, event, text
from sqlalchemy.orm import Session

from lading.hooks.files.safe_files import make_private, private_opener, write_atomically
from snakemake_executor_plugin_lading.interrupts import deferred_interrupts

# Beside a workflow, where nothing else is said, and in it the file of the store.
FOLDER, STORE = Path(".snakemake/lading"), "store.db"
# In which each site has a folder of its own.
SPOOL = "spool"
# How long one process waits for another that writes, seconds.
PATIENCE = 60.0


class StoreRemoved(WorkflowError):
    """The store was removed, or another one has its place, while this process used it."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The folder, and what is in it.

    :param root: absolute
    """

    root: Path

    @property
    def database(self) -> Path:
        return self.root / STORE

    @property
    def logs(self) -> Path:
        """Below which each job has its log."""
        return self.root / "logs"

    @property
    def options(self) -> Path:
        """What the controller goes by, see :class:`ControllerOptions`."""
        return self.root / "options.json"

    @property
    def schedulers(self) -> Path:
        """In which each Snakemake shows that it lives, see :class:`lading.executors.orchestrator.presence.Presence`."""
        return self.root / "schedulers"

    def environment(self, run_id: str) -> Path:
        """The variables of the jobs of a run, which may be secrets."""
        return self.root / "environments" / f"{run_id}.json"

    def secret(self) -> str:
        """What no other folder has: the keys of machines that are launched are derived from it."""
        path = self.root / "secret"
        if not path.exists():
            with self.locked():
                if not path.exists():
                    write_atomically(path, secrets.token_hex(32))
        return path.read_text(encoding="ascii")

    def store_id(self) -> tuple[int, int] | None:
        """By which the file of the store is told from a later one; None: there is none."""
        try:
            found = os.stat(self.database)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def has_lost(self, store: tuple[int, int] | None) -> bool:
        """Whether a store was removed, or another one has its name; what cannot be read now is not gone."""
        try:
            return self.store_id() != store
        except OSError:
            return False

    def check(self, store: tuple[int, int] | None) -> None:
        """Refuse to go on without a store.

        :raises StoreRemoved: it was removed, or another one has its name
        """
        if self.has_lost(store):
            raise StoreRemoved(
                f"{self.root} was removed while it was in use: the jobs on this machine are killed, and those "
                "elsewhere are no longer known. Remove what they were writing, and run Snakemake again"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from making the same things at the same time."""
        make_private(self.root)
        with open(self.root / "lock", "ab", opener=private_opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def connect(self) -> Engine:
        """The store; one process after the other creates or migrates its tables.

        :raises lading.executors.migrations.own_database.AnotherVersion: a newer version of Lading has made it
        """
        from lading.executors.migrations.own_database import ensure_own_tables
        from snakemake_executor_plugin_lading.runs import metadata

        with self.locked(), deferred_interrupts():
            if not self.database.exists():
                # A controller that has lost its store may have left parts of its sites while the folder was removed.
                shutil.rmtree(self.root / SPOOL, ignore_errors=True)
                os.close(os.open(self.database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            engine = self.open()
            ensure_own_tables(engine)
            metadata.create_all(engine)
        return engine

    def open(self) -> Engine:
        """The store as it is. Where it is removed nothing is read of another one, and no empty one is made."""
        store = self.store_id()

        def connect() -> sqlite3.Connection:
            self.check(store)
            # As SQLAlchemy's own connections to a file, which it hands from thread to thread.
            address = f"{self.database.as_uri()}?mode=rw"
            return sqlite3.connect(address, uri=True, timeout=PATIENCE, check_same_thread=False)

        engine = create_engine(f"sqlite:///{self.database}", creator=connect)
        event.listen(engine, "connect", _configure)
        # To a file that was removed a connection stays open.
        event.listen(engine, "checkout", lambda *_: self.check(store))
        return engine


def _configure(connection: Any, record: object) -> None:
    # Readers and the one writer do not wait for each other, and all of them are processes of one machine.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """What a controller goes by: as the workflow that has started it says.

    :param sites_file: absolute; None: one site, this machine
    """

    sites_file: str | None = None

    def write(self, path: Path) -> None:
        write_atomically(path, json.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> ControllerOptions:
        try:
            return cls(**json.loads(path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls()


@contextmanager
def transaction(engine: Engine, *, is_alone: bool = False) -> Iterator[Session]:
    """A session that is committed when it ends well. Ctrl-C is raised after it.

    :param is_alone: whether nothing else writes from its first statement on, so that what it has read holds
    """
    with deferred_interrupts(), Session(engine, expire_on_commit=False) as session:
        if is_alone:
            session.execute(text("BEGIN IMMEDIATE"))
        yield session
        session.commit()
