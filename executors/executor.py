"""LadingExecutor: the part of Lading that runs in Airflow's scheduler.

It only translates: workloads become rows of the store, and changed rows become Airflow's events. The controller decides
in another process what runs where, so neither planning nor a slow site can delay the scheduler.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from airflow.executors import workloads
from airflow.executors.base_executor import BaseExecutor
from airflow.models.callback import CallbackKey
from airflow.models.connection_test import ConnectionTestKey
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.taskinstancekey import TaskInstanceKey
from airflow.utils.session import create_session
from airflow.utils.state import State as AirflowState
from sqlalchemy import event, select, update
from sqlalchemy.orm import Session, SessionTransaction, object_session

from lading.executors import retry_credits, spans, store
from lading.executors.columns import job_columns, resource_columns
from lading.executors.controller_process import ControllerProcess
from lading.executors.migrations.db_manager import ensure_tables
from lading.executors.orchestrator import airflow_schedulers, airflow_scripts
from lading.executors.orchestrator.airflow import AirflowOrchestrator
from lading.executors.orchestrator.airflow_facts import DagFacts
from lading.executors.orchestrator.kept_connection import poll
from lading.executors.scheduler_parts import SchedulerParts, parts_of
from lading.executors.settings import Settings
from lading.executors.store import State
from lading.executors.tasklog import append_to_task_log
from lading.hooks.batch.script_jobs import JOB_SCRIPT
from lading.hooks.files.safe_files import make_private
from lading.hooks.files.version import check_versions
from lading.scheduling.hints.hints import HintError
from lading.scheduling.model.reasons import because

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey

# The most jobs that one sync reports to Airflow; the rest wait for the next sync, a second later.
REPORTS_PER_SYNC = 100
WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# Key in the ``info`` of a session: the jobs to write when it commits.
UNWRITTEN = "lading_unwritten"
# A reason's code and limit: reasons that agree in both count as the same, even if other numbers in them differ.
WaitKey: TypeAlias = "tuple[str | None, str | None]"


class LadingExecutor(BaseExecutor):
    """Runs Airflow's workloads on the machines that fit them."""

    is_local = True  # required by `airflow standalone`
    serve_logs = True  # tasks of the local site write their logs on the scheduler's machine
    supports_callbacks = True
    supports_connection_test = True
    # One scheduler then has an executor for each team. They share the store, one controller and the sites, and each
    # reports its own jobs to Airflow.
    supports_multi_team = True
    # The scheduler commits our token together with QUEUED, so the token exists before anything happens.
    pre_assigns_external_executor_id: ClassVar[bool] = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.live: dict[str, str] = {}
        self.uncommitted: set[str] = set()
        self.reported: Sequence[store.JobRow] = ()
        self.controller: ControllerProcess | None = None
        self.parts: SchedulerParts | None = None
        self.next_adoption = 0.0
        self.dag_facts = DagFacts()
        self.wait_events = WaitEvents()
        self._settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = Settings.load() if self.team_name is None else Settings.of_team(self.team_name, self.conf)
        return self._settings

    def start(self) -> None:
        """Create the tables if necessary, and start a controller unless one is alive.

        :raises MixedVersions: the installed parts of Lading have different versions
        """
        check_versions()
        make_private(self.settings.state_folder)
        # Do this first, so that a stop at any later moment finds the controller of an earlier scheduler. From here on,
        # the kernel shows the scheduler's death at once.
        self.parts = parts_of(self.settings, self.owner)
        self.controller = self.parts.controller
        self.parts.join(self.team_name)
        self.settings.stopped.unlink(missing_ok=True)
        ensure_tables()
        self.controller.ensure()

    def queue_workload(self, workload: ExecutorWorkload, session: Session) -> None:
        """Have the job written to the store when the transaction that sets its task instance to QUEUED commits."""
        columns = job_columns(workload)
        bundle = getattr(workload, "bundle_info", None)  # a connection test has none
        columns |= self.dag_facts.columns(session, columns.get("dag_id"), bundle and bundle.name)
        try:
            columns |= resource_columns(workload, self.settings)
        except HintError as error:
            # The task policy reports invalid hints when the Dag is parsed; if one got past it, only this job fails.
            columns |= {"cpus": 0.0, "memory": 0, "disk": 0, "gpus": 0.0}
            columns |= {
                "state": State.FAILED,
                "cause": "error",
                "reason": because("hint_error", text=str(error)),
                "unreported": True,
            }
            columns["ended_at"] = time.time()
        # A Dag's team may have no executor of its own, and a task can name the executor for all teams.
        columns |= {"team": self.team_name or columns.get("team"), "executor_team": self.team_name}
        columns["owner"] = self.owner
        task = workload.ti.id if isinstance(workload, workloads.ExecuteTask) else None
        session.info.setdefault(UNWRITTEN, []).append(UnwrittenJob(self, columns, task))

    def heartbeat(self) -> None:
        """Called by the scheduler in every loop. It raises nothing, because an exception would end the scheduler."""
        states = Counter(self.live.values())
        self._emit_metrics(
            self.slots_available,
            states[State.RUNNING],
            states[State.QUEUED] + states[State.ATTEMPTED] + states[State.PLACED],
        )
        self.sync()
        if self.controller is not None:
            try:
                self.controller.ensure()
                if states[State.QUEUED]:
                    self.controller.ring()
            except Exception:
                self.log.exception("The controller could not be checked or started; trying again in the next loop")

    def sync(self) -> None:
        """Report the changes since the last call to Airflow."""
        try:
            if not (self.live or self.reported) and not self._may_have_jobs():
                return
            with create_session(scoped=False) as session:
                # Since the last call, the scheduler has processed our events, so they can no longer be lost with it.
                store.mark_reported(session, self.reported)
                self.reported = ()
                self._adopt_orphans(session)
                jobs = store.unreported(session, self.owner, REPORTS_PER_SYNC, self.team_name)
                retry_credits.accept_reported_success(session, jobs)
                session.add_all(entry for job in jobs if (entry := failure_entry(job)) is not None)
                waits = self.wait_events.choose(session, jobs, time.monotonic())
                session.add_all(map(wait_entry, waits))
                session.add_all(retry_credits.give_back(session, jobs, self.settings.infrastructure_retries))
                airflow_scripts.fail_deferred(session, jobs)
                spans.trace_ended(session, jobs)
                session.flush()
                session.expunge_all()
            self.wait_events.keep(jobs, waits, time.monotonic())
            for job in waits:
                if job.kind == JOB_SCRIPT and job.reason is not None:  # its task has begun, so people read its log
                    text = f"The batch job is not admitted yet: {job.reason.sentence}"
                    append_to_task_log(log_path(job), text, None, "info")
            for job in jobs:
                self._report(job)
            self.reported = jobs
        except Exception:
            self.log.exception("The store could not be read; trying again in the next loop")

    def _report(self, job: store.JobRow) -> None:
        key = job_key(job)
        self.live[job.token] = job.state
        if job.state in store.ENDED:
            self.live.pop(job.token)
        if key is None or job.kind == JOB_SCRIPT:  # the trigger of a script reports its end to Airflow
            return
        if job.state == State.SUCCEEDED or was_settled(job):
            self.success(key)  # with this, Airflow queues a task again that was cleared while it ran
        elif has_failed(job):
            if not reported_itself(job):
                append_to_task_log(log_path(job), str(job.reason or failure_message(job)), job.cause)
            self.fail(key, info=failure_message(job))
        elif job.state == State.RUNNING and not isinstance(key, TaskInstanceKey):
            # For a task instance the event would only overwrite external_executor_id, which is our token.
            self.running_state(key, info=job.token)

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Adopt the tasks of a dead scheduler; those that are in the store continue undisturbed."""
        tokens = [str(ti.external_executor_id) for ti in tis if ti.external_executor_id]
        # The scheduler's own session: a second one could not write while this transaction is open (SQLite).
        session = object_session(tis[0]) if tis else None
        if session is None:
            return tis
        known = store.find(session, tokens)
        store.adopt(session, list(known), self.owner, self.team_name)
        self._remember(known)
        return [ti for ti in tis if ti.external_executor_id not in known]

    def _may_have_jobs(self) -> bool:
        """Return whether the store may have jobs to adopt or to report, for an executor that knows no live job."""
        if time.monotonic() < self.next_adoption:
            return False
        if poll(partial(create_session, scoped=False), partial(store.any_to_report, owner=self.owner)):
            return True
        # Jobs whose scheduler has died are adopted this often. Airflow itself does so every 300 s.
        self.next_adoption = time.monotonic() + 10.0
        return False

    def _adopt_orphans(self, session: Session) -> None:
        """Adopt the jobs of dead schedulers, whose failures do not reach Airflow until then."""
        if time.monotonic() < self.next_adoption:
            return
        self.next_adoption = time.monotonic() + 10.0
        self._forget_undone(session)
        others = [each for each in store.foreign_owners(session, self.owner) if each is not None]
        living = airflow_schedulers.living(session, self.settings.schedulers_folder) if others else set()
        for dead in others:
            if dead in living:
                continue
            known = store.adopt_from(session, dead, self.owner, self.team_name, but=self._others())
            if not known:
                continue
            self._remember(known)
            for chunk in store.chunks(list(known)):
                session.execute(
                    update(TaskInstance)
                    .where(
                        TaskInstance.queued_by_job_id == dead,
                        TaskInstance.state.in_(AirflowState.adoptable_states),
                        TaskInstance.external_executor_id.in_(chunk),
                    )
                    .values(queued_by_job_id=self.owner),
                    execution_options={"synchronize_session": False},
                )
            self.log.info("Adopted %d jobs of scheduler %s, which is dead", len(known), dead)

    def _others(self) -> Sequence[str | None] | None:
        """Return the teams whose executors in this scheduler adopt their own jobs.

        This executor then adopts the jobs of all other teams, including those that no longer have an executor. None:
        it adopts only its own team's jobs.
        """
        if self.parts is None or not self.parts.is_first(self.team_name):
            return None
        return [team for team in self.parts.teams if team != self.team_name]

    def _forget_undone(self, session: Session) -> None:
        """Forget jobs whose transaction the scheduler rolled back."""
        known = store.find(session, list(self.uncommitted))
        for token in self.uncommitted - known.keys():
            self.live.pop(token, None)
        self.uncommitted.clear()

    def _remember(self, known: dict[str, str]) -> None:
        live = {token: state for token, state in known.items() if state in store.LIVE}
        self.live.update(live)
        self.wait_events.adopt(live)

    def has_task(self, task_instance: TaskInstance) -> bool:
        return str(task_instance.external_executor_id) in self.live

    def revoke_task(self, *, ti: TaskInstance) -> None:
        """Called if Airflow considers a task stuck in the queue; a task that waits for room is not.

        :raises NotImplementedError: the job is live; Airflow then leaves the task as it is
        """
        with create_session(scoped=False) as session:
            state = store.find(session, [str(ti.external_executor_id)]).get(str(ti.external_executor_id))
        if state in store.LIVE:
            # Airflow's scheduler takes this to mean "leave it as it is".
            raise NotImplementedError(f"{ti} waits for room in Lading's queue; it is not stuck")

    @property
    def owner(self) -> int | None:
        """The id of this scheduler's Airflow job, to which the jobs that it queued are reported."""
        return int(self.job_id) if self.job_id is not None else None

    @property
    def slots_available(self) -> int:
        """Always all slots, because resources and not slots decide what runs."""
        return int(self.parallelism)

    @property
    def slots_occupied(self) -> int:
        """Always 0: the scheduler can still queue ``core.parallelism`` minus this number of tasks."""
        return 0

    def end(self) -> None:
        """Stop cleanly: ``[lading] on_shutdown`` says what happens to running jobs.

        A scheduler that fails with an error also calls this. Its jobs are then left alone, because the next scheduler
        adopts them.
        """
        # Do this first, so that the last of several schedulers that stop together stops the controller, and the last
        # of several executors in one scheduler.
        is_last = self.parts is None or self.parts.leave(self.team_name)
        self.parts = None
        if isinstance(sys.exc_info()[1], Exception):
            self.log.warning("The scheduler stops because of an error; the controller and the jobs continue without it")
            return
        if not is_last:
            return
        if self.controller is None and self.owner is not None:
            # The executor is stopped before it has started, but must stop the controller of an earlier scheduler.
            self.controller = ControllerProcess(AirflowOrchestrator(), self.settings, self.owner)
        if self.controller is not None:
            self.controller.stop()

    def terminate(self) -> None:
        self.end()

    def debug_dump(self) -> None:
        super().debug_dump()
        self.log.info("Lading's live jobs: %s", dict(Counter(self.live.values())))


