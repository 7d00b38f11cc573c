"""One table of a cluster with several accounts becomes a site for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lading.hooks.batch.site_config import SiteRules
from lading.hooks.files.accounts import expanded, fault
from lading.hooks.files.sites_file import SitesError, read_sites
from lading.plugin.sites import load_sites
from lading.scheduling.matching.admission import OWN, account_of
from tests.clusters.sites import make_settings

TABLE: dict[str, Any] = {
    "kind": "slurm",
    "work_dir": "/scratch/{account}/lading",
    "python": "/usr/bin/python3",
    "node_cpus": 4,
    "node_memory": "8 GiB",
    "ssh_conn_id": "hpc_login",
    "max_jobs": 100,
    "accounts": {
        "team:genes": "hpc_genes",
        "dag:etl_*": {"ssh_conn_id": "hpc_etl", "work_dir": "/scratch/etl", "max_jobs": 50, "queue": "etl"},
    },
}


def table(**changes: Any) -> dict[str, Any]:
    """The table, where None takes a key out of it."""
    return {key: value for key, value in {**TABLE, **changes}.items() if value is not None}


def test_each_account_has_all_of_the_table_but_what_is_its_own() -> None:
    found = expanded({"lab": {"kind": "ssh"}, "hpc": TABLE})
    assert list(found) == ["lab", "hpc", "hpc@hpc_genes", "hpc@hpc_etl"]
    own, genes, etl = (found[name] for name in list(found)[1:])
    ways = [(each["ssh_conn_id"], each["work_dir"], each["max_jobs"], each.get("queue")) for each in (own, genes, etl)]
    assert ways == [
        ("hpc_login", "/scratch/hpc_login/lading", 100, None),
        ("hpc_genes", "/scratch/hpc_genes/lading", 100, None),
        ("hpc_etl", "/scratch/etl", 50, "etl"),
    ]


def test_the_first_key_that_fits_says_as_whom_a_dag_runs() -> None:
    found = {name: SiteRules.from_table(each) for name, each in expanded({"hpc": TABLE}).items()}
    open_to = {
        dag: [name for name, rules in found.items() if rules.admission.takes(*dag)]
        for dag in (("etl_a", None), ("etl_a", "genes"), ("x", "genes"), ("x", "loads"), (None, None), ("", None))
    }
    assert open_to == {
        ("etl_a", None): ["hpc@hpc_etl"],
        ("etl_a", "genes"): ["hpc@hpc_genes"],
        ("x", "genes"): ["hpc@hpc_genes"],
        ("x", "loads"): ["hpc"],
        (None, None): ["hpc"],
        ("", None): ["hpc"],
    }


def test_without_a_connection_of_its_own_the_table_is_no_site() -> None:
    found = expanded({"hpc": table(ssh_conn_id=None)})
    assert list(found) == ["hpc@hpc_genes", "hpc@hpc_etl"]
    assert not any(SiteRules.from_table(each).admission.takes("x", None) for each in found.values())


NAMES = st.sampled_from(["genes", "loads", "etl_a", "x", None])
KEYS = st.builds(
    lambda kind, what: f"{kind}:{what}", st.sampled_from(["team", "dag"]), st.sampled_from(["*", "g*", "x"])
)


@given(st.dictionaries(KEYS, st.sampled_from(["one", "two"]), min_size=1), NAMES, NAMES)
def test_every_dag_has_one_account_or_none(accounts: dict[str, str], dag: str | None, team: str | None) -> None:
    rules = [SiteRules.from_table(each) for each in expanded({"hpc": table(accounts=accounts)}).values()]
    takers = [each.run_as for each in rules if each.admission.takes(dag, team)]
    assert takers == [account_of(accounts.items(), dag, team)]
    assert takers != [OWN] or not any(key in accounts for key in ("team:*",) if team)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"accounts": {"genes": "hpc_genes"}}, "'genes' is not a key of accounts; valid: \"team:NAME\""),
        ({"accounts": {"team:": "hpc_genes"}}, "is not a key of accounts"),
        ({"accounts": {"team:a": 3}}, "is not an account; valid: the id of an SSH connection"),
        ({"accounts": {"team:a": "a b"}}, "is not an account"),
        ({"accounts": {"team:a": {"work_dir": "/a"}}}, "or a table with ssh_conn_id"),
        ({"accounts": {"team:a": {"ssh_conn_id": "a", "kind": "lsf"}}}, "has kind, which is the same for all accounts"),
        ({"accounts": {"team:a": "hpc_login"}}, "hpc_login is the table's own connection"),
        (
            {"work_dir": "/scratch/lading"},
            "'/scratch/lading' is used by both hpc_genes and hpc_login; write",
        ),
        ({"tunnel_port": 4000}, "tunnel_port = 4000 is used by both"),
        ({"accounts": {"team:a": "b" * 64}}, "is longer than 64 characters"),
        (
            {"accounts": {"team:a": {"ssh_conn_id": "a", "work_dir": "/a"}, "team:b": "a"}},
            "describes a differently from another key",
        ),
    ],
)
def test_what_is_wrong_says_what_is_valid(changes: dict[str, Any], expected: str) -> None:
    wrong = table(**changes)
    found = fault(wrong["accounts"], wrong, "hpc")
    assert found is not None
    assert expected in found
    assert expanded({"hpc": wrong}) == {"hpc": wrong}, "it is refused where all tables are"


FILE = """
[sites.hpc]
kind = "slurm"
work_dir = "/scratch/{account}/lading"
python = "/usr/bin/python3"
node_cpus = 4
node_memory = "8 GiB"
accept_untargeted = true
ssh_conn_id = "hpc_login"
accounts = {"team:genes" = "hpc_genes"}

[[bindings]]
dag = "reads"
targets = ["hpc/long"]
"""


def test_the_sites_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(FILE)
    sites = load_sites(make_settings(tmp_path, sites_file=path))
    assert list(sites) == ["local", "hpc", "hpc@hpc_genes"]
    assert [site.config.accept_untargeted for site in sites.values()] == [False, True, True]
    assert sites["hpc@hpc_genes"].admission.takes("reads", "genes")
    assert not sites["hpc"].admission.takes("reads", "genes")
    assert sites["hpc"].folder != sites["hpc@hpc_genes"].folder


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("[sites.hpc]", '[sites."hpc@x"]', "@ is reserved for the names of accounts"),
        ("node_cpus = 4", 'node_cpus = 4\nrun_as = "root"', "run_as is unknown"),
        ('"team:genes" =', '"genes" =', "not a key of accounts"),
        ("/{account}/", "/", "is used by both"),
        ('accounts = {"team:genes" = "hpc_genes"}', "accounts = 3", "accounts = 3: a table is expected"),
    ],
)
def test_a_file_that_is_wrong_is_refused(tmp_path: Path, old: str, new: str, expected: str) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(FILE.replace(old, new))
    with pytest.raises(SitesError, match=expected):
        load_sites(make_settings(tmp_path, sites_file=path))


def test_no_other_kind_has_accounts(tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    path.write_text('[sites.local]\nkind = "local"\nssh_conn_id = "a"\naccounts = {"team:a" = "b"}\n')
    assert list(read_sites(path)) == ["local", "local@b"]
    with pytest.raises(SitesError, match="accounts is unknown"):
        load_sites(make_settings(tmp_path, sites_file=path))
