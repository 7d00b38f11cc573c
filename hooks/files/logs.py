"""Logging of Lading's processes: one line per message, and a lasting problem is logged once, not at every retry."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from lading.scheduling.text.printable import printable, printable_lines

if TYPE_CHECKING:
    import logging

# The value of logging.WARNING.
WARNING = 30
# Times, ids and counts differ at every retry of the same problem. The pattern matches each run of such characters once.
VARYING = r"(?<![0-9a-f-])[0-9a-f-]*[0-9][0-9a-f-]*"
# What a connection appends while it waits to retry.
COUNTDOWN = "; tried again in "


# Importing ``logging`` takes a twentieth of the CPU time of a batch job, and most batch jobs log nothing. Therefore the
# modules that a batch job imports get their loggers from here.


class _LateLogger:
    """A logger that imports ``logging`` when it is used."""

    is_to_stderr = False

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        import logging

        if _LateLogger.is_to_stderr:
            _LateLogger.is_to_stderr = False
            log_to_stderr()
        return getattr(logging.getLogger(self._name), attribute)


def get_logger(name: str) -> logging.Logger:
    return cast("logging.Logger", _LateLogger(name))


def plain_formatter(style: str) -> logging.Formatter:
    """Return a formatter that prints each message on one line; only tracebacks take more."""
    import logging

    class PlainFormatter(logging.Formatter):
        def formatMessage(self, record: logging.LogRecord) -> str:
            return printable(super().formatMessage(record))

        def format(self, record: logging.LogRecord) -> str:
            return printable_lines(super().format(record))

    return PlainFormatter(style)


def log_to_stderr(*, is_late: bool = False) -> None:
    """Write the log to standard error.

    :param is_late: only when a logger of :func:`get_logger` is first used, for processes in which no other code logs
    """
    if is_late:
        _LateLogger.is_to_stderr = True
        return
    import logging

    handler = logging.StreamHandler()
    handler.setFormatter(plain_formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.INFO)


class Trouble:
    """The problems that each activity has now, so that each is logged only once.

    :param log: the logger to write to
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, set[tuple[type, str]]] = {}

    def begin(self, what: str, error: BaseException, traceback: bool = False, level: int = WARNING) -> None:
        """Log that an activity failed, unless it already failed in the same way.

        :param what: the activity that failed, as text
        :param traceback: whether to log an error with a traceback, for what may be a bug
        :param level: the log level without a traceback
        """
        said = self._said.setdefault(what, set())
        sign = (type(error), re.sub(VARYING, "#", str(error).partition(COUNTDOWN)[0]))
        if sign in said:
            return
        if len(said) >= 100:
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
