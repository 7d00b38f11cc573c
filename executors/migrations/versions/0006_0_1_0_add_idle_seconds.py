"""Store how long a site keeps idle machines, so that the page can say what a shorter time would save.

Revision ID: 1ad1ce5a0036
Revises: 1ad1ce5a0035
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0036"
down_revision = "1ad1ce5a0035"


def upgrade() -> None:
    op.add_column("lading_site", sa.Column("idle_seconds", sa.Double()))


def downgrade() -> None:
    op.drop_column("lading_site", "idle_seconds")
