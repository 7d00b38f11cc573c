"""Add where files are that jobs have left, the files that jobs read, and their containers.

Revision ID: 1ad1ce5a0016
Revises: 1ad1ce5a0015
"""

import sqlalchemy as sa
from airflow.migrations.db_types import StringID
from alembic import op

revision = "1ad1ce5a0016"
down_revision = "1ad1ce5a0015"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("inputs", sa.Text()))
    op.add_column("lading_job", sa.Column("container", sa.Text()))
    op.create_table(
        "lading_data",
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("location", sa.String(250), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("dag_id", StringID()),
        sa.Column("run_id", StringID()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "site", "location", name="lading_data_pkey"),
    )
    op.create_index("lading_data_at", "lading_data", ["at"])


def downgrade() -> None:
    op.drop_table("lading_data")
    op.drop_column("lading_job", "container")
    op.drop_column("lading_job", "inputs")
