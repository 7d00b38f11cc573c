"""Prints a failure the moment it happens: a run that is ended from outside prints nothing more. A plugin of pytest."""

from __future__ import annotations

import pytest

# Of a failure's text, the last lines: they name the cause. The whole of it stands at the end of the run.
LINES = 15


class Failures:
    """Holds pytest's terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name the test, and show the end of why it failed."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            text = report.longreprtext.splitlines()[-LINES:]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            terminal.write_line("\n".join(f"  {line}" for line in text))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
