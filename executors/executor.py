"""LadingExecutor: the side of Lading that Airflow's scheduler sees.

It only translates: workloads become rows of the store, rows that changed become Airflow's events. What runs where
is decided by the controller in another process, so neither planning nor a slow site can hold up the scheduler.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from lading.executors.orchestrator import airflow_schedulers
from lading.executors.orchestrator.airflow_facts import DagFacts
from lading.executors.scheduler_parts import SchedulerParts, parts_of
from lading.executors.settings import Settings
from lading.executors.store import State
from lading.executors.tasklog import append_to_task_log
from lading.hooks.files.safe_files import make_private
from lading.hooks.files.version import check_versions
from lading.scheduling.hints.hints import HintError
from lading.scheduling.reasons import because

if TYPE_CHECKING:
    from airflow.executors.workloads import ExecutorWorkload
    from airflow.executors.workloads.types import WorkloadKey

# One sync reports at most so many jobs to Airflow; the rest waits for the next one, a second later.
REPORTS_PER_SYNC = 100
# After the first reason for a wait, the event log shows one that has lasted this long; jobs and page show every one.
SECONDS_BEFORE_EVENT = 60.0
# How often the executor looks for jobs whose scheduler has died. Airflow itself looks every 300 s.
SECONDS_BETWEEN_ADOPTIONS = 10.0
WAITING = (State.QUEUED, State.ATTEMPTED, State.PLACED)
# In the ``info`` of a session: the jobs that are written when it commits.
UNWRITTEN = "lading_unwritten"
# The code of a reason and its limit, by which reasons are the same: other numbers in one are no news.
WaitKey: TypeAlias = "tuple[str | None, str | None]"


class LadingExecutor(BaseExecutor):
    """Runs Airflow's workloads on the machines that fit them."""

    is_local = True  # `airflow standalone` takes no other
    serve_logs = True  # tasks of the local site write their logs on the scheduler's machine
    supports_callbacks = True
    supports_connection_test = True
    # One scheduler has an executor for each team then. They share the store, one controller and the sites, and each
    # reports to Airflow what it was given.
    supports_multi_team = True
    # The scheduler commits our token together with QUEUED: the token exists before any effect.
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
        """Make sure that the tables and a controller are there.

        :raises MixedVersions: not all that is installed of Lading is of one version
        """
        check_versions()
        make_private(self.settings.state_folder)
        # First, so that a stop at any later moment finds the controller of a scheduler before this one. From here on
        # the scheduler's death is known at once, by the kernel.
        self.parts = parts_of(self.settings, self.owner)
        self.controller = self.parts.controller
        self.parts.join(self.team_name)
        self.settings.stopped.unlink(missing_ok=True)
        ensure_tables()
        self.controller.ensure()

    def queue_workload(self, workload: ExecutorWorkload, session: Session) -> None:
        """Have the job written into the store with the others of the transaction that makes its task instance QUEUED,
        as that is committed."""
        columns = job_columns(workload)
        bundle = getattr(workload, "bundle_info", None)  # a connection test has none
        columns |= self.dag_facts.columns(session, columns.get("dag_id"), bundle and bundle.name)
        try:
            columns |= resource_columns(workload, self.settings)
        except HintError as error:
            # The task policy finds wrong hints when the Dag is parsed; this one got past it, so it fails alone.
            columns |= {"cpus": 0.0, "memory": 0, "disk": 0, "gpus": 0.0}
            columns |= {
                "state": State.FAILED,
                "cause": "error",
                "reason": because("hint_error", text=str(error)),
                "unreported": True,
            }
            columns["ended_at"] = time.time()
        # A Dag's team may have no executor of its own, and a task may name the one for all teams.
        columns |= {"team": self.team_name or columns.get("team"), "executor_team": self.team_name}
        columns["owner"] = self.owner
        task = workload.ti.id if isinstance(workload, workloads.ExecuteTask) else None
        session.info.setdefault(UNWRITTEN, []).append(UnwrittenJob(self, columns, task))

    def heartbeat(self) -> None:
        """What the scheduler calls in every loop. An exception would end the scheduler, so none leaves."""
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
        """Report to Airflow what has changed since the last time."""
        if not (self.live or self.reported) and time.monotonic() < self.next_adoption:
            return  # nothing is to come of jobs that it knows of
        try:
            with create_session(scoped=False) as session:
                # Between two calls the scheduler has processed our events, so only now they can't be lost with it.
                store.mark_reported(session, self.reported)
                self.reported = ()
                self._adopt_orphans(session)
                jobs = store.unreported(session, self.owner, REPORTS_PER_SYNC, self.team_name)
                retry_credits.accept_reported_success(session, jobs)
                session.add_all(entry for job in jobs if (entry := failure_entry(job)) is not None)
                waits = self.wait_events.choose(session, jobs, time.monotonic())
                session.add_all(map(wait_entry, waits))
                session.add_all(retry_credits.give_back(session, jobs, self.settings.infrastructure_retries))
                spans.trace_ended(session, jobs)
                session.flush()
                session.expunge_all()
            self.wait_events.keep(jobs, waits, time.monotonic())
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
        if key is None:
            return
        if job.state == State.SUCCEEDED or was_settled(job):
            self.success(key)  # by which Airflow queues one anew that was cleared while it ran
        elif has_failed(job):
            if not reported_itself(job):
                append_to_task_log(
                    json.loads(job.workload).get("log_path"), str(job.reason or failure_message(job)), job.cause
                )
            self.fail(key, info=failure_message(job))
        elif job.state == State.RUNNING and not isinstance(key, TaskInstanceKey):
            # For a task instance the event would only overwrite external_executor_id, which is our token.
            self.running_state(key, info=job.token)

    def try_adopt_task_instances(self, tis: Sequence[TaskInstance]) -> Sequence[TaskInstance]:
        """Take over what a dead scheduler queued: all that the store knows goes on undisturbed."""
        tokens = [str(ti.external_executor_id) for ti in tis if ti.external_executor_id]
        # The scheduler's own session: a second one could not write while this transaction is open (SQLite).
        session = object_session(tis[0]) if tis else None
        if session is None:
            return tis
        known = store.find(session, tokens)
        store.adopt(session, list(known), self.owner, self.team_name)
        self._remember(known)
        return [ti for ti in tis if ti.external_executor_id not in known]

    def _adopt_orphans(self, session: Session) -> None:
        """Take over the jobs of dead schedulers soon: until then no failure of theirs reaches Airflow."""
        if time.monotonic() < self.next_adoption:
            return
        self.next_adoption = time.monotonic() + SECONDS_BETWEEN_ADOPTIONS
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
            self.log.info("Adopted %d jobs of scheduler %s, which is gone", len(known), dead)

    def _others(self) -> Sequence[str | None] | None:
        """The teams whose executors here take over their own jobs, while this one takes those of all other teams, as
        of those that have no executor any more; None: it takes over its own alone."""
        if self.parts is None or not self.parts.is_first(self.team_name):
            return None
        return [team for team in self.parts.teams if team != self.team_name]

    def _forget_undone(self, session: Session) -> None:
        """Forget jobs whose transaction the scheduler has rolled back."""
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
        """Airflow finds that a task has been queued for long. One that waits for room is not stuck."""
        with create_session(scoped=False) as session:
            state = store.find(session, [str(ti.external_executor_id)]).get(str(ti.external_executor_id))
        if state in store.LIVE:
            # What Airflow's scheduler takes as "leave it as it is".
            raise NotImplementedError(f"{ti} waits for room in Lading's queue; it is not stuck")

    @property
    def owner(self) -> int | None:
        """The id of this scheduler's Airflow job; the jobs that it queued are reported to it."""
        return int(self.job_id) if self.job_id is not None else None

    @property
    def slots_available(self) -> int:
        """Always all: resources decide what runs, not a count of slots."""
        return int(self.parallelism)

    @property
    def slots_occupied(self) -> int:
        """Always none: core.parallelism minus this is what the scheduler may still queue."""
        return 0

    def end(self) -> None:
        """Stop in order: `[lading] on_shutdown` says what happens to running jobs.

        A scheduler that ends by an error ends here too. That is no reason to touch its jobs: the next one adopts them.
        """
        # First of all, so that of several schedulers that end together the last one stops the controller, and of
        # several executors of one scheduler the last.
        is_last = self.parts is None or self.parts.leave(self.team_name)
        self.parts = None
        if isinstance(sys.exc_info()[1], Exception):
            self.log.warning("The scheduler ends by an error; the controller and the jobs go on without it")
            return
        if not is_last:
            return
        if self.controller is None and self.owner is not None:
            # It is stopped before it has started, and may be the only one to know of an earlier one's controller.
            self.controller = ControllerProcess(self.settings, self.owner)
        if self.controller is not None:
            self.controller.stop()

    def terminate(self) -> None:
        self.end()

    def debug_dump(self) -> None:
        super().debug_dump()
        self.log.info("Lading's live jobs: %s", dict(Counter(self.live.values())))


