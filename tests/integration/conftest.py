"""What the tests with a real Airflow share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.services.airflow import Airflow
from tests.services.diary import Diary

DAGS = Path(__file__).parent / "dags"
# The others are triggered by an asset, or by the test that tells them when to end or wants the machine for itself.
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


@pytest.fixture(scope="session")
def diary(airflow: Airflow) -> Diary:
    """What the Dags of the shared Airflow have noted."""
    return Diary(airflow.home / "diary")


@pytest.fixture(scope="session")
def runs(airflow: Airflow) -> Mapping[str, str]:
    """The runs of the Dags of :data:`DAGS` by Dag: all are started at once, and each test looks at one."""
    airflow.rest("POST", "pools", {"name": "single_file", "slots": 1})
    airflow.add_dags({path.stem: path.read_text() for path in DAGS.glob("*.py")})
    return {dag_id: airflow.trigger(dag_id) for dag_id in STARTED_AT_ONCE}
