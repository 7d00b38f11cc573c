"""Add how many nodes a batch system has, and how many of them are idle.

Revision ID: 1ad1ce5a0009
Revises: 1ad1ce5a0008
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0009"
down_revision = "1ad1ce5a0008"


def upgrade() -> None:
    op.add_column("lading_location", sa.Column("nodes", sa.Integer()))
    op.add_column("lading_location", sa.Column("idle_nodes", sa.Integer()))


def downgrade() -> None:
    op.drop_column("lading_location", "idle_nodes")
    op.drop_column("lading_location", "nodes")
