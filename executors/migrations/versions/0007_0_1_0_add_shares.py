"""Store the recent usage of shares, and the spending of budgets.

Revision ID: 1ad1ce5a0029
Revises: 1ad1ce5a0028
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0029"
down_revision = "1ad1ce5a0028"


def upgrade() -> None:
    op.create_table(
        "lading_share",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("weight", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_share_pkey")),
    )
    op.create_table(
        "lading_budget",
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("who", sa.String(250), nullable=False),
        sa.Column("most", sa.Double(), nullable=False),
        sa.Column("unit", sa.String(12), nullable=False),
        sa.Column("per", sa.String(12), nullable=False),
        sa.Column("spent", sa.Double(), nullable=False),
        sa.Column("per_hour", sa.Double(), nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("warned", sa.Double()),
        sa.Column("lifted", sa.Double()),
        sa.Column("lifted_by", sa.String(250)),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_budget_pkey")),
    )


def downgrade() -> None:
    op.drop_table("lading_budget")
    op.drop_table("lading_share")
