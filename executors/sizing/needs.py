"""What tasks need by what their tries have used, and what their waiting jobs ask for by it, brought up to date.

So siblings of a mapped task that wait already ask for what the first of them have shown.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, select, update

from lading.executors import store
from lading.executors.orchestrator.orchestrator import TaskNote, TaskTry
from lading.executors.store import JobRow, groups, usage
from lading.scheduling.insight import auto
from lading.scheduling.insight.right_size import Sizes, sizes
from lading.scheduling.insight.usage import Usage
from lading.scheduling.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading sizes the task"
# What is known of a task is read again after so many seconds: another controller may have seen tries of it meanwhile.
SECONDS_KNOWN = 3600.0
MOST_TASKS = 2000
# In one tick the jobs of tasks are brought up to date for so long, seconds, those first that were not for longest.
SECONDS_PER_TICK = 0.02
# All jobs that wait are looked at again after so many times as long as that takes, for a hundred thousand may wait. The
# new ones are looked at in each tick; one may be stored so much later than it says that it was queued, seconds.
PAUSE_BETWEEN_LOOKS, SECONDS_LATE = 10.0, 10.0
# None of them has ended, by which the index of a task's history leads to them.
WAITING = (*groups.CAN_BE_PLACED, JobRow.chosen.is_not(None), JobRow.ended_at.is_(None))
ALIKE = (
    JobRow.dag_id, JobRow.task_id, JobRow.site_hint, JobRow.chosen, JobRow.input_size, JobRow.cpus, JobRow.memory,
    JobRow.memory_limit,
)  # fmt: skip


@dataclass(slots=True)
class KnownTask:
    """What is known of a task.

    :param read_at: on the monotonic clock; ``looked_at``: when its jobs were last brought up to date
    """

    usage: Usage
    read_at: float
    looked_at: float
    fitted: Sizes | None = None


class Needs:
    """Keeps what the tasks need of which jobs wait.

    :param largest: the most of everything that a location can ever have at a site, or at any (None)
    """

    def __init__(self, largest: Callable[[str | None], Resources | None]) -> None:
        self.largest = largest
        self.known: dict[tuple[str, str], KnownTask] = {}
        self.due_at = self.newest = -math.inf

    def note_ends(self, session: Session, tokens: Iterable[str]) -> None:
        """Learn from jobs that have ended."""
        if not self.known:
            return
        columns = JobRow.dag_id, JobRow.task_id, *usage.OF_USE
        for chunk in store.chunks(list(tokens)):
            ended = (JobRow.token.in_(chunk), JobRow.ended_at.is_not(None))
            for job in session.execute(select(*columns).where(*ended).order_by(JobRow.ended_at)):
                known = self.known.get((job.dag_id, job.task_id))
                if known is not None and (use := usage.as_use(job)) is not None:
                    known.usage.add(use)
                    known.fitted = None

    def resize(self, session: Session) -> list[TaskNote]:
        """Let jobs that wait ask for what is known now; returns what event logs say of those that ask for ``auto``."""
        begun = time.monotonic()
        are_all = begun >= self.due_at
        new = () if are_all else (JobRow.queued_at > self.newest - SECONDS_LATE,)
        largest, notes = lru_cache(maxsize=None)(self.largest), list[TaskNote]()
        alike: dict[tuple[str, str], list[Any]] = {}
        newest = func.max(JobRow.queued_at).label("newest")
        for row in session.execute(select(*ALIKE, newest).where(*WAITING, *new).group_by(*ALIKE)):
            alike.setdefault((str(row.dag_id), str(row.task_id)), []).append(row)
            self.newest = max(self.newest, row.newest)
        until = begun + SECONDS_PER_TICK
        for number, task in enumerate(sorted(alike, key=self._looked_at)):
            if number and time.monotonic() > until:
                break
            fitted = self._fitted(session, task)
            for row in alike[task]:
                notes += self._resize(session, row, fitted, largest(row.site_hint))
        if are_all:
            now = time.monotonic()
            self.due_at = now + PAUSE_BETWEEN_LOOKS * (now - begun)
        return notes

    def _looked_at(self, task: tuple[str, str]) -> float:
        known = self.known.get(task)
        return -math.inf if known is None else known.looked_at

    def _fitted(self, session: Session, task: tuple[str, str]) -> Sizes:
        """What a task needs."""
        known, now = self.known.get(task), time.monotonic()
        if known is None or now - known.read_at > SECONDS_KNOWN:
            self.known.pop(task, None)
            if len(self.known) >= MOST_TASKS:
                del self.known[next(iter(self.known))]  # the one that was read first
            known = self.known[task] = KnownTask(usage.of_task(session, *task), now, now)
        known.looked_at = now
        if known.fitted is None:
            known.fitted = sizes(known.usage)
        return known.fitted

    def _resize(self, session: Session, row: Any, fitted: Sizes, largest: Resources | None) -> list[TaskNote]:
        """Resize jobs that are alike."""
        left, asked = auto.from_text(row.chosen), Resources(row.cpus, row.memory)
        found = auto.resized(asked, left, fitted, largest, row.input_size)
        limit = row.memory_limit
        if (memory := left.get("memory")) is not None and memory.is_asked and fitted.memory is not None:
            limit = found.memory
        if found == asked and limit == row.memory_limit:
            return []
        alike = [
            groups.equals_or_null(column, getattr(row, column.key)) for column in ALIKE if column is not JobRow.cpus
        ]
        notes = []
        new = {name: amount for name in sorted(left) if (amount := getattr(found, name)) != getattr(asked, name)}
        if asks := [name for name in new if left[name].is_asked and getattr(fitted, name) is not None]:
            said = "; ".join(auto.decision(name, new[name], fitted, row.input_size) for name in asks)
            tries = session.execute(select(JobRow.run_id, JobRow.try_number, JobRow.map_index).where(*WAITING, *alike))
            notes = [
                TaskNote(EVENT, TaskTry(row.dag_id, row.task_id, str(run_id), number, index), said)
                for run_id, number, index in tries
            ]
        session.execute(
            update(JobRow).where(*WAITING, *alike).values(cpus=found.cpus, memory=found.memory, memory_limit=limit),
            execution_options={"synchronize_session": False},
        )
        return notes
