"""The Airflow with two executors that these tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.airflow import Airflow


@pytest.fixture(scope="package")
def two_executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A healthy Airflow with LocalExecutor and, under the alias ``lading``, LadingExecutor.

    Nothing is forked from a process that has imported Airflow: a test looks at what processes were born with.
    """
    executors = "LocalExecutor,lading:lading.executors.LadingExecutor"
    service = Airflow(
        tmp_path_factory.mktemp("airflow-two"),
        executor=executors,
        config={"core.fernet_key": f"{'K' * 43}="},
        components=("api-server", "dag-processor", "scheduler"),
    )
    service.environment["AIRFLOW_CONN_MINE"] = "http://here"
    with service:
        yield service
