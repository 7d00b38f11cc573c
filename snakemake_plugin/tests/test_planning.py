"""``snakemake-lading plan``: what a run costs, before it begins."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Callable

import forking
from flows import Workflow

SNAKEFILE = """
configfile: "config.yaml"
rule all:
    input: "all.txt"
rule part:
    output: "part{i}.txt"
    threads: 2
    resources: mem_mb=3000, runtime=lambda wildcards: 60
    shell: "touch {output}"
rule merge:
    input: expand("part{i}.txt", i=range(config["parts"]))
    output: "all.txt"
    threads: 4
    shell: "cat {input} > {output}"
"""


def planned(flow: Workflow, *arguments: str, status: int = 0) -> str:
    """What the command prints; what it complains of where it fails."""
    done = forking.run("snakemake-lading", "plan", *arguments, cwd=flow.folder)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stderr if status else done.stdout


def test_a_workflow_has_the_frontier_of_its_jobs(make: Callable[[str], Workflow]) -> None:
    flow = make(SNAKEFILE)
    (flow.folder / "config.yaml").write_text("parts: 8\n")
    types = ("--types", "m5.*", "--exclude-types", "m5.metal", "--output", "json")
    assert "rule merge: it has not run here yet, and it has no runtime" in planned(flow, *types, status=2)

    found = json.loads(planned(flow, *types, "--seconds", "600"))
    one = json.loads(planned(flow, *types, "--seconds", "600", "--max-instances", "1", "--", "--config", "parts=1"))
    assert found["by_hurry"]
    assert found["equal"]
    # An hour of parts side by side, ten minutes to merge them, and the boots.
    assert min(each["seconds"] for each in found["by_hurry"]) >= 4200
    assert min(each["usd"] for each in found["by_hurry"]) > 3 * min(each["usd"] for each in one["by_hurry"])
    assert not (flow.folder / ".snakemake/lading").exists()
    assert not (flow.folder / "all.txt").exists(), "nothing has run"

    assert "task 'merge[1]' is too large" in planned(flow, "--types", "m5.large", "--seconds", "600", status=2)
    wrong = planned(flow, *types, "--", "--snakefile", "nothing", status=2)
    assert "Snakemake refused the workflow" in wrong


def test_what_comes_after_a_local_rule_waits_for_what_came_before_it(make: Callable[[str], Workflow]) -> None:
    flow = make(
        """
localrules: gather
rule all:
    input: "all.txt"
rule part:
    output: "part{i}.txt"
    resources: runtime=60
    shell: "touch {output}"
rule gather:
    input: "part0.txt", "part1.txt"
    output: "list.txt"
    shell: "ls {input} > {output}"
rule merge:
    input: "list.txt"
    output: "all.txt"
    resources: runtime=60
    shell: "cat {input} > {output}"
"""
    )
    found = json.loads(planned(flow, "--types", "m5.*", "--exclude-types", "m5.metal", "--output", "json"))
    assert min(each["seconds"] for each in found["by_hurry"]) >= 7200, "an hour, and then an hour"


def test_rules_that_have_run_take_as_long_as_they_did(make: Callable[[str], Workflow]) -> None:
    flow = make(SNAKEFILE)
    (flow.folder / "config.yaml").write_text("parts: 2\n")
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 4\nmemory = "8 GiB"\n')
    flow.run("--lading-sites-file", "sites.toml")
    types = ("--types", "m5.*", "--exclude-types", "m5.metal", "--output", "json")
    assert "this workflow has nothing left to do" in planned(flow, *types, status=2)
    found = json.loads(planned(flow, *types, "--", "--forceall"))
    assert max(each["seconds"] for each in found["by_hurry"]) < 3600, "not an hour for each part"


def test_rules_whose_memory_lading_chooses_have_what_their_jobs_used(make: Callable[[str], Workflow]) -> None:
    flow = make(
        """
rule all:
    output: "all.txt"
    resources: mem_mb=50_000, runtime=60, lading_auto=1
    shell: "touch {output}"
"""
    )
    types = ("--types", "m5.large", "--output", "json")
    assert "task 'all[0]' is too large" in planned(flow, *types, status=2)
    flow.run()
    with contextlib.closing(sqlite3.connect(flow.lading / "store.db")) as store, store:
        store.execute(
            "UPDATE lading_job SET peak_memory = 100, started_at = ended_at - 60"
        )  # long enough to be sure of
    assert json.loads(planned(flow, *types, "--", "--forceall"))["by_hurry"]
