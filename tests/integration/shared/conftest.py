"""The Airflow that these tests share: do not stop its components."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.services.airflow import Airflow
from tests.services.diary import Diary
from tests.services.metrics import Collector

# The machine that the shared Airflow fills, whatever the real one has: the Dags of the tests count on it.
SITES = """
[sites.local]
kind = "local"
cpus = 4
memory = "8 GiB"
disk = "100 GiB"
instance_type = "test.xlarge"
"""
# Counts and times that would hold up jobs if Lading let itself be throttled by them.
CONFIG = {
    "core.parallelism": 2,
    "core.test_connection": "Enabled",
    "core.max_map_length": 16,  # so that a scatter over thousands is chunked without taking minutes
    "scheduler.task_queued_timeout": 15,
    "scheduler.task_queued_timeout_check_interval": 3,
}
DAGS = Path(__file__).parent / "dags"
# The others are triggered by an asset, or by the test that decides when they end or needs the whole machine.
STARTED_AT_ONCE = (
    "retries",
    "timeouts",
    "trigger_rules",
    "mapped",
    "deferred",
    "xcoms",
    "pools",
    "producer",
    "frames",
    "merged",
    "slipped",
    "unhappy",
    "happy",
    "late",
    "limits",
    "running",
)


@pytest.fixture(scope="package")
def metrics() -> Iterator[Collector]:
    """What the shared Airflow sends to its metrics backend."""
    with Collector() as collector:
        yield collector


@pytest.fixture(scope="package")
def airflow(
    metrics: Collector, database_url: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Airflow]:
    """A healthy Airflow with LadingExecutor that tests share: do not stop its components.

    It is on PostgreSQL, which is the stricter one. What differs between databases is proved on both by test_store,
    test_database and test_restarts; the other Airflows of the tests, those on clusters among them, are on SQLite.
    """
    home = tmp_path_factory.mktemp("airflow-shared")
    (home / "diary").mkdir()  # where the Dags of the tests note what they did
    (home / "config").mkdir()
    shutil.copy(Path(__file__).parent / "airflow_local_settings.py", home / "config")
    (home / "sites.toml").write_text(SITES)
    config = {
        **CONFIG,
        "lading.sites_file": home / "sites.toml",
        "metrics.otel_on": True,
        "metrics.otel_host": "127.0.0.1",
        "metrics.otel_port": metrics.port,
        "metrics.otel_interval_milliseconds": 2000,
    }
    with Airflow(home, database=database_url("postgresql"), config=config, preloaded=True) as service:
        yield service


@pytest.fixture(scope="package")
def diary(airflow: Airflow) -> Diary:
    """What the Dags of the shared Airflow have noted."""
    return Diary(airflow.home / "diary")


@pytest.fixture(scope="package")
def runs(airflow: Airflow) -> Mapping[str, str]:
    """The runs of the Dags of :data:`DAGS` by Dag: all are started at once, and each test looks at one."""
    airflow.rest("POST", "pools", {"name": "single_file", "slots": 1})
    airflow.add_dags({path.stem: path.read_text() for path in DAGS.glob("*.py")})
    return {dag_id: airflow.trigger(dag_id) for dag_id in STARTED_AT_ONCE}
