"""Add the layout of batch jobs on nodes.

Revision ID: 1ad1ce5a0004
Revises: 1ad1ce5a0003
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0004"
down_revision = "1ad1ce5a0003"

COLUMNS = ("nodes", "ppn", "threads")


def upgrade() -> None:
    for name in COLUMNS:
        op.add_column("lading_job", sa.Column(name, sa.Integer()))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("lading_job", name)
