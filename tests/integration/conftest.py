"""What the tests with a real Airflow, and those with real batch systems, share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.services.account import Account, NeedsRootError
from tests.services.airflow import Airflow
from tests.services.debian import MissingPackagesError
from tests.services.diary import Diary
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

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
def two_executors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Airflow]:
    """A healthy Airflow with LocalExecutor and, called ``lading``, LadingExecutor beside it."""
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


@pytest.fixture(scope="session")
def account() -> Iterator[Account]:
    """An unprivileged user, as whom the tests come in through sshd."""
    with _skipping(), Account() as user:
        yield user


@pytest.fixture(scope="session")
def slurm(account: Account) -> Iterator[Slurm]:
    """A SLURM with accounting, started when the first test asks for it: leave it as you found it."""
    with _skipping(), Slurm(account, accounting=True) as service:
        yield service


@pytest.fixture(scope="session")
def slurm_login(account: Account, slurm: Slurm) -> Iterator[Sshd]:
    """The sshd of SLURM's login node."""
    with Sshd(account, environment=slurm.environment) as service:
        yield service


@pytest.fixture(scope="session")
def gridengine(account: Account) -> Iterator[GridEngine]:
    """A Grid Engine, started when the first test asks for it: leave it as you found it."""
    with _skipping(), GridEngine(account) as service:
        yield service


@pytest.fixture(scope="session")
def gridengine_login(account: Account, gridengine: GridEngine) -> Iterator[Sshd]:
    """The sshd of Grid Engine's login node."""
    with Sshd(account, environment=gridengine.environment) as service:
        yield service


@contextmanager
def _skipping() -> Iterator[None]:
    """Skip the tests of a service that this person may not install or run."""
    try:
        yield
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))
