"""Snakemakes that are forked from a process that has imported Snakemake: each start would take two seconds of a
processor for imports, and so would each controller and each node agent.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.services import forks

# Time limit in seconds; long, so that a test does not fail on a busy machine.
PATIENCE = 300.0
BIN = Path(sys.executable).parent
# The modules of controllers and node agents, and those that start them.
STARTERS = {
    "snakemake_executor_plugin_lading": "lading.executors.controller_process",
    "lading.executors.agent": "lading.hooks.machines.agent_host",
}
# What they import in addition to what a job's Snakemake does.
MODULES = (
    "lading.executors.agent.agent",
    "lading.plugin.serving",
    "lading.plugin.sites",
    "snakemake_executor_plugin_lading.commands",
    "snakemake_executor_plugin_lading.executor",
    "snakemake_executor_plugin_lading.host",
)


def start(program: str, *arguments: str, **options: Any) -> forks.Popen:
    """Start ``snakemake`` or ``snakemake-lading`` as a user does.

    :param options: of :class:`subprocess.Popen`
    """
    return forks.Popen(_lender().pid, [str(BIN / program), *arguments], **options)


def run(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the same to its end."""
    process = start(program, *arguments, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    output, errors = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)


@functools.cache
def _lender() -> subprocess.Popen[bytes]:
    """The process that forks, which ends with this one."""
    return forks.start("forking", [], os.environ, Path.cwd(), 2, Path(__file__).parent)


def main(opened: int, arguments: list[str]) -> None:
    # What a shell starts in the background ignores Ctrl-C, as do the processes that it starts.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    forking = forks.Forks(opened)
    gc.disable()  # nothing of what is imported is garbage
    import_module("snakemake_executor_plugin_lading.runner").preload()
    for module in MODULES:
        import_module(module)
    gc.freeze()
    gc.enable()
    lender = os.getpid()
    request = forking.serve()
    if request is None:
        forks.leave(0)
    forks.become(request)
    forks.borrow(lender, STARTERS)
    forks.run(request)
