"""Add the hints for batch systems, and whether a try was given back.

Revision ID: 1ad1ce5a0002
Revises: 1ad1ce5a0001
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0002"
down_revision = "1ad1ce5a0001"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("queue_hint", sa.String(250)))
    op.add_column("lading_job", sa.Column("native_hint", sa.Text()))
    op.add_column("lading_job", sa.Column("given_back", sa.Boolean()))


def downgrade() -> None:
    op.drop_column("lading_job", "given_back")
    op.drop_column("lading_job", "native_hint")
    op.drop_column("lading_job", "queue_hint")
