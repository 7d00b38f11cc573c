"""Predictions of how long jobs run, and wait in queues, from the jobs in the store."""

from __future__ import annotations

import math
import time
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from lading.executors.store import JobRow, State
from lading.executors.store.tables import InstanceRow
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.scheduling.matching.market import queue_of
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.model.prediction import ENOUGH, History, Prediction
from lading.scheduling.model.resources import Resources

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

# How many of the latest jobs are considered.
MOST = 5_000
COLUMNS = (
    JobRow.dag_id,
    JobRow.run_id,
    JobRow.task_id,
    JobRow.cpus,
    JobRow.memory,
    JobRow.disk,
    JobRow.gpus,
    JobRow.time_limit,
    JobRow.kind,
)


class Durations:
    """Predicts running times from the latest jobs that succeeded, which it rereads from time to time."""

    seconds_until_stale = 60.0

    def __init__(self) -> None:
        self.history = History()
        self.stale_at = -math.inf
        self._known: set[str] = set()
        self._newest = -math.inf

    def read(self, session: Session) -> Durations:
        """Reread the jobs if the last read is too old; return self."""
        now = time.monotonic()
        if now < self.stale_at:
            return self
        self.history, self.stale_at = History(), now + self.seconds_until_stale
        self._known, self._newest = set(), -math.inf
        self._add(session)
        return self

    def learn(self, session: Session) -> set[str | None]:
        """Also read the jobs that have ended since the last read; return their Dags."""
        self.read(session)
        # The end of a job can be stored some seconds after that of a job which ended later.
        since = [JobRow.ended_at >= self._newest - 10.0] if self._known else []
        return self._add(session, *since)

    def _add(self, session: Session, *conditions: Any) -> set[str | None]:
        ended = (JobRow.state == State.SUCCEEDED, JobRow.started_at.is_not(None), JobRow.ended_at.is_not(None))
        columns = JobRow.token, *COLUMNS, JobRow.started_at, JobRow.ended_at
        query = select(*columns).where(*ended, *conditions).order_by(JobRow.ended_at.desc()).limit(MOST)
        dags: set[str | None] = set()
        for row in session.execute(query):
            if row.token not in self._known:
                self._known.add(row.token)
                self._newest = max(self._newest, row.ended_at)
                self.history.add(levels(row), row.ended_at - row.started_at, row.time_limit)
                dags.add(row.dag_id)
        return dags

    def known(self, row: Any) -> float | None:
        """Return the predicted running time of a row's job or else its time limit, in seconds, or None."""
        return self.predict(row).seconds if self.history.knows(levels(row)) else row.time_limit

    def predict(self, row: Any, enough: int = ENOUGH, weight: float = 1.0) -> Prediction:
        """Predict how long a row's job will run.

        :param row: has the :data:`COLUMNS`
        :param enough: how many similar jobs a level of the history needs before it is used
        :param weight: see :meth:`lading.scheduling.model.prediction.History.predict`
        """
        return self.history.predict(levels(row), row.time_limit, enough, weight)


def levels(row: Any) -> tuple[tuple[Hashable, str], ...]:
    """Return the groups of similar jobs to which a job belongs, narrowest first, each with a description.

    A job script is not similar to the short jobs of its task, which write it to its site and receive its result.
    """
    if row.task_id is None:
        return ()
    task: tuple[Hashable, ...] = row.dag_id, row.task_id
    name = f"{row.dag_id}.{row.task_id}"
    if row.kind == JOB_SCRIPT:
        task, name = (*task, JOB_SCRIPT), f"the script of {name}"
    size = Resources(row.cpus, row.memory, row.disk, row.gpus)
    return ((*task, size), f"{name} of this size"), ((*task, row.run_id), f"{name} in this run"), (task, name)


class PastWaits:
    """How long jobs have waited in the queues of batch systems, and how long launched machines took until they were up.

    Both are reread from time to time.
    """

    seconds_until_stale = 60.0

    def __init__(self) -> None:
        self.known = QueueWaits()
        self.launches = QueueWaits()
        self.stale_at = -math.inf

    def read(self, session: Session) -> QueueWaits:
        """Return the queue waits of the jobs that started last."""
        now = time.monotonic()
        if now < self.stale_at:
            return self.known
        self.known, self.launches, self.stale_at = QueueWaits(), QueueWaits(), now + self.seconds_until_stale
        columns = (
            JobRow.site,
            JobRow.queue,
            JobRow.queue_hint,
            JobRow.cpus,
            JobRow.nodes,
            JobRow.submitted_at,
            JobRow.started_at,
        )
        begun = (JobRow.started_at.is_not(None), JobRow.submitted_at.is_not(None), JobRow.site.is_not(None))
        for row in session.execute(select(*columns).where(*begun).order_by(JobRow.started_at.desc()).limit(MOST)):
            queue, cpus = row.queue or row.queue_hint, row.cpus * (row.nodes or 1)
            self.known.add(row.site, queue, cpus, max(0.0, row.started_at - row.submitted_at))
        boot = (InstanceRow.site, InstanceRow.kind, InstanceRow.cpus, InstanceRow.ordered_at, InstanceRow.ready_at)
        up = select(*boot).where(InstanceRow.ready_at.is_not(None)).order_by(InstanceRow.ready_at.desc()).limit(MOST)
        for site, kind, cpus, ordered_at, ready_at in session.execute(up):
            self.launches.add(site, queue_of(kind), cpus, max(0.0, (ready_at or 0.0) - ordered_at))
        return self.known
