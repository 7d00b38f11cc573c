"""Add what jobs and locations cost, lanes, what machines had when, and whether sites answer.

Revision ID: 1ad1ce5a0007
Revises: 1ad1ce5a0006
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0007"
down_revision = "1ad1ce5a0006"

OF_JOBS = ("lane", "submitted_at", "usd", "changed_at")
OF_INSTANCES = ("usd_per_hour", "changed_at")
INDEXES = {
    "lading_job_started": ["started_at"],
    "lading_job_changed": ["changed_at"],
    "lading_job_history": ["dag_id", "task_id", "ended_at"],
}


def upgrade() -> None:
    for name in OF_JOBS:
        op.add_column("lading_job", sa.Column(name, sa.Double()))
    for name, columns in INDEXES.items():
        op.create_index(name, "lading_job", columns)
    for name in OF_INSTANCES:
        op.add_column("lading_instance", sa.Column(name, sa.Double()))
    op.add_column("lading_location", sa.Column("usd_per_cpu_hour", sa.Double()))
    op.create_table(
        "lading_site",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("contact_at", sa.Double()),
        sa.Column("trouble", sa.Text()),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_site_pkey")),
    )
    op.create_table(
        "lading_capacity",
        sa.Column("id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("usd_per_hour", sa.Double()),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double()),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_capacity_pkey")),
    )
    op.create_index("lading_capacity_until", "lading_capacity", ["until"])


def downgrade() -> None:
    op.drop_table("lading_capacity")
    op.drop_table("lading_site")
    op.drop_column("lading_location", "usd_per_cpu_hour")
    for name in OF_INSTANCES:
        op.drop_column("lading_instance", name)
    for name in INDEXES:
        op.drop_index(name, "lading_job")
    for name in OF_JOBS:
        op.drop_column("lading_job", name)