def job_key(job: store.JobRow) -> WorkloadKey | None:
    """Return Airflow's key of a job; None: Airflow does not know the job (a probe)."""
    if job.dag_id is not None and job.task_id is not None and job.run_id is not None:
        return TaskInstanceKey(job.dag_id, job.task_id, job.run_id, job.try_number, job.map_index)
    if job.kind == "ExecuteCallback":
        return CallbackKey(id=job.subject)
    if job.kind == "TestConnection":
        return ConnectionTestKey(id=job.subject)
    return None


def log_path(job: store.JobRow) -> str | None:
    """Return the path of a task's log, relative to Airflow's log folder; None: it has none."""
    path: str | None = json.loads(job.workload).get("log_path")
    return path


def has_failed(job: store.JobRow) -> bool:
    """Return whether to report a failure to Airflow, which itself requested cancellations before the start."""
    is_ended = job.state == State.CANCELLED and job.started_at is not None
    return job.state == State.FAILED or (is_ended and not was_settled(job))


def was_settled(job: store.JobRow) -> bool:
    """Return whether a task was cleared, marked or deleted in Airflow while it ran."""
    return job.state == State.CANCELLED and job.started_at is not None and job.exit_code == 0


def reported_itself(job: store.JobRow) -> bool:
    """Return whether a task's own process has already reported its failure, so that there is nothing to add."""
    return job.cause == "error" and job.exit_code == 0


