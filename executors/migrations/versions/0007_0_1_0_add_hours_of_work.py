"""Store how long the jobs of a budget last, so that its forecast counts what runs and waits now.

Revision ID: 1ad1ce5a0037
Revises: 1ad1ce5a0036
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0037"
down_revision = "1ad1ce5a0036"


def upgrade() -> None:
    op.add_column("lading_budget", sa.Column("hours_of_work", sa.Double()))


def downgrade() -> None:
    op.drop_column("lading_budget", "hours_of_work")
