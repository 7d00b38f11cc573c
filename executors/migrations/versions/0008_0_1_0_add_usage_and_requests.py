"""Add what tasks used, what people ask of sites, why jobs are where they are, and how large inputs are.

Revision ID: 1ad1ce5a0008
Revises: 1ad1ce5a0007
"""

import sqlalchemy as sa
from airflow.models.base import StringID
from alembic import op

revision = "1ad1ce5a0008"
down_revision = "1ad1ce5a0007"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("input_size", sa.BigInteger()))
    op.add_column("lading_job", sa.Column("placed_because", sa.Text()))
    op.add_column("lading_site", sa.Column("paused_by", sa.String(250)))
    op.create_table(
        "lading_usage",
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("task_id", StringID(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size_class", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds_used", sa.Double(), nullable=False),
        sa.Column("usd", sa.Double()),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "task_id", "day", "size_class", name=op.f("lading_usage_pkey")),
    )
    op.create_index("lading_usage_day", "lading_usage", ["day"])
    op.create_table(
        "lading_request",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(12), nullable=False),
        sa.Column("target", sa.String(320), nullable=False),
        sa.Column("by", sa.String(250), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double()),
        sa.Column("words", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_request_pkey")),
    )
    op.create_index("lading_request_done", "lading_request", ["done_at"])


def downgrade() -> None:
    op.drop_table("lading_request")
    op.drop_table("lading_usage")
    op.drop_column("lading_site", "paused_by")
    op.drop_column("lading_job", "placed_because")
    op.drop_column("lading_job", "input_size")
