"""Add gangs, what is held for them, and the gang of a job.

Revision ID: 1ad1ce5a0015
Revises: 1ad1ce5a0014
"""

import sqlalchemy as sa
from airflow.models.base import StringID
from alembic import op

revision = "1ad1ce5a0015"
down_revision = "1ad1ce5a0014"


def upgrade() -> None:
    op.create_table(
        "lading_gang",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("run_id", StringID(), nullable=False),
        sa.Column("name", sa.String(250)),
        sa.Column("stage", sa.String(12), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Double()),
        sa.Column("memory", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_gang_pkey")),
    )
    op.create_table(
        "lading_hold",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("gang", sa.String(36), nullable=False),
        sa.Column("job", sa.String(36), nullable=False),
        sa.Column("partition", StringID(), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("location", sa.String(250), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_hold_pkey")),
    )
    op.create_index("lading_hold_gang", "lading_hold", ["gang"])
    op.add_column("lading_job", sa.Column("gang", sa.String(36)))
    op.add_column("lading_job", sa.Column("gang_terms", sa.Text()))
    op.create_index("lading_job_gang", "lading_job", ["gang", "state"])


def downgrade() -> None:
    op.drop_index("lading_job_gang", "lading_job")
    op.drop_column("lading_job", "gang_terms")
    op.drop_column("lading_job", "gang")
    op.drop_table("lading_hold")
    op.drop_table("lading_gang")
