"""Tell the acting controller which jobs were queued, or changed by other processes.

Revision ID: 1ad1ce5a0033
Revises: 1ad1ce5a0032
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0033"
down_revision = "1ad1ce5a0032"

# Indices that need no entry for a waiting job, whose value in their first column is null.
LATER = {
    "lading_job_ended": ("ended_at",),
    "lading_job_started": ("started_at", "site", "dag_id"),
    "lading_job_gang": ("gang", "state"),
    "lading_job_cause": ("cause", "ended_at"),
    "lading_job_place": ("location",),
    "lading_job_native": ("native_id",),
    "lading_job_node": ("node",),
}
BEGINNINGS = ("location", "native_id", "node")


def upgrade() -> None:
    op.create_table(
        "lading_unseen",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("token", sa.String(36), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_unseen_pkey")),
    )
    # Leave free space in each page, so that a row whose reason changes can be updated within its page.
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.text("ALTER TABLE lading_job SET (fillfactor = 80)"))
        remake_indices(are_partial=True)


def downgrade() -> None:
    if op.get_context().dialect.name == "postgresql":
        op.execute(sa.text("ALTER TABLE lading_job RESET (fillfactor)"))
        remake_indices(are_partial=False)
    op.drop_table("lading_unseen")


def remake_indices(*, are_partial: bool) -> None:
    """Recreate the indices of :data:`LATER`, including or excluding rows with null in the first column."""
    for name, (first, *others) in LATER.items():
        op.drop_index(name, "lading_job")
        op.create_index(
            name,
            "lading_job",
            [first, *others],
            postgresql_ops={first: "varchar_pattern_ops"} if first in BEGINNINGS else {},
            postgresql_where=sa.text(f"{first} IS NOT NULL") if are_partial else None,
        )
