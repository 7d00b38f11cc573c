"""Runs Airflow's workloads in the process of a job, with eight changes to Airflow's own supervisor.

1. It notices the end of the task's process at once. Airflow's supervisor can keep sleeping for ``[workers]
   min_heartbeat_interval`` seconds, because nothing is left to wake it; here, a pidfd of the task's process does.
2. It reports this end to the agent at once, so that the next job starts while the last reports and the log upload are
   still running.
3. It leaves the failure to Airflow's scheduler if the task's process died before it could report how it ended: the
   agent has killed it for a cause, or it was ended by a signal or ``os._exit``. The scheduler learns the cause from the
   executor, puts it into the failure message, and runs callbacks and retries, which the dead task could not. The cause
   is appended to the task's log before the log is uploaded.
4. It does the same if the machine is taken away, which uses up no try, and if the batch system terminates the job.
   Whether the latter uses up a try depends on the batch system's reason, which only that system knows. A task that then
   reports that it has failed is killed before it runs its failure callbacks, because those are the scheduler's job.
5. It waits for an execution API that does not answer: until its token expires before the task begins, and after that
   for as long as the scheduler tolerates missing heartbeats, less the time for the report. Then it leaves this failure
   to the scheduler, too: it is not the task's fault, and uses up no try.
6. An unanswered request is evidence of an outage until the API answers the task's next request. An answered heartbeat
   does not end the outage: the task may be cleaning up after the request that got no answer.
7. It notes the task's result and outlets for the files that they name.
8. It sends the first heartbeat one interval after the start. Airflow's supervisor sends it right after the request that
   starts the task, which the API server already counts as a heartbeat. A short task thus saves one of five requests.

The changes are subclasses that replace Airflow's classes in our own process;
tests/processes/executors/agent/tasks/test_airflow_runner.py checks them against the installed Airflow.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import time
from functools import cache
from http import HTTPStatus
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import attrs
from airflow.configuration import conf
from airflow.dag_processing.bundles import base as bundles_base
from airflow.executors.base_executor import BaseExecutor
from airflow.executors.workloads import ExecuteCallback, ExecuteTask, ExecutorWorkload
from airflow.sdk.api.client import ServerResponseError
from airflow.sdk.exceptions import TaskAlreadyRunningError
from airflow.sdk.execution_time import callback_supervisor, comms, supervisor, task_runner
from airflow.sdk.execution_time.comms import RetryTask, TaskState
from airflow.sdk.execution_time.coordinator import get_coordinator_manager
from airflow.sdk.listener import get_listener_manager
from airflow.sdk.log import load_remote_log_handler, logging_processors
from airflow.settings import dispose_orm
from airflow.utils.state import TaskInstanceState
from pydantic import JsonValue, TypeAdapter, ValidationError

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
from lading.executors.agent.tasks.task_exception import read_exception
from lading.hooks.dags.bundles import of_workload
from lading.scheduling.hints.retries import INFRASTRUCTURE
from lading.scheduling.model.reasons import Reason, because

log = logging.getLogger(__name__)

WORKLOAD: TypeAdapter[ExecutorWorkload] = TypeAdapter(ExecutorWorkload)

# Modules that Airflow imports in a supervisor and a task, found by comparing their sys.modules.
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
    "airflow.version",
    "encodings.idna",
    "jinja2.ext",
    "lading.hooks.dags.bundles",
    "lading.operators",
    "setproctitle",
)

# Answers of the API server to a task that must not start, or whose outcome is already decided.
UNWANTED = ((HTTPStatus.CONFLICT, "invalid_state"), (HTTPStatus.NOT_FOUND, "not_found"))
# States by which a task reports its failure.
FAILURES = (TaskInstanceState.FAILED, TaskInstanceState.UP_FOR_RETRY)

# Causes that may not use up a try.
NOT_THE_TASKS = {TERMINATED.cause, *INFRASTRUCTURE}


# How long to wait after a signal for the file with the cause of the job's termination, seconds.
CAUSE_PATIENCE = 1.0


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


HAS_PIDFD = _has_pidfd()


def preload(runner: str = "") -> None:
    """Import and warm up what every task needs, so that forks of this process have it."""
    for module in MODULES:
        import_module(module)
    for warm_up in (
        _fix_bundle_root,
        _load_certificates,
        _share_validators,
        get_coordinator_manager,
        load_remote_log_handler,
        lambda: logging_processors(json_output=True),
        get_listener_manager,  # loads the plugins
    ):
        try:
            warm_up()
        except Exception:  # for example a broken plugin, which each task will report where the user sees it
            log.warning("a warm-up has failed", exc_info=True)
    dispose_orm(do_log=False)


def _fix_bundle_root() -> None:
    """Use one cache of Dag bundles for all jobs of this user on this machine.

    By default, Airflow keeps bundles in the folder for temporary files, which differs for each job, so that each job
    would clone its bundle again.
    """
    if conf.get("dag_processor", "dag_bundle_storage_path", fallback=None):
        return
    folder = scratch.root("") / "dag_bundles"
    folder.mkdir(mode=0o700, exist_ok=True)
    os.environ[scratch.BUNDLES_VARIABLE] = str(folder)
    bundles_base.STALE_BUNDLE_TRACKING_FOLDER = folder / "_tracking"  # an import has already set it


def _remove_old_bundles(workload: dict[str, Any]) -> None:
    """Remove unused versions of a job's bundle, as Airflow's scheduler does on its own machine."""
    if (bundle := of_workload(workload)) is not None and bundle.version is not None:
        try:
            bundles_base.BundleUsageTrackingManager()._remove_stale_bundle_versions_for_bundle(bundle.name)
        except Exception:  # for example, another job removes them at the same time
            log.warning("old versions of Dag bundle %s could not be removed", bundle.name, exc_info=True)


def _load_certificates() -> None:
    """Create the TLS context that clients share. It takes longer than anything else in a task.

    Airflow keeps one per class of client.
    """
    JobClient(base_url="http://localhost", token="").close()


def _share_validators() -> None:
    """Build the validators of messages and rendered fields once. Airflow builds them in each task."""
    shared = cache(TypeAdapter)
    for validated in (comms.ToTask, JsonValue):
        shared(validated)
    for module in (comms, task_runner):
        module.TypeAdapter = shared  # type: ignore[attr-defined]


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run a workload to its end.

    :raises AgentJobFailed: the workload is invalid, or the task's process exited with a code other than 0, which
        Airflow already knows unless the agent has terminated it for a cause
    :raises JobSettled: the task was cleared, marked or deleted while it ran
    :raises JobRefused: the task was cleared, ended or deleted before it could start, or runs elsewhere; a failure of
        this job would be taken for the task's own
    """
    if workload.get("type") == probe.PROBE:
        JobClient.job = None  # without a job, the client does not wait: a probe must find out that nothing answers
        return _probe(str(workload.get("subject", "")), str(workload.get("token", "")))
    JobClient.job = _NoticesTheEnd.job = job
    # Reset the state of the job that this process ran before.
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
        if isinstance(parsed, ExecuteCallback):  # its supervisor raises this if the callback has failed
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
        raise AgentJobFailed(_reported(parsed), exit_code)
    job.outputs = measured(NotesResults.results)


