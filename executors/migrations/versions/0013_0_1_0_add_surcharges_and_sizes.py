"""Add what machines cost beside their own price, and what they really have.

Revision ID: 1ad1ce5a0013
Revises: 1ad1ce5a0012
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0013"
down_revision = "1ad1ce5a0012"


def upgrade() -> None:
    op.add_column("lading_instance", sa.Column("surcharges", sa.Text()))
    op.create_table(
        "lading_size",
        sa.Column("site", sa.String(64), primary_key=True),
        sa.Column("instance_type", sa.String(64), primary_key=True),
        sa.Column("image", sa.String(250), primary_key=True),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
    )


def downgrade() -> None:
    op.drop_table("lading_size")
    op.drop_column("lading_instance", "surcharges")
