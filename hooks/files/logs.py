"""Logging of Lading's processes: one line per message, and a lasting problem is logged once, not at every retry."""

from __future__ import annotations

import logging
import re

from lading.scheduling.text.printable import printable, printable_lines

# Times, ids and counts differ at every retry of the same problem. The pattern matches each run of such characters once.
VARYING = re.compile(r"(?<![0-9a-f-])[0-9a-f-]*[0-9][0-9a-f-]*")
# What a connection appends while it waits to retry.
COUNTDOWN = "; tried again in "
# Distinct errors remembered for one activity.
REMEMBERED = 100


class PlainFormatter(logging.Formatter):
    """A formatter that prints each message on one line; only tracebacks take more."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def format(self, record: logging.LogRecord) -> str:
        return printable_lines(super().format(record))


def log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(PlainFormatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


class Trouble:
    """The problems that each activity has now, so that each is logged only once.

    :param log: the logger to write to
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, set[tuple[type, str]]] = {}

    def begin(self, what: str, error: BaseException, traceback: bool = False, level: int = logging.WARNING) -> None:
        """Log that an activity failed, unless it already failed in the same way.

        :param what: the activity that failed, as text
        :param traceback: whether to log an error with a traceback, for what may be a bug
        :param level: the log level without a traceback
        """
        said = self._said.setdefault(what, set())
        sign = (type(error), VARYING.sub("#", str(error).partition(COUNTDOWN)[0]))
        if sign in said:
            return
        if len(said) >= REMEMBERED:
            said.clear()
        said.add(sign)
        message = "%s: %s (logged once, retrying)"
        if traceback:
            self._log.error(message, what, error, exc_info=error)
        else:
            self._log.log(level, message, what, error)

    def note(self, what: str, error: BaseException | None) -> None:
        """Record the result of an activity: the error it failed with, or None if it worked."""
        if error is None:
            self.end(what)
        else:
            self.begin(what, error)

    def end(self, what: str) -> None:
        if self._said.pop(what, None):
            self._log.info("%s: resolved", what)
