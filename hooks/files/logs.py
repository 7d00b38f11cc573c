"""What Lading's processes log: messages of one line each, and trouble that lasts once, not at every try."""

from __future__ import annotations

import logging
import re

from lading.scheduling.text.printable import printable, printable_lines

# Times, ids and counts differ at every try, and are no other trouble. A run of such characters is looked at once.
VARYING = re.compile(r"(?<![0-9a-f-])[0-9a-f-]*[0-9][0-9a-f-]*")
# What a connection adds while it waits.
COUNTDOWN = "; tried again in "
# Of one matter so many different troubles are remembered.
REMEMBERED = 100


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


class Trouble:
    """What is wrong now, by what it concerns.

    :param log: where it is said
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[str, set[tuple[type, str]]] = {}

    def begin(self, what: str, error: BaseException, traceback: bool = False, level: int = logging.WARNING) -> None:
        """Something has failed; it is said unless it has failed so before.

        :param what: what has failed, as text
        :param traceback: whether it may be a fault of ours
        :param level: of the log where it is not
        """
        said = self._said.setdefault(what, set())
        sign = (type(error), VARYING.sub("#", str(error).partition(COUNTDOWN)[0]))
        if sign in said:
            return
        if len(said) >= REMEMBERED:
            said.clear()
        said.add(sign)
        message = "%s: %s (said once, tried again)"
        if traceback:
            self._log.error(message, what, error, exc_info=error)
        else:
            self._log.log(level, message, what, error)

    def note(self, what: str, error: BaseException | None) -> None:
        """Something has failed, or works: None."""
        if error is None:
            self.end(what)
        else:
            self.begin(what, error)

    def end(self, what: str) -> None:
        """It works."""
        if self._said.pop(what, None):
            self._log.info("%s: no more", what)
