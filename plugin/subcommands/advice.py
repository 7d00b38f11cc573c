"""``airflow lading advice``: what the tasks of a Dag should request, based on what their tries used."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from lading.plugin.database import reading_store
from lading.plugin.host import Host
from lading.plugin.subcommands.console import complain, show, with_unit
from lading.plugin.ui.queries.advice import AdvisedTask, advised
from lading.scheduling.model.prediction import SHORTEST_SAMPLED
from lading.scheduling.sizing.right_size import FEWEST_TRIES, RightSize, advised_sizes
from lading.scheduling.sizing.usage import SHORTEST_SECONDS
from lading.scheduling.text.units import format_count, format_memory, format_time


def advice(host: Host, args: Namespace) -> None:
    """Print a row for each task with a finished try; exits with status 1 if there is none."""
    with reading_store(host) as session:
        found = advised(session, args.dag_id)
    if not found:
        complain(f"No try of Dag {args.dag_id} has finished yet, or the records of all its tries have been deleted.")
        sys.exit(1)
    mapper = short_row if args.output in ("table", "plain") else row
    show(host, [mapper(host, task) for task in found], args.output)
    for remark in remarks([task.size for task in found]):
        complain(remark)


def remarks(found: Sequence[RightSize]) -> Iterator[str]:
    """Yield why tasks have no advice, or none for one of their amounts."""
    if any(size.tries < FEWEST_TRIES for size in found):
        yield f"Tasks with fewer than {FEWEST_TRIES} tries get no advice."
    advised = [size for size in found if size.tries >= FEWEST_TRIES]
    if any(size.memory.nearly_all is None for size in advised):
        yield f"Other tasks without memory: no try of at least {SHORTEST_SAMPLED:g} s has a measured peak."
    if any(size.cpus.nearly_all is None for size in advised):
        yield f"Other tasks without cpus: no try of at least {SHORTEST_SECONDS:g} s has measured cpu seconds."


def row(host: Host, task: AdvisedTask) -> dict[str, Any]:
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
        "line": size.line and host.line(advised_sizes(task.used)),
    }


def short_row(host: Host, task: AdvisedTask) -> dict[str, Any]:
    """Return the row of a task for a table."""
    found = row(host, task)

    def gib_hours(amount: float) -> str:
        return f"{format_count(amount)} GiB-hours"

    forms = {
        "memory_asked": format_memory,
        "memory": format_memory,
        "time": format_time,
        "wasted": gib_hours,
        "wasted_by_line": gib_hours,
    }
    return found | {name: with_unit(found[name], form) for name, form in forms.items()}