def failure_message(job: store.JobRow) -> str:
    return ": ".join(str(part) for part in (job.cause, job.reason) if part)


@dataclass(frozen=True, slots=True)
class UnwrittenJob:
    """A job whose transaction is not committed yet.

    :param task: the id of its task instance; None: it is not a task
    """

    executor: LadingExecutor
    columns: dict[str, Any]
    task: uuid.UUID | None


@event.listens_for(Session, "before_commit")
def write_jobs(session: Session) -> None:
    jobs: list[UnwrittenJob] = session.info.pop(UNWRITTEN, [])
    if not jobs:
        return
    known = store.find(session, [each.columns["token"] for each in jobs if each.columns["token"] is not None])
    renamed = []
    for each in jobs:
        # Airflow assigns no token to a task that names this executor only by its class, and a retry keeps the old one.
        if each.task is not None and (each.columns["token"] is None or each.columns["token"] in known):
            each.columns["token"] = str(uuid.uuid4())
            renamed.append({"id": each.task, "external_executor_id": each.columns["token"]})
    if renamed:
        session.execute(update(TaskInstance), renamed)
    store.add_jobs(session, [each.columns for each in jobs])
    for each in jobs:
        each.executor.live[each.columns["token"]] = State.QUEUED
        each.executor.uncommitted.add(each.columns["token"])