def job_key(job: store.JobRow) -> WorkloadKey | None:
    """Airflow's key of a job; None for a job that Airflow does not know (a probe)."""
    if job.dag_id is not None and job.task_id is not None and job.run_id is not None:
        return TaskInstanceKey(job.dag_id, job.task_id, job.run_id, job.try_number, job.map_index)
    if job.kind == "ExecuteCallback":
        return CallbackKey(id=job.subject)
    if job.kind == "TestConnection":
        return ConnectionTestKey(id=job.subject)
    return None


def has_failed(job: store.JobRow) -> bool:
    """Whether a failure is to be reported to Airflow; one that was cancelled while it waited was so at its request."""
    is_ended = job.state == State.CANCELLED and job.started_at is not None
    return job.state == State.FAILED or (is_ended and not was_settled(job))


def was_settled(job: store.JobRow) -> bool:
    """Whether Airflow has decided about a task while it ran: it was cleared, marked or deleted."""
    return job.state == State.CANCELLED and job.started_at is not None and job.exit_code == 0


def reported_itself(job: store.JobRow) -> bool:
    """Whether a task failed in the ordinary way: its own process has reported it, and there is nothing to add."""
    return job.cause == "error" and job.exit_code == 0


def failure_message(job: store.JobRow) -> str:
    """The cause and the reason of a job, as one sentence."""
    return ": ".join(str(part) for part in (job.cause, job.reason) if part)


