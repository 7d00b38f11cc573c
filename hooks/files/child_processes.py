"""What the processes get that Lading starts on this machine: their command, how many files they may have open, and an
environment without the secrets of Airflow's servers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import shutil
import sys
from collections.abc import Mapping, Sequence

# The command of controllers and node agents.

# `python -m` and `python -c` put the working folder first on sys.path, where a stray json.py would take the place of
# the standard library's, in the node agent and in all tasks. `python -P` says no to that only from 3.11 on. The working
# folder itself stays what it is: tasks may count on it.
WITHOUT_WORKING_FOLDER = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
del sys.argv[0]
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)"""


# The archive of the node agent (see the module agent_archive) from which this process runs; None: Lading is installed.
ARCHIVE: str | None = getattr(globals().get("__loader__"), "archive", None)


def python_command(module: str, *arguments: str) -> list[str]:
    """The command that runs a module as ``python -m`` does, but imports nothing from the working folder."""
    if ARCHIVE is not None:
        return [sys.executable, ARCHIVE, module, *arguments]
    return [sys.executable, "-c", WITHOUT_WORKING_FOLDER, module, *arguments]


# How many files a process may have open: a controller and a node agent need one for each connection and each job. Only
# they may have more: what they start finds the limit that it would have without Lading, since some programs close, or
# keep a bit for, every descriptor that they might have, and batch systems hand the limit on to jobs.

_original = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_open_files_limit() -> None:
    """Let this process open as many files as the system lets it."""
    _, hard = _original
    with contextlib.suppress(OSError, ValueError):  # a sandbox may let it have less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_open_files_limit() -> None:
    """Give this process, a fork of one that may have raised its limit, the limit that there was before."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _original:
        resource.setrlimit(resource.RLIMIT_NOFILE, _original)


def with_first_open_files_limit(command: Sequence[str]) -> list[str]:
    """The command, with the limit that this process had before it raised its own.

    :raises FileNotFoundError: there is no such program, which the shell that sets the limit would say in its own way
    """
    soft, _ = _original
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft:
        return list(command)
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    number = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return ["/bin/sh", "-c", f'ulimit -S -n {number}; exec "$@"', "sh", *command]


# A task gets the environment of the process that starts it. LocalExecutor's tasks have that of the scheduler, but for
# the database, whose URL Airflow replaces in them. What a node agent needs of the configuration stays in its
# environment: how tasks find connections and variables (`AIRFLOW_CONN_...`, `AIRFLOW_VAR_...`, secrets backends), where
# logs and Dags are. What only servers use does not: a task that has it could act as Airflow itself.

# Airflow's configuration reference: what signs tokens and sessions, encrypts connections, and opens the database and
# the queue of Celery; each also as a command that prints it (_CMD) or a name in a secrets backend (_SECRET).
_OF_SERVERS = re.compile(
    r"AIRFLOW__(?:API_AUTH__JWT_(?:SECRET|PRIVATE_KEY_PATH)|(?:API|WEBSERVER)__SECRET_KEY|CORE__FERNET_KEY"
    r"|(?:DATABASE|CORE)__SQL_ALCHEMY_CONN(?:_ASYNC)?|CELERY__(?:BROKER_URL|RESULT_BACKEND|FLOWER_BASIC_AUTH))"
    r"(?:_CMD|_SECRET)?"
)

# By this Airflow distinguishes its servers, which may open the database, from other processes.
_IS_SERVER = "_AIRFLOW_PROCESS_CONTEXT"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the secrets of Airflow's servers, for a process that is none."""
    return {
        name: value for name, value in environment.items() if name != _IS_SERVER and not _OF_SERVERS.fullmatch(name)
    }
