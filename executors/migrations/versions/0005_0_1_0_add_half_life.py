"""Store after how long past use of a share counts half, so that the page can predict whose turn comes.

Revision ID: 1ad1ce5a0035
Revises: 1ad1ce5a0034
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0035"
down_revision = "1ad1ce5a0034"


def upgrade() -> None:
    op.add_column("lading_share", sa.Column("half_life", sa.Double()))


def downgrade() -> None:
    op.drop_column("lading_share", "half_life")
