"""Runs Airflow's workloads in the process of a job, with seven changes to Airflow's own supervisor.

1. It notices the end of the task's process at once. Airflow's supervisor may sleep on for ``[workers]
   min_heartbeat_interval`` seconds, because nothing is left that could wake it; here a pidfd of the task's process can.
2. It signals that to the agent at once, so the next job starts while the last reports and the log upload still run.
3. It leaves the failure to Airflow's scheduler when the task's process died before it could say how it ended: the
   agent has killed it for a cause, or a signal or ``os._exit`` has ended it. The scheduler learns the cause from the
   executor, puts it into the failure message, and runs callbacks and retries, which the dead task could not. A cause
   goes to the end of the task's log first, before the log is uploaded.
4. So it does when the machine is taken away, which uses up no try, and when the batch system ends the job: whether
   that uses up one depends on why it does, which only the batch system itself knows. A task that says then that it has
   failed is killed before it runs the callbacks of a failure, for those are the scheduler's.
5. It waits for an execution API that does not answer: before the task begins until its token expires, then for as long
   as the scheduler can be without its heartbeat, less what the report takes. After that it leaves the failure to the
   scheduler, too: that is no fault of the task's, and uses up no try.
6. What the API did not answer is evidence of an outage until it answers the task's next request. A heartbeat that is
   answered is no such evidence: the task may be cleaning up after the request that was not.
7. It notes what the task returns, and its outlets, for the files that are named in them.

The changes are subclasses that take the place of Airflow's classes in our own process;
tests/processes/executors/agent/tasks/test_airflow_runner.py holds them against the installed Airflow.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from http import HTTPStatus
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from airflow.configuration import conf
from airflow.dag_processing.bundles import base as bundles_base
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.workloads import ExecuteCallback, ExecutorWorkload
from airflow.sdk.api.client import Client, ServerResponseError
from airflow.sdk.exceptions import TaskAlreadyRunningError
from airflow.sdk.execution_time import callback_supervisor, supervisor
from airflow.sdk.execution_time.comms import RetryTask, TaskState
from airflow.sdk.execution_time.coordinator import get_coordinator_manager
from airflow.sdk.listener import get_listener_manager
from airflow.sdk.log import load_remote_log_handler, logging_processors
from airflow.settings import dispose_orm
from airflow.utils.state import TaskInstanceState
from pydantic import TypeAdapter, ValidationError

from lading.executors.agent import scratch
from lading.executors.agent.job_folder import TERMINATED, EndCause
from lading.executors.agent.supervisor import (
    AgentJob,
    AgentJobFailed,
    JobRefused,
    JobSettled,
    end_leftovers,
    reap_orphans,
)
from lading.executors.agent.tasks import probe
from lading.executors.agent.tasks.api_client import PATIENCE, ApiOutOfReach, ApiRefused, JobClient, is_out_of_reach
from lading.executors.agent.tasks.outputs import NotesResults, measured
from lading.hooks.dags.bundles import of_workload
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.reasons import Reason, because

log = logging.getLogger(__name__)

WORKLOAD: TypeAdapter[ExecutorWorkload] = TypeAdapter(ExecutorWorkload)

# What a supervisor and a task import on their way through Airflow; found by comparing sys.modules in them.
MODULES = (
    "airflow.dag_processing.bundles.local",
    "airflow.dag_processing.bundles.manager",
    "airflow.dag_processing.dagbag",
    "airflow.providers.standard.decorators.bash",
    "airflow.providers.standard.decorators.python",
    "airflow.providers.standard.operators.empty",
    "airflow.sdk.definitions.asset.metadata",
    "airflow.sdk.definitions.connection",
    "airflow.sdk.definitions.decorators",
    "airflow.sdk.execution_time.connection_test_supervisor",
    "airflow.sdk.execution_time.task_runner",
    "encodings.idna",
    "jinja2.ext",
    "lading.hooks.dags.bundles",
    "setproctitle",
)

# How the API server says that a task may not start, or that its end is settled.
UNWANTED = ((HTTPStatus.CONFLICT, "invalid_state"), (HTTPStatus.NOT_FOUND, "not_found"))
# How a task says that it failed.
FAILURES = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)

# The causes of an end that may use up no try.
NOT_THE_TASKS = {TERMINATED.cause, *INFRASTRUCTURE}

# How long to wait at a time for a task's process on kernels that have no pidfd (before Linux 5.3), seconds.
WITHOUT_PIDFD = 0.25

# How long the output of an ended task may be held open by what it has left running, before that is ended, seconds.
OUTPUT_GRACE = 1.0

# How long it may take from a signal until it is written down why the job is ended, seconds.
CAUSE_PATIENCE = 1.0


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()


def preload(runner: str = "") -> None:
    """Import and warm up what every task needs, so that a fork of this process has it."""
    for module in MODULES:
        import_module(module)
    for warm_up in (
        _fix_bundle_root,
        _load_certificates,
        get_coordinator_manager,
        load_remote_log_handler,
        lambda: logging_processors(json_output=True),
        get_listener_manager,  # loads the plugins
    ):
        try:
            warm_up()
        except Exception:  # a broken plugin, say: each task will meet it, where the user sees it
            log.warning("a warm-up has failed", exc_info=True)
    dispose_orm(do_log=False)


def _fix_bundle_root() -> None:
    """Have one cache of Dag bundles for all jobs of this user on this machine.

    By default Airflow keeps them in the folder for temporary files: that is another one for each job, which would clone
    its bundle again.
    """
    if conf.get("dag_processor", "dag_bundle_storage_path", fallback=None):
        return
    folder = scratch.root("") / "dag_bundles"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ[scratch.BUNDLES_VARIABLE] = str(folder)
    bundles_base.STALE_BUNDLE_TRACKING_FOLDER = folder / "_tracking"  # it was set by an import


def _remove_old_bundles(workload: dict[str, Any]) -> None:
    """Remove the versions of a job's bundle that are no longer used, as Airflow's scheduler does on its own machine."""
    if (bundle := of_workload(workload)) is not None and bundle.version is not None:
        try:
            bundles_base.BundleUsageTrackingManager()._remove_stale_bundle_versions_for_bundle(bundle.name)
        except Exception:  # another job does so at the same time, say
            log.warning("old versions of Dag bundle %s could not be removed", bundle.name, exc_info=True)


def _load_certificates() -> None:
    """The client keeps the TLS context of the first of its kind; making one takes longer than all else in a task."""
    Client(base_url="http://localhost", token="").close()


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run a workload to its end.

    :raises AgentJobFailed: the workload is not what Airflow expects, or the task's process ended with another exit code
        than 0, which Airflow knows already unless the agent has ended it for a cause
    :raises JobSettled: the task was cleared, marked or deleted while it ran
    :raises JobRefused: the task was cleared, ended or deleted before it could start, or runs elsewhere: a failure of
        this job would be taken for its own
    """
    if workload.get("type") == probe.PROBE:
        JobClient.job = None  # it waits for nothing: that the API server does not answer is what it is to find
        return _probe(str(workload.get("subject", "")), str(workload.get("token", "")))
    JobClient.job = _NoticesTheEnd.job = job
    # What was the case with the job that this process has run before.
    TaskSupervisor.ended_by_server = TaskSupervisor.reported_failure = TaskSupervisor.asked_to_end = False
    TaskSupervisor.has_begun = TaskSupervisor.is_unreported = False
    TaskSupervisor.api_error = None
    NotesResults.results = []
    parsed = _parsed(workload)
    supervisor.Client = JobClient  # type: ignore[misc]
    supervisor.ActivitySubprocess = TaskSupervisor  # type: ignore[misc]
    callback_supervisor.CallbackSubprocess = CallbackSupervisor  # type: ignore[misc]
    try:
        exit_code = BaseExecutor.run_workload(parsed)
        _remove_old_bundles(workload)
    except RuntimeError as error:
        if isinstance(parsed, ExecuteCallback):  # its supervisor raises this when the callback has failed
            raise AgentJobFailed(because("job_error", text=str(error))) from None
        raise
    except TaskAlreadyRunningError as error:
        raise JobRefused(because("runs_elsewhere", text=str(error))) from error
    except Exception as error:
        if is_out_of_reach(error):
            raise ApiOutOfReach(error, has_begun=TaskSupervisor.has_begun) from error
        if not isinstance(error, ServerResponseError):
            raise
        if _is_unwanted(error):
            answer = {"status": error.response.status_code, "text": str(error.detail)}
            raise JobRefused(because("start_refused", **answer)) from error
        raise ApiRefused(error) from error
    if TaskSupervisor.api_error is not None and job.cause() is None and (exit_code or TaskSupervisor.is_unreported):
        raise ApiOutOfReach(TaskSupervisor.api_error, exit_code or 1)
    if TaskSupervisor.ended_by_server:
        raise JobSettled
    if exit_code:
        raise AgentJobFailed(_failure(exit_code), exit_code)
    if TaskSupervisor.reported_failure:
        raise AgentJobFailed(because("task_failed"), exit_code)
    job.outputs = measured(NotesResults.results)


