"""What Lading itself has to say in the log of a task."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timezone

from airflow.sdk.log import init_log_file

# Where the end of a log is looked for words that are there already, bytes.
END = 16 * 1024


def append_to_task_log(log_path: str | None, message: str, cause: str | None = None) -> None:
    """Add a line in Airflow's own format to the log of one try, where that log is on this machine.

    The supervisor of a task has done so before, unless it never started or was gone itself: then nothing is added.
    A log that cannot be written is no reason to fail anything: the same words are in the event log.

    :param log_path: the workload's ``log_path``, relative to ``[logging] base_log_folder``; None: it has no log
    :param message: what is wrong, as text
    :param cause: Lading's cause of the job's end, as the supervisor names it beside the words
    """
    if not log_path:
        return
    line = {
        "timestamp": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        "level": "error",
        "event": message,
        "cause": cause,
        "logger": "lading",
    }
    # Made with Airflow's permissions: a later try may run as another user (run_as_user).
    with contextlib.suppress(OSError), init_log_file(log_path).open("a+b") as log:
        log.seek(max(log.seek(0, os.SEEK_END) - END, 0))
        if json.dumps(message, ensure_ascii=False).encode() not in log.read():
            log.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
