"""``snakemake-lading``: what a workflow's store says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import forking
import pytest
from flows import Workflow
from snakemake_executor_plugin_lading.commands import StoreError, find_state_folder

SITES = '[sites.local]\nkind = "local"\ncpus = 4\nmemory = "2 GiB"\nusd_per_hour = 4.0\n'
SNAKEFILE = """
rule all:
    input: "a.txt"
rule fails:
    output: "b.txt"
    shell: "exit 3"
rule works:
    output: "a.txt"
    threads: 2
    shell: "sleep 1; touch {output}"
"""


def asked(folder: Path, *arguments: str, status: int = 0) -> str:
    done = forking.run("snakemake-lading", *arguments, cwd=folder)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout if status == 0 else done.stderr


def test_the_commands_show_what_a_workflow_took_and_why(make: Callable[[str], Workflow], tmp_path: Path) -> None:
    flow = make(SNAKEFILE)
    (flow.folder / "sites.toml").write_text(SITES)
    flow.run("--lading-sites-file", "sites.toml")
    flow.run("--lading-sites-file", "sites.toml", "b.txt", status=1)
    here = flow.folder

    jobs = json.loads(asked(here, "jobs", "--output", "json"))
    assert [(each["task_id"], each["state"], each["cpus"]) for each in jobs] == [
        ("fails", "failed", 1.0),
        ("works", "succeeded", 2.0),
    ]
    assert [each["task_id"] for each in json.loads(asked(here, "jobs", "--state", "failed", "-o", "json"))] == ["fails"]
    database = f"sqlite:///{flow.lading / 'store.db'}"
    for named in (str(here), str(flow.lading), str(flow.lading / "store.db"), database):
        table = asked(tmp_path, "jobs", "--store", named)
        assert f"{here.name}.works[" in table
    assert "works" in asked(here, "jobs", "--groups", "--output", "csv")

    [site] = json.loads(asked(here, "sites", "-o", "json"))
    assert (site["site"], site["cpus"], site["running_jobs"]) == ("local", 4.0, 0)

    last, first = json.loads(asked(here, "cost", "-o", "json"))
    assert (last["jobs"], last["failed"], first["jobs"], first["failed"]) == (1, 1, 1, 0)
    assert first["usd"] > 0
    [rule] = json.loads(asked(here, "cost", first["run_id"], "-o", "json"))
    assert (rule["task_id"], rule["usd"]) == ("works", first["usd"])

    advice = {each["task_id"]: each for each in json.loads(asked(here, "advice", "-o", "json"))}
    assert advice["works"]["tries"] == 1

    steps = asked(here, "explain", "works")
    assert steps.startswith(f"{here.name}.works[1], try 1, requested 2 cpus")
    assert "1. decision: site local" in steps
    assert "succeeded: at local/" in steps
    assert "0 running, 0 waiting" in asked(here, "top", "--once")

    assert "there is no record of a job of rule nothing; rules with jobs: fails, works" in asked(
        here, "explain", "nothing", status=1
    )
    assert "there is no store" in asked(tmp_path, "jobs", status=1)
    assert not (tmp_path / ".snakemake").exists(), "to look makes nothing"


def test_only_a_url_of_sqlite_is_a_store() -> None:
    with pytest.raises(StoreError, match="is not a store; valid: a folder, or a URL such as sqlite:"):
        find_state_folder("postgresql://host/database")
