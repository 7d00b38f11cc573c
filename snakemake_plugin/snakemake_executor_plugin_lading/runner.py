"""Runs Snakemake jobs on a node: the node agent imports Snakemake once, and forks a process for each job.

Starting ``python -m snakemake`` takes a second or two of CPU time, which a fork saves. Other commands, and those for
another Python, run as usual.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import signal
import sys
import traceback
from typing import Any

from lading.executors.agent.signal_passing import SignalPassing
from lading.executors.agent.supervisor import AgentJob
from lading.executors.agent.tasks import command_runner
from lading.executors.agent.tasks.command_runner import failure, open_log, send_to_all
from lading.hooks.spool.command import CommandWork

# Modules that a job's Snakemake imports while it runs; found by comparing sys.modules in one.
MODULES = (
    "snakemake.cli",
    "snakemake.api",
    "snakemake.workflow",
    "snakemake.dag",
    "snakemake.executors.local",
    "snakemake.scheduling.job_scheduler",
    "snakemake.scheduling.greedy",
    "snakemake.scheduling.milp",
    "snakemake.report.html_reporter",
)
# How Snakemake starts itself if software is not shared. It has to use the Python of the node agent.
NODES_PYTHON = "python -m snakemake"


def preload(runner: str = "") -> None:
    """Import what every Snakemake needs, so that forks of this process have it."""
    for module in MODULES:
        with contextlib.suppress(ImportError):  # in another version of Snakemake; jobs import what they need themselves
            importlib.import_module(module)


def run(workload: dict[str, Any], job: AgentJob) -> None:
    """Run a command until it exits.

    :raises AgentJobFailed: it cannot be started, or its exit code is not 0
    """
    command = CommandWork.from_workload(workload)
    arguments = [*command.arguments]
    is_nodes = arguments[:3] == NODES_PYTHON.split()
    is_ours = is_nodes or arguments[:3] == [sys.executable, "-m", "snakemake"]
    if not is_ours or "snakemake.cli" not in sys.modules:
        if is_nodes or (arguments[:2] == ["/bin/sh", "-c"] and NODES_PYTHON in arguments[-1]):
            os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        command_runner.start(command, job)
        return
    log = open_log(command)
    sys.stdout.flush()
    sys.stderr.flush()
    passing = SignalPassing()
    pid = os.fork()
    if pid == 0:
        _become(command, log, passing)
    if log is not None:
        os.close(log)
    passing.start(send_to_all, is_asked=job.cause() is not None)
    _, status = os.waitpid(pid, 0)
    job.task_has_ended()
    if (code := os.waitstatus_to_exitcode(status)) != 0:
        raise failure(code)


def _become(command: CommandWork, log: int | None, passing: SignalPassing) -> None:
    """Turn this fork into ``python -m snakemake``. Never returns."""
    code = 1
    try:
        gc.enable()
        logging.getLogger().handlers.clear()  # the node agent's, which would repeat each line of Snakemake's log
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if passing.is_asked:  # a SIGTERM that arrived before or after the fork
            signal.raise_signal(signal.SIGTERM)
        if log is not None:
            os.dup2(log, 1)
            os.dup2(log, 2)
            os.close(log)
        if command.folder:
            os.chdir(command.folder)
        os.environ.update(command.environment)
        sys.argv = ["snakemake", *command.arguments[3:]]
        from snakemake.cli import main

        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)
