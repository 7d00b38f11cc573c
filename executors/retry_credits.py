"""Free tries: a try that the infrastructure has ended is given back to its task, and uses up none of its retries.

Airflow counts a try whatever has ended it. Before the failure is reported to it, the task instance's ``max_tries`` is
raised by one and its state set as Airflow sets that of a running task that a user clears (``clear_task_instances``):
Airflow then retries it by its own rules, with its callbacks and its delay, also where the Dag has no retries.

How often says the task's hint, or else the configuration. A try in which none of the task's code has run does not
count: there is no harm in another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.utils.sqlalchemy import with_row_locks
from airflow.utils.state import TaskInstanceState
from sqlalchemy import Select, func, select

from lading.executors.store import JobRow, LocationRow, State
from lading.scheduling.hints.hints import HintError, Hints
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.reasons import because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading gives the try back"
# The code of the reason of tries that have ended before they could begin.
NOT_BEGUN = "api_silent_at_start"
# What the states of a task instance are of which Airflow does not know yet that it has failed.
UNAWARE = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


def give_back(session: Session, jobs: Iterable[JobRow], most: int) -> list[Log]:
    """Give tries back to the tasks of jobs that have ended; returns what their event logs say of it.

    It belongs into the transaction after which the failures are reported to Airflow.

    :param jobs: of this session, whose ends were not reported to Airflow yet
    :param most: how many tries of one task instance are given back, unless its hint says so
    """
    entries: list[Log] = []
    for job in jobs:
        if not job.given_back and _is_infrastructure(session, job) and (task := _task(session, job)) is not None:
            before, limit = _given_back(session, job), _limit(task, most)
            if before < limit or not _has_begun(job):
                _give_back(session, task)
                job.given_back = True
            elif not limit:
                continue
            entries.append(Log(event=EVENT if job.given_back else "lading counts the try", task_instance=task.key))
            entries[-1].extra = _sentence(job, before, limit)
    return entries


def _limit(task: TaskInstance, most: int) -> int:
    """How many tries of a task instance are given back."""
    try:
        own = Hints.from_config(task.executor_config).infrastructure_retries
    except HintError:  # which has failed the task, if anything of it has run
        own = None
    return most if own is None else own


def _has_begun(job: JobRow) -> bool:
    """Whether code of the task may have run."""
    return job.reason_code != NOT_BEGUN


def accept_reported_success(session: Session, jobs: Iterable[JobRow]) -> None:
    """Let jobs have succeeded whose tasks had reported so to Airflow when their machine went down before it could.

    :param jobs: of this session, whose ends were not reported to Airflow yet
    """
    for job in jobs:
        if _is_infrastructure(session, job) and session.scalar(_try(job, [TaskInstanceState.SUCCESS])) is not None:
            job.state, job.cause = State.SUCCEEDED, None
            job.reason = because("had_succeeded").with_also(*filter(None, (job.reason,)))


def _is_infrastructure(session: Session, job: JobRow) -> bool:
    """Whether a job was ended by what it cannot help: also one that is lost with the machine that it ran on."""
    if job.state != State.FAILED or job.kind != "ExecuteTask":
        return False
    if job.cause == "lost" and job.site is not None:
        place = select(LocationRow.name).where(LocationRow.site == job.site, LocationRow.name == job.location)
        return session.scalar(place) is None
    return job.cause in INFRASTRUCTURE


def _task(session: Session, job: JobRow) -> TaskInstance | None:
    """The task instance that waits for this very try; None: Airflow has decided about it already."""
    # Airflow's scheduler takes no failure of a task from another one than that which has queued it.
    its_own = TaskInstance.queued_by_job_id == job.owner
    query = _try(job, [*UNAWARE, TaskInstanceState.UP_FOR_RETRY]).where(its_own)
    return session.scalars(with_row_locks(query, of=TaskInstance, session=session)).one_or_none()


def _try(job: JobRow, states: Collection[TaskInstanceState]) -> Select[tuple[TaskInstance]]:
    """The task instance of a job's very try, if it is in one of some states."""
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
    """How many tries of the same task instance were given back."""
    count = session.scalar(
        select(func.count()).where(
            JobRow.dag_id == job.dag_id,
            JobRow.run_id == job.run_id,
            JobRow.task_id == job.task_id,
            JobRow.map_index == job.map_index,
            JobRow.given_back.is_(True),
            JobRow.reason_code.is_distinct_from(NOT_BEGUN),
        )
    )
    return count or 0


def _give_back(session: Session, task: TaskInstance) -> None:
    task.max_tries += 1
    if task.state in UNAWARE:
        task.prepare_db_for_next_try(session)
        task.state = TaskInstanceState.RESTARTING


def _sentence(job: JobRow, before: int, most: int) -> str:
    if not _has_begun(job):
        return "none of the task has run: this try uses up none of its retries"
    if job.given_back:
        return f"{job.cause} is not the task's fault: this try uses up none of its retries ({before + 1} of {most})"
    return (
        f"{job.cause} is not the task's fault, but {before} of its tries have been given back already; "
        "infrastructure_retries, its hint or the option of [lading], says how many are"
    )
