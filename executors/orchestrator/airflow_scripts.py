"""Job scripts of deferred tasks, from Airflow's tables.

A task that defers with a ``JobScriptTrigger`` orders a job script, and the task instance leaves the state DEFERRED when
the script has ended or is no longer wanted. Any task can defer with any trigger, so only what the script requests is
taken from the trigger's arguments, as checked data. Everything else comes from the job that has deferred.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from airflow.models.crypto import get_fernet
from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import TRIGGER_FAIL_REPR, Trigger, TriggerFailureReason
from airflow.utils.state import TaskInstanceState
from cryptography.fernet import InvalidToken
from sqlalchemy import or_, select

from lading.executors.orchestrator.airflow_jobs import same_task
from lading.executors.orchestrator.orchestrator import OrderedScript, ScriptEnd
from lading.executors.store import JobRow, State, chunks, find
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.hooks.files.xcom_json import plain
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.task_run import token
from lading.scheduling.model.reason_codes import CAUSES
from lading.scheduling.text.nesting import parse_json
from lading.scheduling.text.printable import cut, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy.orm import Session

log = logging.getLogger(__name__)

CLASSPATH = "lading.operators.job_script_trigger.JobScriptTrigger"
DEFERRED = (
    TaskInstance.state == TaskInstanceState.DEFERRED,
    TaskInstance.external_executor_id == JobRow.token,
    Trigger.classpath == CLASSPATH,
)
# The states of a task that resumes after its trigger.
RESUMING = (
    TaskInstanceState.SCHEDULED,
    TaskInstanceState.QUEUED,
    TaskInstanceState.RUNNING,
    TaskInstanceState.RESTARTING,
)


class Orders:
    """Reads which scripts wait for the controller, each trigger at most once."""

    def __init__(self) -> None:
        self._without: set[tuple[str, int]] = set()
        """The runs that no controller decides about, with the ids of their triggers, which can be used again."""

    def read(self, session: Session, jobs: Sequence[str] | None) -> list[OrderedScript]:
        """Return the scripts of deferred tasks that are not in the store.

        :param jobs: only those that these jobs have left; None: all
        """
        query = (
            select(TaskInstance.id, TaskInstance.try_number, TaskInstance.trigger_id, JobRow.token.label("job"))
            .join(JobRow, same_task())
            .join(Trigger, Trigger.id == TaskInstance.trigger_id)
            .where(*DEFERRED, JobRow.kind == "ExecuteTask")
        )
        queries = [query] if jobs is None else [query.where(JobRow.token.in_(chunk)) for chunk in chunks(jobs)]
        deferred = {(token(row), row.trigger_id): row for each in queries for row in session.execute(each)}
        if jobs is None:
            self._without &= deferred.keys()
        unread = {key: row for key, row in deferred.items() if key not in self._without}
        known = find(session, [run for run, _ in unread])
        unread = {key: row for key, row in unread.items() if key[0] not in known}
        arguments: dict[int, str] = {}
        for chunk in chunks([trigger for _, trigger in unread]):
            given = select(Trigger.id, Trigger.encrypted_kwargs).where(Trigger.id.in_(chunk))
            arguments.update((row.id, row.encrypted_kwargs) for row in session.execute(given))
        found: list[OrderedScript] = []
        encrypted = 0
        for (run, trigger), row in unread.items():
            if trigger not in arguments:  # the task has resumed in the meantime
                continue
            try:
                request = _request(arguments[trigger])
            except InvalidToken:  # no fault of the task, so it waits until the key is corrected
                encrypted += 1
                continue
            except Exception as error:  # a task has written the arguments, and they can be anything
                refuse(session, str(row.id), error)
                continue
            if request is not None:
                found.append(OrderedScript(run, str(row.id), row.job, request))
            elif len(self._without) < 10_000:
                self._without.add((run, trigger))
        if encrypted:
            log.error(
                "%d job scripts wait: this controller's [core] fernet_key cannot decrypt their triggers", encrypted
            )
        return found


def _request(encrypted: str) -> ScriptRequest | None:
    """Return what a deferred script requests; None: no controller decides about it.

    :param encrypted: the arguments of its trigger as Airflow stores them: encrypted, unless an old version wrote them
    :raises Exception: they are not valid
    """
    text = encrypted if encrypted.startswith("{") else get_fernet().decrypt(encrypted.encode()).decode()
    job = plain(parse_json(text)).get("job")
    return None if job is None else ScriptRequest.from_json(job)


def ended(session: Session, tokens: Sequence[str]) -> list[ScriptEnd]:
    """Return those of these scripts whose task instance is no longer deferred in the same try."""
    columns = (TaskInstance.id, TaskInstance.state, TaskInstance.next_method, TaskInstance.next_kwargs)
    # Asked in every tick, so what still waits is not read.
    has_left = or_(
        TaskInstance.state.is_distinct_from(TaskInstanceState.DEFERRED), TaskInstance.try_number != JobRow.try_number
    )
    query = select(JobRow.token, JobRow.subject, *columns).outerjoin(TaskInstance, same_task()).where(has_left)
    found = []
    for chunk in chunks(tokens):
        for row in session.execute(query.where(JobRow.token.in_(chunk), JobRow.kind == JOB_SCRIPT)):
            is_same = str(row.id) == row.subject
            found.append(_end(row.token, row) if is_same else ScriptEnd(row.token, "cancelled"))
    return found


def _end(run: str, row: Any) -> ScriptEnd:
    """Return how a script has ended whose task instance still has the same try."""
    if row.next_method is None or row.state not in RESUMING:
        return ScriptEnd(run, "cancelled")
    given = _decoded(row.next_kwargs)
    if row.next_method == TRIGGER_FAIL_REPR:
        return ScriptEnd(run, "error", _why_failed(given))
    event = given.get("event")
    try:
        record = RunRecord.from_json(event["record"])  # type: ignore[index]
    except Exception as error:  # the event may be that of another trigger
        log.warning("The event of job script %s cannot be read: %s", run, error)
        return ScriptEnd(run, "error", "its trigger returned no valid result")
    cause = None if record.state == "succeeded" else record.cause
    if record.state != "succeeded" and cause not in CAUSES:
        cause = "error"
    return ScriptEnd(
        run,
        cause,
        record.reason,
        record.exit_code,
        record.started_at,
        record.ended_at,
        record.job_id,
        record.nodes,
    )


def _why_failed(given: Mapping[str, Any]) -> str:
    """Return why a trigger has failed.

    :param given: the arguments with which Airflow resumes its task
    """
    if given.get("error") == TriggerFailureReason.TRIGGER_TIMEOUT:
        return "the task exceeded its execution_timeout, which includes the time for which the batch job waited"
    traceback = given.get("traceback")
    lines = "\n".join(map(str, traceback)).split("\n") if isinstance(traceback, list) else []
    last = next((line for line in reversed(lines) if line.strip()), None)
    return str(last or given.get("error") or "its trigger has failed")


def _decoded(stored: Any) -> Mapping[str, Any]:
    """Return the arguments with which a task resumes; empty: they cannot be read."""
    try:
        found = plain(stored)
    except RecursionError as error:  # an event can be anything
        log.warning("The event of a trigger cannot be read: %s", error)
        return {}
    return found if isinstance(found, Mapping) else {}


def fail_deferred(session: Session, jobs: Iterable[JobRow]) -> None:
    """Fail the triggers of scripts that Lading itself has ended, so that Airflow fails their tasks by its own rules."""
    for job in jobs:
        if job.kind == JOB_SCRIPT and job.state in (State.FAILED, State.CANCELLED):
            fail(session, job.subject, str(job.reason or job.cause))


def refuse(session: Session, subject: str, error: Exception) -> None:
    """Fail the trigger of a script whose order is not valid or cannot be stored.

    :param subject: the id of the task instance
    """
    why = cut(one_line(getattr(error, "orig", error)))  # of a database's error, without the statement
    log.warning("The job script of task instance %s cannot be admitted: %s", subject, why)
    fail(session, subject, f"Lading cannot admit the job script: {why}")


def fail(session: Session, subject: str, why: str) -> None:
    """Fail the trigger of a script that will not run, if its task still waits for it.

    :param subject: the id of the task instance
    """
    is_subject = TaskInstance.id == UUID(subject), TaskInstance.state == TaskInstanceState.DEFERRED
    trigger = session.scalar(select(TaskInstance.trigger_id).where(*is_subject))
    if trigger is not None:
        Trigger.submit_failure(trigger, [f"{why}\n"], session=session)
