"""What is read of Dags, as Airflow has stored them, and of how their runs went."""

from __future__ import annotations

from collections import Counter
from datetime import timezone
from types import SimpleNamespace

import pytest
from airflow.models.dagrun import DagRun
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.sdk import DAG, task, task_group
from airflow.serialization.serialized_objects import DagSerialization
from sqlalchemy.orm import Session

from lading.executors.orchestrator import airflow_dags as dags
from lading.executors.orchestrator.airflow_dags import Dags, past_of, structure_of
from lading.executors.orchestrator.orchestrator import DagPast, DagTask


def test_a_structure() -> None:
    with DAG("d", schedule=None, max_active_tasks=7) as dag:
        start = EmptyOperator(task_id="start")
        a = BashOperator.partial(task_id="a", max_active_tis_per_dag=3, max_active_tis_per_dagrun=2).expand(
            bash_command=["1", "2"]
        )

        @task
        def first(x: int) -> int:
            return x

        @task(trigger_rule="all_done", executor="LocalExecutor", priority_weight=5)
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
    assert found.tasks["a"] == DagTask(("start",), is_mapped=True, most=2)
    assert found.tasks["both.first"] == DagTask(("a",), is_mapped=True)
    assert found.tasks["both.second"] == DagTask(
        ("both.first",), frozenset(["both.first"]), True, False, False, "LocalExecutor", priority=5
    )


def test_the_past() -> None:
    last = {"a": Counter(success=3), "often": Counter(skipped=1), "once": Counter(skipped=1)}
    before = {"a": Counter(success=9), "often": Counter(skipped=2), "once": Counter(success=1)}
    assert past_of([last, before, before]) == DagPast({"a": 3, "often": 1, "once": 1}, frozenset(["often"]))
    assert past_of([]) == DagPast()


def test_the_dags_that_were_read_last_are_kept_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dags.Dags, "most_dags", 2)
    known, reads = Dags(), Counter[str]()

    def read(run: DagRun, session: object) -> object:
        reads[run.dag_id] += 1
        return made[run.dag_id]

    made = {
        name: SimpleNamespace(task_dict={}, max_active_tasks=number, timezone=timezone.utc)
        for number, name in enumerate("abc")
    }
    monkeypatch.setattr(known.bag, "get_dag_for_run", read)
    for name in "abcab":
        found = known.structure(Session(), DagRun(dag_id=name))
        assert found is not None
        assert found.most_at_once == made[name].max_active_tasks
        assert len(known.structures) <= 2
