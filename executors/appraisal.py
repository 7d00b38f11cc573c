"""Appraisal: what a job asks for, where that depends on its inputs or on its earlier tries.

The controller does it before it places such a job, in threads of its own: files may be on slow file systems, and the
tick waits for none of them.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow.utils.session import create_session
from sqlalchemy import select, update

from lading.executors import store
from lading.executors.file_sizes import FileSizes
from lading.executors.inputs import Inputs, Unknown
from lading.executors.settings import Settings
from lading.executors.store import Change, Job, State
from lading.scheduling.expressions import ExpressionError
from lading.scheduling.hints import HintError, Hints
from lading.scheduling.retries import Try, learn

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

THREADS = 4
# So many jobs are read at a time; those of one task and run go to one thread, which reads their inputs once.
MOST_AT_ONCE = 500

UNKNOWN = "waits until it is known what it asks for: its inputs, and its earlier tries, are looked at"

TaskKey = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Unappraised:
    """A job whose resources are not known yet.

    :param hints: as its author gave them
    :param sources: where its inputs come from, see ``lading.operators.sources``
    """

    token: str
    task: TaskKey
    map_index: int
    try_number: int
    site_hint: str | None
    hints: Mapping[str, object]
    sources: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a job has learnt from its earlier tries, for the event log."""

    job: Unappraised
    words: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What expressions ask of a job."""

    attempt: int
    map_index: int
    runtime: float
    inputs: Mapping[str, Any]
    sizes: FileSizes

    @property
    def input_size(self) -> int:
        return self.sizes.of([self.value(name) for name in self.inputs])

    def value(self, name: str) -> object:
        if name not in self.inputs:
            raise ExpressionError(f"there is no input {name!r}; valid: {', '.join(self.inputs) or 'none'}")
        value = self.inputs[name]
        if isinstance(value, Unknown):
            raise ExpressionError(f"input {name!r} is not known: {value.why}")
        return value

    def size(self, name: str) -> int:
        return self.sizes.of(self.value(name))


class Appraiser:
    """Finds out what jobs ask for, beside the controller's ticks.

    :param ring: called when something has been found out
    """

    def __init__(self, settings: Settings, ring: Callable[[], None]) -> None:
        self.settings = settings
        self.ring = ring
        self.pool = ThreadPoolExecutor(THREADS, "appraisal")
        self.under_way: dict[Future[tuple[list[Change], list[Lesson]]], frozenset[str]] = {}

    def step(self, session: Session) -> tuple[list[Change], list[Lesson]]:
        """Collect what has been found out, and begin with jobs that are new."""
        changes: list[Change] = []
        lessons: list[Lesson] = []
        for future in [future for future in self.under_way if future.done()]:
            del self.under_way[future]
            try:
                found, learnt = future.result()
            except Exception:  # such as a database that is away: tried again
                log.exception("Jobs could not be appraised; trying again")
            else:
                changes += found
                lessons += learnt
        busy = {token for tokens in self.under_way.values() for token in tokens} | {each.token for each in changes}
        by_task: dict[TaskKey, list[Unappraised]] = {}
        for job in unappraised(session, busy):
            by_task.setdefault(job.task, []).append(job)
        for jobs in by_task.values():
            future = self.pool.submit(appraise, jobs, self.settings)
            self.under_way[future] = frozenset(job.token for job in jobs)
            future.add_done_callback(lambda _: self.ring())
        return changes, lessons

    def close(self) -> None:
        """Begin with nothing more."""
        self.pool.shutdown(wait=False, cancel_futures=True)


def columns(hints: Hints, config: Mapping[str, Any], sources: Mapping[str, Any], try_number: int) -> dict[str, Any]:
    """The columns of a new job that make it wait for its appraisal, ``{}`` for one that needs none.

    :param config: its hints as they were written
    """
    if not hints.expressions and try_number <= 1:
        return {}
    return {"appraisal": json.dumps({"hints": dict(config), "sources": dict(sources)})}


def unappraised(session: Session, busy: Iterable[str]) -> list[Unappraised]:
    """Queued jobs that wait for their appraisal, in the order in which they should start.

    :param busy: the jobs that are being appraised
    """
    but = set(busy)
    rows = session.execute(
        select(
            Job.token, Job.dag_id, Job.run_id, Job.task_id, Job.map_index, Job.try_number, Job.site_hint, Job.appraisal
        )
        .where(Job.state == State.QUEUED, Job.appraisal.is_not(None))
        .order_by(Job.priority.desc(), Job.queued_at, Job.token)
        .limit(MOST_AT_ONCE + len(but))
    )
    jobs = []
    for token, dag_id, run_id, task_id, map_index, try_number, site_hint, appraisal in rows:
        if token not in but:
            task = (str(dag_id), str(run_id), str(task_id))
            jobs.append(Unappraised(token, task, map_index, try_number, site_hint, **json.loads(str(appraisal))))
    return jobs


def explain(session: Session, before: float) -> None:
    """Tell jobs why they wait whose appraisal takes long.

    :param before: those that were queued before, seconds since the epoch
    """
    session.execute(
        update(Job)
        .where(Job.state == State.QUEUED, Job.appraisal.is_not(None), Job.queued_at < before, Job.reason.is_(None))
        .values(reason=UNKNOWN, unreported=True, news=Job.news + 1),
        execution_options={"synchronize_session": False},
    )


def appraise(jobs: Sequence[Unappraised], settings: Settings) -> tuple[list[Change], list[Lesson]]:
    """What jobs of one task and run ask for; one whose earlier try has not ended yet is left for later."""
    changes, lessons = [], []
    dag_id, run_id, _ = jobs[0].task
    sizes = FileSizes()
    with create_session(scoped=False) as session:
        inputs = Inputs(session, dag_id, run_id, jobs[0].sources)
        history = earlier_tries(session, jobs)
        largest = largest_memory(session, jobs[0].site_hint)
        for job in jobs:
            tries = [each for each in history.get(job.map_index, []) if each.try_number < job.try_number]
            if any(each.state in store.LIVE for each in tries):
                continue
            try:
                values, words = appraised(job, tries, inputs, sizes, settings, largest)
            except (HintError, ExpressionError) as error:
                ended = {"state": State.FAILED, "cause": "error", "reason": str(error), "ended_at": time.time()}
                changes.append(Change(job.token, ended, report=True))
                continue
            changes.append(Change(job.token, {**values, "appraisal": None, "reason": None}))
            if words:
                lessons.append(Lesson(job, "; ".join(words)))
    return changes, lessons


def appraised(
    job: Unappraised, tries: Sequence[Job], inputs: Inputs, sizes: FileSizes, settings: Settings, largest: int | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The columns of a job that say what it asks for, and in words what it has learnt.

    :raises HintError: an expression cannot be evaluated, or its result is not valid
    :raises ExpressionError: its inputs are not known
    """
    hints = Hints.parse(job.hints)
    if hints.expressions:
        last = max(tries, key=lambda each: each.try_number, default=None)
        runtime = 0.0 if last is None else seconds(last)
        facts = [Facts(job.try_number, job.map_index, runtime, values, sizes) for values in inputs.of(job.map_index)]
        hints = largest_of([hints.evaluated(each) for each in facts])
    lesson = learn(
        hints.resources(settings.default_resources),
        hints.limits(),
        [as_try(each) for each in tries],
        settings.retry_factors,
        largest,
    )
    limits = {"memory_limit": lesson.limits.memory, "time_limit": lesson.limits.time}
    return {**asdict(lesson.resources), **limits}, lesson.words


