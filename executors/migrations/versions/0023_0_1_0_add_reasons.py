"""Store reasons as codes with parameters.

Revision ID: 1ad1ce5a0023
Revises: 1ad1ce5a0022
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "1ad1ce5a0023"
down_revision = "1ad1ce5a0022"

JOB = sa.table("lading_job", sa.column("reason", sa.Text()), sa.column("reason_code", sa.String(40)))


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("reason_code", sa.String(40)))
    op.add_column("lading_job", sa.Column("reason_limit", sa.String(250)))
    # A sentence becomes a reason of free text.
    is_postgresql = op.get_context().dialect.name == "postgresql"
    in_json = sa.func.to_json(JOB.c.reason) if is_postgresql else sa.func.json_quote(JOB.c.reason, type_=sa.Text())
    text = sa.cast(in_json, sa.Text()) if is_postgresql else in_json
    whole = sa.literal('{"code": "free_text", "params": {"text": ', sa.Text()) + text + sa.literal("}}", sa.Text())
    op.execute(sa.update(JOB).where(JOB.c.reason.is_not(None)).values(reason=whole, reason_code="free_text"))


def downgrade() -> None:
    # What has another code has no sentence of its own, and is forgotten.
    dialect = op.get_context().dialect.name
    if dialect == "postgresql":
        text = sa.cast(JOB.c.reason, postgresql.JSON())["params"]["text"].astext
    else:
        text = sa.func.json_extract(JOB.c.reason, "$.params.text", type_=sa.Text())
        text = text if dialect == "sqlite" else sa.func.json_unquote(text, type_=sa.Text())
    op.execute(sa.update(JOB).values(reason=text))
    op.drop_column("lading_job", "reason_limit")
    op.drop_column("lading_job", "reason_code")
