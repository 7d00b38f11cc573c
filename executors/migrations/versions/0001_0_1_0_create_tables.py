"""Create the tables of 0.1.0.

Revision ID: 1ad1ce5a0001
Revises:
"""

import sqlalchemy as sa
from airflow.models.base import StringID
from alembic import op

revision = "1ad1ce5a0001"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "lading_job",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("subject", sa.String(36), nullable=False),
        sa.Column("dag_id", StringID()),
        sa.Column("task_id", StringID()),
        sa.Column("run_id", StringID()),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Integer()),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("memory_limit", sa.Integer()),
        sa.Column("time_limit", sa.Integer()),
        sa.Column("site_hint", sa.String(64)),
        sa.Column("instance_type", sa.String(64)),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_instances", sa.Integer()),
        sa.Column("run_max_instances", sa.Integer()),
        sa.Column("appraisal", sa.Text()),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("cause", sa.String(20)),
        sa.Column("reason", sa.Text()),
        sa.Column("cancel", sa.Text()),
        sa.Column("unreported", sa.Boolean(), nullable=False),
        sa.Column("news", sa.Integer(), nullable=False),
        sa.Column("site", sa.String(64)),
        sa.Column("location", sa.String(250)),
        sa.Column("expires_at", sa.Double()),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("placed_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("peak_memory", sa.Integer()),
        sa.Column("cpu_seconds", sa.Double()),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_job_pkey")),
    )
    op.create_index("lading_job_unreported", "lading_job", ["owner", "unreported"])
    op.create_index("lading_job_waiting", "lading_job", ["state", "priority", "queued_at"])
    op.create_index("lading_job_ended", "lading_job", ["ended_at"])
    op.create_index("lading_job_task", "lading_job", ["dag_id", "run_id", "task_id"])
    op.create_table(
        "lading_location",
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("instance_type", sa.String(64)),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("note", sa.Text()),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("site", "name", name=op.f("lading_location_pkey")),
    )
    op.create_table(
        "lading_lease",
        sa.Column("name", sa.String(30), nullable=False),
        sa.Column("holder", sa.String(36), nullable=False),
        sa.Column("host", sa.String(250), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_lease_pkey")),
    )


def downgrade() -> None:
    op.drop_table("lading_lease")
    op.drop_table("lading_location")
    op.drop_table("lading_job")
