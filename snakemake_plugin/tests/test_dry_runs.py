"""Requests that SLURM would refuse are errors before the first job runs."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from flows import PATIENCE, Workflow, wait_until
from test_slurm import JOB_SITE

from tests.services import node_python
from tests.services.account import Account, NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.slurm import Slurm

# By rule: its resources, and how the error names their cause.
REFUSED = {
    "partition": (
        'slurm_partition="btach"',
        "resource slurm_partition is 'btach', but slurm refuses it: invalid partition specified: btach; Invalid "
        "partition name specified; did you mean batch? Valid: batch, short",
    ),
    "account": (
        'slurm_account="ladign"',
        "resource slurm_account is 'ladign', but slurm refuses it: Invalid account or account/partition combination "
        "specified; did you mean lading? Valid: lading",
    ),
    "qos": (
        'qos="norm1"',
        "resource qos is 'norm1', but slurm refuses it: Invalid qos specification; did you mean normal? Valid: normal",
    ),
    "constraint": (
        'constraint="ssd&avy"',
        "resource constraint is 'ssd&avy', but slurm refuses it: Invalid feature specification; did you mean avx? "
        "Valid: ssd, avx",
    ),
    "gres": (
        'gres="lscrach:7"',
        "resource gres is 'lscrach:7', but slurm refuses it: Invalid generic resource (gres) specification; did you "
        "mean lscratch? Valid: gpu:a100, lscratch, gpu",
    ),
    "type": (
        'gres="lscratch:big:7"',
        "resource gres is 'lscratch:big:7', but slurm refuses it: Requested node configuration is not available; did "
        "you mean lscratch? Valid: gpu:a100, lscratch, gpu",
    ),
    "clusters": (
        'clusters="farr"',
        "resource clusters is 'farr', but slurm refuses it: No cluster 'farr' known by database; 'farr' can't be",
    ),
    "extra": (
        "slurm_extra='--reservation=soon'",
        "resource slurm_extra is '--reservation=soon', but slurm refuses it: Requested reservation is invalid",
    ),
    "runtime": (
        'slurm_partition="short", runtime=30',
        "resource runtime is '30': time = 30 min, but a job in queue 'short' can run for at most 5 min",
    ),
}
RULES = """
rule all:
    input: {files}
rule first:
    output: "first.txt"
    shell: "touch {{output}}"
"""
RULE = """
rule {name}:
    input: "first.txt"
    output: "{name}.txt"
    resources: {asked}
    shell: "touch {{output}}"
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    gres = "Name=gpu Type=a100 File={folder}/gpu[0-3]\nName=lscratch Count=100\n"
    traits = "Feature=ssd,avx Gres=gpu:a100:4,lscratch:100"
    try:
        with (
            Account() as account,
            Slurm(account, nodes=2, cpus=4, accounting=True, traits=traits, gres=gres, patience=60) as service,
        ):
            yield service
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))


def make(slurm: Slurm, name: str, rules: dict[str, str]) -> tuple[Workflow, dict[str, str]]:
    """A workflow with a rule before those that are given with their resources, and its environment."""
    account = slurm.account
    text = RULES.format(files=[f"{each}.txt" for each in rules])
    text += "".join(RULE.format(name=each, asked=asked) for each, asked in rules.items())
    flow = Workflow(account.home / name, text, node_python.make(account), account.name)
    conf = slurm.environment["SLURM_CONF"]
    python = account.folder / "bare" / "bin" / "python"
    if not python.exists():
        python = node_python.bare(account)
    (flow.folder / "sites.toml").write_text(JOB_SITE.format(home=account.home, python=python, conf=conf))
    return flow, {"HOME": str(account.home), "USER": account.name, **slurm.environment}


def test_what_slurm_would_refuse_is_an_error_before_anything_runs(slurm: Slurm) -> None:
    flow, environment = make(slurm, "refused", {name: asked for name, (asked, _) in REFUSED.items()})
    try:
        said = flow.run("--lading-sites-file", "sites.toml", status=1, **environment)
        missing = [text for name, (_, text) in REFUSED.items() if not _says(said, name, text)]
        assert not missing, said
        assert not (flow.folder / "first.txt").exists()
        assert flow.jobs("task_id") == []
        assert slurm.command("sacct", "-a", "-X", "-n", "-o", "JobID").split() == []
    finally:
        flow.clean_up()


def _says(said: str, rule: str, text: str) -> bool:
    return any(f"rule {rule} (job" in line and text in line for line in said.splitlines())


def test_what_slurm_refuses_for_now_starts(slurm: Slurm) -> None:
    rules = {"two_nodes": "nodes=2", "limited": "runtime=2", "closed": 'slurm_partition="short", runtime=1'}
    flow, environment = make(slurm, "for_now", rules)
    slurm.close_queue("short")
    slurm.drain_node("n2")
    try:
        process = flow.start("--lading-sites-file", "sites.toml", **environment)
        wait_until((flow.folder / "limited.txt").exists)
        slurm.resume_node("n2")
        slurm.open_queue("short")
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 0, said
        assert "resource slurm_partition is 'short', but slurm refuses it for now: Required partition not av" in said
        assert "rule two_nodes (job" in said
        assert "slurm refuses its batch jobs for now: Requested node configuration is not available" in said
    finally:
        flow.clean_up()


UNREACHABLE = """
[sites.local]
enabled = false

[sites.hpc]
kind = "slurm"
ssh_conn_id = "nowhere.invalid"
work_dir = "/scratch/lading"
python = "/usr/bin/python3"
node_cpus = 4
node_memory = 8000
"""


def test_a_workflow_starts_although_its_site_cannot_be_asked(tmp_path: Path) -> None:
    flow = Workflow(tmp_path / "flow", RULES.format(files=["first.txt"]))
    (flow.folder / "sites.toml").write_text(UNREACHABLE)
    process = flow.start("--lading-sites-file", "sites.toml")
    try:
        wait_until(lambda: _states(flow) == [("queued",)])
    finally:
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=PATIENCE)
        flow.clean_up()
    assert said.count("the requests of the jobs could not be checked by site 'hpc'") == 1, said


def _states(flow: Workflow) -> list[tuple[str, ...]]:
    try:
        return flow.jobs("state")
    except sqlite3.OperationalError:  # the store is not there yet
        return []


MANY = """
rule all:
    input: expand("out/{i}.txt", i=range(60))
rule one:
    output: "out/{i}.txt"
    threads: lambda wildcards: 1 + int(wildcards.i) % 3
    shell: "touch {output}"
"""


def test_equal_requests_are_asked_about_once(slurm: Slurm) -> None:
    account = slurm.account
    flow, environment = make(slurm, "many", {})
    (flow.folder / "Snakefile").write_text(MANY)
    asked, sbatch = account.home / "asked", account.home / "bin" / "sbatch"
    sbatch.parent.mkdir()
    sbatch.write_text(f'#!/bin/sh\necho "$*" >> {asked}\nexec {shutil.which("sbatch")} "$@"\n')
    sbatch.chmod(0o755)
    environment["PATH"] = f"{sbatch.parent}:{os.environ['PATH']}"
    try:
        flow.run("--lading-sites-file", "sites.toml", **environment)
        calls = asked.read_text().splitlines()
        assert [line.startswith("--test-only") for line in calls[:4]] == [True, True, True, False]
        assert not any("--test-only" in line for line in calls[3:])
    finally:
        flow.clean_up()
