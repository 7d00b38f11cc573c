"""Append Lading's own messages to the log of a task."""

from __future__ import annotations

import contextlib
import json
import os
from datetime import datetime, timezone

from airflow.sdk.log import init_log_file


def append_to_task_log(log_path: str | None, message: str, cause: str | None = None, level: str = "error") -> None:
    """Append a line in Airflow's own format to the log of one try on this machine.

    If the supervisor of the task has already written the message, nothing is added; it has not if it never started or
    died. A log that cannot be written is ignored, because the event log has the same message.

    :param log_path: the workload's ``log_path``, relative to ``[logging] base_log_folder``; None: it has no log
    :param message: what is wrong, or what the task waits for
    :param cause: Lading's cause of the job's end
    """
    if not log_path:
        return
    line = {
        "timestamp": datetime.now(timezone.utc).isoformat().replace("+00:00", "Z"),
        "level": level,
        "event": message,
        "cause": cause,
        "logger": "lading",
    }
    # Use Airflow's function, which sets its permissions, because a later try may run as another user (run_as_user).
    with contextlib.suppress(OSError), init_log_file(log_path).open("a+b") as log:
        # The same message is searched for at the end of the log.
        log.seek(max(log.seek(0, os.SEEK_END) - 16 * 1024, 0))
        if json.dumps(message, ensure_ascii=False).encode() not in log.read():
            log.write(json.dumps(line, ensure_ascii=False).encode() + b"\n")
