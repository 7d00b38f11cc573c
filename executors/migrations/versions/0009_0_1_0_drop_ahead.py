"""Drop the column for whether a job's Dag requests allocations ahead, which is read from the Dag itself.

Revision ID: 1ad1ce5a0031
Revises: 1ad1ce5a0030
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0031"
down_revision = "1ad1ce5a0030"


def upgrade() -> None:
    op.drop_index("lading_job_ahead", "lading_job")
    op.drop_column("lading_job", "ahead")


def downgrade() -> None:
    op.add_column("lading_job", sa.Column("ahead", sa.Boolean()))
    op.create_index("lading_job_ahead", "lading_job", ["ahead", "state"])
