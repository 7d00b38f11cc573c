"""What differs between versions of Airflow: ``make test-versions`` runs this with each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lading.executors.orchestrator.airflow_versions import cached_dags


def test_the_dags_that_were_read_last_are_kept() -> None:
    bag = cached_dags(3)
    for number in range(5):
        stored: Any = SimpleNamespace(dag=object(), dag_version_id=f"v{number}", dag_hash="h")
        assert bag._read_dag(stored) is stored.dag
        assert stored.load_op_links is False
    assert list(bag._dags) == ["v2", "v3", "v4"]
