"""Free tries: a try that the infrastructure has ended is given back to its task, and uses up none of its retries.

Airflow counts a try whatever has ended it. Before the failure is reported to it, the task instance's ``max_tries`` is
raised by one and its state set as Airflow sets that of a running task that a user clears (``clear_task_instances``):
Airflow then retries it by its own rules, with its callbacks and its delay, also where the Dag has no retries.
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
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.reasons import because

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

EVENT = "lading gives the try back"
# What the states of a task instance are of which Airflow does not know yet that it has failed.
UNAWARE = (TaskInstanceState.QUEUED, TaskInstanceState.RUNNING)


def give_back(session: Session, jobs: Iterable[JobRow], most: int) -> list[Log]:
    """Give tries back to the tasks of jobs that have ended; returns what their event logs say of it.

    It belongs into the transaction after which the failures are reported to Airflow.

    :param jobs: of this session, whose ends were not reported to Airflow yet
    :param most: how many tries of one task instance are given back
    """
    entries: list[Log] = []
    for job in jobs if most else ():
        if not job.given_back and _is_infrastructure(session, job) and (task := _task(session, job)) is not None:
            before = _given_back(session, job)
            if before < most:
                _give_back(session, task)
                job.given_back = True
            entries.append(Log(event=EVENT if job.given_back else "lading counts the try", task_instance=task.key))
            entries[-1].extra = _sentence(job, before, most)
    return entries


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
        )
    )
    return count or 0


def _give_back(session: Session, task: TaskInstance) -> None:
    task.max_tries += 1
    if task.state in UNAWARE:
        task.prepare_db_for_next_try(session)
        task.state = TaskInstanceState.RESTARTING


def _sentence(job: JobRow, before: int, most: int) -> str:
    if job.given_back:
        return f"{job.cause} is not the task's fault: this try uses up none of its retries ({before + 1} of {most})"
    return (
        f"{job.cause} is not the task's fault, but {before} of its tries have been given back already; "
        "[lading] infrastructure_retries says how many are"
    )
