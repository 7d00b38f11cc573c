"""The state folder, with the files that Lading keeps for workflows, and the store in it."""

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

# The default folder, relative to the working directory, and the file of the store in it.
FOLDER, STORE = Path(".snakemake/lading"), "store.db"
# The subfolder with a folder for each site.
SPOOL = "spool"
# How long a process waits while another one writes, in seconds.
PATIENCE = 60.0


class StoreRemoved(WorkflowError):
    """The store was removed or replaced while this process used it."""


@dataclass(frozen=True, slots=True)
class StateFolder:
    """The paths in a state folder.

    :param root: the folder, as an absolute path
    """

    root: Path

    @property
    def database(self) -> Path:
        return self.root / STORE

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def options(self) -> Path:
        """The file of :class:`ControllerOptions`."""
        return self.root / "options.json"

    @property
    def schedulers(self) -> Path:
        """The folder where each Snakemake shows that it is running, see :class:`Presence`."""
        return self.root / "schedulers"

    def environment(self, run_id: str) -> Path:
        """The file with the environment variables of the jobs of a run, which can contain secrets."""
        return self.root / "environments" / f"{run_id}.json"

    def secret(self) -> str:
        """Return the secret of this folder, created on first use. Keys of launched machines are derived from it."""
        path = self.root / "secret"
        if not path.exists():
            with self.locked():
                if not path.exists():
                    write_atomically(path, secrets.token_hex(32))
        return path.read_text(encoding="ascii")

    def store_id(self) -> tuple[int, int] | None:
        """Return what identifies the file of the store, to notice when it is replaced; None: it does not exist."""
        try:
            found = os.stat(self.database)
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def has_lost(self, store: tuple[int, int] | None) -> bool:
        """Whether a store was removed or replaced. If its folder cannot be read now, that does not count as removed."""
        try:
            return self.store_id() != store
        except OSError:
            return False

    def check(self, store: tuple[int, int] | None) -> None:
        """:raises StoreRemoved: the store was removed or replaced"""
        if self.has_lost(store):
            raise StoreRemoved(
                f"{self.root} was removed while it was in use: the jobs on this machine are killed, and those "
                "elsewhere are lost. Remove the files that they were writing, and run Snakemake again"
            )

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the folder, so that processes do not create the same files at the same time."""
        make_private(self.root)
        with open(self.root / "lock", "ab", opener=private_opener) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def connect(self) -> Engine:
        """Open the store, after creating or migrating its tables under the lock of the folder.

        :raises lading.executors.migrations.own_database.AnotherVersion: a newer version of Lading created it
        """
        from lading.executors.migrations.own_database import ensure_own_tables
        from snakemake_executor_plugin_lading.runs import metadata

        with self.locked(), deferred_interrupts():
            if not self.database.exists():
                # A controller that lost its store may have written site folders while the state folder was removed.
                shutil.rmtree(self.root / SPOOL, ignore_errors=True)
                os.close(os.open(self.database, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
            engine = self.open()
            ensure_own_tables(engine)
            metadata.create_all(engine)
        return engine

    def open(self) -> Engine:
        """Open the store as it is. If it is removed later, connections fail; no other is opened."""
        store = self.store_id()

        def connect() -> sqlite3.Connection:
            self.check(store)
            # Like SQLAlchemy's own connections to files, which move between threads.
            address = f"{self.database.as_uri()}?mode=rw"
            return sqlite3.connect(address, uri=True, timeout=PATIENCE, check_same_thread=False)

        engine = create_engine(f"sqlite:///{self.database}", creator=connect)
        event.listen(engine, "connect", _configure)
        # Connections to a removed file stay open, so pooled ones are checked, too.
        event.listen(engine, "checkout", lambda *_: self.check(store))
        return engine


def _configure(connection: Any, record: object) -> None:
    # With a WAL, readers and the writer do not block each other. It requires that all processes are on one machine.
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")


@dataclass(frozen=True, slots=True)
class ControllerOptions:
    """The options of a controller, set by the workflow that started it.

    :param sites_file: an absolute path; None: this machine is the only site
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
    """Open a session that is committed at the end of a block without an exception. Ctrl-C is deferred until then.

    :param is_alone: whether to lock the store for writing from the start, so that what was read stays valid
    """
    with deferred_interrupts(), Session(engine, expire_on_commit=False) as session:
        if is_alone:
            session.execute(text("BEGIN IMMEDIATE"))
        yield session
        session.commit()
