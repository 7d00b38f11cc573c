"""Add what jobs ask of machines besides amounts, and count machines by max_instances.

What an older version has stored as max_instances was a number of jobs, which is max_jobs by now.

Revision ID: 1ad1ce5a0006
Revises: 1ad1ce5a0005
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0006"
down_revision = "1ad1ce5a0005"

NAMES = (("max_instances", "max_jobs"), ("run_max_instances", "run_max_jobs"))
TABLES = ("lading_job", "lading_location")


def upgrade() -> None:
    for table in TABLES:
        for column in words():
            op.add_column(table, column)
    for _, jobs in NAMES:
        op.add_column("lading_job", sa.Column(jobs, sa.Integer()))
    # One after the other: MySQL sets the columns of one statement in turn, each from what the one before has left.
    for machines, jobs in NAMES:
        op.execute(sa.update(JOB).values({jobs: JOB.c[machines]}))
        op.execute(sa.update(JOB).values({machines: None}))


def downgrade() -> None:
    # Not more machines than jobs: who limits both means at least this.
    for machines, jobs in NAMES:
        op.execute(sa.update(JOB).where(JOB.c[jobs].is_not(None)).values({machines: JOB.c[jobs]}))
    for _, jobs in reversed(NAMES):
        op.drop_column("lading_job", jobs)
    for table in reversed(TABLES):
        for column in reversed(words()):
            op.drop_column(table, column.name)


JOB = sa.table("lading_job", *(sa.column(name, sa.Integer()) for names in NAMES for name in names))


def words() -> list[sa.Column[str]]:
    """The columns of what is asked for and of what there is; features are separated by commas."""
    return [
        sa.Column("arch", sa.String(32)),
        sa.Column("os", sa.String(32)),
        sa.Column("features", sa.Text()),
        sa.Column("capacity_type", sa.String(12)),
    ]