def _is_unwanted(error: ServerResponseError) -> bool:
    """Whether the task was cleared, ended or deleted, so that its state forbids its start."""
    detail: Any = error.detail
    reason = detail.get("reason") if isinstance(detail, dict) else None
    return (error.response.status_code, reason) in UNWANTED


def _parsed(workload: dict[str, Any]) -> ExecutorWorkload:
    try:
        return WORKLOAD.validate_python(workload)
    except ValidationError as error:
        # Its own words quote what they are about, and that holds the JWT.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        message = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
        raise AgentJobFailed(because("workload_unreadable", text=message)) from None


def _probe(subject: str, token: str) -> None:
    try:
        probe.run(subject, token)
    except ConnectionError as error:
        raise AgentJobFailed(because("probe_failed", text=str(error))) from error


def _failure(exit_code: int) -> Reason:
    if exit_code > 0:
        return because("task_exited", exit_code=exit_code)
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else str(-exit_code)
    return because("task_killed", signal=name)


if TYPE_CHECKING:
    _Watched = supervisor.WatchedSubprocess  # what it is added to
else:
    _Watched = object


class _ProcessEnd:
    """A pidfd of the task's process, as the selector of Airflow's supervisor takes its sockets: readable at its end."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


class _NoticesTheEnd(_Watched):
    """Added to Airflow's supervisors: they notice the end of their process at once, and signal it to the agent."""

    __slots__ = ()

    job: ClassVar[AgentJob]
    """The job of this process: there is never more than one."""

    def _register_pipe_readers(self, *sockets: Any, data: Any, **named: Any) -> None:
        super()._register_pipe_readers(*sockets, data=data, **named)
        if not HAS_PIDFD:
            return

        def unregister(end: _ProcessEnd) -> None:
            self.selector.unregister(end)

        def read(_: _ProcessEnd) -> bool:
            return False  # there is nothing to read, and nothing more will come

        self.selector.register(_ProcessEnd(self.pid), selectors.EVENT_READ, (read, unregister))

    def _service_subprocess(
        self, max_wait_time: float, raise_on_timeout: bool = False, expect_signal: int | None = None
    ) -> int | None:
        if not HAS_PIDFD:
            max_wait_time = min(max_wait_time, WITHOUT_PIDFD)
        reap_orphans(self.pid)
        if self._exit_code is not None and self._open_sockets:
            # Something that the task has left running holds its output open.
            max_wait_time = min(max_wait_time, OUTPUT_GRACE)
            if time.monotonic() - (self._process_exit_monotonic or 0) > OUTPUT_GRACE:
                end_leftovers()
        exit_code: int | None = super()._service_subprocess(max_wait_time, raise_on_timeout, expect_signal)
        return exit_code

    def is_explained(self) -> bool:
        """Whether it is known why the process is killed, if it is."""
        return self.job.cause() is not None

    def _check_subprocess_exit(self, raise_on_timeout: bool = False, expect_signal: int | None = None) -> int | None:
        if self._exit_code is not None:
            return self._exit_code
        if self.is_explained():
            expect_signal = signal.SIGKILL  # we know better than Airflow, which guesses at the reason
        exit_code = super()._check_subprocess_exit(raise_on_timeout, expect_signal)
        if exit_code is not None:
            self.job.task_has_ended()
        return exit_code


