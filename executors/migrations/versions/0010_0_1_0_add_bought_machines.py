"""Add where machines were bought, and what they have cost.

Revision ID: 1ad1ce5a0010
Revises: 1ad1ce5a0009
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0010"
down_revision = "1ad1ce5a0009"

COLUMNS = {
    "zone": sa.String(40),
    "capacity_type": sa.String(12),
    "usd": sa.Double(),
    "usd_since": sa.Double(),
    "usd_idle": sa.Double(),
}


def upgrade() -> None:
    for name, kind in COLUMNS.items():
        op.add_column("lading_instance", sa.Column(name, kind))


def downgrade() -> None:
    for name in reversed(COLUMNS):
        op.drop_column("lading_instance", name)
