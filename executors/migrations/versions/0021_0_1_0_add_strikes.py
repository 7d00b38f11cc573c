"""Add under which jobs controllers have died or hung.

Revision ID: 1ad1ce5a0021
Revises: 1ad1ce5a0020
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0021"
down_revision = "1ad1ce5a0020"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("examined_by", sa.String(36)))
    op.add_column("lading_job", sa.Column("strikes", sa.Integer()))


def downgrade() -> None:
    op.drop_column("lading_job", "strikes")
    op.drop_column("lading_job", "examined_by")
