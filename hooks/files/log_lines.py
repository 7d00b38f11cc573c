"""The lines of a log that people read on a terminal: what others wrote in them stays text."""

from __future__ import annotations

import logging

from lading.scheduling.text.printable import printable, printable_lines


class PlainFormatter(logging.Formatter):
    """A formatter whose messages are one line each; only a traceback has more of them."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def log_to_stderr() -> None:
    """Send the log of this process to its standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)
