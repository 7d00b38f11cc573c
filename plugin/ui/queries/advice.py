"""Advice: what the tasks of a Dag could ask for, from what their tries have used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy import select

from lading.executors.store import Job
from lading.plugin.ui.models import Advice, Sizes, TaskAdvice
from lading.scheduling.insight.right_size import FEWEST_TRIES, Size, Use, right_size

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# Of each task the youngest tries count; more of them would tell of code that is no more.
MOST_TRIES = 1000
MOST_TASKS = 200
# What ended a try says nothing of what it would have used.
SILENT = ("lost", "preempted", "node_failure", "submit_rejected")


def advice(session: Session, dag_id: str) -> Advice:
    """What each task of a Dag could ask for, those that would save most first."""
    tasks = session.scalars(
        select(Job.task_id)
        .where(Job.dag_id == dag_id, Job.task_id.is_not(None), Job.ended_at.is_not(None))
        .distinct()
        .limit(MOST_TASKS)
    ).all()
    found = [of_task(session, dag_id, task_id) for task_id in tasks if task_id is not None]
    found = [each for each in found if each.tries]
    found.sort(key=lambda each: (-each.saved_cpu_hours - each.saved_gib_hours / 4, each.task_id))
    return Advice(fewest=FEWEST_TRIES, tasks=found)


def of_task(session: Session, dag_id: str, task_id: str) -> TaskAdvice:
    """What one task could ask for."""
    rows = session.execute(
        select(
            Job.cpus, Job.memory, Job.started_at, Job.ended_at, Job.peak_memory, Job.cpu_seconds, Job.cause, Job.nodes
        )
        .where(Job.dag_id == dag_id, Job.task_id == task_id, Job.ended_at.is_not(None))
        .order_by(Job.ended_at.desc())
        .limit(MOST_TRIES)
    ).all()
    # What batch jobs of several nodes have used is not told by node.
    uses = [
        Use(
            row.cpus, row.memory, max(row.ended_at - row.started_at, 0.0), row.peak_memory, row.cpu_seconds, row.cause
        )
        for row in rows
        if row.started_at is not None and row.cause not in SILENT and (row.nodes or 1) == 1
    ]  # fmt: skip
    found = right_size(uses)
    return TaskAdvice(
        task_id=task_id,
        tries=found.tries,
        short=found.short,
        cpus_asked=max((use.cpus for use in uses), default=0.0),
        memory_asked=max((use.memory for use in uses), default=0),
        memory=sizes(found.memory),
        cpus=sizes(found.cpus),
        time=sizes(found.time),
        saved_cpu_hours=found.saved_cpu_hours,
        saved_gib_hours=found.saved_gib_hours,
        line=found.line,
    )


def sizes(found: Size) -> Sizes:
    return Sizes(most=found.most, nearly_all=found.nearly_all)
