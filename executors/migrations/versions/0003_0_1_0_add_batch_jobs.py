"""Add which batch job a job is on which node, and the allocations of a location.

Revision ID: 1ad1ce5a0003
Revises: 1ad1ce5a0002
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0003"
down_revision = "1ad1ce5a0002"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("native_id", sa.String(250)))
    op.add_column("lading_job", sa.Column("node", sa.String(250)))
    op.add_column("lading_location", sa.Column("allocations", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_location", "allocations")
    op.drop_column("lading_job", "node")
    op.drop_column("lading_job", "native_id")
