"""Create the tables.

It replaces the migrations from before the first release and has the revision of the last of them, so that a database
with those migrations counts as having this one.

Revision ID: 1ad1ce5a0031
Revises:
"""

import sqlalchemy as sa
from alembic import op

from lading.executors.store.tables import StringID

revision = "1ad1ce5a0031"
down_revision = None


def upgrade() -> None:
    op.create_table(
        "lading_job",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("subject", sa.String(36), nullable=False),
        sa.Column("dag_id", StringID()),
        sa.Column("task_id", StringID()),
        sa.Column("run_id", StringID()),
        sa.Column("map_index", sa.Integer(), nullable=False),
        sa.Column("try_number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.Integer()),
        sa.Column("workload", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("memory_limit", sa.Integer()),
        sa.Column("time_limit", sa.Integer()),
        sa.Column("site_hint", sa.String(64)),
        sa.Column("instance_type", sa.String(64)),
        sa.Column("arch", sa.String(32)),
        sa.Column("os", sa.String(32)),
        sa.Column("features", sa.Text()),
        sa.Column("capacity_type", sa.String(12)),
        sa.Column("queue_hint", sa.String(250)),
        sa.Column("native_hint", sa.Text()),
        sa.Column("targets", sa.Text()),
        sa.Column("soft", sa.Text()),
        sa.Column("nodes", sa.Integer()),
        sa.Column("ppn", sa.Integer()),
        sa.Column("threads", sa.Integer()),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("max_instances", sa.Integer()),
        sa.Column("run_max_instances", sa.Integer()),
        sa.Column("max_jobs", sa.Integer()),
        sa.Column("run_max_jobs", sa.Integer()),
        sa.Column("max_usd", sa.Double()),
        sa.Column("sizing", sa.Text()),
        sa.Column("gang", sa.String(36)),
        sa.Column("gang_terms", sa.Text()),
        sa.Column("inputs", sa.Text()),
        sa.Column("container", sa.Text()),
        sa.Column("stage", sa.Text()),
        sa.Column("input_size", sa.BigInteger()),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("cause", sa.String(20)),
        sa.Column("reason", sa.Text()),
        sa.Column("cancel", sa.Text()),
        sa.Column("unreported", sa.Boolean(), nullable=False),
        sa.Column("news", sa.Integer(), nullable=False),
        sa.Column("site", sa.String(64)),
        sa.Column("location", sa.String(250)),
        sa.Column("queue", sa.String(250)),
        sa.Column("rule", sa.String(64)),
        sa.Column("asked", sa.Text()),
        sa.Column("native_id", sa.String(250)),
        sa.Column("node", sa.String(250)),
        sa.Column("placed_because", sa.Text()),
        sa.Column("expires_at", sa.Double()),
        sa.Column("lane", sa.Double()),
        sa.Column("queued_at", sa.Double(), nullable=False),
        sa.Column("placed_at", sa.Double()),
        sa.Column("submitted_at", sa.Double()),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("peak_memory", sa.Integer()),
        sa.Column("cpu_seconds", sa.Double()),
        sa.Column("given_back", sa.Boolean()),
        sa.Column("usd", sa.Double()),
        sa.Column("changed_at", sa.Double()),
        sa.Column("examined_by", sa.String(36)),
        sa.Column("strikes", sa.Integer()),
        sa.Column("input_values", sa.Text()),
        sa.Column("reason_code", sa.String(40)),
        sa.Column("reason_limit", sa.String(250)),
        sa.Column("team", sa.String(50)),
        sa.Column("dag_owner", sa.String(250)),
        sa.Column("dag_tags", sa.Text()),
        sa.Column("executor_team", sa.String(50)),
        sa.Column("native_start", sa.Double()),
        sa.Column("planned_start", sa.Double()),
        sa.Column("said_at", sa.Double()),
        sa.Column("said_since", sa.Double()),
        sa.Column("said_until", sa.Double()),
        sa.Column("said_source", sa.String(12)),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_job_pkey")),
    )
    op.create_index("lading_job_cause", "lading_job", ["cause", "ended_at"])
    op.create_index("lading_job_changed", "lading_job", ["changed_at"])
    op.create_index("lading_job_dag", "lading_job", ["dag_id", "queued_at"])
    op.create_index("lading_job_ended", "lading_job", ["ended_at"])
    op.create_index("lading_job_gang", "lading_job", ["gang", "state"])
    op.create_index("lading_job_history", "lading_job", ["dag_id", "task_id", "ended_at"])
    op.create_index("lading_job_queued", "lading_job", ["queued_at", "token"])
    op.create_index("lading_job_started", "lading_job", ["started_at", "site", "dag_id"])
    op.create_index("lading_job_task", "lading_job", ["dag_id", "run_id", "task_id"])
    op.create_index("lading_job_unreported", "lading_job", ["owner", "unreported"])
    op.create_index("lading_job_waiting", "lading_job", ["state", "priority", "queued_at"])
    # They are searched by prefix, for which PostgreSQL needs an operator class.
    for name, column in (("place", "location"), ("native", "native_id"), ("node", "node")):
        prefix = {column: "varchar_pattern_ops"}
        op.create_index(f"lading_job_{name}", "lading_job", [column], postgresql_ops=prefix)
    op.create_table(
        "lading_gang",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("run_id", StringID(), nullable=False),
        sa.Column("name", sa.String(250)),
        sa.Column("stage", sa.String(12), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Double()),
        sa.Column("memory", sa.Text(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("changed_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_gang_pkey")),
    )
    op.create_table(
        "lading_hold",
        sa.Column("token", sa.String(36), nullable=False),
        sa.Column("gang", sa.String(36), nullable=False),
        sa.Column("job", sa.String(36), nullable=False),
        sa.Column("partition", StringID(), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("location", sa.String(250), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("reason", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("asked_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_hold_pkey")),
    )
    op.create_index("lading_hold_gang", "lading_hold", ["gang"])
    op.create_table(
        "lading_usage",
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("task_id", StringID(), nullable=False),
        sa.Column("day", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("size_class", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("cpu_seconds", sa.Double(), nullable=False),
        sa.Column("cpu_seconds_used", sa.Double(), nullable=False),
        sa.Column("usd", sa.Double()),
        sa.Column("team", sa.String(50)),
        sa.Column("dag_owner", sa.String(250)),
        sa.Column("usage", sa.Text(), nullable=False),
        sa.Column("usd_used", sa.Double()),
        sa.Column("usd_idle", sa.Double()),
        sa.Column("usd_boot", sa.Double()),
        sa.Column("cpu_seconds_unused", sa.Double(), nullable=False),
        sa.Column("cpu_seconds_idle", sa.Double(), nullable=False),
        sa.Column("cpu_seconds_boot", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("dag_id", "task_id", "day", "size_class", "site", name=op.f("lading_usage_pkey")),
    )
    op.create_index("lading_usage_day", "lading_usage", ["day"])
    op.create_table(
        "lading_site",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("contact_at", sa.Double()),
        sa.Column("trouble", sa.Text()),
        sa.Column("paused_by", sa.String(250)),
        sa.Column("barred", sa.Text()),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_site_pkey")),
    )
    op.create_table(
        "lading_location",
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("kind", sa.String(30), nullable=False),
        sa.Column("instance_type", sa.String(64)),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("arch", sa.String(32)),
        sa.Column("os", sa.String(32)),
        sa.Column("features", sa.Text()),
        sa.Column("capacity_type", sa.String(12)),
        sa.Column("nodes", sa.Integer()),
        sa.Column("idle_nodes", sa.Integer()),
        sa.Column("wraps", sa.String(250)),
        sa.Column("stacked", sa.Boolean()),
        sa.Column("usd_per_cpu_hour", sa.Double()),
        sa.Column("state", sa.String(12)),
        sa.Column("native_id", sa.String(250)),
        sa.Column("node", sa.String(250)),
        sa.Column("note", sa.Text()),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("site", "name", name=op.f("lading_location_pkey")),
    )
    op.create_table(
        "lading_capacity",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("name", sa.String(250), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("usd_per_hour", sa.Double()),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double()),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_capacity_pkey")),
    )
    op.create_index("lading_capacity_until", "lading_capacity", ["until"])
    op.create_table(
        "lading_size",
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("instance_type", sa.String(64), nullable=False),
        sa.Column("image", sa.String(250), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("seen_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("site", "instance_type", "image", name=op.f("lading_size_pkey")),
    )
    op.create_table(
        "lading_instance",
        sa.Column("token", sa.String(250), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("cpus", sa.Double(), nullable=False),
        sa.Column("memory", sa.Integer(), nullable=False),
        sa.Column("disk", sa.Integer(), nullable=False),
        sa.Column("gpus", sa.Double(), nullable=False),
        sa.Column("usd_per_hour", sa.Double()),
        sa.Column("surcharges", sa.Text()),
        sa.Column("zone", sa.String(40)),
        sa.Column("capacity_type", sa.String(12)),
        sa.Column("usd", sa.Double()),
        sa.Column("usd_since", sa.Double()),
        sa.Column("usd_idle", sa.Double()),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("state", sa.String(12), nullable=False),
        sa.Column("native_id", sa.String(250)),
        sa.Column("node", sa.String(250)),
        sa.Column("ordered_at", sa.Double(), nullable=False),
        sa.Column("launched_at", sa.Double()),
        sa.Column("ready_at", sa.Double()),
        sa.Column("idle_since", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("cause", sa.String(20)),
        sa.Column("reason", sa.Text()),
        sa.Column("changed_at", sa.Double()),
        sa.Column("usd_gone", sa.Double()),
        sa.Column("cpu_seconds_gone", sa.Double()),
        sa.Column("part_shared", sa.Double()),
        sa.PrimaryKeyConstraint("token", name=op.f("lading_instance_pkey")),
    )
    op.create_index("lading_instance_ended", "lading_instance", ["ended_at"])
    op.create_index("lading_instance_site", "lading_instance", ["site", "state"])
    op.create_table(
        "lading_data",
        sa.Column("key", sa.String(40), nullable=False),
        sa.Column("site", sa.String(64), nullable=False),
        sa.Column("location", sa.String(250), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("bytes", sa.BigInteger(), nullable=False),
        sa.Column("dag_id", StringID()),
        sa.Column("run_id", StringID()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("key", "site", "location", name=op.f("lading_data_pkey")),
    )
    op.create_index("lading_data_at", "lading_data", ["at"])
    op.create_table(
        "lading_request",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(12), nullable=False),
        sa.Column("target", sa.String(320), nullable=False),
        sa.Column("by", sa.String(250), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("done_at", sa.Double()),
        sa.Column("outcome", sa.Text()),
        sa.PrimaryKeyConstraint("id", name=op.f("lading_request_pkey")),
    )
    op.create_index("lading_request_done", "lading_request", ["done_at"])
    op.create_table(
        "lading_lease",
        sa.Column("name", sa.String(30), nullable=False),
        sa.Column("holder", sa.String(36), nullable=False),
        sa.Column("host", sa.String(250), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("managed", sa.Boolean(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("database_ahead", sa.Double()),
        sa.PrimaryKeyConstraint("name", name=op.f("lading_lease_pkey")),
    )
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
    op.create_table(
        "lading_bill",
        sa.Column("level", sa.String(5), nullable=False),
        sa.Column("split", sa.String(8), nullable=False),
        sa.Column("day", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("dag_id", StringID(), nullable=False),
        sa.Column("task_id", StringID(), nullable=False),
        sa.Column("name", StringID(), nullable=False),
        sa.Column("week", sa.Integer(), nullable=False),
        sa.Column("month", sa.Integer(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("used", sa.Double(), nullable=False),
        sa.Column("unused", sa.Double(), nullable=False),
        sa.Column("idle", sa.Double(), nullable=False),
        sa.Column("boot", sa.Double(), nullable=False),
        sa.Column("usd_used", sa.Double()),
        sa.Column("usd_unused", sa.Double()),
        sa.Column("usd_idle", sa.Double()),
        sa.Column("usd_boot", sa.Double()),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("level", "split", "day", "dag_id", "task_id", "name", name=op.f("lading_bill_pkey")),
    )
    op.create_index("lading_bill_name", "lading_bill", ["split", "dag_id", "task_id", "name", "day"])
    op.create_index("lading_bill_week", "lading_bill", ["week", "level"])
    op.create_index("lading_bill_month", "lading_bill", ["month", "level"])


def downgrade() -> None:
    op.drop_table("lading_bill")
    op.drop_table("lading_budget")
    op.drop_table("lading_share")
    op.drop_table("lading_run_forecast")
    op.drop_table("lading_run_request")
    op.drop_table("lading_lease")
    op.drop_table("lading_request")
    op.drop_table("lading_data")
    op.drop_table("lading_instance")
    op.drop_table("lading_size")
    op.drop_table("lading_capacity")
    op.drop_table("lading_location")
    op.drop_table("lading_site")
    op.drop_table("lading_usage")
    op.drop_table("lading_hold")
    op.drop_table("lading_gang")
    op.drop_table("lading_job")