@attrs.define(kw_only=True)
class TaskSupervisor(_NoticesTheEnd, NotesResults, supervisor.ActivitySubprocess):
    """Airflow's supervisor of a task's process."""

    if TYPE_CHECKING:
        client: JobClient

    ended_by_server: ClassVar[bool] = False
    """Whether the task was cleared, or marked in the UI, while it ran: the server has decided about it, it has not
    failed."""

    reported_failure: ClassVar[bool] = False
    """Whether the task has reported to the API server itself that it failed, to be retried or not."""

    asked_to_end: ClassVar[bool] = False
    """Whether a signal has asked this process to end, by the agent or by the batch system."""

    has_begun: ClassVar[bool] = False
    """Whether the API server has let the task start."""

    api_error: ClassVar[Exception | None] = None
    """Why the API was not reached when the task, or its last heartbeat, needed it; None: it was."""

    is_unreported: ClassVar[bool] = False
    """Whether the task has ended, and the API was not reached to report how."""

    def _on_child_started(self, **named: Any) -> None:
        super()._on_child_started(**named)
        TaskSupervisor.has_begun = self.client.has_begun = True
        self.client.patient_until = self._last_successful_heartbeat + PATIENCE

    def is_explained(self) -> bool:
        return super().is_explained() or self.api_error is not None

    def _monitor_subprocess(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._note_signal(number)
        super()._monitor_subprocess()

    def _note_signal(self, number: signal.Signals) -> None:
        """Note a signal before the handler that Airflow has set for it passes it on to the task."""
        pass_on: Any = signal.getsignal(number)

        def note(received: int, frame: Any) -> None:
            TaskSupervisor.asked_to_end = True
            pass_on(received, frame)

        signal.signal(number, note)

    def _cause(self) -> EndCause | None:
        """Why the job was ended. A batch system's signal may reach the task before it is written down who sent it."""
        deadline = time.monotonic() + CAUSE_PATIENCE
        while (cause := self.job.cause()) is None and self.asked_to_end and time.monotonic() < deadline:
            time.sleep(0.02)
        return cause

    def _handle_request(self, msg: Any, log: Any, req_id: int) -> None:
        if isinstance(msg, (TaskState, RetryTask)) and msg.state in FAILURES:
            cause = self._cause()
            is_taken = cause is not None and cause.cause in NOT_THE_TASKS
            if is_taken or (cause is None and self.api_error is not None):
                self._signal_subprocess(signal.SIGKILL)
                return
        asked = self.client.asked
        try:
            super()._handle_request(msg, log, req_id)
        finally:
            # What a task asks for that is ended over its heartbeats comes too late to be the end of the outage.
            is_ended = self.failed_heartbeats >= supervisor.MAX_FAILED_HEARTBEATS
            if self.client.asked > asked and self._pending_terminal_state_msg is None and not is_ended:
                TaskSupervisor.api_error = self.client.away

    def _send_heartbeat_if_needed(self) -> None:
        self.client.is_brief = True  # the next one follows soon, and the task can be heard meanwhile
        try:
            super()._send_heartbeat_if_needed()
        finally:
            self.client.is_brief = False
        self.client.patient_until = self._last_successful_heartbeat + PATIENCE

    def _handle_heartbeat_failures(self, exc: Exception) -> None:
        if is_out_of_reach(exc):
            if time.monotonic() < self.client.patient_until:
                log.warning("the API server does not answer, the task goes on: %s", exc)
                return
            TaskSupervisor.api_error = exc
            self.failed_heartbeats = supervisor.MAX_FAILED_HEARTBEATS  # Airflow's supervisor ends the task now
        super()._handle_heartbeat_failures(exc)

    def update_task_state_if_needed(self) -> None:
        TaskSupervisor.ended_by_server = self.final_state == supervisor.SERVER_TERMINATED
        TaskSupervisor.reported_failure = self.final_state in FAILURES
        cause = self._cause() if self.final_state in FAILURES else self.job.cause()
        is_silent = self._terminal_state is None and self._pending_terminal_state_msg is None
        if cause is not None:
            self.process_log.error(str(cause.reason), cause=cause.cause)
        elif self.api_error is not None and self._exit_code != 0 and self._pending_terminal_state_msg is None:
            self.process_log.error(str(ApiOutOfReach(self.api_error)), cause=ApiOutOfReach.cause)
            return
        if is_silent and (cause is not None or self._exit_code != 0):
            return  # the task could not say how it ended: the executor does, with the cause
        try:
            super().update_task_state_if_needed()
            if self._pending_terminal_state_msg is not None and self.client.away is not None:
                TaskSupervisor.api_error, TaskSupervisor.is_unreported = self.client.away, True
        except ServerResponseError as error:
            if not _is_unwanted(error):
                raise
            # The task was marked, cleared or deleted after its last heartbeat.
            self.process_log.warning("what the task has come to is not wanted any more", answer=error.detail)
            TaskSupervisor.ended_by_server, TaskSupervisor.reported_failure = True, False


@attrs.define(kw_only=True)
class CallbackSupervisor(_NoticesTheEnd, callback_supervisor.CallbackSubprocess):
    """Airflow's supervisor of a callback's process."""
