"""What ``airflow lading check`` finds, each check for itself."""

from __future__ import annotations

import json
import os
import socket
import time
from base64 import b64encode
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from airflow.executors import executor_loader
from sqlalchemy import text as sql
from sqlalchemy.engine import Engine
from sqlalchemy.orm import Session

from lading.executors.accounting.task_usage import FreedAmounts
from lading.executors.controller.housekeeping import Housekeeping
from lading.executors.host import answer
from lading.executors.migrations.db_manager import LadingDBManager
from lading.executors.settings import Settings
from lading.executors.store import Lease
from lading.hooks.deployment.airflow import AIRFLOW
from lading.hooks.ec2.account import connection_checks
from lading.hooks.files import host, version
from lading.hooks.site import Check
from lading.hooks.ssh.paramiko_transport import SSHTransport
from lading.plugin.host import AirflowHost
from lading.plugin.sites import load_sites
from lading.plugin.subcommands import check, controller_state
from lading.plugin.subcommands.check import (
    configuration_finding,
    container_began_at,
    controller_finding,
    default_finding,
    executor_finding,
    here_finding,
    is_of_container,
    key_finding,
    overkept,
    secret_findings,
    state_folder_finding,
    tenant_findings,
    token_finding,
)
from lading.scheduling.model.resources import Resources
from tests.clusters.published import site
from tests.clusters.sites import make_settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


def test_a_folder_that_can_be_made_is_well_and_is_left_to_the_scheduler(tmp_path: Path) -> None:
    assert state_folder_finding(tmp_path / "not" / "yet").good
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    found = state_folder_finding(tmp_path / "file")
    assert not found.good
    assert f"{tmp_path / 'file'} cannot be written" in found.message
    assert not state_folder_finding(Path("/proc/1/lading")).good  # not even by root


def test_a_token_is_made_with_airflows_key_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "s" * 64)
    assert token_finding().good
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "")
    assert "no JWT can be created" in token_finding().message
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_PRIVATE_KEY_PATH", str(tmp_path / "no.key"))
    found = token_finding()
    assert not found.good
    assert "no.key" in found.message


KEY = "k" * 43 + "="


def test_a_fernet_key_that_does_not_last_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "is_of_container", lambda file, began_at: True)
    found: dict[str, tuple[str, str]] = {}
    monkeypatch.setattr(check.conf, "as_dict", lambda **_: {"core": {"fernet_key": found["key"]}})
    for key, source, words in (
        ("", "env var", "is empty"),
        ("", "default", "is empty"),
        (KEY, "default", "generated one for this process only"),
        (KEY, "airflow.cfg", "was written in this container"),
    ):
        found["key"] = (key, source)
        told = key_finding()
        assert (told.good, told.warns) == (True, True), "tasks run"
        assert words in told.message
        assert "set AIRFLOW__CORE__FERNET_KEY to a permanent key" in told.message
        assert KEY not in told.message
    for source in ("env var", "cmd", "secret"):
        found["key"] = (KEY, source)
        assert (key_finding().good, key_finding().warns) == (True, False)
    monkeypatch.setattr(check, "is_of_container", lambda file, began_at: False)
    found["key"] = (KEY, "airflow.cfg")
    assert not key_finding().warns


def test_the_fernet_key_is_read_as_airflow_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", KEY)
    assert key_finding().message == "[core] fernet_key is set (env var)"
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "")
    assert "is empty" in key_finding().message


