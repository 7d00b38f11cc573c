"""Add in which location another one lies.

Revision ID: 1ad1ce5a0012
Revises: 1ad1ce5a0011
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0012"
down_revision = "1ad1ce5a0011"


def upgrade() -> None:
    op.add_column("lading_location", sa.Column("wraps", sa.String(250)))
    op.add_column("lading_location", sa.Column("stacked", sa.Boolean()))


def downgrade() -> None:
    op.drop_column("lading_location", "stacked")
    op.drop_column("lading_location", "wraps")
