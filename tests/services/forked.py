"""Processes that begin with imports behind them: a start of the node agent costs a millisecond instead of a second.

Each is a child of a server that has imported the modules of :data:`PRELOADED` once, has a session of its own, and is
otherwise what ``python -m module`` would be.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PRELOADED = (
    "lading.executors.agent.agent",
    "lading.executors.agent.allocation_agent",
    "lading.executors.agent.batch_job",
    "tests.clusters.agent_runner",
)
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(list(PRELOADED))


class Forked:
    """A process that runs a module's ``main``; to be used like a :class:`subprocess.Popen`.

    :param module: has a function ``main(arguments)`` that returns the exit status
    :param log: what takes its output; None: nothing does
    :param environment: further variables
    :param constants: of modules, to be changed for this process: ``{"package.module.NAME": value}``
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        *,
        cwd: Path,
        log: Path | None = None,
        environment: Mapping[str, str] | None = None,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        given = (
            module,
            list(arguments),
            str(cwd),
            str(log or os.devnull),
            {**(environment or {})},
            {**(constants or {})},
        )
        # What a failed test leaves is ended with the tests, not waited for.
        self._process = SERVER.Process(target=_run, args=given, daemon=True)
        with _unnamed_main():
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended.

        :raises subprocess.TimeoutExpired: it has not after so many seconds
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def _unnamed_main() -> Iterator[None]:
    """Hide the module that was started: each process would otherwise run it again first, with all its imports."""
    main: Any = sys.modules["__main__"]
    kept = {name: vars(main).pop(name) for name in ("__spec__", "__file__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


def run(work: Callable[[], object]) -> None:
    """Do something in a process that is forked from this one, and wait for its end.

    :raises AssertionError: it has failed; why is on its standard error
    """
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    process.join(300)
    assert process.exitcode == 0, f"it ended with {process.exitcode}"


def _run(
    module: str, arguments: list[str], cwd: str, log: str, environment: dict[str, str], constants: dict[str, object]
) -> None:
    os.setsid()
    os.chdir(cwd)
    with open(os.devnull) as nothing, open(log, "ab") as output:
        os.dup2(nothing.fileno(), 0)
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    os.environ.update(environment)
    for constant, value in constants.items():
        where, _, name = constant.rpartition(".")
        setattr(importlib.import_module(where), name, value)
    sys.argv = [module, *arguments]
    sys.exit(importlib.import_module(module).main(arguments))
