"""When jobs that wait will start, as the page and the commands say it; times are epoch seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel
from sqlalchemy.orm import Session

from lading.executors.store import JobRow, State
from lading.executors.store.starts import waits_of_queues, waits_of_tasks
from lading.scheduling.insight.starts import ExpectedStart, KnownWaits, StartSource, expected_start

WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)


class StartEstimate(BaseModel):
    """From when to when a job that waits is expected to start."""

    since: float
    """Epoch seconds; so for ``until``."""
    until: float
    source: StartSource
    text: str
    """What it rests on, as a part of a sentence."""


def starts(session: Session, jobs: Sequence[JobRow], now: float) -> dict[str, ExpectedStart]:
    """When those of these jobs will start that wait, by token, as far as anything says it."""
    waiting = [job for job in jobs if job.state in WAITING]
    tasks, queues = waits_of_tasks(session, named(waiting)), waits_of_queues(session, waiting)
    found = {}
    for job in waiting:
        if (start := start_of(job, tasks, queues, now)) is not None:
            found[job.token] = start
    return found


def named(jobs: Iterable[JobRow]) -> set[tuple[str, str]]:
    """The tasks of jobs."""
    return {(job.dag_id, job.task_id) for job in jobs if job.dag_id and job.task_id}


def start_of(
    job: JobRow,
    tasks: Mapping[tuple[str, str], Sequence[float]],
    queues: Mapping[str, Sequence[float]],
    now: float,
) -> ExpectedStart | None:
    """When one job will start.

    :param tasks: the waits of earlier tries by Dag and task
    :param queues: those of the batch jobs at its site, by its name
    """
    past = []
    if (seconds := tasks.get((job.dag_id or "", job.task_id or ""))) is not None:
        past.append(KnownWaits(seconds, f"task {job.task_id}"))
    if job.site is not None and (seconds := queues.get(job.site)) is not None:
        past.append(KnownWaits(seconds, f"site {job.site}"))
    return expected_start(now, job.queued_at, None, None, past)


def as_estimate(start: ExpectedStart | None) -> StartEstimate | None:
    """The model of an expected start."""
    if start is None:
        return None
    return StartEstimate(since=start.since, until=start.until, source=start.source, text=start.text)
