"""What every kind of site does, by this machine, machines behind SSH and of EC2, and both modes of a cluster.

The jobs ask an API server for its health, which takes as long as a job is to take. All tests of a kind use one site,
whose node agent starts once: each test begins with a controller's side of its own, to which the one before it hands
over.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lading.hooks.conformance.site_suite import Make, SiteConformance, close
from lading.hooks.ec2.config import EC2Config
from lading.hooks.ec2.site import EC2Site
from lading.hooks.machines.fixed import FixedSite
from lading.hooks.machines.fixed_config import SSHConfig
from lading.hooks.machines.local import LocalConfig, LocalSite
from lading.hooks.site import Site
from tests.clusters.driven import HEALTH, asking, run_commands
from tests.clusters.small_slurm import small_slurm
from tests.services import node_python
from tests.services.account import Account
from tests.services.ec2 import FakeEC2
from tests.services.execution_api import ExecutionApi
from tests.services.sshd import Sshd


@pytest.fixture(scope="class")
def patch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


@pytest.fixture(scope="class")
def api(patch: pytest.MonkeyPatch) -> Iterator[ExecutionApi]:
    with ExecutionApi() as service:
        patch.setenv("AIRFLOW__CORE__EXECUTION_API_SERVER_URL", service.url)
        run_commands(patch)
        yield service


@pytest.fixture(scope="class")
def spool(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("site") / "spool"


class Probes(SiteConformance):
    patience = 180.0

    @pytest.fixture(scope="class")
    @classmethod
    def latest(cls, site: Make) -> Iterator[list[Site[Any]]]:
        """The controller's side that was made last, which ends with the class."""
        sites: list[Site[Any]] = []
        yield sites
        close(sites)

    @pytest.fixture
    def make(self, site: Make, latest: list[Site[Any]], api: ExecutionApi) -> Make:
        self.api = api
        if latest:
            latest.pop().close("hand_over", self.patience)

        def note() -> Site[Any]:
            latest[:] = [site()]
            return latest[0]

        return note

    def workload(self, seconds: float) -> dict[str, Any]:
        self.api.delays[HEALTH] = seconds
        return asking()


class TestThisMachine(Probes):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, api: ExecutionApi, spool: Path) -> Make:
        config = LocalConfig(kind="local", cpus=2, memory=2000, kill_grace=2)
        return lambda: LocalSite("local", config, spool)


class TestMachinesBehindSsh(Probes):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, account: Account, api: ExecutionApi, patch: pytest.MonkeyPatch, spool: Path) -> Iterator[Make]:
        with Sshd(account) as sshd:
            patch.setenv("AIRFLOW_CONN_LAB1", sshd.connection())
            work_dir = Path(tempfile.mkdtemp(prefix="lading-machines-", dir="/var/tmp"))
            work_dir.chmod(0o1777)
            config = SSHConfig(
                kind="ssh",
                hosts=({"ssh_conn_id": "lab1", "cpus": 2, "memory": 2000},),  # type: ignore[arg-type]
                work_dir=str(work_dir),
                python=str(node_python.make(account)),
                api_url=api.url,
                kill_grace=2,
            )
            yield lambda: FixedSite("lab", config, spool)
        shutil.rmtree(work_dir, ignore_errors=True)


class TestMachinesOfEC2(Probes):
    @pytest.fixture(scope="class")
    @classmethod
    def site(cls, api: ExecutionApi, patch: pytest.MonkeyPatch, spool: Path) -> Iterator[Make]:
        with FakeEC2(boot_seconds=0.5) as service:
            for name, value in service.environment.items():
                patch.setenv(name, value)
            patch.setenv("AIRFLOW__CORE__FERNET_KEY", "cGxlYXNlIGRvIG5vdCB1c2UgdGhpcyBrZXkgZXZlcjE=")
            table = {
                **service.table,
                "instance_types": ("m5.large",),
                "work_dir": f"{service.account.home}/{uuid.uuid4()}",
                "python": str(node_python.make(service.account)),
                "api_url": api.url,
                "kill_grace": 2,
            }
            yield lambda: EC2Site("cloud", EC2Config(**table), spool)


class Cluster(Probes):
    mode = "job"

    @pytest.fixture(scope="class")
    @classmethod
    def site(
        cls, account: Account, slurm_login: Sshd, api: ExecutionApi, patch: pytest.MonkeyPatch, spool: Path
    ) -> Make:
        patch.setenv("AIRFLOW_CONN_HPC", slurm_login.connection())
        made = small_slurm(account, api.url, mode=cls.mode)
        return lambda: made("hpc", spool)


class TestClusterOfJobs(Cluster):
    pass


class TestClusterOfAllocations(Cluster):
    mode = "allocation"
