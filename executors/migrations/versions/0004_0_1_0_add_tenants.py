"""Store the tenants of jobs: their team, and the owners and tags of their Dag.

Revision ID: 1ad1ce5a0026
Revises: 1ad1ce5a0025
"""

import sqlalchemy as sa
from alembic import op

revision = "1ad1ce5a0026"
down_revision = "1ad1ce5a0025"

COLUMNS = {
    "lading_job": {"team": sa.String(50), "dag_owner": sa.String(250), "dag_tags": sa.Text()},
    "lading_usage": {"team": sa.String(50), "dag_owner": sa.String(250)},
}


def upgrade() -> None:
    for table, columns in COLUMNS.items():
        for name, kind in columns.items():
            op.add_column(table, sa.Column(name, kind))


def downgrade() -> None:
    for table, columns in COLUMNS.items():
        for name in reversed(columns):
            op.drop_column(table, name)
