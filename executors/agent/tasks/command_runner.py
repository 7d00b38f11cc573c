"""How a command runs in a job's process: the runner of nodes without Airflow.

The work of such a job is :class:`lading.hooks.spool.command.CommandWork`, which any orchestrator but Airflow gives.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from lading.executors.agent import process_tree
from lading.executors.agent.scratch import VARIABLE as SCRATCH_VARIABLE
from lading.executors.agent.signal_passing import SignalPassing
from lading.executors.agent.supervisor import AgentJob, AgentJobFailed, Runner
from lading.hooks.files.safe_files import make_private, open_regular
from lading.hooks.spool.command import COMMAND_RUNNER, LOG_FOLDER_VARIABLE, PROBE, CommandWork
from lading.scheduling.reasons import because

log = logging.getLogger(__name__)


def preload(runner: str = "") -> None:
    """Import the program of commands that name this runner."""
    _named(runner)


@cache
def _named(runner: str) -> Runner | None:
    """The runner of this name, with its program imported; None: it is not here, so each job starts its command anew."""
    if runner in ("", COMMAND_RUNNER):
        return None
    try:
        found = cast(Runner, import_module(runner))
        found.preload()
        return found
    except Exception as error:  # of another version, or half installed: the command itself may say more
        log.info("%s is not on this machine (%r): each job starts its command anew", runner, error)
        return None


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run a command to its end.

    :raises AgentJobFailed: it cannot be started, or has ended with another exit code than 0
    """
    if workload.get("type") == PROBE:  # that this runs says all that is to be found out
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

    :raises AgentJobFailed: it cannot be started, or has ended with another exit code than 0
    """
    try:
        output = open_log(command)
    except OSError as error:
        raise AgentJobFailed(because("job_error", text=f"its log cannot be written: {error}")) from error
    folder = command.folder or os.environ.get(SCRATCH_VARIABLE)
    passing = SignalPassing()
    try:
        process = subprocess.Popen(
            command.arguments,
            cwd=folder,
            env={**os.environ, **command.environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    except (OSError, ValueError) as error:
        text = f"{command.arguments[0]} cannot be started in {folder or os.getcwd()}: {error}"
        raise AgentJobFailed(because("job_error", text=text)) from error
    finally:
        if output is not None:
            os.close(output)
    passing.start(send_to_all, is_asked=job.cause() is not None)
    code = process.wait()
    # From here on only what it has left running is ended.
    job.task_has_ended()
    if code != 0:
        raise failure(code)


def send_to_all(number: int) -> None:
    """Send a signal to all that this process has started: a shell does not pass it on to what it waits for."""
    process_tree.send(process_tree.descendants(os.getpid()), number)


def failure(code: int) -> AgentJobFailed:
    """How a command has failed that has ended with an exit code; below 0: the signal that ended it."""
    if code > 0:
        return AgentJobFailed(because("task_exited", exit_code=code), code)
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return AgentJobFailed(because("task_killed", signal=name), code)


def open_log(command: CommandWork) -> int | None:
    """The file in which a command prints; None: what its process prints is kept with the job."""
    if not command.log_path:
        return None
    folder = os.environ.get(LOG_FOLDER_VARIABLE) or command.log_folder
    path = Path(folder, command.log_path)
    if not path.parent.is_dir():
        make_private(path.parent)
    return open_regular(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
