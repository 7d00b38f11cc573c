"""Advice: what tasks should request, based on what their tries used, and what that would save.

Memory is MiB, times are seconds, money is USD.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import asdict
from typing import NamedTuple

from pydantic import BaseModel
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from lading.executors.accounting import task_usage
from lading.executors.accounting.task_usage import FreedAmounts
from lading.executors.store import JobRow
from lading.executors.store.tables import UsageRow
from lading.plugin.ui.queries.bill import billed
from lading.plugin.ui.queries.sight import Sight
from lading.scheduling.accounting.bill import BillParts
from lading.scheduling.accounting.periods import SECONDS_PER_DAY
from lading.scheduling.sizing.right_size import FEWEST_TRIES, RightSize, Size, advised_sizes, right_size
from lading.scheduling.sizing.usage import Usage

MOST_TASKS = 200
# Savings are computed for at most this many tasks, the most expensive ones.
MOST_DEAREST = 60
SECONDS_OF_MONTH = 30 * 86400.0
# If needs depend on the size of inputs, they are listed for this many sizes.
SIZES_SHOWN = 4


class InputSizes(BaseModel):
    """What a try with inputs of up to ``bytes`` should request. ``tries`` counts the tries with inputs of this size or
    smaller, but larger than those of the previous entry."""

    bytes: int
    tries: int
    memory: Size
    cpus: Size
    time: Size


class TaskAdvice(BaseModel):
    """What a task should request, based on its last tries."""

    task_id: str
    tries: int
    short: int
    """How many of the tries had too little memory or time."""
    short_of: list[str]
    """What the last of these had too little of: ``memory``, ``time``."""
    cpus_asked: float | None
    """None: the jobs have been purged from the store."""
    memory_asked: int | None
    memory: Size
    cpus: Size
    time: Size
    waited: float | None
    """Seconds within which 95 % of the tries started; None: there are no tries."""
    by_input: list[InputSizes]
    """Needs by size of inputs; empty unless that size explains what tries needed."""
    saved_cpu_hours: float
    saved_gib_hours: float
    line: str | None
    """The line to paste into the Dag; None: there are too few tries."""
    wasted: float | None
    """GiB-hours that the last tries requested but did not use, plus all that those out of memory requested; None: no
    peak was measured."""
    wasted_by_line: float | None
    """The same if they had requested what the line says."""


class Advice(BaseModel):
    """What the tasks of a Dag should request."""

    fewest: int
    """Tasks with fewer tries get no advice."""
    tasks: list[TaskAdvice]


def advice(session: Session, dag_id: str) -> Advice:
    """Advise each task of a Dag, largest savings first."""
    return Advice(fewest=FEWEST_TRIES, tasks=[advise_task(*each) for each in advised(session, dag_id)])


class AdvisedTask(NamedTuple):
    """A task's usage and what it should request.

    :param asked: the most cpus and memory that any of its jobs requested; None: its jobs have been purged
    """

    task_id: str
    asked: tuple[float | None, int | None]
    used: Usage
    size: RightSize


def advised(session: Session, dag_id: str) -> list[AdvisedTask]:
    """Return the tasks of a Dag with at least one finished try, largest savings first."""
    asked = tasks_asked(session, dag_id)
    used = task_usage.of_tasks(session, dag_id, asked.keys())
    found = [AdvisedTask(name, asked[name], each, right_size(each)) for name, each in used.items() if each.tries]
    return sorted(found, key=lambda task: (-task.size.saved_cpu_hours - task.size.saved_gib_hours / 4, task.task_id))


def tasks_asked(session: Session, dag_id: str) -> dict[str, tuple[float | None, int | None]]:
    """Return the tasks of a Dag with at least one finished try, each with the most cpus and memory its jobs requested.

    Both are None if its jobs have been purged.
    """
    kept = select(UsageRow.task_id).where(UsageRow.dag_id == dag_id).distinct().limit(MOST_TASKS)
    there = select(JobRow.task_id, func.max(JobRow.cpus), func.max(JobRow.memory)).where(
        JobRow.dag_id == dag_id, JobRow.task_id.is_not(None), JobRow.ended_at.is_not(None), task_usage.IS_OF_TASK
    )
    found: dict[str, tuple[float | None, int | None]] = dict.fromkeys(session.scalars(kept), (None, None))
    for task_id, cpus, memory in session.execute(there.group_by(JobRow.task_id).limit(MOST_TASKS)):
        found[str(task_id)] = cpus, memory
    return found


def advise_task(task_id: str, asked: tuple[float | None, int | None], used: Usage, size: RightSize) -> TaskAdvice:
    cpus, memory = asked
    return TaskAdvice(
        task_id=task_id,
        cpus_asked=cpus,
        memory_asked=memory,
        by_input=by_input(used),
        **asdict(size),
    )


def by_input(used: Usage) -> list[InputSizes]:
    """Return what tries should request by size of inputs, smallest first; empty if sizes do not explain their needs."""
    fitted = advised_sizes(used)
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
    """What a task would save per month if it requested only what it needs."""

    dag_id: str
    task_id: str
    usd: float | None
    """None: its jobs have no price."""
    cpu_hours: float
    gib_hours: float
    cpus_asked: float | None
    """As in :class:`TaskAdvice`, like the fields below."""
    memory_asked: int | None
    cpus: Size
    memory: Size
    line: str
    """The line to paste into the Dag."""


class Savings(BaseModel):
    """What right sizes would save per month, based on the tries of the last 30 days."""

    usd: float | None
    """The sum over ``tasks``; None: none has a price."""
    cpu_hours: float
    gib_hours: float
    tasks: list[Saving]
    """Largest savings first."""
    tasks_left_out: int
    """Number of less expensive tasks, which were not examined."""
    freed: FreedAmounts
    """What automatic sizing saves already, in addition to this."""


def savings(session: Session, sight: Sight, now: float, only_dag: str | None = None) -> Savings:
    """Compute what right sizes would save per month, at each task's average price of a cpu-hour.

    :param only_dag: the Dag whose tasks are examined; None: all Dags
    """
    spent: dict[tuple[str, str], BillParts] = {}
    since = (now - SECONDS_OF_MONTH) // SECONDS_PER_DAY * SECONDS_PER_DAY
    for key, parts in billed(session, sight, since, now, "task", now).items():
        if key.task_id and key.dag_id and only_dag in (None, key.dag_id):
            spent.setdefault((key.dag_id, key.task_id), BillParts()).add(parts)
    dearest = sorted(spent, key=lambda task: (-(spent[task].usd or 0.0), -spent[task].cpu_seconds, task))
    examined = dearest[:MOST_DEAREST]
    asked = {dag_id: tasks_asked(session, dag_id) for dag_id in {dag_id for dag_id, _ in examined}}
    found = []
    for dag_id, task_id in examined:
        requested = asked[dag_id].get(task_id, (None, None))
        if (saving := saving_of(session, dag_id, task_id, spent[dag_id, task_id], requested)) is not None:
            found.append(saving)
    found.sort(key=lambda each: (-(each.usd or 0.0), -each.cpu_hours - each.gib_hours / 4, each.dag_id, each.task_id))
    prices = [each.usd for each in found if each.usd is not None]
    return Savings(
        usd=sum(prices) if prices else None,
        cpu_hours=sum(each.cpu_hours for each in found),
        gib_hours=sum(each.gib_hours for each in found),
        tasks=found,
        tasks_left_out=max(0, len(dearest) - MOST_DEAREST),
        freed=task_usage.freed(session, now),
    )


def saving_of(
    session: Session, dag_id: str, task_id: str, cost: BillParts, asked: tuple[float | None, int | None]
) -> Saving | None:
    """Compute what a task would save; None: nothing, or its usage is unknown.

    :param cost: what it cost in the last 30 days
    :param asked: the most cpus and memory that any of its jobs requested
    """
    used = task_usage.of_task(session, dag_id, task_id)
    size, requested = right_size(used), cost.used + cost.unused
    if size.line is None or not used.cpu_hours or not requested:
        return None
    # The sampled tries can span a day or a year, so they are scaled to the month.
    scale = requested / 3600 / used.cpu_hours
    cpu_hours, gib_hours = max(0.0, size.saved_cpu_hours * scale), max(0.0, size.saved_gib_hours * scale)
    usd = (cost.usd_used + cost.usd_unused) * cpu_hours * 3600 / requested if cost.is_priced else None
    if not cpu_hours and not gib_hours:
        return None
    cpus_asked, memory_asked = asked
    return Saving(
        dag_id=dag_id,
        task_id=task_id,
        usd=usd,
        cpu_hours=cpu_hours,
        gib_hours=gib_hours,
        cpus_asked=cpus_asked,
        memory_asked=memory_asked,
        cpus=size.cpus,
        memory=size.memory,
        line=size.line,
    )
