"""Creates and migrates Lading's tables in a database of their own, outside Airflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, MetaData, PrimaryKeyConstraint, String, Table, inspect, select

from lading.executors.accounting import bill_days, share_rows  # noqa: F401 - they have tables, as have the following
from lading.executors.store import data, metadata, run_rows  # noqa: F401
from lading.executors.store.gangs import tables  # noqa: F401

if TYPE_CHECKING:
    from sqlalchemy import Connection, Engine

HERE = Path(__file__).parents[1]
VERSION_TABLE = "alembic_version_lading"
# The revision of the newest migration. It is written down because importing alembic takes long, and only migrations
# need it.
HEAD = "1ad1ce5a0037"
# As alembic creates it.
_VERSIONS = Table(
    VERSION_TABLE,
    MetaData(),
    Column("version_num", String(32), nullable=False),
    PrimaryKeyConstraint("version_num", name=f"{VERSION_TABLE}_pkc"),
)


class AnotherVersion(Exception):
    """Another version of Lading created the tables, and this one has no migration from it."""


def ensure_own_tables(engine: Engine) -> None:
    """Create or migrate the tables if necessary. Only one process at a time must call this.

    :raises AnotherVersion: the tables are at a revision that this version does not know
    """
    with engine.connect() as connection:
        revision = read_revision(connection)
        if revision == HEAD:
            return
        if revision is None:
            metadata.create_all(connection)
            _VERSIONS.create(connection, checkfirst=True)
            connection.execute(_VERSIONS.insert().values(version_num=HEAD))
        else:
            _migrate(connection, revision)
        connection.commit()


def _migrate(connection: Connection, revision: str) -> None:
    from alembic import command
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config(str(HERE / "alembic.ini"))
    if revision not in {each.revision for each in ScriptDirectory.from_config(config).walk_revisions()}:
        raise AnotherVersion(
            f"{connection.engine.url} was created by another version of Lading, at revision {revision!r}; install that "
            "version, or remove the file and with it the record of its jobs"
        )
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def read_revision(connection: Connection) -> str | None:
    """Return the revision of the tables; None: they do not exist."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.scalar(select(_VERSIONS.c.version_num))


def own_tables_fault(connection: Connection) -> str | None:
    """Return why the tables cannot be read, and what to do; None: they match this version."""
    if (revision := read_revision(connection)) == HEAD:
        return None
    return (
        f"the tables of {connection.engine.url} belong to another version of Lading, at revision {revision!r} instead "
        f"of {HEAD!r}: use the version that runs the workflows there"
    )
