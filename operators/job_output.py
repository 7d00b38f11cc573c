"""The output and the state of a batch job, as lines of a task's log."""

from __future__ import annotations

import codecs
from typing import Any

from lading.hooks.job_scripts.run import RunRecord
from lading.hooks.job_scripts.run_site import RunSighting


class Lines:
    """The log lines of one run.

    :param log: the task's logger
    :ivar offset: how many bytes of the output have been printed
    :ivar last: the last line that is not blank; None: there is none
    """

    def __init__(self, log: Any) -> None:
        self._log = log
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self.offset = 0
        self.last: str | None = None

    def show(self, before: RunRecord, seen: RunSighting) -> None:
        """Log what a look at the run has found.

        :param before: the record of the run before this look
        """
        self.print(seen.output)
        self.print_change(before, seen.record)

    def print(self, output: bytes) -> None:
        """Log the complete lines in newly printed output."""
        self.offset += len(output)
        *whole, self._begun = (self._begun + self._decoder.decode(output)).split("\n")
        for line in whole:
            self._print(line)

    def print_change(self, before: RunRecord, now: RunRecord) -> None:
        if (before.state, before.reason, before.job_id) == (now.state, now.reason, now.job_id):
            return
        name = f"Batch job {now.job_id}" if now.job_id else "The batch job"
        where = f" on {now.nodes}" if now.nodes and now.state == "running" else ""
        verb = "was" if now.state == "cancelled" else "has" if now.ended else "is"
        self._log.info("%s", f"{name} {verb} {now.state}{where}" + (f": {now.reason}" if now.reason else ""))

    def end(self) -> None:
        """Log a last line that has no line end."""
        self.print(b"")
        rest, self._begun = self._begun, ""
        if rest:
            self._print(rest)

    def _print(self, line: str) -> None:
        text = line.rstrip("\r")
        self._log.info("%s", text)
        if text.strip():
            self.last = text