def _is_unwanted(error: ServerResponseError) -> bool:
    detail: Any = error.detail
    reason = detail.get("reason") if isinstance(detail, dict) else None
    return (error.response.status_code, reason) in UNWANTED


def _parsed(workload: dict[str, Any]) -> ExecutorWorkload:
    try:
        return WORKLOAD.validate_python(workload)
    except ValidationError as error:
        # The error's own text quotes the input, which contains the JWT.
        found = error.errors(include_url=False, include_context=False, include_input=False)
        message = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in found)
        raise AgentJobFailed(because("workload_unreadable", text=message)) from None


def _probe(subject: str, token: str) -> None:
    try:
        probe.run(subject, token)
    except ConnectionError as error:
        raise AgentJobFailed(because("probe_failed", text=str(error))) from error


def _reported(parsed: ExecutorWorkload) -> Reason:
    """Return why a task failed that has reported this to Airflow itself."""
    if isinstance(parsed, ExecuteTask) and parsed.log_path is not None:
        log_file = Path(conf.get_mandatory_value("logging", "base_log_folder"), parsed.log_path)
        if (raised := read_exception(log_file)) is not None:
            return because("task_raised", text=raised)
    return because("task_failed")


def _failure(exit_code: int) -> Reason:
    if exit_code > 0:
        return because("task_exited", exit_code=exit_code)
    name = signal.Signals(-exit_code).name if -exit_code in set(signal.Signals) else str(-exit_code)
    return because("task_killed", signal=name)


if TYPE_CHECKING:
    _Watched = supervisor.WatchedSubprocess  # the class that the mix-in is added to
else:
    _Watched = object


