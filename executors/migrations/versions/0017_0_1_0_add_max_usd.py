"""Add what the run of a job may cost.

Revision ID: 1ad1ce5a0017
Revises: 1ad1ce5a0016
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0017"
down_revision = "1ad1ce5a0016"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("max_usd", sa.Double()))


def downgrade() -> None:
    op.drop_column("lading_job", "max_usd")
