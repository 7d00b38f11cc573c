"""Store bills by day, and the offset of the database's clock; index prefixes of names in PostgreSQL.

Revision ID: 1ad1ce5a0030
Revises: 1ad1ce5a0029
"""

import sqlalchemy as sa
from alembic import op

from lading.hooks.deployment import current

StringID = current.deployment().table_conventions().id_type

revision = "1ad1ce5a0030"
down_revision = "1ad1ce5a0029"

KEY = ("level", "split", "day", "dag_id", "task_id", "name")


# Indices of columns that are searched by prefix.
BEGINNINGS = {"lading_job_place": "location", "lading_job_native": "native_id", "lading_job_node": "node"}


def upgrade() -> None:
    op.add_column("lading_lease", sa.Column("database_ahead", sa.Double()))
    remake_indices("varchar_pattern_ops")
    op.create_table(
        "lading_bill",
        sa.Column("level", sa.String(5), nullable=False),
        sa.Column("split", sa.String(8), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("task_id", StringID(), nullable=False),
        sa.Column("name", StringID(), nullable=False),
        sa.Column("week", sa.Integer(), nullable=False),
        sa.Column("month", sa.Integer(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("unused", sa.Double(), nullable=False),
        sa.Column("idle", sa.Double(), nullable=False),
        sa.Column("boot", sa.Double(), nullable=False),
        sa.Column("usd_used", sa.Double()),
        sa.Column("usd_unused", sa.Double()),
        sa.Column("usd_idle", sa.Double()),
        sa.Column("usd_boot", sa.Double()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint(*KEY, name=op.f("lading_bill_pkey")),
    )
    op.create_index("lading_bill_name", "lading_bill", ["split", "dag_id", "task_id", "name", "day"])
    op.create_index("lading_bill_week", "lading_bill", ["week", "level"])
    op.create_index("lading_bill_month", "lading_bill", ["month", "level"])


def downgrade() -> None:
    op.drop_table("lading_bill")
    remake_indices(None)
    op.drop_column("lading_lease", "database_ahead")


def remake_indices(kind: str | None) -> None:
    """Recreate the indices of names in PostgreSQL, which finds prefixes only with a special operator class.

    :param kind: the operator class; None: the default, which follows the language
    """
    if op.get_context().dialect.name != "postgresql":
        return
    for name, column in BEGINNINGS.items():
        op.drop_index(name, "lading_job")
        op.create_index(name, "lading_job", [column], postgresql_ops={} if kind is None else {column: kind})
