"""Add what was launched, and what a location is beside its size.

Revision ID: 1ad1ce5a0005
Revises: 1ad1ce5a0004
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0005"
down_revision = "1ad1ce5a0004"


def upgrade() -> None:
    op.create_table(
        "lading_instance",
        sa.Column("token", sa.String(250), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("native_id", sa.String(250)),
        sa.Column("node", sa.String(250)),
        sa.Column("ordered_at", sa.Double(), nullable=False),
        sa.Column("launched_at", sa.Double()),
        sa.Column("ready_at", sa.Double()),
        sa.Column("idle_since", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("cause", sa.String(20)),
        sa.Column("reason", sa.Text()),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_instance_pkey")),
    )
    op.create_index("lading_instance_site", "lading_instance", ["site", "state"])
    op.create_index("lading_instance_ended", "lading_instance", ["ended_at"])
    make_locations(
        sa.Column("state", sa.String(12)), sa.Column("native_id", sa.String(250)), sa.Column("node", sa.String(250))
    )


def downgrade() -> None:
    make_locations(sa.Column("allocations", sa.Text()))
    op.drop_table("lading_instance")


def make_locations(*columns: sa.Column[Any]) -> None:
    """Make the table of locations anew: it is filled at the next look, and old SQLite can drop no column."""
    op.drop_table("lading_location")
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
        *columns,
        sa.PrimaryKeyConstraint("site", "name", name=op.f("lading_location_pkey")),
    )
