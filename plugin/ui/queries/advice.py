"""Advice: what the tasks of a Dag could ask for, from what their tries have used."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, usage
from lading.executors.store.tables import UsageRow
from lading.plugin.ui.queries.models import Advice, InputSizes, TaskAdvice
from lading.scheduling.insight.right_size import FEWEST_TRIES, right_size
from lading.scheduling.insight.usage import Usage, largest_input

MOST_TASKS = 200
# Input sizes explain what a task needs where one class of them needs so many times what another does.
TELLING = 1.5


def advice(session: Session, dag_id: str) -> Advice:
    """What each task of a Dag could ask for, those that would save most first."""
    asked = tasks(session, dag_id)
    used = usage.of_tasks(session, dag_id, asked.keys())
    found = [of_task(task_id, asked[task_id], classes) for task_id, classes in used.items()]
    found = [each for each in found if each.tries]
    found.sort(key=lambda each: (-each.saved_cpu_hours - each.saved_gib_hours / 4, each.task_id))
    return Advice(fewest=FEWEST_TRIES, tasks=found)


def tasks(session: Session, dag_id: str) -> dict[str, tuple[float | None, int | None]]:
    """The tasks of a Dag of which a try has ended, each with the most cpus and memory that it asks for, as far as its
    jobs are still there.
    """
    kept = select(UsageRow.task_id).where(UsageRow.dag_id == dag_id).distinct().limit(MOST_TASKS)
    there = select(JobRow.task_id, func.max(JobRow.cpus), func.max(JobRow.memory)).where(
        JobRow.dag_id == dag_id, JobRow.task_id.is_not(None), JobRow.ended_at.is_not(None)
    )
    found: dict[str, tuple[float | None, int | None]] = dict.fromkeys(session.scalars(kept), (None, None))
    for task_id, cpus, memory in session.execute(there.group_by(JobRow.task_id).limit(MOST_TASKS)):
        found[str(task_id)] = cpus, memory
    return found


def of_task(task_id: str, asked: tuple[float | None, int | None], classes: dict[int, Usage]) -> TaskAdvice:
    """What one task could ask for, by what its tries used."""
    cpus, memory = asked
    return TaskAdvice(
        task_id=task_id,
        cpus_asked=cpus,
        memory_asked=memory,
        by_input=by_input(classes),
        **asdict(right_size(usage.whole(classes))),
    )


def by_input(classes: dict[int, Usage]) -> list[InputSizes]:
    """What would have sufficed by the size of the inputs, smallest first; empty: that does not explain it."""
    known = {number: right_size(each) for number, each in sorted(classes.items()) if number >= 0}
    found = {number: each for number, each in known.items() if each.tries >= FEWEST_TRIES}
    if not any(
        is_telling([value for each in found.values() if (value := getattr(each, name).nearly_all) is not None])
        for name in ("memory", "time", "cpus")
    ):
        return []
    return [
        InputSizes(
            bytes=largest_input(number) or 0, tries=each.tries, memory=each.memory, cpus=each.cpus, time=each.time
        )
        for number, each in found.items()
    ]


def is_telling(values: list[float]) -> bool:
    """Whether amounts differ by more than chance makes them."""
    return len(values) > 1 and max(values) >= TELLING * min(values)
