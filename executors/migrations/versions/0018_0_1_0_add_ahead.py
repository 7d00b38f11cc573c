"""Add whether the Dag of a job asks ahead for what later tasks need.

Revision ID: 1ad1ce5a0018
Revises: 1ad1ce5a0017
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0018"
down_revision = "1ad1ce5a0017"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("ahead", sa.Boolean()))
    op.create_index("lading_job_ahead", "lading_job", ["ahead", "state"])


def downgrade() -> None:
    op.drop_index("lading_job_ahead", "lading_job")
    op.drop_column("lading_job", "ahead")
