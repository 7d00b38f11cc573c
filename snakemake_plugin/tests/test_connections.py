"""How machines and AWS are reached: by the files that ``ssh`` and boto3 read."""

from __future__ import annotations

from pathlib import Path

import pytest
from botocore.exceptions import ProfileNotFound
from snakemake_executor_plugin_lading.host import SnakemakeHost, jump_command, make_settings
from snakemake_executor_plugin_lading.state_folder import ControllerOptions, StateFolder

from lading.hooks.cluster.site import ClusterSite
from lading.hooks.machines.fixed import FixedSite
from lading.plugin.sites import load_sites

SITES_OF_AIRFLOW = """
[sites.lab]
kind = "ssh"
hosts = [{ssh_conn_id = "lab1"}]
work_dir = "/w"
python = "/p"
api = "tunnel"
api_url = "https://airflow.example.org/execution/"

[sites.hpc]
kind = "slurm"
ssh_conn_id = "login"
work_dir = "/w"
python = "/p"
node_cpus = 4
node_memory = 8000
api = "tunnel"
"""


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [
        ("gate", "-W node:22 ssh://gate"),
        ("me@gate:2222", "-W node:22 ssh://me@gate:2222"),
        ("first:2222, me@second", "-J first:2222 -W node:22 ssh://me@second"),
        ("a,b,ssh://c", "-J a,b -W node:22 ssh://c"),
    ],
)
def test_a_server_is_reached_through_all_hosts_of_proxyjump(hosts: str, expected: str) -> None:
    assert "-W [fd00::1]:22" in jump_command(hosts, "fd00::1", 22)
    assert jump_command(hosts, "node", 22) == f"ssh -o BatchMode=yes {expected}"


def test_only_a_site_that_names_no_profile_has_the_credentials_that_boto3_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    (tmp_path / "config").write_text("[profile lab]\nregion = eu-west-1\n")
    state = StateFolder(tmp_path)
    host = SnakemakeHost(state.open(), state)
    for name, region in (("", "eu-west-2"), ("aws_default", "eu-west-2"), ("lab", "eu-west-1")):
        client = host.aws_client(name, "ec2", None if name == "lab" else region, {})
        assert client.meta.region_name == region
    with pytest.raises(ProfileNotFound, match="lba"):
        host.aws_client("lba", "ec2", "eu-west-1", {})


def test_jobs_that_report_to_no_api_have_no_tunnel_to_one(tmp_path: Path) -> None:
    state, sites_file = StateFolder(tmp_path / "lading"), tmp_path / "sites.toml"
    sites_file.write_text(SITES_OF_AIRFLOW)
    host = SnakemakeHost(state.open(), state)
    sites = load_sites(make_settings(state, ControllerOptions(str(sites_file))), host)
    machines, cluster = sites["lab"], sites["hpc"]
    assert isinstance(machines, FixedSite)
    assert isinstance(cluster, ClusterSite)
    assert machines.connections["lab1"].rounds.tunnel is None
    assert cluster.rounds.tunnel is None
