"""Airflow's own secrets in the environment of a process, which no task needs.

A task gets the environment of the process that starts it. LocalExecutor's tasks have that of the scheduler, but for the
database, whose URL Airflow replaces in them. What a node agent needs of the configuration stays in its environment:
how tasks find connections and variables (``AIRFLOW_CONN_...``, ``AIRFLOW_VAR_...``, secrets backends), where logs and
Dags are. What only servers use does not: a task that has it could speak for Airflow itself.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

# Airflow's configuration reference: what signs tokens and sessions, encrypts connections, and opens the database and
# the queue of Celery; each also as a command that prints it (_CMD) or a name in a secrets backend (_SECRET).
_OF_SERVERS = re.compile(
    r"AIRFLOW__(?:API_AUTH__JWT_(?:SECRET|PRIVATE_KEY_PATH)|(?:API|WEBSERVER)__SECRET_KEY|CORE__FERNET_KEY"
    r"|(?:DATABASE|CORE)__SQL_ALCHEMY_CONN(?:_ASYNC)?|CELERY__(?:BROKER_URL|RESULT_BACKEND|FLOWER_BASIC_AUTH))"
    r"(?:_CMD|_SECRET)?"
)

# By this Airflow tells its servers, which may open the database, from other processes.
_IS_SERVER = "_AIRFLOW_PROCESS_CONTEXT"


def without_secrets(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment without the secrets of Airflow's servers, for a process that is none."""
    return {
        name: value for name, value in environment.items() if name != _IS_SERVER and not _OF_SERVERS.fullmatch(name)
    }
