"""What of Airflow's configuration in the environment no task gets."""

from __future__ import annotations

import subprocess

import pytest

from lading.hooks.files.server_secrets import without_secrets
from lading.hooks.ssh import session

TAKEN = [
    "_AIRFLOW_PROCESS_CONTEXT",
    "AIRFLOW__API_AUTH__JWT_SECRET",
    "AIRFLOW__API_AUTH__JWT_SECRET_CMD",
    "AIRFLOW__API_AUTH__JWT_SECRET_SECRET",
    "AIRFLOW__API_AUTH__JWT_PRIVATE_KEY_PATH",
    "AIRFLOW__API__SECRET_KEY",
    "AIRFLOW__WEBSERVER__SECRET_KEY",
    "AIRFLOW__CORE__FERNET_KEY",
    "AIRFLOW__CORE__FERNET_KEY_CMD",
    "AIRFLOW__CORE__SQL_ALCHEMY_CONN",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_ASYNC",
    "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN_SECRET",
    "AIRFLOW__CELERY__BROKER_URL",
    "AIRFLOW__CELERY__RESULT_BACKEND_CMD",
]
KEPT = ["PATH", "AIRFLOW_HOME", "AIRFLOW_CONN_X", "AIRFLOW_VAR_X", "AIRFLOW__SECRETS__BACKEND_KWARGS"]
KEPT += ["AIRFLOW__CORE__EXECUTION_API_SERVER_URL", "AIRFLOW__WORKERS__SECRETS_BACKEND", "JWT_SECRET"]


def test_what_only_servers_need_is_taken() -> None:
    assert without_secrets(dict.fromkeys(TAKEN + KEPT, "x")) == dict.fromkeys(KEPT, "x")


def test_commands_that_reach_a_site_have_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*TAKEN, "AIRFLOW_CONN_X"):
        monkeypatch.setenv(name, "x")
    for environment in (None, {"PATH": "/bin:/usr/bin", TAKEN[0]: "x", "AIRFLOW_CONN_X": "x"}):
        process = session.start(["env"], environment, errors=subprocess.DEVNULL)
        said, _ = process.communicate()
        names = {line.partition("=")[0] for line in said.decode().splitlines()}
        assert names.isdisjoint(TAKEN)
        assert "AIRFLOW_CONN_X" in names
