"""The command line: ``airflow tasks`` keeps working, and ``airflow lading`` shows what there is."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.services.airflow import Airflow
from tests.services.commands import Answer
from tests.services.processes import wait_until

SOURCE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
with DAG("typed", schedule=None):
    BashOperator(
        task_id="one", bash_command="echo these are words", executor_config=resources(cpus=0.5, memory="300 MiB")
    )
"""

RECORD = json.dumps({"record": {"token": "a", "folder": "/nowhere", "state": "succeeded"}})


def run_all(airflow: Airflow, *commands: list[str], **environment: str) -> list[Answer]:
    """Exit status, standard output and standard error of each command."""
    return [airflow.run(*command, **environment) for command in commands]


@pytest.fixture(scope="module")
def run(airflow: Airflow) -> str:
    airflow.add_dag("typed", SOURCE)
    run = airflow.trigger("typed")
    assert airflow.wait_for_run("typed", run) == "success"

    def is_stored() -> bool:  # the task reports its end to Airflow itself, which may be sooner
        [job] = json.loads(airflow.lading("jobs", "--dag-id", "typed", "--run-id", run, "-o", "json"))
        return bool(job["state"] == "succeeded")

    assert wait_until(is_stored, 60, 1)
    return run


def test_airflow_tasks(airflow: Airflow, run: str) -> None:
    answers = run_all(airflow, ["tasks", "list", "typed"], ["tasks", "states-for-dag-run", "typed", run, "-o", "json"])
    (_, listed, _), (_, states, _) = answers
    assert listed.split() == ["one"]
    [state] = json.loads(states)
    assert (state["task_id"], state["state"]) == ("one", "success")
    # What this command runs is a run in the database: the scheduler would start its task, too, if it were quicker.
    airflow.rest("PATCH", "dags/typed", {"is_paused": True})
    assert "these are words" in airflow.cli("tasks", "test", "typed", "one")


def test_check_says_that_all_is_well(airflow: Airflow) -> None:
    found = {row["check"]: row for row in json.loads(airflow.lading("check", "-o", "json"))}
    first = ["version", "executor", "configuration", "state folder", "store", "tokens", "fernet key"]
    first += ["controller", "throttles", "sites"]
    assert list(found) == [*first, "this machine", "tasks without hints", "sizing", "site local"]
    throttles = found.pop("throttles")
    assert {row["result"] for row in found.values()} == {"ok"}
    assert throttles["result"] == "warning"
    assert "[core] parallelism from 2 to 256 or more" in throttles["details"]
    assert "a trial job ran; there is room for 4 cpus" in found["site local"]["details"]


def test_check_says_what_is_wrong(airflow: Airflow) -> None:
    nowhere = "http://127.0.0.1:1/execution/"
    [api] = run_all(
        airflow, ["lading", "check", "-o", "json", "local"], AIRFLOW__CORE__EXECUTION_API_SERVER_URL=nowhere
    )
    [executor] = run_all(airflow, ["lading", "check", "nosuch"], AIRFLOW__CORE__EXECUTOR="LocalExecutor")
    status, output, errors = api
    assert status == 1
    assert {row["result"] for row in json.loads(output)} == {"ok", "warning", "BAD"}
    assert nowhere in errors
    status, _, errors = executor
    assert status == 1
    assert "set it to lading.executors.LadingExecutor" in errors
    assert "site nosuch: there is no such site; the sites are: local" in errors


def test_check_names_each_mistake_once(airflow: Airflow) -> None:
    mistakes = {
        "AIRFLOW__LADING__DEFUALT_MEMORY": "2 GiB",
        "AIRFLOW__API_AUTH__JWT_SECRET": "x" * 31,
        "AIRFLOW__API__SECRET_KEY": "CHANGE-ME",
        "AIRFLOW__CORE__EXECUTOR": "lading.executors.LadingExecutr",
    }
    [(status, output, errors)] = run_all(airflow, ["lading", "check", "local"], **mistakes)
    assert status == 1
    for words in (
        "AIRFLOW__LADING__DEFUALT_MEMORY: there is no such option; valid: default_memory, ",
        "[api_auth] jwt_secret (env var): has 31 bytes",
        "[api] secret_key (env var): still contains the placeholder CHANGE-ME",
        "has 'lading.executors.LadingExecutr', which cannot be loaded: ",
        "valid: lading.executors.LadingExecutor, ",
    ):
        assert errors.count(words) == 1
        assert words not in output
    assert output.count("see above") >= 4, "a slow machine has more"


