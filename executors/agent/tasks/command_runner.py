"""The runner of commands, for nodes without Airflow.

The workload is a :class:`lading.hooks.spool.command.CommandWork`, which orchestrators other than Airflow submit.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from lading.executors.agent import process_tree
from lading.executors.agent.scratch import VARIABLE as SCRATCH_VARIABLE
from lading.executors.agent.signal_passing import SignalPassing
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed, Runner
from lading.hooks.files.logs import get_logger
from lading.hooks.files.safe_files import make_private, open_regular
from lading.hooks.spool.command import COMMAND_RUNNER, LOG_FOLDER_VARIABLE, PROBE, CommandWork
from lading.scheduling.model.reasons import because

log = get_logger(__name__)


def preload(runner: str = "") -> None:
    """Import the program of jobs that name this runner."""
    _named(runner)


@cache
def _named(runner: str) -> Runner | None:
    """Return the runner of this name with its program imported; None: not available, so jobs start new processes."""
    if runner in ("", COMMAND_RUNNER):
        return None
    try:
        found = cast(Runner, import_module(runner))
        found.preload()
        return found
    except Exception as error:  # another version, or half installed; the command itself may tell more
        log.info("%s is not available on this machine (%r): each job starts a new process", runner, error)
        return None


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run a command to its end.

    :raises AgentJobFailed: the command cannot be started, or has exited with a code other than 0
    """
    if workload.get("type") == PROBE:  # that this code runs at all is what a probe finds out
        return
    try:
        command = CommandWork.from_workload(workload)
    except ValueError as error:
        raise AgentJobFailed(because("workload_unreadable", text=str(error))) from error
    if (runner := _named(command.runner)) is not None:
        runner.run(workload, job)
    else:
        start(command, job)


def start(command: CommandWork, job: AgentJob) -> None:
    """Start the program of a command, and wait for its end.

    :raises AgentJobFailed: the program cannot be started, or has exited with a code other than 0
    """
    try:
        output = open_log(command)
    except OSError as error:
        raise AgentJobFailed(because("job_error", text=f"its log cannot be written: {error}")) from error
    folder = command.folder or os.environ.get(SCRATCH_VARIABLE)
    passing = SignalPassing()
    try:
        if folder:
            os.chdir(folder)
        os.environ.update(command.environment)
        pid = _spawn(command.arguments, output)
    except (OSError, ValueError) as error:
        text = f"{command.arguments[0]} cannot be started in {folder or os.getcwd()}: {error}"
        raise AgentJobFailed(because("job_error", text=text)) from error
    finally:
        if output is not None:
            os.close(output)
    passing.start(send_to_all, is_asked=job.cause() is not None)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    # From here on, only processes that it has left running are terminated.
    job.task_has_ended()
    if code != 0:
        raise failure(code)


def _spawn(arguments: Sequence[str], output: int | None) -> int:
    """Start a program in this process's folder and environment, without its other open files; returns its pid.

    ``subprocess`` would do the same, but importing it takes a batch job a twentieth of its CPU time.

    :param output: descriptor of the file for its output; None: that of this process
    :raises OSError: it cannot be started
    :raises ValueError: an argument contains a NUL character
    """
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the list itself
            if int(name) > 2:
                os.set_inheritable(int(name), False)
    files: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)]
    files += [(os.POSIX_SPAWN_DUP2, output, target) for target in (1, 2) if output is not None]
    changed_by_python = signal.SIGPIPE, signal.SIGXFSZ
    return os.posix_spawnp(arguments[0], [*arguments], os.environ, file_actions=files, setsigdef=changed_by_python)


def send_to_all(number: int) -> None:
    """Send a signal to all descendants of this process, because a shell does not pass it on to what it waits for."""
    process_tree.send(process_tree.descendants(os.getpid()), number)


def failure(code: int) -> AgentJobFailed:
    """Return the failure for an exit code other than 0; negative: the signal that killed the command."""
    if code > 0:
        return AgentJobFailed(because("task_exited", exit_code=code), code)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return AgentJobFailed(because("task_killed", signal=name), code)


def open_log(command: CommandWork) -> int | None:
    """Open the file for a command's output; None: the output goes to the job's own output file."""
    if not command.log_path:
        return None
    folder = os.environ.get(LOG_FOLDER_VARIABLE) or command.log_folder
    path = Path(folder, command.log_path)
    if not path.parent.is_dir():
        make_private(path.parent)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