def test_what_goes_with_a_container(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n30 27 0:5 / /proc rw - proc proc rw\n")
    assert container_began_at(mounts) is None
    mounts.write_text(
        "27 1 0:40 / / rw,relatime master:9 - overlay overlay rw,lowerdir=/a\n30 27 0:5 / /p rw - x x rw\n"
    )
    began_at = container_began_at(mounts)
    assert began_at is not None
    assert began_at < time.time()
    assert container_began_at(tmp_path / "none") is None
    (file := tmp_path / "airflow.cfg").write_text("")
    now = file.stat().st_mtime
    assert is_of_container(file, now - 60) == (os.stat(tmp_path).st_dev == os.stat("/").st_dev)
    assert not is_of_container(file, now + 60), "it is in the image"
    assert not is_of_container(file, None)
    assert not is_of_container(Path("/proc/self/status"), now - 60), "it is on a volume"
    assert not is_of_container(tmp_path / "none", now - 60)


def test_a_task_without_hints_must_fit_somewhere(settings: Settings) -> None:
    assert default_finding(settings).good, "before the first start it is compared with the whole machine"
    assert not default_finding(replace(settings, default_resources=Resources(cpus=4096))).good
    settings.published_sites.write_text(json.dumps({"sites": {"a": site(1, 1024), "b": site(8, 1024)}}))
    assert "fits site b" in default_finding(replace(settings, default_resources=Resources(cpus=4))).message
    found = default_finding(replace(settings, default_resources=Resources(memory=2048)))
    assert not found.good
    assert "requests" in found.message
    assert "site a has" in found.message
    settings.published_sites.write_text("{}")
    assert "cannot be read" in default_finding(settings).message


def test_how_many_tasks_without_hints_run_at_once_is_reported(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__PARALLELISM", "32")

    def found(cpus: float, memory: int, asked: float = 0.0625, **more: Any) -> Check:
        settings.published_sites.write_text(json.dumps({"sites": {"local": site(cpus, memory, **more)}}))
        return default_finding(replace(settings, default_resources=Resources(asked, 512)))

    enough = found(2, 32 * 512)
    assert (enough.good, enough.warns) == (True, False)
    assert enough.message.endswith("which fits site local; 32 of them run at once")
    by_memory = found(2, 15 * 1024)
    assert (by_memory.good, by_memory.warns) == (True, True)
    assert "30 of them run at once, fewer than [core] parallelism = 32, limited by memory;" in by_memory.message
    by_cpus = found(2, 15 * 1024, asked=0.25)
    assert "8 of them run at once, fewer than [core] parallelism = 32, limited by cpus;" in by_cpus.message
    assert "at once" not in found(2, 32 * 512, launches=True).message


CLUSTER = """
[sites.hpc]
kind = "slurm"
work_dir = "/scratch/lading"
python = "/apps/python"
node_cpus = 32
node_memory = "128 GiB"
"""


def test_where_tasks_without_a_site_run_is_said(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    settings = replace(settings, sites_file=path)

    def found(text: str) -> tuple[str, bool, str]:
        path.write_text(text)
        finding, here = default_finding(settings), here_finding(load_sites(settings))
        return finding.message, here.warns, here.message

    words, warns, here = found(CLUSTER)
    assert "which fits site local; " in words
    assert (warns, here) == (False, "site local, where the tasks of JobScriptOperator run")
    words, warns, here = found("[sites.local]\nenabled = false" + CLUSTER)
    assert words.endswith("which fits site hpc: it runs there as a batch job, so the nodes need the Dag files")
    assert warns
    assert "a JobScriptOperator is an import error unless" in here
    words, warns, here = found(CLUSTER + "accept_untargeted = true\n[sites.local]\nenabled = true")
    assert (words.partition("which ")[2][:13], warns) == ("fits site hpc", False)
    found("[sites.local]\naccept_untargeted = false" + CLUSTER)
    assert not default_finding(settings).good
    path.write_text(CLUSTER + "accept_untargeted = true")
    wide = default_finding(replace(settings, default_resources=Resources(cpus=33)))
    assert "site hpc has" in wide.message
    assert "site local" not in wide.message


@pytest.mark.parametrize("managed", [True, False])
def test_a_controller_that_is_older_than_the_sites_file_says_so(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, managed: bool
) -> None:
    lease = Lease(name="controller", holder="h", host=socket.gethostname(), pid=77, managed=managed, expires_at=1e12)
    monkeypatch.setattr(controller_state, "current_lease", lambda host: lease)
    monkeypatch.setattr(controller_state, "lives", lambda lease: True)
    path = tmp_path / "sites.toml"
    path.write_text(CLUSTER)
    settings = replace(settings, sites_file=path)
    housekeeping = Housekeeping(AirflowHost(), settings, managed, load_sites(settings))
    housekeeping._look_at_the_file()
    assert controller_finding(AirflowHost(), settings).good
    path.write_text(f"# a remark\n{CLUSTER}")
    assert controller_finding(AirflowHost(), settings).good, "it says the same"
    for text in (CLUSTER.replace("32", "64"), "[", "a = " + "[" * 9999, None):
        path.unlink() if text is None else path.write_text(text)
        found = controller_finding(AirflowHost(), settings)
        assert not found.good
        assert (
            f"pid 77 on {lease.host} is active, but it still uses an older version of the sites file" in found.message
        )
        assert str(path) in found.message
        assert ("`kill 77`" in found.message) == managed
        caplog.clear()
        housekeeping._look_at_the_file()
        housekeeping._look_at_the_file()
        assert caplog.text.count("keeps using the sites file") == 1
    path.write_text(CLUSTER)
    assert controller_finding(AirflowHost(), settings).good
    monkeypatch.setattr(lease, "host", "elsewhere")
    path.write_text("[")
    assert "run the check on that host" in controller_finding(AirflowHost(), settings).message


@pytest.mark.parametrize(("managed", "starter"), [(True, "Airflow's scheduler"), (False, "the controller's service")])
def test_a_controller_with_another_sites_file_is_not_told_to_be_killed(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, managed: bool, starter: str
) -> None:
    lease = Lease(name="controller", holder="h", host=socket.gethostname(), pid=77, managed=managed, expires_at=1e12)
    monkeypatch.setattr(controller_state, "current_lease", lambda host: lease)
    monkeypatch.setattr(controller_state, "lives", lambda lease: True)
    mine, its = tmp_path / "mine.toml", tmp_path / "its.toml"
    mine.write_text(CLUSTER)
    its.write_text(CLUSTER.replace("32", "64"))
    remedy = f"set the same sites file ([lading] sites_file) for {starter}, and restart {starter}"
    for used, command, words in (
        (None, mine, f"it uses no sites file, and this command uses {mine}"),
        (its, mine, f"it uses {its}, and this command uses {mine}"),
        (its, None, f"it uses {its}, and this command uses none"),
    ):
        theirs = replace(settings, sites_file=used)
        Housekeeping(AirflowHost(), theirs, managed, load_sites(theirs))._look_at_the_file()
        assert controller_finding(AirflowHost(), theirs).good
        found = controller_finding(AirflowHost(), replace(settings, sites_file=command))
        assert not found.good
        assert found.message == f"pid 77 on {lease.host} is active, but {words}: {remedy}"


def test_an_older_controller_has_published_no_edition(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = Lease(name="controller", holder="h", host=socket.gethostname(), pid=77, managed=True, expires_at=1e12)
    monkeypatch.setattr(controller_state, "current_lease", lambda host: lease)
    monkeypatch.setattr(controller_state, "lives", lambda lease: True)
    for text in ("{}", "[", '{"edition": 5}'):
        settings.published_sites.write_text(text)
        assert controller_finding(AirflowHost(), settings).good


def test_a_cluster_is_checked_with_all_its_accounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(
        '[sites.hpc]\nkind = "slurm"\nwork_dir = "/s/{account}"\npython = "/usr/bin/python3"\nnode_cpus = 4\n'
        'node_memory = "8 GiB"\nssh_conn_id = "own"\naccounts = {"team:genes" = "genes"}\n'
    )
    settings = make_settings(tmp_path, sites_file=path)
    monkeypatch.setattr(check.Settings, "load", lambda: settings)
    looked_at: list[str] = []
    monkeypatch.setattr(check, "site_findings", lambda each, *_: looked_at.append(each.name) or [])
    for name in ("executor_finding", "store_finding", "key_finding"):
        monkeypatch.setattr(check, name, lambda: Check("x", True, ""))
    monkeypatch.setattr(check, "controller_finding", lambda host, settings: Check("x", True, ""))
    found = list(check.findings(["hpc", "hpc@genes", "hpc@none"], 1.0))
    assert [each.what for each in found if "no such site" in each.message] == ["site hpc@none"]
    assert looked_at == ["hpc", "hpc@genes", "hpc@genes"]


def test_what_sizing_frees_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = make_settings(tmp_path)
    monkeypatch.setattr(check.task_usage, "freed", lambda session, now: FreedAmounts(3.5, 12.25, 84.0, 290.0))
    found = check.sizing_finding(settings)
    assert found.good
    assert found.message.startswith(
        "running tasks leave 3.50 cpus and 12.25 GiB free thanks to sizing; in the last day it"
    )
    assert "sizing = hints" in check.sizing_finding(replace(settings, packs_by_use=False)).message


TENANTS = """
[[shares]]
team = "genes"
weight = 2
[[shares]]
name = "ann's"
owner = "ann"
[[budgets]]
team = "genes"
usd = 0.004
per = "day"
[[budgets]]
name = "hours"
tag = "x"
cpu_hours = 20_000
"""


def tenants(folder: Path, table: str, **changes: Any) -> dict[str, Check]:
    path = folder / "sites.toml"
    path.write_text(TENANTS + table)
    settings = replace(make_settings(folder, sites_file=path), **changes)
    return {each.what: each for each in tenant_findings(settings, load_sites(settings))}


def test_shares_and_budgets_are_listed(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.setattr(check.Team, "get_all_team_names", lambda: {"genes", "images"})
    found = tenants(tmp_path, "[sites.local]\nusd_per_hour = 0.4")
    assert found["shares"] == Check("shares", True, "team genes: weight 2; ann's: weight 1; others: weight 1")
    amounts = "team genes: 0.004 USD a day; hours: 20000 cpu-hours a month"
    stops = "no site launches machines or has batch jobs with a price, so team genes only warns; to stop jobs, use"
    assert found["budgets"].message.startswith(f"{amounts}; {stops}")
    slurm = '[sites.hpc]\nkind = "slurm"\nwork_dir = "/s"\npython = "/p"\nnode_cpus = 4\nnode_memory = "8 GiB"\n'
    for mode in ("job", "allocation"):
        priced = f'{slurm}mode = "{mode}"\nusd_per_cpu_hour = 0.03'
        assert tenants(tmp_path, priced)["budgets"] == Check("budgets", True, amounts)
    assert tenants(tmp_path, slurm)["budgets"].warns


def test_shares_and_budgets_that_can_never_hold_are_a_warning(
    airflow_database: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unpriced = tenants(tmp_path, "")["budgets"]
    assert (unpriced.good, unpriced.warns) == (True, True)
    assert "no site has a price, so team genes is never spent" in unpriced.message
    assert "no team 'genes'" in unpriced.message
    assert "multi_team is not set" in unpriced.message
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "True")
    monkeypatch.setattr(check.Team, "get_all_team_names", lambda: {"genomes", "images"})
    shares = tenants(tmp_path, "", fair=False)["shares"]
    assert shares.warns
    assert "[lading] fair = False, so they have no effect" in shares.message
    assert "Airflow has no team 'genes', so that applies to no job; valid: genomes, images" in shares.message


def test_files_of_two_versions_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check.version_finding().good
    monkeypatch.setattr(version, "installed_versions", lambda: {"airflow-lading": "9.9"})
    found = check.version_finding()
    assert not found.good
    assert "airflow-lading 9.9 is installed" in found.message


@pytest.mark.parametrize(
    ("executor", "good", "words"),
    [
        ("lading.executors.LadingExecutor", True, "has lading.executors.LadingExecutor"),
        ("LocalExecutor,lading:lading.executors.LadingExecutor", True, "has lading.executors.LadingExecutor"),
        ("lading.executors.LadingExecutr", False, "valid: lading.executors.LadingExecutor, "),
        ("lading.executor.LadingExecutor", False, "valid: lading.executors.LadingExecutor, "),
        ("lading.executors.LadingExecutor,LocalExecuter", False, "valid: LocalExecutor, "),
        ("LocalExecutor", False, "set it to lading.executors.LadingExecutor"),
    ],
)
def test_each_executor_can_be_loaded(monkeypatch: pytest.MonkeyPatch, executor: str, good: bool, words: str) -> None:
    monkeypatch.setattr(executor_loader, "_executor_names", [])
    monkeypatch.setenv("AIRFLOW__CORE__EXECUTOR", executor)
    found = executor_finding()
    assert (found.good, words in found.message) == (good, True), found.message


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ("AIRFLOW__LADING__DEFUALT_MEMORY", "there is no such option; valid: default_memory, "),
        ("AIRFLOW__LADING__SITES_FILE_CMD", "there is no such option; valid: sites_file, "),
        ("AIRFLOW__LADDING__DEFAULT_MEMORY", "there is no section [ladding]; did you mean [lading]?"),
        ("AIRFLOW__GENES___LADING__DEFAULT_MEMRY", "there is no such option of a team; valid: default_memory, "),
        ("AIRFLOW__GENES___LADING__SITES_FILE", "there is no such option of a team; valid: "),
    ],
)
def test_an_option_that_there_is_not_is_an_error(monkeypatch: pytest.MonkeyPatch, variable: str, words: str) -> None:
    assert configuration_finding().good
    monkeypatch.setenv("AIRFLOW__GENES___LADING__DEFAULT_MEMORY", "1 GiB")
    monkeypatch.setenv("AIRFLOW__LOGGING__LOGGING_LEVEL", "INFO")
    assert configuration_finding().good
    monkeypatch.setenv(variable, "2 GiB")
    found = configuration_finding()
    assert not found.good
    assert found.message.startswith(f"{variable}: {words}")


@pytest.mark.parametrize("section", ["lading", "genes=lading"])
def test_an_option_of_the_file_that_there_is_not(monkeypatch: pytest.MonkeyPatch, section: str) -> None:
    if not (before := check.conf.has_section(section)):
        check.conf.add_section(section)
    try:
        check.conf.set(section, "defualt_memory", "2 GiB")
        assert configuration_finding().message.startswith(
            f"[{section}] defualt_memory in airflow.cfg: there is no such"
        )
    finally:
        check.conf.remove_option(section, "defualt_memory")
        if not before:
            check.conf.remove_section(section)


def test_secrets_that_can_be_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 32)
    monkeypatch.setenv("AIRFLOW__API__SECRET_KEY", b64encode(b"r" * 16).decode())  # as Airflow makes it up
    assert list(secret_findings()) == []
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 31)
    [found] = secret_findings()
    assert not found.good
    assert (found.what, found.message[:12]) == ("[api_auth] jwt_secret (env var)", "has 31 bytes")
    assert "openssl rand -hex 32" in found.message
    monkeypatch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", f"CHANGE-ME{'x' * 64}")
    monkeypatch.setenv("AIRFLOW__CORE__FERNET_KEY", "change_me")
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "postgresql://airflow:CHANGE-ME@127.0.0.1/airflow")
    told = {each.what.partition(" (")[0]: each for each in secret_findings()}
    assert sorted(told) == ["[api_auth] jwt_secret", "[core] fernet_key", "[database] sql_alchemy_conn"]
    assert not any(each.good for each in told.values())
    assert "xxxx" not in str(told)
    assert "airflow:" not in str(told)


