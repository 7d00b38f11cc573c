"""Store what each share has now, what belongs to it, and what is kept for it.

Revision ID: 1ad1ce5a0034
Revises: 1ad1ce5a0033
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0034"
down_revision = "1ad1ce5a0033"


def upgrade() -> None:
    op.create_table(
        "lading_share_standing",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("who", sa.String(250), nullable=False),
        sa.Column("whose", sa.Text(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("entitled", sa.Double(), nullable=False),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("lately", sa.Double()),
        sa.Column("kept", sa.Text(), nullable=False),
        sa.Column("lends", sa.Boolean(), nullable=False),
        sa.Column("borrows", sa.Boolean(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_share_standing_pkey")),
    )


def downgrade() -> None:
    op.drop_table("lading_share_standing")
