"""Creates and migrates Lading's tables in a database of their own, outside Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory

from lading.executors.store import bill_days, data, metadata, run_rows, share_rows  # noqa: F401 - they have tables
from lading.executors.store.gangs import tables  # noqa: F401

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

HERE = Path(__file__).parents[1]
VERSION_TABLE = "alembic_version_lading"


class AnotherVersion(Exception):
    """Another version of Lading created the tables, and this one has no migration from it."""


def ensure_own_tables(engine: Engine) -> None:
    """Create or migrate the tables if necessary. Only one process at a time must call this.

    :raises AnotherVersion: the tables are at a revision that this version does not know
    """
    script = ScriptDirectory.from_config(config := Config(str(HERE / "alembic.ini")))
    with engine.connect() as connection:
        options = {"version_table": VERSION_TABLE}
        revision = MigrationContext.configure(connection, opts=options).get_current_revision()
        if revision == script.get_current_head():
            return
        if revision not in {None, *(each.revision for each in script.walk_revisions())}:
            raise AnotherVersion(
                f"{engine.url} was created by another version of Lading, at revision {revision!r}; install that "
                "version, or remove the file and with it the record of its jobs"
            )
        config.attributes["connection"] = connection
        if revision is None:
            metadata.create_all(connection)
            command.stamp(config, "head")
        else:
            command.upgrade(config, "head")
        connection.commit()


def own_tables_fault(connection: Connection) -> str | None:
    """Return why the tables cannot be read, and what to do; None: they match this version."""
    head = ScriptDirectory.from_config(Config(str(HERE / "alembic.ini"))).get_current_head()
    context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE})
    if (revision := context.get_current_revision()) == head:
        return None
    return (
        f"the tables of {connection.engine.url} belong to another version of Lading, at revision {revision!r} instead "
        f"of {head!r}: use the version that runs the workflows there"
    )
