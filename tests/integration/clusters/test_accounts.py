"""Jobs of two teams on a real SLURM, each run as the Unix account of its team, which comes in through a real sshd."""

from __future__ import annotations

import json
import os
import pwd
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors import store
from lading.executors.agent.tasks import probe
from lading.executors.controller.controller import Controller
from lading.executors.store import ENDED, JobRow, State
from lading.plugin.host import AirflowHost
from lading.plugin.sites import load_sites
from tests.clusters.sites import make_settings
from tests.clusters.small_slurm import SETUP
from tests.services import node_python
from tests.services.account import Account, NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.execution_api import ExecutionApi
from tests.services.processes import wait_until
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

CONNECTIONS = ("hpc_all", "hpc_genes", "hpc_etl")
# By job: the team and the Dag that it is of, and the connection as whose user it is to run; None: it has no place.
WHOSE = {
    "genes": ("genes", "reads", "hpc_genes"),
    "loads": ("loads", "reads", "hpc_all"),
    "etl": ("loads", "etl_daily", "hpc_etl"),
    "nobody": (None, "reads", "hpc_all"),
}


@pytest.fixture(scope="module")
def accounts() -> Iterator[dict[str, Account]]:
    """A Unix account for each connection."""
    try:
        with ExitStack() as stack:
            yield {name: stack.enter_context(Account()) for name in CONNECTIONS}
    except NeedsRootError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def logins(accounts: dict[str, Account]) -> Iterator[dict[str, Sshd]]:
    """The login node of one SLURM, for each of them."""
    try:
        with Slurm(accounts["hpc_all"], nodes=2) as slurm, ExitStack() as stack:
            environment = slurm.environment
            yield {name: stack.enter_context(Sshd(each, environment=environment)) for name, each in accounts.items()}
    except MissingPackagesError as error:
        pytest.skip(str(error))


@pytest.fixture
def api() -> Iterator[ExecutionApi]:
    with ExecutionApi() as found:
        yield found


def sites_file(folder: Path, accounts: dict[str, Account], api: ExecutionApi) -> Path:
    own, genes, etl = (accounts[name] for name in CONNECTIONS)
    table = {
        "kind": "slurm",
        "ssh_conn_id": "hpc_all",
        "work_dir": f"{own.home}/{{account}}",
        "python": str(node_python.make(own)),
        "api_url": api.url,
        "setup": SETUP,
        "node_cpus": 8,
        "node_memory": 8000,
        "max_poll_interval": 2,
        "accept_untargeted": True,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items()]
    folders = {"hpc_genes": f"{genes.home}/lading", "hpc_etl": f"{etl.home}/lading"}
    pythons = {"hpc_genes": node_python.make(genes), "hpc_etl": node_python.make(etl)}
    rows = [
        f'"{key}" = {{ssh_conn_id = "{name}", work_dir = "{folders[name]}", python = "{pythons[name]}"}}'
        for key, name in (("team:genes", "hpc_genes"), ("dag:etl_*", "hpc_etl"))
    ]
    text = "\n".join(["[sites.local]", "enabled = false", "[sites.hpc]", *lines, "[sites.hpc.accounts]", *rows])
    (folder / "sites.toml").write_text(text)
    return folder / "sites.toml"


def add(engine: Engine, name: str, **columns: Any) -> None:
    amounts = {"cpus": 1.0, "memory": 300, "disk": 0, "gpus": 0.0, "priority": 0, "state": State.QUEUED}
    what = {"kind": "Probe", "subject": name, "workload": json.dumps(probe.workload()), "queued_at": time.time()}
    with Session(engine) as session:
        store.add_job(session, token=str(uuid.uuid4()), **what, **amounts, **columns)
        session.commit()


def jobs(engine: Engine) -> dict[str, JobRow]:
    with Session(engine) as session:
        return {row.subject: row for row in session.scalars(select(JobRow))}


def test_each_job_runs_as_the_account_of_its_team_or_dag(
    accounts: dict[str, Account],
    logins: dict[str, Sshd],
    api: ExecutionApi,
    airflow_database: Engine,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__LOGGING__BASE_LOG_FOLDER", str(tmp_path / "logs"))
    for name, login in logins.items():
        monkeypatch.setenv(f"AIRFLOW_CONN_{name.upper()}", login.connection())
    settings = make_settings(tmp_path, sites_file=sites_file(tmp_path, accounts, api))
    sites = load_sites(settings)
    assert list(sites) == ["hpc", "hpc@hpc_genes", "hpc@hpc_etl"]
    for number, (name, (team, dag_id, _)) in enumerate(WHOSE.items()):
        # The author of every second one names the cluster, and none an account.
        add(airflow_database, name, team=team, dag_id=dag_id, site_hint="hpc" if number % 2 else None)
    add(airflow_database, "thief", team="loads", dag_id="reads", site_hint="hpc@hpc_genes")
    controller = Controller(AirflowHost(), sites, lambda subject, seconds: "jwt", settings, False, lambda changes: None)
    thread = threading.Thread(target=controller.run, daemon=True)
    thread.start()
    try:

        def all_have_ended() -> bool:
            return all(job.state in ENDED for job in jobs(airflow_database).values())

        assert wait_until(all_have_ended, 180, 1.0), [
            (name, job.state, job.site, str(job.reason)) for name, job in jobs(airflow_database).items()
        ]
    finally:
        controller.stop()
        thread.join(60)
    found = jobs(airflow_database)
    for name, (_, _, connection) in WHOSE.items():
        expected = "hpc" if connection == "hpc_all" else f"hpc@{connection}"
        assert (found[name].state, found[name].site) == (State.SUCCEEDED, expected), (name, str(found[name].reason))
    assert found["thief"].state == State.FAILED
    assert "not allowed" in str(found["thief"].reason), "an account that is named is not had by that"
    # What each has left is its own alone, and of no one else's: the batch jobs ran as that user.
    for name, account in accounts.items():
        folder = account.home / ("lading" if name != "hpc_all" else name)
        owners = {os.lstat(path).st_uid for path in [folder, *folder.rglob("*")]}
        assert {pwd.getpwuid(each).pw_name for each in owners} == {account.name}
        assert folder.stat().st_mode & 0o077 == 0, "others cannot even look into it"
