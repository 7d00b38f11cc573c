"""Tell the controller that acts which jobs are new in its queue, or were changed there by others.

Revision ID: 1ad1ce5a0033
Revises: 1ad1ce5a0032
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0033"
down_revision = "1ad1ce5a0032"


def upgrade() -> None:
    op.create_table(
        "lading_unseen",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("token", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_unseen_pkey")),
    )
    # Of a job of which only the reason changes the new version of its row finds place beside the old one.
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.text("ALTER TABLE lading_job SET (fillfactor = 80)"))


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.text("ALTER TABLE lading_job RESET (fillfactor)"))
    op.drop_table("lading_unseen")
