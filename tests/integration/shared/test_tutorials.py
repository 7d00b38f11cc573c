"""What the tutorials let a reader type works: their Dags, and their commands in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

import lading.example_dags
from tests.services.airflow import Airflow
from tests.services.processes import wait_until

TUTORIALS = Path(__file__).parents[3] / "docs" / "tutorials"
EXAMPLES = Path(lading.example_dags.__path__[0])


def commands(page: str) -> list[list[str]]:
    """The ``airflow`` commands of a tutorial for a running Airflow."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    lines = "\n".join(re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)).splitlines()
    found = [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("airflow ")]
    return [command for command in found if command != ["standalone"]]


def files(page: str) -> list[str]:
    """The examples that a tutorial shows, which it has the reader copy."""
    text = (TUTORIALS / page).read_text(encoding="utf-8")
    return re.findall(r"\{literalinclude\} ../../example_dags/(\w+)\.py", text)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["laptop.md", "scatter.md"])
def test_its_commands_do_what_it_says(airflow: Airflow, page: str) -> None:
    airflow.add_dags({name: (EXAMPLES / f"{name}.py").read_text() for name in files(page)})
    run, dag = "", ""
    assert commands(page)
    for command in commands(page):
        if command[:2] == ["dags", "trigger"]:
            dag = command[2]
            run = airflow.trigger(dag)  # as the command does, which prints the id among other things
            assert airflow.wait_for_run(dag, run, 280) == "success"
            continue
        airflow.cli(*(run if word == "RUN" else word for word in command))
    assert dag


def test_a_task_over_its_memory_is_ended_and_its_retry_has_twice_as_much(airflow: Airflow) -> None:
    airflow.add_dag("first_steps", (EXAMPLES / "first_steps.py").read_text())
    run = airflow.trigger("first_steps")
    assert airflow.wait_for_run("first_steps", run, 280) == "success"
    assert airflow.xcom("first_steps", run, "total") == sum(number**2 for number in range(1, 9))
    assert airflow.xcom("first_steps", run, "hungry") == 300
    tries: list[tuple[str, str | None, str]] = []

    def stored() -> bool:  # a task tells Airflow of its end itself, and may be sooner
        rows = json.loads(airflow.lading("jobs", "--run-id", run, "-o", "json"))
        hungry = sorted((row for row in rows if row["task_id"] == "hungry"), key=lambda row: int(row["try_number"]))
        tries[:] = [(row["state"], row["cause"], str(row["memory_mib"])) for row in hungry]
        return len(tries) == 2 and tries[-1][0] == "succeeded"

    assert wait_until(stored, 60, 1), tries
    assert tries == [("failed", "out_of_memory", "256"), ("succeeded", None, "512")]
