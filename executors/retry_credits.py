"""Free tries: a try that failed because of the infrastructure is given back to its task and uses up no retry.

The same applies to a try that ran out of the memory that Lading chose for it; the next try gets more.

Airflow counts every try. Therefore, before a failure is reported to Airflow, the task instance's ``max_tries`` is
raised by one, and its state is set like that of a running task that a user clears (``clear_task_instances``). Airflow
then retries the task by its own rules, with callbacks and delay, even if the Dag has no retries.

The task's hint, or else the configuration, limits how many tries are given back. A try in which none of the task's code
has run does not count towards the limit, because repeating it does no harm.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.sqlalchemy import with_row_locks
from airflow.utils.state import TaskInstanceState
from sqlalchemy import ColumnElement, Select, func, select

from lading.executors.store import JobRow, LocationRow, State
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.retries import INFRASTRUCTURE, OVER_LIMIT
from lading.scheduling.model.reasons import because
from lading.scheduling.sizing.auto import from_text
from lading.scheduling.text.units import format_memory

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading gives the try back"
# The cause of tries that had too little memory.
TOO_SMALL = "out_of_memory"
# The reason's code of tries that ended before any code of the task ran.
NOT_BEGUN = "api_silent_at_start"
# States of a task instance whose failure Airflow does not know yet.
UNAWARE = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


def give_back(session: Session, jobs: Iterable[JobRow], most: int) -> list[Log]:
    """Give tries back to the tasks of ended jobs; returns the entries for their event logs.

    Call it in the transaction after which the failures are reported to Airflow.

    :param jobs: of this session, whose ends were not reported to Airflow yet
    :param most: how many tries of one task instance are given back, if its hints do not say
    """
    entries: list[Log] = []
    for job in jobs:
        if job.given_back or not (_is_infrastructure(session, job) or _may_be_too_small(job)):
            continue
        if (task := _task(session, job)) is not None:
            before, limit = _given_back(session, job), _limit(task, most)
            if job.cause == TOO_SMALL:
                if not _is_size_of_ours(session, job, task):
                    continue
                _give_back(session, task)
                job.given_back = True
            elif before < limit or not _has_begun(job):
                _give_back(session, task)
                job.given_back = True
            elif not limit:
                continue
            entries.append(Log(event=EVENT if job.given_back else "lading counts the try", task_instance=task.key))
            entries[-1].extra = _sentence(job, before, limit)
    return entries


def _limit(task: TaskInstance, most: int) -> int:
    own = _hints(task).infrastructure_retries
    return most if own is None else own


def _hints(task: TaskInstance) -> Hints:
    try:
        return Hints.from_config(task.executor_config)
    except HintError:  # the job has failed for this reason anyway
        return Hints()


def _may_be_too_small(job: JobRow) -> bool:
    """Return whether a job ran out of memory, and Lading may have chosen the amount."""
    is_short = job.state == State.FAILED and job.kind == "ExecuteTask" and job.cause == TOO_SMALL
    return is_short and job.chosen is not None


def _is_size_of_ours(session: Session, job: JobRow, task: TaskInstance) -> bool:
    """Return whether Lading chose the memory of a job that ran out of it, and the next try gets more."""
    choice = from_text(job.chosen).get("memory")
    if choice is None or _hints(task).infrastructure_retries == 0 or job.memory == choice.until_known:
        return False
    if not choice.is_asked and job.reason_code in OVER_LIMIT:
        return False  # the amount is the site's limit, or follows from it
    # If another try with as much memory has failed, too, no machine has more.
    as_much = _same_instance(job, JobRow.cause == TOO_SMALL, JobRow.memory >= job.memory)
    return session.scalar(select(func.count()).where(*as_much, JobRow.token != job.token)) == 0


def _has_begun(job: JobRow) -> bool:
    """Return whether any of the task's code may have run."""
    return job.reason_code != NOT_BEGUN


def accept_reported_success(session: Session, jobs: Iterable[JobRow]) -> None:
    """Mark jobs as succeeded if their task had reported success to Airflow before their machine failed.

    :param jobs: of this session, whose ends were not reported to Airflow yet
    """
    for job in jobs:
        if _is_infrastructure(session, job) and session.scalar(_try(job, [TaskInstanceState.SUCCESS])) is not None:
            job.state, job.cause = State.SUCCEEDED, None
            job.reason = because("had_succeeded").with_also(*filter(None, (job.reason,)))


def _is_infrastructure(session: Session, job: JobRow) -> bool:
    """Return whether a job failed because of the infrastructure, including one lost together with its machine."""
    if job.state != State.FAILED or job.kind != "ExecuteTask":
        return False
    if job.cause == "lost" and job.site is not None:
        place = select(LocationRow.name).where(LocationRow.site == job.site, LocationRow.name == job.location)
        return session.scalar(place) is None
    return job.cause in INFRASTRUCTURE


def _task(session: Session, job: JobRow) -> TaskInstance | None:
    """Return the task instance of exactly this try; None: Airflow already knows its outcome."""
    # Airflow accepts the failure of a task only from the scheduler that queued it.
    its_own = TaskInstance.queued_by_job_id == job.owner
    query = _try(job, [*UNAWARE, TaskInstanceState.UP_FOR_RETRY]).where(its_own)
    return session.scalars(with_row_locks(query, of=TaskInstance, session=session)).one_or_none()


def _try(job: JobRow, states: Collection[TaskInstanceState]) -> Select[tuple[TaskInstance]]:
    """Return the query for the task instance of exactly this try, if it is in one of these states."""
    return select(TaskInstance).where(
        TaskInstance.dag_id == job.dag_id,
        TaskInstance.task_id == job.task_id,
        TaskInstance.run_id == job.run_id,
        TaskInstance.map_index == job.map_index,
        TaskInstance.try_number == job.try_number,
        TaskInstance.external_executor_id == job.token,
        TaskInstance.state.in_(states),
    )


def _given_back(session: Session, job: JobRow) -> int:
    """Return how many tries of the same task instance were given back and count towards the limit."""
    counted = (JobRow.given_back.is_(True), JobRow.reason_code.is_distinct_from(NOT_BEGUN), JobRow.cause != TOO_SMALL)
    return session.scalar(select(func.count()).where(*_same_instance(job, *counted))) or 0


def _same_instance(job: JobRow, *conditions: ColumnElement[bool]) -> list[ColumnElement[bool]]:
    names = ("dag_id", "run_id", "task_id", "map_index")
    return [*(getattr(JobRow, name) == getattr(job, name) for name in names), *conditions]


def _give_back(session: Session, task: TaskInstance) -> None:
    task.max_tries += 1
    if task.state in UNAWARE:
        task.prepare_db_for_next_try(session)
        task.state = TaskInstanceState.RESTARTING


def _sentence(job: JobRow, before: int, most: int) -> str:
    if not _has_begun(job):
        return "none of the task's code has run: this try uses up none of its retries"
    if job.cause == TOO_SMALL:
        return (
            f"{format_memory(job.memory)}, which Lading chose, was too little: this try uses up none of its "
            "retries, and the next one requests more"
        )
    if job.given_back:
        return f"{job.cause} is not the task's fault: this try uses up none of its retries ({before + 1} of {most})"
    return (
        f"{job.cause} is not the task's fault, but {before} of its tries have already been repeated without "
        "using up a retry; the limit is infrastructure_retries, a hint of the task or an option of [lading]"
    )
