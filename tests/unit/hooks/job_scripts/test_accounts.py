"""Job scripts at a cluster with several accounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lading.hooks.batch.site_config import NotAllowed
from lading.hooks.job_scripts.profile import ProfileError
from lading.hooks.job_scripts.run_site import open_site, read_site
from lading.hooks.job_scripts.script import JobScript

FILE = """
[sites.hpc]
kind = "slurm"
work_dir = "/scratch/{account}/lading"
ssh_conn_id = "hpc_login"
accounts = {"team:genes" = "hpc_genes", "dag:etl_*" = "hpc_etl"}

[sites.lab]
kind = "slurm"
"""


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "sites.toml"
    path.write_text(FILE)
    monkeypatch.setenv("AIRFLOW__LADING__SITES_FILE", str(path))
    return path


@pytest.mark.parametrize(
    ("dag_id", "team", "expected"),
    [
        ("reads", "genes", "hpc@hpc_genes"),
        ("etl_a", None, "hpc@hpc_etl"),
        ("reads", "loads", "hpc"),
        (None, None, "hpc"),
    ],
)
def test_they_are_submitted_as_the_account_of_their_dag(
    path: Path, dag_id: str | None, team: str | None, expected: str
) -> None:
    site = open_site("hpc", dag_id, team)
    assert site.name == expected
    connection = expected.partition("@")[2] or "hpc_login"
    assert (site.options.ssh_conn_id, site.options.work_dir) == (connection, f"/scratch/{connection}/lading")
    site.admitted(JobScript("true"), dag_id, team)


def test_another_account_is_not_had_by_its_name(path: Path) -> None:
    assert open_site("hpc@hpc_genes", "reads", "genes").name == "hpc@hpc_genes"
    with pytest.raises(NotAllowed, match="site 'hpc@hpc_genes' has accounts for"):
        open_site("hpc@hpc_genes", "reads", "loads")
    with pytest.raises(NotAllowed):
        read_site(path, "hpc@hpc_genes").admitted(JobScript("true"), "reads", "loads")


def test_whom_no_key_fits_has_no_place_where_the_table_has_no_account(path: Path) -> None:
    path.write_text(FILE.replace('ssh_conn_id = "hpc_login"\n', ""))
    with pytest.raises(NotAllowed, match="Dag 'reads' of team 'loads' is not allowed there"):
        open_site("hpc", "reads", "loads")


def test_other_sites_are_as_they_were(path: Path) -> None:
    assert open_site("lab", "reads", "genes").name == "lab"
    with pytest.raises(ProfileError, match="'unknown' is not in"):
        open_site("unknown", "reads", "genes")


def test_a_site_that_is_closed_to_a_dag_is_not_opened(path: Path) -> None:
    path.write_text('[sites.hpc]\nkind = "slurm"\nallowed_dags = ["etl_*"]\nallowed_teams = ["genes"]\n')
    assert open_site("hpc", "etl_a", "genes").name == "hpc"
    for dag_id, team in (("reads", "genes"), ("etl_a", "loads"), ("etl_a", None), ("", "genes")):
        with pytest.raises(NotAllowed):
            open_site("hpc", dag_id, team)