@dataclass(frozen=True, slots=True)
class UnwrittenJob:
    """A job whose transaction is not committed yet.

    :param task: the id of its task instance; None: it has none
    """

    executor: LadingExecutor
    columns: dict[str, Any]
    task: uuid.UUID | None


@event.listens_for(Session, "before_commit")
def write_jobs(session: Session) -> None:
    """Write the jobs that were queued in a transaction, all together."""
    jobs: list[UnwrittenJob] = session.info.pop(UNWRITTEN, [])
    if not jobs:
        return
    known = store.find(session, [each.columns["token"] for each in jobs if each.columns["token"] is not None])
    renamed = []
    for each in jobs:
        # Airflow assigns none to a task that names this executor by its class alone, and a retry keeps the old one.
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
    """What was not written by then was rolled back."""
    if transaction.parent is None:
        session.info.pop(UNWRITTEN, None)


class WaitEvents:
    """Which reasons of jobs that wait go into Airflow's event log, whose rows Airflow keeps for ever: the first one of
    a wait, and each later one that lasts. The store has all of them."""

    def __init__(self) -> None:
        self.shown: dict[str, WaitKey | None] = {}
        """The last reason that the event log has, of each job that waits; None: of another scheduler's time."""
        self.pending: dict[str, tuple[WaitKey, float]] = {}
        """Those that are not there, and since when each holds, the oldest first."""

    def choose(self, session: Session, news: Sequence[store.JobRow], now: float) -> list[store.JobRow]:
        """Return the jobs whose reason is to be shown: of the ones with news, and of those that have waited since.

        :param now: by the monotonic clock
        """
        first = [job for job in news if is_waiting(job) and job.token not in self.shown]
        due = takewhile(lambda each: now - each[1][1] >= SECONDS_BEFORE_EVENT, self.pending.items())
        if not (lasting := dict(islice(due, REPORTS_PER_SYNC))):
            return first
        for token in lasting:  # of one that has changed meanwhile there is news to come
            del self.pending[token]
        rows = session.scalars(select(store.JobRow).where(store.JobRow.token.in_(lasting)))
        return first + [row for row in rows if is_waiting(row) and wait_key(row) == lasting[row.token][0]]

    def keep(self, news: Sequence[store.JobRow], shown: Sequence[store.JobRow], now: float) -> None:
        """Remember what was shown, once it is committed, and what has changed.

        :param shown: what :meth:`choose` has returned
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
        """Take the first reason of jobs for shown whose scheduler has died."""
        for token in tokens:
            self.shown.setdefault(token, None)


def is_waiting(job: store.JobRow) -> bool:
    """Whether a task's job waits, and it is known why."""
    return job.state in WAITING and job.reason is not None and isinstance(job_key(job), TaskInstanceKey)


def wait_key(job: store.JobRow) -> WaitKey:
    return job.reason_code, job.reason_limit


def wait_entry(job: store.JobRow) -> Log:
    """Return the entry of a task's event log that says why its job waits."""
    key = job_key(job)
    assert isinstance(key, TaskInstanceKey)
    return Log(event="lading waits", task_instance=key, extra=str(job.reason))


def failure_entry(job: store.JobRow) -> Log | None:
    """Return the entry of a task's event log that says why its job failed; None: there is nothing to add.

    ``BaseExecutor.log_task_event`` would not do: Airflow 3.3's scheduler lets go of the entries before it writes them.
    """
    key = job_key(job)
    if not isinstance(key, TaskInstanceKey) or not has_failed(job) or reported_itself(job):
        return None
    return Log(event=f"lading {job.cause}", task_instance=key, extra=failure_message(job))