def test_amounts_that_this_machine_does_not_have(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    settings = replace(settings, sites_file=path)

    def found(text: str) -> list[Check]:
        path.write_text(f"[sites.local]\n{text}")
        return list(load_sites(settings)["local"].checks())

    has = host.hardware(tmp_path)
    assert found(f"memory = {has.memory}\ncpus = {has.cpus * 4}") == [], "processors may be shared"
    for text, words in (
        ('memory = "64 TiB"', f"memory = 67,108,864 MiB is more than the {has.memory:,} that"),
        ("gpus = 99", f"gpus = 99 is more than the {has.gpus:g} that"),
    ):
        [told] = found(text)
        assert (told.what, told.good, told.warns) == ("table", True, True)
        assert told.message.startswith(f"[sites.local] {words} this machine has: ")
        assert "lower it" in told.message


def test_shares_that_keep_more_than_there_is(settings: Settings, tmp_path: Path) -> None:
    path = tmp_path / "sites.toml"
    settings = replace(settings, sites_file=path)

    def found(text: str, kind: str = "") -> list[str]:
        path.write_text(f"[sites.local]\ncpus = 8\n{kind}\n{text}")
        sites = load_sites(settings)
        return list(overkept(check.shares_of(path, sites, 1.0).table, sites))

    one, other = '[[shares]]\nteam = "a"\ncpus = {}\n', '[[shares]]\nteam = "b"\ncpus = {}\n'
    assert found(one.format(4) + other.format(4)) == []
    assert found(one.format(64)) == ["cpus = 64 is reserved for team a, but there are only 8; lower it"]
    assert found(one.format(5) + other.format(4)) == [
        "cpus = 9 is reserved for team a, team b, but there are only 8; lower it"
    ]
    assert found('[[shares]]\nteam = "a"\nsites = {local = {machines = 2}}') == [
        "machines = 2 is reserved for team a, but site local has only 1; lower it"
    ]
    assert found(one.format(64), CLUSTER) == [], "how much a queue has is not known"


def test_an_error_is_said_once() -> None:
    broken = Check("site cloud: prices", False, "/p.csv cannot be read")
    same = Check("tasks without hints", False, "what the sites have is not known: /p.csv cannot be read")
    good = Check("x", True, broken.message)
    for first, second in ((broken, same), (same, broken)):
        found = list(check.each_once([first, good, second, first]))
        assert [each.message for each in found] == [first.message, good.message, *[f"see {first.what}"] * 2]
        assert [each.good for each in found] == [False, True, False, False]


def test_a_machine_says_what_its_table_has_too_much(tmp_path: Path) -> None:
    """Asked over SSH, it answers so."""
    asked = {"version": version.VERSION, "look": True, "scratch": "", "reserve": {"cpus": 0, "memory": 0}}
    share = {"cpus": 2, "memory": 2**26, "disk": None, "gpus": None}
    assert "memory = 67,108,864 MiB is more than" in answer(tmp_path, {**asked, "share": share})["note"]
    assert answer(tmp_path, {**asked, "share": {**share, "memory": 100}})["note"] is None


def test_a_connection_to_something_else_is_none_for_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WEB", "http://user:secret@127.0.0.1:1")
    with SSHTransport("web") as transport:
        [said] = transport.run(["true"])
    words = "the connection 'web' is of type 'http'; name one of type ssh, created by `airflow connections add "
    assert words in said.message
    assert "secret" not in said.message
    assert transport.unusable, "time does not change it"


def test_a_connection_to_something_else_is_none_for_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WEB", "http://127.0.0.1:1")
    monkeypatch.setenv("AIRFLOW_CONN_CLOUD", "aws://")
    [found] = connection_checks(AIRFLOW, "web")
    assert (found.warns, found.message) == (True, "the connection 'web' is of type 'http'; name one of type aws")
    assert list(connection_checks(AIRFLOW, "cloud")) == []


@pytest.mark.parametrize("text", [None, "instance_type,zone\n", "no prices"])
def test_prices_that_cannot_be_read(settings: Settings, tmp_path: Path, text: str | None) -> None:
    """They are looked at before AWS is asked for anything."""
    prices = tmp_path / "prices.csv"
    if text is not None:
        prices.write_text(text)
    (path := tmp_path / "sites.toml").write_text(
        f'''[sites.cloud]\nkind = "ec2"\nregion = "eu-central-1"\naws_conn_id = ""\nprices = "{prices}"\n'''
        'instance_types = ["c7i.*"]\nsubnets = ["subnet-0a1b2c3d"]\nsecurity_groups = ["sg-0a1b2c3d"]\n'
        'work_dir = "/w"\n'
        'python = "/p"\nami = {x86_64 = "ami-0a1b2c3d"}\n'
    )
    site = load_sites(replace(settings, sites_file=path))["cloud"]
    [found] = site.checks()
    assert (found.what, found.good) == ("prices", False)
    assert str(prices) in found.message


def test_tables_of_another_version(airflow_database: Engine) -> None:
    """What migrate would refuse is not what is recommended."""
    session = Session(airflow_database)
    session.execute(sql(f"CREATE TABLE {LadingDBManager.version_table_name} (version_num VARCHAR(32))"))
    session.execute(sql(f"INSERT INTO {LadingDBManager.version_table_name} VALUES ('ffff')"))
    fault = AirflowHost().store_fault(session)
    assert fault is not None
    assert fault.startswith("The tables of Lading are at revision 'ffff'; this version knows ")
    assert "Install the version that created them" in fault
