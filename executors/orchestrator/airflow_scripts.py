"""Job scripts of deferred tasks, from Airflow's tables.

A task that defers with a ``JobScriptTrigger`` orders a job script, and the task instance leaves the state DEFERRED when
the script has ended or is no longer wanted. Any task can defer with any trigger, so only what the script requests is
taken from the trigger's arguments, as checked data. Everything else comes from the job that has deferred.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.models.taskinstance import TaskInstance
from airflow.models.trigger import TRIGGER_FAIL_REPR, Trigger
from airflow.utils.state import TaskInstanceState
from sqlalchemy import String, cast, func, or_, select

from lading.executors.orchestrator.airflow_jobs import same_task
from lading.executors.orchestrator.orchestrator import OrderedScript, ScriptEnd
from lading.executors.store import JobRow, State, chunks, find
from lading.hooks.batch.script_jobs import JOB_SCRIPT, ScriptRequest
from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.task_run import token
from lading.scheduling.reason_codes import CAUSES

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


def ordered(session: Session, jobs: Sequence[str] | None) -> list[OrderedScript]:
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
    by_token = {token(row): row for each in queries for row in session.execute(each)}
    known = find(session, list(by_token))
    found = []
    for run, row in by_token.items():
        if run not in known and (request := _request(session, row)) is not None:
            found.append(OrderedScript(run, str(row.id), row.job, request))
    return found


def _request(session: Session, row: Any) -> ScriptRequest | None:
    """Return what a deferred script requests; None: no controller decides about it."""
    trigger = session.get(Trigger, row.trigger_id)
    try:
        job = None if trigger is None else trigger.kwargs.get("job")
        return None if job is None else ScriptRequest.from_json(job)
    except Exception as error:  # a task has written the arguments, and they can be anything
        log.warning("The job script of task instance %s cannot be admitted: %s", row.id, error)
        return None


def ended(session: Session, tokens: Sequence[str]) -> list[ScriptEnd]:
    """Return those of these scripts whose task instance is no longer deferred in the same try."""
    columns = (TaskInstance.id, TaskInstance.state, TaskInstance.try_number, TaskInstance.next_method)
    # Asked in every tick, so what still waits is not read. Some databases store ids without hyphens.
    id_then, id_now = (func.replace(each, "-", "") for each in (JobRow.subject, cast(TaskInstance.id, String)))
    has_left = or_(TaskInstance.state.is_distinct_from(TaskInstanceState.DEFERRED), id_now != id_then)
    query = (
        select(JobRow.token, JobRow.subject, *columns, TaskInstance.next_kwargs)
        .outerjoin(TaskInstance, same_task())
        .where(has_left)
    )
    found = []
    for chunk in chunks(tokens):
        for row in session.execute(query.where(JobRow.token.in_(chunk), JobRow.kind == JOB_SCRIPT)):
            is_same = str(row.id) == row.subject
            found.append(_end(row.token, row) if is_same else ScriptEnd(row.token, "cancelled"))
    return found


def _end(run: str, row: Any) -> ScriptEnd:
    """Return how a script has ended whose task instance still has the same try."""
    given = _decoded(row.next_kwargs) if row.next_method is not None else {}
    if row.next_method is None or (row.state not in RESUMING and "event" not in given):
        return ScriptEnd(run, "cancelled")
    if row.next_method == TRIGGER_FAIL_REPR:
        return ScriptEnd(run, "error", str(given.get("error") or "its trigger has failed"))
    event = given.get("event")
    try:
        record = RunRecord.from_json(event["record"])  # type: ignore[index]
    except Exception as error:  # the event may be that of another trigger
        log.warning("The event of job script %s cannot be read: %s", run, error)
        return ScriptEnd(run, "error", "its trigger does not tell how it has ended")
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


def _decoded(stored: Any) -> Mapping[str, Any]:
    """Return the arguments with which a task resumes; empty: they cannot be read."""
    from airflow.sdk.serde import deserialize

    try:
        found = deserialize(stored)
    except Exception as error:  # an event can be anything
        log.warning("The event of a trigger cannot be read: %s", error)
        return {}
    return found if isinstance(found, Mapping) else {}


def fail_deferred(session: Session, jobs: Iterable[JobRow]) -> None:
    """Fail the triggers of scripts that Lading itself has ended, so that Airflow fails their tasks by its own rules."""
    for job in jobs:
        if job.kind != JOB_SCRIPT or job.state not in (State.FAILED, State.CANCELLED):
            continue
        query = select(TaskInstance.id, TaskInstance.trigger_id).where(
            TaskInstance.dag_id == job.dag_id,
            TaskInstance.task_id == job.task_id,
            TaskInstance.run_id == job.run_id,
            TaskInstance.map_index == job.map_index,
            TaskInstance.state == TaskInstanceState.DEFERRED,
            TaskInstance.trigger_id.is_not(None),
        )
        row = session.execute(query).one_or_none()
        if row is not None and str(row.id) == job.subject:
            Trigger.submit_failure(row.trigger_id, [f"{job.reason or job.cause}\n"], session=session)
