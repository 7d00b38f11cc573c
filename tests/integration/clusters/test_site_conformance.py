"""What every kind of site does, by this machine, machines behind SSH and of EC2, and both modes of a cluster.

The jobs ask an API server for its health, which takes as long as a job is to take.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.executors.agent.tasks import probe
from lading.hooks.conformance.site_suite import Make, SiteConformance, close
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import Site
from tests.clusters.driven import HEALTH
from tests.clusters.small_slurm import small_slurm
from tests.services import node_python
from tests.services.account import Account
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.sshd import Sshd

PATIENT = "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT"


@pytest.fixture
def ending() -> Iterator[Callable[[Site[Any]], Site[Any]]]:
    """Sites that end with the test."""
    made: list[Site[Any]] = []

    def note(site: Site[Any]) -> Site[Any]:
        made.append(site)
        return site

    yield note
    close(made[-1:])


class Probes(SiteConformance):
    patience = 180.0

    @pytest.fixture(autouse=True)
    def _with_an_api(self, api: ExecutionApi, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = api
        monkeypatch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", api.url)
        monkeypatch.setenv(PATIENT, "200")

    def workload(self, seconds: float) -> dict[str, Any]:
        self.api.delays[HEALTH] = seconds
        return probe.workload()


class TestThisMachine(Probes):
    @pytest.fixture
    def make(self, ending: Callable[[Site[Any]], Site[Any]], tmp_path: Path) -> Make:
        config = LocalConfig(kind="local", cpus=2, memory=2000, kill_grace=2)
        return lambda: ending(LocalSite("local", config, tmp_path / "spool"))


class TestMachinesBehindSsh(Probes):
    @pytest.fixture
    def make(
        self,
        ending: Callable[[Site[Any]], Site[Any]],
        account: Account,
        api: ExecutionApi,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> Iterator[Make]:
        with Sshd(account) as sshd:
            monkeypatch.setenv("AIRFLOW_CONN_LAB1", sshd.connection())
            work_dir = Path(tempfile.mkdtemp(prefix="lading-machines-", dir="/var/tmp"))
            work_dir.chmod(0o1777)
            config = SSHConfig(
                kind="ssh",
                hosts=({"ssh_conn_id": "lab1", "cpus": 2, "memory": 2000},),  # type: ignore[arg-type]
                work_dir=str(work_dir),
                python=str(node_python.make(account)),
                api_url=api.url,
                setup=f"export {PATIENT}=200",
                kill_grace=2,
            )
            yield lambda: ending(FixedSite("lab", config, tmp_path / "spool"))
        shutil.rmtree(work_dir, ignore_errors=True)


class TestMachinesOfEC2(Probes):
    @pytest.fixture(scope="class")
    def service(self) -> Iterator[FakeEC2]:
        with FakeEC2(boot_seconds=0.5) as service:
            yield service

    @pytest.fixture
    def make(
        self,
        ending: Callable[[Site[Any]], Site[Any]],
        service: FakeEC2,
        api: ExecutionApi,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> Make:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=")
        table = {
            **service.table,
            "instance_types": ("m5.large",),
            "work_dir": f"{service.account.home}/{uuid.uuid4()}",
            "python": str(node_python.make(service.account)),
            "api_url": api.url,
            "setup": f"export {PATIENT}=200",
            "kill_grace": 2,
        }
        return lambda: ending(EC2Site("cloud", EC2Config(**table), tmp_path / "spool"))


class Cluster(Probes):
    mode = "job"

    @pytest.fixture
    def make(
        self,
        ending: Callable[[Site[Any]], Site[Any]],
        account: Account,
        slurm_login: Sshd,
        api: ExecutionApi,
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
    ) -> Make:
        monkeypatch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
        made = small_slurm(account, api.url, mode=self.mode)
        return lambda: ending(made("hpc", tmp_path / "spool"))


class TestClusterOfJobs(Cluster):
    pass


class TestClusterOfAllocations(Cluster):
    mode = "allocation"
