"""Workflows in several folders that use one sites file at the same time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from flows import PATIENCE, Workflow, remove_state, wait_until
from snakemake_executor_plugin_lading.host import SnakemakeHost, make_settings
from snakemake_executor_plugin_lading.state_folder import ControllerOptions, StateFolder

from lading.plugin.sites import load_sites
from tests.services import node_python
from tests.services.account import Account, NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

SITES = """
[sites.local]
enabled = false

[sites.shared]
{kind}
work_dir = "{home}/lading"
python = "{python}"
max_poll_interval = 2
"""
KINDS = {
    "ssh": 'kind = "ssh"\nhosts = [{ssh_conn_id = "site", cpus = 2, memory = 2000}]',
    "slurm": 'kind = "slurm"\nmode = "job"\nnode_cpus = 4\nnode_memory = 8000',
}
SNAKEFILE = """
rule all:
    input: "all.txt"
rule one:
    output: "all.txt"
    resources: mem_mb=100, runtime=5
    shell: "echo $$ >> began; until [ -e go ]; do sleep 0.1; done; touch {output}"
"""
DECLARED = """
[sites.lab]
kind = "ssh"
hosts = [{ssh_conn_id = "lab1"}]
work_dir = "/w/"
python = "/p"

[sites.hpc]
kind = "slurm"
work_dir = "/w"
python = "/p"
node_cpus = 4
node_memory = 8000

[sites.cloud]
kind = "ec2"
region = "eu-west-1"
subnets = ["subnet-12345678"]
ami = {x86_64 = "ami-12345678"}
user = "ec2-user"
work_dir = "/w"
python = "/p"
"""


@dataclass
class SharedSite:
    """A site, and how workflows use it."""

    account: Account
    python: Path
    environment: dict[str, str]
    stack: ExitStack

    def make(self, name: str) -> Workflow:
        flow = Workflow(self.account.home / name, SNAKEFILE, self.python, self.account.name)
        self.stack.callback(flow.clean_up)
        return flow

    def start(self, flow: Workflow) -> subprocess.Popen[str]:
        return flow.start("--lading-sites-file", str(self.account.home / "sites.toml"), **self.environment)


@pytest.fixture(params=["ssh", "slurm"])
def site(request: pytest.FixtureRequest) -> Iterator[SharedSite]:
    with ExitStack() as stack:
        try:
            account = stack.enter_context(Account())
            environment = {"HOME": str(account.home), "USER": account.name}
            if request.param == "slurm":
                environment |= stack.enter_context(Slurm(account, nodes=1, cpus=4)).environment
            else:
                write_ssh_config(account, stack.enter_context(Sshd(account)))
        except (MissingPackagesError, NeedsRootError) as error:
            pytest.skip(str(error))
        sites = SITES.format(kind=KINDS[request.param], home=account.home, python=node_python.bare(account))
        account.write("sites.toml", sites)
        yield SharedSite(account, node_python.make(account), environment, stack)


def write_ssh_config(account: Account, sshd: Sshd) -> None:
    """Give a user the files with which ``ssh site`` logs in."""
    (account.home / ".ssh").mkdir(mode=0o700)
    account.own(account.home / ".ssh")
    key = account.write(".ssh/key", (sshd.folder / "id_user").read_text())
    key.chmod(0o600)
    account.write(".ssh/config", sshd.client_config.read_text().replace(str(sshd.folder / "id_user"), str(key)))
    account.write(".ssh/known_hosts", (sshd.folder / "known_hosts").read_text())


def began(flow: Workflow) -> list[str]:
    """The pids of the jobs that have begun."""
    path = flow.folder / "began"
    return path.read_text().split() if path.exists() else []


def finish(flow: Workflow, process: subprocess.Popen[str]) -> None:
    (flow.folder / "go").touch()
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said


def test_workflows_of_two_folders_run_at_a_site_at_once(site: SharedSite) -> None:
    flows = [site.make("first"), site.make("second")]
    started = [site.start(flow) for flow in flows]
    wait_until(lambda: all(began(flow) for flow in flows))
    for flow, process in zip(flows, started, strict=True):
        finish(flow, process)
    owners = {path.read_text().split(":", 1)[1].strip() for path in (site.account.home / "lading").rglob("owner")}
    assert owners == {str(flow.lading) for flow in flows}, "each has a folder of its own, which names it"


def test_a_run_whose_state_was_removed_cancels_the_jobs_that_it_finds(site: SharedSite) -> None:
    flow = site.make("flow")
    killed = site.start(flow)
    wait_until(lambda: began(flow))
    killed.kill()
    killed.wait()
    remove_state(flow)
    process = site.start(flow)
    wait_until(lambda: len(began(flow)) == 2)
    wait_until(lambda: not os.path.exists(f"/proc/{began(flow)[0]}"))
    finish(flow, process)
    assert len(list((site.account.home / "lading").iterdir())) == 1


def test_a_workflow_has_a_folder_of_its_own_where_others_can_use_the_machines(tmp_path: Path) -> None:
    (tmp_path / "sites.toml").write_text(DECLARED)

    def folders(flow: str) -> dict[str, str]:
        state = StateFolder(tmp_path / flow / ".snakemake/lading")
        sites = load_sites(
            make_settings(state, ControllerOptions(str(tmp_path / "sites.toml"))), SnakemakeHost(state.open(), state)
        )
        return {name: site.config.work_dir for name, site in sites.items() if name != "local"}

    first, second = folders("first"), folders("second")
    assert first["cloud"] == second["cloud"] == "/w", "its machines are launched for one workflow"
    assert first["hpc"] == first["lab"] != second["hpc"] == second["lab"]
    assert first["hpc"].startswith("/w/")
    assert first["hpc-allocations"] == f"{first['hpc']}/allocations"
