"""Prints a failure the moment it happens, and at the end which files took longest. A plugin of pytest.

A run that is ended from outside prints nothing more.
"""

from __future__ import annotations

from collections import Counter

import pytest

# Of a failure's text, the last lines: they name the cause. The whole of it stands at the end of the run.
LINES = 15
# So many files are named as the slowest ones.
SLOWEST_FILES = 10


class Failures:
    """Holds pytest's terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a test that failed, and show the end of why it did."""
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            text = report.longreprtext.splitlines()[-LINES:]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            terminal.write_line("\n".join(f"  {line}" for line in text))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Name the files whose tests took longest, with their setup and teardown."""
        if len(self.seconds) > SLOWEST_FILES:
            terminalreporter.section(f"the {SLOWEST_FILES} slowest files")
            for file, seconds in self.seconds.most_common(SLOWEST_FILES):
                terminalreporter.write_line(f"{seconds:7.0f} s  {file}")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))
