"""A plugin of pytest that prints each failure the moment it happens, and at the end the files that took longest.

A run that is killed never prints its summary; what has failed until then has been printed.
"""

from __future__ import annotations

from collections import Counter

import pytest

# Of a failure's text, the last lines: they name the cause. The whole of it stands at the end of the run.
LINES = 15


class Failures:
    """Holds pytest's terminal."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Name a test that failed, and print the end of why."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            text = report.longreprtext.splitlines()[-LINES:]
            terminal.write_line(f"\nFAILED {report.nodeid} ({report.when}, {report.duration:.0f} s)")
            terminal.write_line("\n".join(f"  {line}" for line in text))


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(config))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the ten files whose tests took longest, setup and teardown included."""
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    terminalreporter.section("slowest files")
    for file, duration in seconds.most_common(10):
        terminalreporter.write_line(f"{duration:7.0f} s  {file}")
