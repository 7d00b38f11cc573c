"""``airflow lading advice``: what the tasks of a Dag should request, based on what their tries used."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from lading.plugin.command_host import as_command, host
from lading.plugin.database import reading_store
from lading.plugin.subcommands.console import complain, show
from lading.plugin.ui.queries.advice import AdvisedTask, advised
from lading.scheduling.insight.right_size import FEWEST_TRIES, sizes


@as_command
def advice(args: Namespace) -> None:
    """Print a row for each task with a finished try; exits with status 1 if there is none."""
    with reading_store() as session:
        found = advised(session, args.dag_id)
    if not found:
        complain(f"No try of Dag {args.dag_id} has finished yet, or the records of all its tries have been deleted.")
        sys.exit(1)
    show([row(task) for task in found], args.output)
    if any(task.size.line is None for task in found):
        complain(f"Tasks without a line have fewer than {FEWEST_TRIES} tries, too few to say what they should request.")


def row(task: AdvisedTask) -> dict[str, Any]:
    """Return the row of a task, with memory in MiB and time in seconds."""
    cpus, memory = task.asked
    size = task.size
    return {
        "task_id": task.task_id,
        "tries": size.tries,
        "short": size.short,
        "cpus_asked": cpus,
        "cpus": size.cpus.nearly_all,
        "memory_asked": memory,
        "memory": size.memory.nearly_all,
        "time": size.time.nearly_all,
        "wasted": None if size.wasted is None else round(size.wasted, 3),
        "wasted_by_line": None if size.wasted_by_line is None else round(size.wasted_by_line, 3),
        "line": size.line and host().line(sizes(task.used)),
    }
