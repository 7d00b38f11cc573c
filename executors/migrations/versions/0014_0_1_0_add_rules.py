"""Add what jobs can do without, and the rule by which they have got less.

Revision ID: 1ad1ce5a0014
Revises: 1ad1ce5a0013
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0014"
down_revision = "1ad1ce5a0013"


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("soft", sa.Text()))
    op.add_column("lading_job", sa.Column("rule", sa.String(64)))
    op.add_column("lading_job", sa.Column("asked", sa.Text()))


def downgrade() -> None:
    op.drop_column("lading_job", "asked")
    op.drop_column("lading_job", "rule")
    op.drop_column("lading_job", "soft")
