"""Store which amounts of a job Lading chooses from the usage of earlier tries.

Revision ID: 1ad1ce5a0032
Revises: 1ad1ce5a0031
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0032"
down_revision = "1ad1ce5a0031"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("chosen", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_job", "chosen")
