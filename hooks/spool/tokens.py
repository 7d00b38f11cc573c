"""Tokens, which identify a try of a job everywhere, and JWTs, which are secrets and kept out of what people read."""

from __future__ import annotations

import re

# A token becomes a file name, so nothing else may reach the file system.
TOKEN = re.compile(r"[0-9A-Za-z-]{1,64}")

# The environment variable with the token of the job, in all processes of a job.
JOB_VARIABLE = "LADING_JOB"
# The environment variable with the id of the task instance that a job runs. Programs that the task starts inherit it,
# among them an Airflow whose tasks no job runs.
TASK_VARIABLE = "LADING_TASK"

# A JWT, or the first part of one: it starts with a JSON object in Base64.
JWT = re.compile(r"eyJ[\w.-]*")


def checked(token: str) -> str:
    """Return the token if it is valid as a file name.

    :raises ValueError: it is not
    """
    if not TOKEN.fullmatch(token):
        raise ValueError(f"{token!r} is not a token: 1 to 64 letters, digits and dashes are expected")
    return token
