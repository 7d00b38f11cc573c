"""Store why jobs are cancelled and placed, and why instances and holds end, as codes with parameters.

Revision ID: 1ad1ce5a0024
Revises: 1ad1ce5a0023
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "1ad1ce5a0024"
down_revision = "1ad1ce5a0023"

COLUMNS = (
    ("lading_job", "cancel"),
    ("lading_job", "placed_because"),
    ("lading_instance", "reason"),
    ("lading_hold", "reason"),
)


def upgrade() -> None:
    # A sentence becomes a reason of free text.
    is_postgresql = op.get_context().dialect.name == "postgresql"
    for table, name in COLUMNS:
        column = sa.column(name, sa.Text())
        in_json = sa.func.to_json(column) if is_postgresql else sa.func.json_quote(column, type_=sa.Text())
        text = sa.cast(in_json, sa.Text()) if is_postgresql else in_json
        whole = sa.literal('{"code": "free_text", "params": {"text": ', sa.Text()) + text + sa.literal("}}", sa.Text())
        op.execute(sa.update(sa.table(table, column)).where(column.is_not(None)).values({name: whole}))


def downgrade() -> None:
    # What has another code has no sentence of its own, and is forgotten; of a job that is to end the code says so.
    dialect = op.get_context().dialect.name
    for table, name in COLUMNS:
        column = sa.column(name, sa.Text())
        if dialect == "postgresql":
            in_json = sa.cast(column, postgresql.JSON())
            text, code = in_json["params"]["text"].astext, in_json["code"].astext
        else:
            text, code = (sa.func.json_extract(column, path, type_=sa.Text()) for path in ("$.params.text", "$.code"))
            if dialect != "sqlite":
                text, code = (sa.func.json_unquote(each, type_=sa.Text()) for each in (text, code))
        found = sa.func.coalesce(text, code) if name == "cancel" else text
        op.execute(sa.update(sa.table(table, column)).where(column.is_not(None)).values({name: found}))
