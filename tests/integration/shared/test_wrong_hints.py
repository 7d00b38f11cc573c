from __future__ import annotations

import pytest

from tests.services.airflow import Airflow, AirflowError

SOURCE = """
from airflow.sdk import DAG
from airflow.providers.standard.operators.bash import BashOperator
from lading.operators import resources
with DAG("wrong_hints"):
    BashOperator(task_id="greedy", bash_command="true", executor_config=resources(cpus=4000, memory="1 PiB"))
"""


def test_a_wrong_hint_is_an_import_error_that_says_what_is_valid(airflow: Airflow) -> None:
    try:
        with pytest.raises(AirflowError) as error:
            airflow.add_dag("wrong_hints", SOURCE)
    finally:
        (airflow.dags / "wrong_hints.py").unlink()
    for words in ("Dag 'wrong_hints', task 'greedy'", "hint cpus: 4000", "more than site 'local' can ever give"):
        assert words in str(error.value)
