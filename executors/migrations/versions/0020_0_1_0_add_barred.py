"""Add which queues of a site do not admit its account.

Revision ID: 1ad1ce5a0020
Revises: 1ad1ce5a0019
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0020"
down_revision = "1ad1ce5a0019"


def upgrade() -> None:
    op.add_column("lading_site", sa.Column("barred", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_site", "barred")
