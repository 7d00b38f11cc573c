"""Add the targets of jobs, and the queue that one of them names.

Revision ID: 1ad1ce5a0011
Revises: 1ad1ce5a0010
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0011"
down_revision = "1ad1ce5a0010"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("targets", sa.Text()))
    op.add_column("lading_job", sa.Column("queue", sa.String(250)))


def downgrade() -> None:
    op.drop_column("lading_job", "queue")
    op.drop_column("lading_job", "targets")