def largest_of(hints: Sequence[Hints]) -> Hints:
    """The hints that suffice for each of several jobs, which run in one task instance."""
    values = {
        name: max((amount for each in hints if (amount := getattr(each, name)) is not None), default=None)
        for name in ("cpus", "memory", "disk", "gpus", "time")
    }
    return replace(hints[0] if hints else Hints(), **values)  # type: ignore[arg-type]


def earlier_tries(session: Session, jobs: Sequence[Unappraised]) -> dict[int, list[Job]]:
    """The tries of these jobs that the store knows, by map index."""
    retried = sorted({job.map_index for job in jobs if job.try_number > 1})
    dag_id, run_id, task_id = jobs[0].task
    history: dict[int, list[Job]] = {}
    for start in range(0, len(retried), store.CHUNK):
        rows = session.scalars(
            select(Job).where(
                Job.dag_id == dag_id,
                Job.run_id == run_id,
                Job.task_id == task_id,
                Job.map_index.in_(retried[start : start + store.CHUNK]),
            )
        )
        for row in rows:
            history.setdefault(row.map_index, []).append(row)
    return history


def largest_memory(session: Session, site: str | None) -> int | None:
    """MiB of the largest location, of one site or of all; None: none is known."""
    query = select(store.Location.memory)
    if site is not None:
        query = query.where(store.Location.site == site)
    return max(session.scalars(query), default=None)


def as_try(job: Job) -> Try:
    """An earlier try, as its successor looks at it."""
    memory = job.memory_limit or max(job.memory, job.peak_memory or 0)
    return Try(job.try_number, job.cause, memory, float(job.time_limit or seconds(job)))


def seconds(job: Job) -> float:
    """How long a try ran."""
    return (job.ended_at or 0.0) - job.started_at if job.started_at else 0.0
