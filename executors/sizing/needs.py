"""What tasks need according to their earlier tries, and the resizing of their waiting jobs.

Waiting instances of a mapped task request what the first instances have turned out to need.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from sqlalchemy import select, update

from lading.executors import store
from lading.executors.accounting import task_usage
from lading.executors.orchestrator.orchestrator import TaskNote, TaskTry
from lading.executors.store import JobRow, groups
from lading.executors.store.queued import QueuedJobs
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing import auto
from lading.scheduling.sizing.right_size import Sizes, sizes
from lading.scheduling.sizing.usage import Usage

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading sizes the task"
WAITING = groups.CAN_BE_PLACED


class SizedAlike(NamedTuple):
    dag_id: str
    task_id: str
    site_hint: str | None
    chosen: str
    input_size: int | None
    cpus: float
    memory: int
    memory_limit: int | None


@dataclass(slots=True)
class KnownTask:
    """What is known about a task.

    :param read_at: on the monotonic clock; so is ``looked_at``: when its jobs were last resized
    """

    usage: Usage
    read_at: float
    looked_at: float
    fitted: Sizes | None = None


class Needs:
    """Tracks what the tasks with waiting jobs need.

    :param largest: returns the largest amounts that a location can ever have at a site, or at any (None)
    """

    seconds_per_tick = 0.02
    """For resizing jobs, starting with the tasks that were resized longest ago."""
    most_tasks = 2000

    def __init__(self, largest: Callable[[str | None], Resources | None]) -> None:
        self.largest = largest
        self.known: dict[tuple[str, str], KnownTask] = {}
        self.due_at = -math.inf
        self.due: set[tuple[str, str]] = set()
        """The tasks whose jobs have to be resized."""

    def note_ends(self, session: Session, tokens: Iterable[str]) -> None:
        if not self.known:
            return
        columns = JobRow.dag_id, JobRow.task_id, *task_usage.OF_USE
        for chunk in store.chunks(list(tokens)):
            ended = (JobRow.token.in_(chunk), JobRow.ended_at.is_not(None))
            for job in session.execute(select(*columns).where(*ended).order_by(JobRow.ended_at)):
                known = self.known.get((job.dag_id, job.task_id))
                if known is not None and (use := task_usage.as_use(job)) is not None:
                    known.usage.add(use)
                    known.fitted = None
                    self.due.add((job.dag_id, job.task_id))

    def resize(self, session: Session, queued: QueuedJobs | None = None) -> list[TaskNote]:
        """Update the requests of waiting jobs; return event log entries for jobs with ``auto``.

        :param queued: the waiting jobs; None: read them
        """
        queued = queued or QueuedJobs().read(session)
        begun = time.monotonic()
        self.due |= queued.new_chosen
        queued.new_chosen = set()
        if begun >= self.due_at:
            self.due |= queued.chosen.keys()
            # The available machines change, so all tasks are resized every minute; a task with new or
            # ended jobs is resized at once.
            self.due_at = begun + 60.0
        largest, notes = lru_cache(maxsize=None)(self.largest), list[TaskNote]()
        until = begun + self.seconds_per_tick
        for number, task in enumerate(sorted(self.due, key=self._looked_at)):
            if number and time.monotonic() > until:
                break
            self.due.discard(task)
            alike: dict[SizedAlike, list[str]] = {}
            for token in queued.chosen.get(task, ()):
                job = queued.jobs[token]
                row = job.row
                limit = row.memory_limit
                each = SizedAlike(
                    *task, row.site_hint, job.more.chosen or "", job.more.input_size, row.cpus, row.memory, limit
                )
                alike.setdefault(each, []).append(token)
            if not alike:
                continue
            fitted = self._fitted(session, task)
            for each, tokens in alike.items():
                notes += self._resize(session, each, tokens, fitted, largest(each.site_hint), queued)
        return notes

    def _looked_at(self, task: tuple[str, str]) -> float:
        known = self.known.get(task)
        return -math.inf if known is None else known.looked_at

    def _fitted(self, session: Session, task: tuple[str, str]) -> Sizes:
        known, now = self.known.get(task), time.monotonic()
        # The usage of a task is read again after an hour, because another controller may have seen tries of it.
        if known is None or now - known.read_at > 3600.0:
            self.known.pop(task, None)
            if len(self.known) >= self.most_tasks:
                del self.known[next(iter(self.known))]  # the one read first
            known = self.known[task] = KnownTask(task_usage.of_task(session, *task), now, now)
        known.looked_at = now
        if known.fitted is None:
            known.fitted = sizes(known.usage)
        return known.fitted

    def _resize(
        self,
        session: Session,
        row: SizedAlike,
        tokens: Sequence[str],
        fitted: Sizes,
        largest: Resources | None,
        queued: QueuedJobs,
    ) -> list[TaskNote]:
        left, asked = auto.from_text(row.chosen), Resources(row.cpus, row.memory)
        found = auto.resized(asked, left, fitted, largest, row.input_size)
        limit = row.memory_limit
        if (memory := left.get("memory")) is not None and memory.is_asked and fitted.memory is not None:
            limit = found.memory
        if found == asked and limit == row.memory_limit:
            return []
        notes = []
        new = {name: amount for name in sorted(left) if (amount := getattr(found, name)) != getattr(asked, name)}
        if asks := [name for name in new if left[name].is_asked and getattr(fitted, name) is not None]:
            said = "; ".join(auto.decision(name, new[name], fitted, row.input_size) for name in asks)
            columns = JobRow.run_id, JobRow.try_number, JobRow.map_index
            tries = [
                TaskTry(row.dag_id, row.task_id, str(run_id), number, index)
                for chunk in store.chunks(tokens)
                for run_id, number, index in session.execute(select(*columns).where(JobRow.token.in_(chunk), *WAITING))
            ]
            notes = [TaskNote(EVENT, each, said) for each in tries]
        new_values = {"cpus": found.cpus, "memory": found.memory, "memory_limit": limit}
        for chunk in store.chunks(tokens):
            session.execute(
                update(JobRow).where(JobRow.token.in_(chunk), *WAITING).values(**new_values),
                execution_options={"synchronize_session": False},
            )
        queued.note(tokens)
        return notes
