"""Store users' requests about live runs, and the forecasts of these runs.

Revision ID: 1ad1ce5a0025
Revises: 1ad1ce5a0024
"""

import sqlalchemy as sa
from alembic import op

from lading.hooks.deployment import current

StringID = current.deployment().table_conventions().id_type

revision = "1ad1ce5a0025"
down_revision = "1ad1ce5a0024"


def upgrade() -> None:
    op.create_table(
        "lading_run_request",
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("run_id", StringID(), nullable=False),
        sa.Column("hurry", sa.Double()),
        sa.Column("finish_by", sa.String(40)),
        sa.Column("by", sa.String(250), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "run_id", name=op.f("lading_run_request_pkey")),
    )
    op.create_table(
        "lading_run_forecast",
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("run_id", StringID(), nullable=False),
        sa.Column("hurry", sa.Double()),
        sa.Column("finish_by", sa.Double()),
        sa.Column("ends_at", sa.Double()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "run_id", name=op.f("lading_run_forecast_pkey")),
    )


def downgrade() -> None:
    op.drop_table("lading_run_forecast")
    op.drop_table("lading_run_request")