class _ProcessEnd:
    """A pidfd of the task's process for the selector of Airflow's supervisor: it becomes readable at exit."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def fileno(self) -> int:
        return self._descriptor

    def close(self) -> None:
        os.close(self._descriptor)


class _NoticesTheEnd(_Watched):
    """Mix-in for Airflow's supervisors: they notice the end of their process at once, and report it to the agent."""

    __slots__ = ()

    job: ClassVar[AgentJob]
    """The one job of this process."""

    def _register_pipe_readers(self, *sockets: Any, data: Any, **named: Any) -> None:
        super()._register_pipe_readers(*sockets, data=data, **named)
        if not HAS_PIDFD:
            return

        def unregister(end: _ProcessEnd) -> None:
            self.selector.unregister(end)

        def read(_: _ProcessEnd) -> bool:
            return False  # nothing to read, and nothing more will come

        self.selector.register(_ProcessEnd(self.pid), selectors.EVENT_READ, (read, unregister))

    def _service_subprocess(
        self, max_wait_time: float, raise_on_timeout: bool = False, expect_signal: int | None = None
    ) -> int | None:
        if not HAS_PIDFD:
            # Kernels before Linux 5.3 have no pidfd.
            max_wait_time = min(max_wait_time, 0.25)
        reap_orphans(self.pid)
        if self._exit_code is not None and self._open_sockets:
            # A process that the task has left running holds its output open: it is terminated after a second.
            max_wait_time = min(max_wait_time, 1.0)
            if time.monotonic() - (self._process_exit_monotonic or 0) > 1.0:
                end_leftovers()
        exit_code: int | None = super()._service_subprocess(max_wait_time, raise_on_timeout, expect_signal)
        return exit_code

    def is_explained(self) -> bool:
        """Return whether the cause is known if the process is killed."""
        return self.job.cause() is not None

    def _check_subprocess_exit(self, raise_on_timeout: bool = False, expect_signal: int | None = None) -> int | None:
        if self._exit_code is not None:
            return self._exit_code
        if self.is_explained():
            expect_signal = signal.SIGKILL  # the cause is known, so Airflow need not guess and log one
        exit_code = super()._check_subprocess_exit(raise_on_timeout, expect_signal)
        if exit_code is not None:
            self.job.task_has_ended()
        return exit_code


@attrs.define(kw_only=True)
class TaskSupervisor(_NoticesTheEnd, NotesResults, supervisor.ActivitySubprocess):
    if TYPE_CHECKING:
        client: JobClient

    ended_by_server: ClassVar[bool] = False
    """Whether the task was cleared, or marked in the UI, while it ran, so that the server already knows its outcome."""

    reported_failure: ClassVar[bool] = False
    """Whether the task itself has reported its failure to the API server, with or without a retry."""

    asked_to_end: ClassVar[bool] = False
    """Whether the agent or the batch system has sent this process a signal to end."""

    has_begun: ClassVar[bool] = False
    """Whether the API server has let the task start."""

    api_error: ClassVar[Exception | None] = None
    """Why the API could not be reached for the task's last request or heartbeat; None: it was."""

    is_unreported: ClassVar[bool] = False
    """Whether the task has ended and its outcome could not be reported to the API."""

    def _on_child_started(self, **named: Any) -> None:
        super()._on_child_started(**named)
        TaskSupervisor.has_begun = self.client.has_begun = True
        self._last_heartbeat_attempt = self._last_successful_heartbeat
        self.client.patient_until = self._last_successful_heartbeat + PATIENCE

    def is_explained(self) -> bool:
        return super().is_explained() or self.api_error is not None

    def _monitor_subprocess(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._note_signal(number)
        super()._monitor_subprocess()

    def _note_signal(self, number: signal.Signals) -> None:
        """Note a signal before Airflow's handler for it passes it on to the task."""
        pass_on: Any = signal.getsignal(number)

        def note(received: int, frame: Any) -> None:
            TaskSupervisor.asked_to_end = True
            pass_on(received, frame)

        signal.signal(number, note)

    def _cause(self) -> EndCause | None:
        """Return why the job is terminated. A batch system's signal can arrive before the cause has been written."""
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
            # A task that is terminated for missing heartbeats may get an answer, but too late to end the outage.
            is_ended = self.failed_heartbeats >= supervisor.MAX_FAILED_HEARTBEATS
            if self.client.asked > asked and self._pending_terminal_state_msg is None and not is_ended:
                TaskSupervisor.api_error = self.client.away

    def _send_heartbeat_if_needed(self) -> None:
        self.client.is_brief = True  # the next heartbeat follows soon, and the task must be served in between
        try:
            super()._send_heartbeat_if_needed()
        finally:
            self.client.is_brief = False
        self.client.patient_until = self._last_successful_heartbeat + PATIENCE

    def _handle_heartbeat_failures(self, exc: Exception) -> None:
        if is_out_of_reach(exc):
            if time.monotonic() < self.client.patient_until:
                log.warning("the API server does not answer; the task continues: %s", exc)
                return
            TaskSupervisor.api_error = exc
            self.failed_heartbeats = supervisor.MAX_FAILED_HEARTBEATS  # makes Airflow's supervisor kill the task now
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
            return  # the task could not report how it ended; the executor does, with the cause
        try:
            super().update_task_state_if_needed()
            if self._pending_terminal_state_msg is not None and self.client.away is not None:
                TaskSupervisor.api_error, TaskSupervisor.is_unreported = self.client.away, True
        except ServerResponseError as error:
            if not _is_unwanted(error):
                raise
            # The task was marked, cleared or deleted in Airflow after its last heartbeat.
            self.process_log.warning("Airflow no longer accepts the outcome of the task", answer=error.detail)
            TaskSupervisor.ended_by_server, TaskSupervisor.reported_failure = True, False


@attrs.define(kw_only=True)
class CallbackSupervisor(_NoticesTheEnd, callback_supervisor.CallbackSubprocess):
    """Airflow's supervisor of a callback's process."""
