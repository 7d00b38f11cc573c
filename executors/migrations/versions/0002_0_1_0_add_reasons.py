"""Store reasons as codes with parameters, the jobs over which controllers died, and the values of inputs.

Two columns are renamed to match the code.

Revision ID: 1ad1ce5a0024
Revises: 1ad1ce5a0020
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "1ad1ce5a0024"
down_revision = "1ad1ce5a0020"

RENAMED = (("lading_job", "appraisal", "sizing"), ("lading_request", "words", "outcome"))
REASONS = (
    ("lading_job", "reason"),
    ("lading_job", "cancel"),
    ("lading_job", "placed_because"),
    ("lading_instance", "reason"),
    ("lading_hold", "reason"),
)


def upgrade() -> None:
    op.add_column("lading_job", sa.Column("examined_by", sa.String(36)))
    op.add_column("lading_job", sa.Column("strikes", sa.Integer()))
    op.add_column("lading_job", sa.Column("input_values", sa.Text()))
    op.add_column("lading_job", sa.Column("reason_code", sa.String(40)))
    op.add_column("lading_job", sa.Column("reason_limit", sa.String(250)))
    for table, former, name in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {former} TO {name}")
    forget_what_is_found_anew()
    # Turn each sentence into a reason with the code for free text.
    is_postgresql = op.get_context().dialect.name == "postgresql"
    for table, name in REASONS:
        column = sa.column(name, sa.Text())
        in_json = sa.func.to_json(column) if is_postgresql else sa.func.json_quote(column, type_=sa.Text())
        text = sa.cast(in_json, sa.Text()) if is_postgresql else in_json
        whole = sa.literal('{"code": "free_text", "params": {"text": ', sa.Text()) + text + sa.literal("}}", sa.Text())
        values = {name: whole}
        if (table, name) == ("lading_job", "reason"):
            values["reason_code"] = sa.literal("free_text")
        rows = sa.table(table, *(sa.column(each) for each in values))
        op.execute(sa.update(rows).where(column.is_not(None)).values(values))


def forget_what_is_found_anew() -> None:
    """Clear the queues that admit no jobs, whose reasons are also stored; the next controller restores them."""
    op.execute("UPDATE lading_site SET barred = NULL")


def downgrade() -> None:
    forget_what_is_found_anew()
    # Reasons with other codes contain no sentence, and are lost. For a job to be cancelled, keep the code instead.
    dialect = op.get_context().dialect.name
    for table, name in REASONS:
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
    for table, former, name in RENAMED:
        op.execute(f"ALTER TABLE {table} RENAME COLUMN {name} TO {former}")
    for name in ("reason_limit", "reason_code", "input_values", "strikes", "examined_by"):
        op.drop_column("lading_job", name)
