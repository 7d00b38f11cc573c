"""Store which executor reports a job to Airflow if a scheduler has several, one for each team.

Revision ID: 1ad1ce5a0027
Revises: 1ad1ce5a0026
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0027"
down_revision = "1ad1ce5a0026"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("executor_team", sa.String(50)))


def downgrade() -> None:
    op.drop_column("lading_job", "executor_team")
