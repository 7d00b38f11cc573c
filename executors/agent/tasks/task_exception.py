"""The exception with which an Airflow task failed, from its log: the process that raised it reports only its state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lading.hooks.files.safe_files import read_end
from lading.scheduling.text.nesting import parse_json
from lading.scheduling.text.printable import cut, one_line

# The events under which Airflow's task runner logs the failure of a task.
FAILED, EXITED = "Task failed with exception", "Task exited"


def read_exception(log: Path) -> str | None:
    """Return the type and message of the exception, on one line; None: the log has none, or is not here any more."""
    try:
        # The line of an exception contains the frames of its traceback.
        lines = read_end(log, 2**18).splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if FAILED.encode() in line or EXITED.encode() in line:
            try:
                return _exception_in(parse_json(line.decode()))
            except (ValueError, LookupError, TypeError):  # the task itself writes to its log, and can write anything
                continue
    return None


def _exception_in(record: Any) -> str:
    """Return the exception of a record.

    :raises ValueError, LookupError, TypeError: it has none
    """
    if record["event"] == EXITED:
        return f"it exited with exit code {int(record['exit_code'])}"
    if record["event"] != FAILED:
        raise ValueError("another event quotes it")
    raised = record["error_detail"][0]  # the first is the last that was raised
    return cut(one_line(f"{raised['exc_type']}: {raised['exc_value']}"))
