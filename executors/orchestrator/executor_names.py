"""By which names tasks choose Lading's executor. Every Airflow process imports this, so it imports nothing."""

from __future__ import annotations

EXECUTOR_CLASS = "LadingExecutor"


def goes_to_lading(executor: str | None) -> bool:
    """Whether a task with this ``executor`` is Lading's; what it gives to other executors is none of its business."""
    from airflow.configuration import conf

    # Teams, whose executors stand behind the first semicolon, cannot have Lading as theirs.
    configured = conf.get("core", "executor").split(";")[0].split(",")
    for position, entry in enumerate(configured):
        alias, _, path = entry.strip().rpartition(":")
        if path.rpartition(".")[2] == EXECUTOR_CLASS:
            return executor in {alias, path, EXECUTOR_CLASS} if executor else position == 0
    return False
