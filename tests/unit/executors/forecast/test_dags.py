"""What is read of Dags, as Airflow has stored them, and of how their runs went."""

from __future__ import annotations

from collections import Counter

from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow.serialization.serialized_objects import DagSerialization

from lading.executors.forecast.dags import DagPast, DagTask, past_of, structure_of


def test_a_structure() -> None:
    with DAG("d", schedule=None, max_active_tasks=7) as dag:
        start = EmptyOperator(task_id="start")
        a = BashOperator.partial(task_id="a").expand(bash_command=["1", "2"])

        @task
        def first(x: int) -> int:
            return x

        @task(trigger_rule="all_done", executor="LocalExecutor")
        def second(x: int) -> int:
            return x

        @task_group
        def both(x: int) -> None:
            second(first(x))

        group = both.expand(x=[1, 2])
        start >> a >> group
    found = structure_of(DagSerialization.from_dict(DagSerialization.to_dict(dag)))
    assert found.most_at_once == 7
    assert found.tasks["start"] == DagTask(is_empty=True)
    assert found.tasks["a"] == DagTask(("start",), is_mapped=True)
    assert found.tasks["both.first"] == DagTask(("a",), is_mapped=True)
    assert found.tasks["both.second"] == DagTask(
        ("both.first",), frozenset(["both.first"]), True, False, False, "LocalExecutor"
    )


def test_the_past() -> None:
    last = {"a": Counter(success=3), "often": Counter(skipped=1), "once": Counter(skipped=1)}
    before = {"a": Counter(success=9), "often": Counter(skipped=2), "once": Counter(success=1)}
    assert past_of([last, before, before]) == DagPast({"a": 3, "often": 1, "once": 1}, frozenset(["often"]))
    assert past_of([]) == DagPast()
