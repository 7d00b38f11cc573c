"""Alembic's environment: runs Lading's migrations on Airflow's database, or on a given connection."""

from __future__ import annotations

from typing import Any

from alembic import context

from lading.executors.migrations.own_database import VERSION_TABLE
from lading.executors.store import metadata


def ours(_: Any, name: str | None, kind: str, *rest: Any) -> bool:
    """Return whether an object is Lading's, so that Airflow's tables are left alone."""
    return kind != "table" or name in metadata.tables


def configure(**where: Any) -> None:
    context.configure(
        target_metadata=metadata,
        version_table=VERSION_TABLE,
        include_object=ours,
        compare_type=True,
        render_as_batch=True,
        **where,
    )
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    from airflow import settings

    configure(url=settings.SQL_ALCHEMY_CONN, literal_binds=True)
elif (connection := context.config.attributes.get("connection")) is not None:
    configure(connection=connection, transaction_per_migration=True)
else:
    from airflow import settings

    assert settings.engine is not None, "Airflow's database is configured before it is migrated"
    with settings.engine.connect() as connection:
        configure(connection=connection, transaction_per_migration=True)
