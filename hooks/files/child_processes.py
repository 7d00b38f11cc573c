"""How Lading starts processes on this machine: their command, their limit of open files, and an environment without the
secrets of Airflow's servers.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import resource
import sys
from collections.abc import Mapping, Sequence

# The command of controllers and node agents.

# `python -m` and `python -c` put the working directory first on sys.path. There a stray json.py would shadow the
# standard library's, in the node agent and in all tasks. `python -P` prevents that, but only from Python 3.11 on. The
# working directory itself is kept, because tasks may rely on it.
WITHOUT_WORKING_FOLDER = """\
import sys
if sys.path[:1] == [""]:
    del sys.path[0]
del sys.argv[0]
import runpy
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)"""


# The node agent's archive that this process runs from (see the module agent_archive); None: Lading is installed.
ARCHIVE: str | None = getattr(globals().get("__loader__"), "archive", None)


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module like ``python -m``, but without the working directory on ``sys.path``."""
    if ARCHIVE is not None:
        return [sys.executable, ARCHIVE, module, *arguments]
    return [sys.executable, "-c", WITHOUT_WORKING_FOLDER, module, *arguments]


# A controller and a node agent need one open file for each connection and each job, so they raise their own limit. The
# processes that they start get the original limit back: some programs close every possible descriptor or keep a bit for
# each, and batch systems pass the limit on to jobs.

_original = resource.getrlimit(resource.RLIMIT_NOFILE)


def raise_open_files_limit() -> None:
    _, hard = _original
    with contextlib.suppress(OSError, ValueError):  # a sandbox may allow less than it reports
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def restore_open_files_limit() -> None:
    """Restore the original limit of open files, in a fork of a process that may have raised it."""
    if resource.getrlimit(resource.RLIMIT_NOFILE) != _original:
        resource.setrlimit(resource.RLIMIT_NOFILE, _original)


def with_first_open_files_limit(command: Sequence[str]) -> list[str]:
    """Return the command, run with the limit of open files that this process had before it raised its own.

    :raises FileNotFoundError: the program does not exist; checked here because the shell that sets the limit would
        report it in its own way
    """
    soft, _ = _original
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] == soft:
        return list(command)
    import shutil  # imported late, as batch jobs do not start such processes

    if shutil.which(command[0]) is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), command[0])
    number = "unlimited" if soft == resource.RLIM_INFINITY else str(soft)
    return ["/bin/sh", "-c", f'ulimit -S -n {number}; exec "$@"', "sh", *command]


# A task inherits the environment of the process that starts it. With LocalExecutor that is the scheduler's, except for
# the database URL, which Airflow replaces. A node agent keeps the configuration that tasks need: how to find
# connections and variables (`AIRFLOW_CONN_...`, `AIRFLOW_VAR_...`, secrets backends), logs and Dags. Settings that only
# servers use are removed, because a task that has them could act as Airflow itself.

# From Airflow's configuration reference: the settings that sign tokens and sessions, encrypt connections, and open the
# database and Celery's queue; each also as a command that prints it (_CMD) or a name in a secrets backend (_SECRET).
_OF_SERVERS = (
    r"AIRFLOW__(?:API_AUTH__JWT_(?:SECRET|PRIVATE_KEY_PATH)|(?:API|WEBSERVER)__SECRET_KEY|CORE__FERNET_KEY"
    r"|(?:DATABASE|CORE)__SQL_ALCHEMY_CONN(?:_ASYNC)?|CELERY__(?:BROKER_URL|RESULT_BACKEND|FLOWER_BASIC_AUTH))"
    r"(?:_CMD|_SECRET)?"
)

# Airflow sets this in its servers, which may open the database, and not in other processes.
_IS_SERVER = "_AIRFLOW_PROCESS_CONTEXT"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the secrets of Airflow's servers, for a process that is not a server."""
    return {
        name: value for name, value in environment.items() if name != _IS_SERVER and not re.fullmatch(_OF_SERVERS, name)
    }
