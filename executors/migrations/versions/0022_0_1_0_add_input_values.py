"""Add the values of a job's inputs, for plugins.

Revision ID: 1ad1ce5a0022
Revises: 1ad1ce5a0021
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0022"
down_revision = "1ad1ce5a0021"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("input_values", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_job", "input_values")
