"""Advice: what the tasks of a Dag could ask for, from what their tries have used; memory in MiB, times in seconds."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from typing import NamedTuple

from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, usage
from lading.executors.store.tables import UsageRow
from lading.executors.store.usage import FreedAmounts
from lading.plugin.ui.queries.bill import billed
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.insight.bill import BillParts
from lading.scheduling.insight.periods import SECONDS_PER_DAY
from lading.scheduling.insight.right_size import FEWEST_TRIES, RightSize, Size, right_size, sizes
from lading.scheduling.insight.usage import Usage

MOST_TASKS = 200
# What would be saved is looked at in so many tasks, those that cost most.
MOST_DEAREST = 60
SECONDS_OF_MONTH = 30 * 86400.0
# For so many sizes of inputs it is said what they need, where that depends on them.
SIZES_SHOWN = 4


class InputSizes(BaseModel):
    """What a try should ask for whose inputs have so many bytes; ``tries`` had that much or less, and more than the
    row before says."""

    bytes: int
    tries: int
    memory: Size
    cpus: Size
    time: Size


class TaskAdvice(BaseModel):
    """What a task could ask for, from its last tries."""

    task_id: str
    tries: int
    short: int
    """How many of them had too little memory or time."""
    cpus_asked: float | None
    """None: the jobs themselves have been forgotten."""
    memory_asked: int | None
    memory: Size
    cpus: Size
    time: Size
    waited: float | None
    """Within so many seconds 95 of a hundred of them began."""
    by_input: list[InputSizes]
    """Where the size of inputs explains what tries needed."""
    saved_cpu_hours: float
    saved_gib_hours: float
    line: str | None
    """To paste into the Dag; None: there are too few tries."""
    wasted: float | None
    """GiB-hours that the last tries requested and did not use, with all of those that ran out; None: not known."""
    wasted_by_line: float | None
    """The same with what the line says."""


class Advice(BaseModel):
    """What the tasks of a Dag could ask for."""

    fewest: int
    """With fewer tries nothing is advised."""
    tasks: list[TaskAdvice]


def advice(session: Session, dag_id: str) -> Advice:
    """What each task of a Dag could ask for, those that would save most first."""
    return Advice(fewest=FEWEST_TRIES, tasks=[advise_task(*each) for each in advised(session, dag_id)])


class AdvisedTask(NamedTuple):
    """What is known of a task and what it should ask for.

    :param asked: the most cpus and memory that it asks for; None: its jobs have been forgotten
    """

    task_id: str
    asked: tuple[float | None, int | None]
    used: Usage
    size: RightSize


def advised(session: Session, dag_id: str) -> list[AdvisedTask]:
    """The tasks of a Dag of which tries have ended, those that would save most first."""
    asked = tasks_asked(session, dag_id)
    used = usage.of_tasks(session, dag_id, asked.keys())
    found = [AdvisedTask(name, asked[name], each, right_size(each)) for name, each in used.items() if each.tries]
    return sorted(found, key=lambda task: (-task.size.saved_cpu_hours - task.size.saved_gib_hours / 4, task.task_id))


def tasks_asked(session: Session, dag_id: str) -> dict[str, tuple[float | None, int | None]]:
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


def advise_task(task_id: str, asked: tuple[float | None, int | None], used: Usage, size: RightSize) -> TaskAdvice:
    """What one task could ask for, by what its tries used."""
    cpus, memory = asked
    return TaskAdvice(
        task_id=task_id,
        cpus_asked=cpus,
        memory_asked=memory,
        by_input=by_input(used),
        **asdict(size),
    )


def by_input(used: Usage) -> list[InputSizes]:
    """What tries should ask for by the size of their inputs, smallest first; empty: that does not explain it."""
    fitted = sizes(used)
    needs = (fitted.memory, fitted.cpus, fitted.time)
    known = sorted(use.input_size for use in used.sample if use.input_size is not None)
    if used.tries < FEWEST_TRIES or fitted.by_length or not any(need is not None and need.slope for need in needs):
        return []
    cuts = sorted({known[max(0, len(known) * part // SIZES_SHOWN - 1)] for part in range(1, SIZES_SHOWN + 1)})
    shown, before = list[InputSizes](), 0
    for size in cuts:
        amounts = {name: fitted.amount(name, size) for name in ("memory", "cpus", "time")}
        until = bisect_right(known, size)
        every = {name: Size(amount, amount) for name, amount in amounts.items()}
        shown.append(InputSizes(bytes=size, tries=until - before, **every))
        before = until
    return shown


class Saving(BaseModel):
    """What a task would save in a month if it asked for what suffices."""

    dag_id: str
    task_id: str
    usd: float | None
    """None: it has no price."""
    cpu_hours: float
    gib_hours: float
    line: str
    """To paste into the Dag."""


class Savings(BaseModel):
    """What right sizes would save in a month, by the tries of the last 30 days."""

    usd: float | None
    """Of all tasks; None: none has a price."""
    cpu_hours: float
    gib_hours: float
    tasks: list[Saving]
    """Those that would save most, most first."""
    tasks_left_out: int
    """How many tasks there are besides those that cost most, of which this is."""
    freed: FreedAmounts
    """What sizing saves without them."""


def savings(session: Session, sight: Sight, now: float) -> Savings:
    """What right sizes would save in a month; the price of a cpu-hour of a task is what those have cost on average."""
    spent: dict[tuple[str, str], BillParts] = {}
    since = (now - SECONDS_OF_MONTH) // SECONDS_PER_DAY * SECONDS_PER_DAY
    for key, parts in billed(session, sight, since, now, "task", now).items():
        if key.dag_id and key.task_id:
            spent.setdefault((key.dag_id, key.task_id), BillParts()).add(parts)
    dearest = sorted(spent, key=lambda task: (-(spent[task].usd or 0.0), -spent[task].cpu_seconds, task))
    found = []
    for dag_id, task_id in dearest[:MOST_DEAREST]:
        if (saving := saving_of(session, dag_id, task_id, spent[dag_id, task_id])) is not None:
            found.append(saving)
    found.sort(key=lambda each: (-(each.usd or 0.0), -each.cpu_hours - each.gib_hours / 4, each.dag_id, each.task_id))
    prices = [each.usd for each in found if each.usd is not None]
    return Savings(
        usd=sum(prices) if prices else None,
        cpu_hours=sum(each.cpu_hours for each in found),
        gib_hours=sum(each.gib_hours for each in found),
        tasks=found,
        tasks_left_out=max(0, len(dearest) - MOST_DEAREST),
        freed=usage.freed(session, now),
    )


def saving_of(session: Session, dag_id: str, task_id: str, cost: BillParts) -> Saving | None:
    """What a task would save; None: nothing, or that is not known.

    :param cost: what it has cost within a month
    """
    used = usage.of_task(session, dag_id, task_id)
    size, asked = right_size(used), cost.used + cost.unused
    if size.line is None or not used.cpu_hours or not asked:
        return None
    # The tries that are looked at may be those of a day or of a year.
    scale = asked / 3600 / used.cpu_hours
    cpu_hours, gib_hours = max(0.0, size.saved_cpu_hours * scale), max(0.0, size.saved_gib_hours * scale)
    usd = (cost.usd_used + cost.usd_unused) * cpu_hours * 3600 / asked if cost.is_priced else None
    if not cpu_hours and not gib_hours:
        return None
    return Saving(dag_id=dag_id, task_id=task_id, usd=usd, cpu_hours=cpu_hours, gib_hours=gib_hours, line=size.line)
