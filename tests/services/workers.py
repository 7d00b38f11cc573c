"""Ends the tests in order when they are interrupted, by Ctrl-C or SIGTERM: a plugin of pytest.

Left to themselves, the processes of pytest-xdist are killed ten seconds after Ctrl-C, or after a SIGINT to the main
process alone, and whatever takes longer to stop stays behind; SIGTERM ends pytest without any teardown.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

import pytest

# What a process has for the teardown of all that it has started, seconds: more than an Airflow has for its end.
PATIENCE = 400.0
TESTS = os.getpid()
NODES = pytest.StashKey[list[Any]]()


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        signal.signal(signal.SIGINT, _interrupt_once)
    signal.signal(signal.SIGTERM, _interrupt_once)


def _interrupt_once(number: int, frame: object) -> None:
    """A process is interrupted twice, by the terminal, or a SIGTERM to the whole group, and by the main process: a
    teardown must go on.
    """
    if os.getpid() != TESTS:  # a fork that a test has made, which ends as any process does
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda number, frame: None)
    raise KeyboardInterrupt


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Remember each process."""
    node.config.stash.setdefault(NODES, []).append(node)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """In the main process: interrupt those that still work, and wait until they have stopped what they have started.

    Where all tests have run they end by themselves.
    """
    working = [
        node for node in session.config.stash.get(NODES, []) if hasattr(node, "channel") and not node.channel.isclosed()
    ]
    has_ended = exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
    for node in working if not has_ended else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(node.gateway._io.popen.pid, signal.SIGINT)
    for node in working:
        with contextlib.suppress(OSError, EOFError, node.channel.RemoteError):
            node.channel.waitclose(PATIENCE)
