"""Add the files that are brought to where a job runs.

Revision ID: 1ad1ce5a0019
Revises: 1ad1ce5a0018
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0019"
down_revision = "1ad1ce5a0018"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("stage", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_job", "stage")