def test_clean(airflow: Airflow, tmp_path: Path) -> None:
    """What is old is removed, site by site, and a site that is missing holds up none of the others."""
    rejected = airflow.home / "lading" / "spool" / "local" / "rejected"
    records = tmp_path / ".lading" / "runs"
    for path, text in ((rejected / "old", "{"), (rejected / "young", "{"), (records / "a.json", RECORD)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (0, 0) if path.name != "young" else None)
    command = ["lading", "clean", "-o", "json"]
    answers = run_all(airflow, [*command, "--dry-run"], command, [*command, "nosuch", "local"], HOME=str(tmp_path))
    rows = [[(row["site"], row["kind"], row["number"]) for row in json.loads(text or "[]")] for _, text, _ in answers]
    both = [("local", "rejected files", 1), ("(this machine)", "records of runs", 1)]
    assert rows == [both, both, []]
    assert "Nothing was removed" in answers[0][2]
    assert [status for status, _, _ in answers] == [0, 0, 1]
    assert "site nosuch: there is no such site; the sites are: local" in answers[2][2]
    assert [path.name for path in rejected.iterdir()] == ["young"]
    [young] = run_all(airflow, [*command, "--older-than", "10min"])
    assert young[0] == 2
    assert "give an hour or more" in young[2]


def test_every_output(airflow: Airflow, run: str) -> None:
    commands = [["lading", "jobs", "--run-id", run, "--dag-id", "typed"], ["lading", "sites"]]
    outputs = ("json", "yaml", "table", "plain")
    answers = run_all(airflow, *([*command, "-o", output] for command in commands for output in outputs))
    assert [status or 0 for status, _, _ in answers] == [0] * 8
    texts = [text for _, text, _ in answers]

    def same(by_json: str, by_yaml: str) -> dict[str, Any]:
        [row] = json.loads(by_json)
        assert yaml.safe_load(by_yaml) == [row]
        return dict(row)

    job = same(*texts[0:2])
    assert (job["dag_id"], job["task_id"], job["run_id"], job["state"]) == ("typed", "one", run, "succeeded")
    assert (job["site"], job["location"], job["cpus"], job["memory_mib"]) == (
        "local",
        socket.gethostname(),
        0.5,
        300,
    )
    assert job["cause"] is None
    assert all("typed.one" in text for text in texts[2:4])
    site = same(*texts[4:6])
    assert (site["site"], site["kind"], site["cpus"], site["memory_mib"]) == ("local", "local", 4.0, 8192)
    assert all("local" in text for text in texts[6:8])


def test_jobs_are_chosen(airflow: Airflow, run: str) -> None:
    asked = (["--state", "succeeded"], ["--state", "running", "queued"], ["--dag-id", "none"], ["--run-id", run])
    answers = run_all(airflow, *(["lading", "jobs", "--limit", "1000", "-o", "json", *options] for options in asked))
    chosen = [[job["run_id"] for job in json.loads(text)] for _, text, _ in answers]
    assert run in chosen[0]
    assert run not in chosen[1]
    assert chosen[2] == []
    assert chosen[3] == [run]


def test_wrong_arguments(airflow: Airflow) -> None:
    wrong = (["jobs", "--state", "lost"], ["sites", "-o", "xml"], ["check", "--timeout", "0"])
    for arguments, (status, _, errors) in zip(
        wrong, run_all(airflow, *(["lading", *arguments] for arguments in wrong)), strict=True
    ):
        assert status == 2
        assert repr(arguments[-1]) in errors
