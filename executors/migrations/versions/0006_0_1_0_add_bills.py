"""Index jobs for searches, keep the basis of bills by site, and store when jobs are expected to start.

Revision ID: 1ad1ce5a0028
Revises: 1ad1ce5a0027
"""

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from alembic import op

from lading.hooks.deployment import current

StringID = current.deployment().table_conventions().id_type

revision = "1ad1ce5a0028"
down_revision = "1ad1ce5a0027"

COLUMNS: dict[str, dict[str, Any]] = {
    "lading_job": {
        "native_start": sa.Double(),
        "planned_start": sa.Double(),
        "said_at": sa.Double(),
        "said_since": sa.Double(),
        "said_until": sa.Double(),
        "said_source": sa.String(12),
    },
    "lading_instance": {"usd_gone": sa.Double(), "cpu_seconds_gone": sa.Double(), "part_shared": sa.Double()},
}
INDICES = {
    "lading_job_queued": ("queued_at", "token"),
    "lading_job_dag": ("dag_id", "queued_at"),
    "lading_job_place": ("location",),
    "lading_job_cause": ("cause", "ended_at"),
    "lading_job_native": ("native_id",),
    "lading_job_node": ("node",),
}
STARTED = "lading_job_started"
KEY = ("dag_id", "task_id", "day", "size_class")
SUMS = ("jobs", "failed", "cpu_seconds", "cpu_seconds_used", "usd", "team", "dag_owner", "usage")
NEW = ("usd_used", "usd_idle", "usd_boot", "cpu_seconds_unused", "cpu_seconds_idle", "cpu_seconds_boot")


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind))
    op.drop_index(STARTED, "lading_job")
    op.create_index(STARTED, "lading_job", ["started_at", "site", "dag_id"])
    for name, indexed in INDICES.items():
        op.create_index(name, "lading_job", list(indexed))
    # Split past costs into used and unused like the cpus; the site of past usage is unknown.
    is_part = "CASE WHEN cpu_seconds_used < cpu_seconds THEN "
    values = {
        "site": "''",
        "usd_used": is_part + "usd * cpu_seconds_used / cpu_seconds ELSE usd END",
        "cpu_seconds_unused": is_part + "cpu_seconds - cpu_seconds_used ELSE 0 END",
    }
    remake_usage((*KEY, "site"), (*SUMS, *NEW), values, {"cpu_seconds_idle", "cpu_seconds_boot"})


def downgrade() -> None:
    op.execute("DELETE FROM lading_usage WHERE dag_id = ''")
    first = "SELECT MIN(site) FROM lading_usage one WHERE " + " AND ".join(
        f"one.{name} = lading_usage.{name}" for name in KEY
    )
    remake_usage(KEY, SUMS, {}, set(), f"site = ({first})")
    for name in INDICES:
        op.drop_index(name, "lading_job")
    op.drop_index(STARTED, "lading_job")
    op.create_index(STARTED, "lading_job", ["started_at"])
    for table, columns in COLUMNS.items():
        for name in reversed(columns):
            op.drop_column(table, name)


def column(name: str) -> sa.Column[Any]:
    kinds: dict[str, Any] = {
        "dag_id": StringID(), "task_id": StringID(), "site": sa.String(64), "day": sa.Integer(),
        "size_class": sa.Integer(), "jobs": sa.Integer(), "failed": sa.Integer(), "team": sa.String(50),
        "dag_owner": sa.String(250), "usage": sa.Text(),
    }  # fmt: skip
    is_nullable = name.startswith("usd") or name in ("team", "dag_owner")
    more: dict[str, Any] = {"autoincrement": False} if name in ("day", "size_class") else {}
    return sa.Column(name, kinds.get(name, sa.Double()), nullable=is_nullable, **more)


def remake_usage(
    key: Sequence[str], others: Sequence[str], values: dict[str, str], zeros: set[str], which: str = "1 = 1"
) -> None:
    """Recreate the table of usage with another key, because not every database can change a key.

    :param values: of new columns, as SQL
    :param zeros: new columns that are 0 for past usage
    :param which: the condition for rows to keep
    """
    before = "lading_usage_before"
    op.create_table(before, *map(column, (*key, *others)))
    names = [name for name in (*key, *others) if name not in NEW or name in values or name in zeros]
    what = ", ".join(values.get(name, "0" if name in zeros else quoted(name)) for name in names)
    listed = ", ".join(map(quoted, names))
    op.execute(f"INSERT INTO {before} ({listed}) SELECT {what} FROM lading_usage WHERE {which}")
    op.drop_index("lading_usage_day", "lading_usage")
    op.drop_table("lading_usage")
    constraint = sa.PrimaryKeyConstraint(*key, name=op.f("lading_usage_pkey"))
    op.create_table("lading_usage", *map(column, (*key, *others)), constraint)
    op.create_index("lading_usage_day", "lading_usage", ["day"])
    listed = ", ".join(map(quoted, (*key, *others)))
    op.execute(f"INSERT INTO lading_usage ({listed}) SELECT {listed} FROM {before}")
    op.drop_table(before)


def quoted(name: str) -> str:
    """Quote a column's name if necessary: ``usage`` is a reserved word in MySQL."""
    return op.get_context().dialect.identifier_preparer.quote(name)
