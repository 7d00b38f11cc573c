"""What the tutorials on this machine let a reader type works.

Those on SLURM and EC2 are followed by test_cluster and test_burst.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lading.example_dags
from tests.services import tutorials
from tests.services.airflow import Airflow
from tests.services.processes import wait_until

EXAMPLES = Path(lading.example_dags.__path__[0])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", ["laptop.md", "scatter.md"])
def test_its_commands_do_what_it_says(airflow: Airflow, page: str) -> None:
    airflow.add_dags({name: (EXAMPLES / f"{name}.py").read_text() for name in tutorials.examples(page)})

    def run_of(dag: str) -> str:
        run = airflow.trigger(dag)
        assert airflow.wait_for_run(dag, run, 280) == "success"
        return run

    tutorials.follow(airflow, page, run_of)


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
