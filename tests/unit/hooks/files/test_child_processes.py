"""What the processes get that Lading starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lading.hooks.files.child_processes import without_secrets
from lading.hooks.ssh import session

LIMITS = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
RAISES = f"""
import resource, subprocess, sys
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (100, hard))
from lading.hooks.files import child_processes
command = [sys.executable, "-c", {LIMITS!r}]
assert child_processes.with_first_open_files_limit(command) == command
child_processes.raise_open_files_limit()
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
done = subprocess.run(child_processes.with_first_open_files_limit(command), capture_output=True, text=True)
assert done.stdout == f"(100, {{hard}})\\n"
try:
    child_processes.with_first_open_files_limit(["/no/such/program"])
except FileNotFoundError:
    child_processes.restore_open_files_limit()
    print(*resource.getrlimit(resource.RLIMIT_NOFILE)[:1])
"""

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


def test_what_is_started_finds_the_limit_that_there_was() -> None:
    done = subprocess.run([sys.executable, "-c", RAISES], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("100\n", "")


def test_a_controller_may_open_as_many_files_as_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    from lading.plugin import service

    raised = []
    monkeypatch.setattr(service, "make_private", lambda folder: None)
    monkeypatch.setattr(service, "log_to", lambda settings, managed, level: None)
    monkeypatch.setattr(service, "raise_open_files_limit", lambda: raised.append(True))
    monkeypatch.setattr(service, "ensure_tables", lambda: sys.exit(raised and "raised"))
    with pytest.raises(SystemExit, match="raised"):
        service.serve(managed=True)


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