@event.listens_for(Session, "after_transaction_end")
def forget_jobs(session: Session, transaction: SessionTransaction) -> None:
    """Forget jobs that are still unwritten, because their transaction was rolled back."""
    if transaction.parent is None:
        session.info.pop(UNWRITTEN, None)


class WaitEvents:
    """Chooses the reasons of waiting jobs for Airflow's event log: the first of a wait, and each later one that lasts.

    Airflow keeps the rows of its event log for ever, so it does not get all reasons; the store has them.
    """

    def __init__(self) -> None:
        self.shown: dict[str, WaitKey | None] = {}
        """The last reason in the event log for each waiting job; None: logged by another scheduler, so unknown."""
        self.pending: dict[str, tuple[WaitKey, float]] = {}
        """Reasons that are not in the event log, and since when each holds, the oldest first."""

    def choose(self, session: Session, news: Sequence[store.JobRow], now: float) -> list[store.JobRow]:
        """Return the jobs whose reason to log now.

        :param news: jobs that have changed
        :param now: on the monotonic clock
        """
        first = [job for job in news if is_waiting(job) and job.token not in self.shown]
        # After the first reason for a wait, the event log shows only reasons that have lasted a minute; the
        # command ``airflow lading jobs`` and the page show all.
        due = takewhile(lambda each: now - each[1][1] >= 60.0, self.pending.items())
        if not (lasting := dict(islice(due, REPORTS_PER_SYNC))):
            return first
        for token in lasting:  # a job that has changed in the meantime will be in the next news
            del self.pending[token]
        rows = session.scalars(select(store.JobRow).where(store.JobRow.token.in_(lasting)))
        return first + [row for row in rows if is_waiting(row) and wait_key(row) == lasting[row.token][0]]

    def keep(self, news: Sequence[store.JobRow], shown: Sequence[store.JobRow], now: float) -> None:
        """Remember the logged reasons, once they are committed, and the changed ones.

        :param shown: the jobs that :meth:`choose` returned
        """
        self.shown.update((job.token, wait_key(job)) for job in shown)
        for job in news:
            key, (pending, _) = wait_key(job), self.pending.get(job.token, (None, 0.0))
            if is_waiting(job) and key == pending:
                continue
            self.pending.pop(job.token, None)
            if job.state not in WAITING:
                self.shown.pop(job.token, None)
            elif is_waiting(job) and self.shown[job.token] != key:
                self.pending[job.token] = key, now

    def adopt(self, tokens: Iterable[str]) -> None:
        """Assume that a dead scheduler has logged the first reason of its jobs."""
        for token in tokens:
            self.shown.setdefault(token, None)


def is_waiting(job: store.JobRow) -> bool:
    """Return whether a task's job waits for a known reason."""
    return job.state in WAITING and job.reason is not None and isinstance(job_key(job), TaskInstanceKey)


def wait_key(job: store.JobRow) -> WaitKey:
    return job.reason_code, job.reason_limit


def wait_entry(job: store.JobRow) -> Log:
    key = job_key(job)
    assert isinstance(key, TaskInstanceKey)
    return Log(event="lading waits", task_instance=key, extra=str(job.reason))


def failure_entry(job: store.JobRow) -> Log | None:
    """Return the entry of a task's event log that says why its job failed; None: there is nothing to add.

    ``BaseExecutor.log_task_event`` is not used, because Airflow 3.3's scheduler drops its entries before writing them.
    """
    key = job_key(job)
    if not isinstance(key, TaskInstanceKey) or not has_failed(job) or reported_itself(job):
        return None
    return Log(event=f"lading {job.cause}", task_instance=key, extra=str(job.reason or ""))
