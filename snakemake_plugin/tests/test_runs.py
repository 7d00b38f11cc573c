"""Workflows that Lading runs on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace

import forking
import pytest
from flows import PATIENCE, Workflow, remove_state, wait_until
from snakemake.io import flag
from snakemake.persistence import FileBackupMixin
from snakemake_executor_plugin_lading import executor
from snakemake_executor_plugin_lading.host import SnakemakeHost
from snakemake_executor_plugin_lading.state_folder import StateFolder, StoreRemoved, transaction
from sqlalchemy import update
from sqlalchemy.orm import Session

from lading.hooks.files.owner import Owner
from lading.hooks.spool import server

Make = Callable[[str], Workflow]

MEMORY = """
rule all:
    input: "script.txt", "learnt.txt", "grown.txt"

# Those with too little memory wait until they are ended. A rule with Python in it needs Snakemake where it runs.
rule script:
    output: "script.txt"
    threads: 2
    resources: mem_mb=200
    run:
        import os
        with open(output[0], "w") as file:
            file.write(f"{threads} {os.environ['SECRET_OF_A_RUN']}")

# It says how much more a further attempt has.
rule grown:
    output: "grown.txt"
    retries: 1
    resources: mem_mb=lambda wildcards, attempt: 50 + 600 * (attempt - 1)
    shell: "python3 -c 'import time; a = bytes([1]) * (450 << 20); "
        "time.sleep(600 if {resources.mem_mb} < 100 else 0)'; echo {resources.mem_mb} > {output}"

# It does not, so that it has twice what it had.
rule learnt:
    output: "learnt.txt"
    retries: 1
    resources: mem_mb=300
    shell: "pause=$([ -e tried ] && echo 0 || echo 600); touch tried; "
        "python3 -c 'import sys, time; a = bytes([1]) * (450 << 20); time.sleep(int(sys.argv[1]))' $pause && "
        "echo ok > {output}"

envvars: "SECRET_OF_A_RUN"
"""

SIZED = """
rule all:
    input: "own.txt", "sized.txt"

# It waits until it is ended where it has too little memory, the first time that it needs more.
rule sized:
    input: "mib"
    output: "sized.txt"
    shell: "pause=600; [ -e tried ] && pause=0; [ $(cat mib) = 60 ] && pause=3 || touch tried; "
        "python3 -c 'import sys, time; a = bytes([1]) * (int(sys.argv[1]) << 20); time.sleep(int(sys.argv[2]))' "
        "$(cat mib) $pause && echo ok > {output}"

rule own:
    output: "own.txt"
    resources: mem_mb=300, runtime=7
    shell: "echo ok > {output}"
"""

FAILS = """
rule all:
    input: "a.txt", "b.txt", "c.txt"
rule a:
    output: "a.txt"
    shell: "echo half > {output}; echo what went wrong >&2; exit 3"
# Its Snakemake says much after what is wrong.
rule c:
    output: "c.txt"
    run: raise ValueError("Python went wrong")
rule b:
    output: "b.txt"
    resources: runtime="2s"
    shell: "sleep 600; touch {output}"
"""

TOGETHER = """
rule all:
    input: "grouped.txt", "piped.txt", "served.txt"
    output: "kept.txt", temp("removed.txt")
    run:
        for each in output:
            open(each, "w").close()
rule a:
    output: "a.txt"
    group: "g"
    shell: "echo a > {output}"
rule b:
    input: "a.txt"
    output: "grouped.txt"
    group: "g"
    shell: "cat {input} > {output}; echo b >> {output}"
rule p:
    output: pipe("numbers")
    shell: "seq 2 > {output}"
rule q:
    input: "numbers"
    output: "piped.txt"
    shell: "cat {input} > {output}"
rule s:
    output: service("socket")
    shell: "echo up > {output}; sleep 600"
rule c:
    input: "socket"
    output: "served.txt"
    shell: "cat {input} > {output}"
"""
LAPTOP = """
rule all:
    input: "gpus.txt", "tiny.txt", "big.txt"
rule tiny:
    output: "tiny.txt"
    shell: "touch {output}"
rule gpus:
    output: "gpus.txt"
    resources: gpu=99
    shell: "touch {output}"
rule small:
    output: "small.txt"
    shell: "touch {output}"
rule big:
    output: "big.txt"
    threads: 999
    resources: mem_mb=100_000_000
    shell: "echo {threads} > {output}"
rule later:
    input: "small.txt"
    output: "later.txt"
    resources: mem_mb=lambda wildcards, input: 100_000_000 + input.size
    shell: "touch {output}"
"""

# Each job writes when it begins and when it ends.
COUNTS = """
rule all:
    input: "all.txt"
rule one:
    output: "out/{i}.txt"
    shell: "echo begin {wildcards.i} $$ >> journal; sleep 0.2; until [ -e go ]; do sleep 0.1; done; "
        "echo end {wildcards.i} $$ >> journal; touch {output}"
rule merge:
    input: expand("out/{i}.txt", i=range(2))
    output: "all.txt"
    shell: "cat {input} > {output}"
"""

# What the job has read when it began is what it writes.
READS = """
rule all:
    input: "all.txt"
rule source:
    input: "given.txt"
    output: "source.txt"
    shell: "cp {input} {output}"
rule one:
    input: "source.txt", "more.txt"
    output: "all.txt"
    shell: "read=$(cat {input}); echo begin 0 $$ >> journal; until [ -e go ]; do sleep 0.1; done; echo $read > {output}"
"""


def journal(flow: Workflow) -> list[list[str]]:
    path = flow.folder / "journal"
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


def begun(flow: Workflow) -> int:
    return sum(what == "begin" for what, *_ in journal(flow))


def test_a_run_begins_anew_after_its_folder_was_removed(make: Make) -> None:
    flow = make(COUNTS)
    killed = flow.start()
    wait_until(lambda: begun(flow) == 2)
    killed.kill()
    killed.wait()
    left = flow.processes()
    remove_state(flow)
    process = flow.start()
    wait_until(lambda: begun(flow) >= 4)
    wait_until(lambda: not set(left) & set(flow.processes()))
    (flow.folder / "go").touch()
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, said
    assert "airflow" not in said.lower()
    ends = [line for line in journal(flow) if line[0] == "end"]
    assert len(ends) == 2, "what ran before has been killed"
    assert flow.processes() == []


def test_a_machine_alone_runs_what_asks_for_more_than_it_has(make: Make) -> None:
    flow = make(LAPTOP)
    said = flow.run("big.txt", "later.txt")
    assert (flow.folder / "big.txt").read_text().split() == [str(len(os.sched_getaffinity(0)))]
    for rule in ("big", "later"):
        assert f"rule {rule} requests 95367432 MiB, more than the" in said
    assert "its jobs run alone" in said
    refused = flow.run(status=1)
    assert re.search(r"rule gpus \(job \d+\): resource gpu: 99 is more than site 'local' can ever give", refused)
    refused = flow.run("--set-resources", "gpus:gpu=0", "--default-resources", "slurm_partition='x'", status=1)
    assert "resource slurm_partition is 'x', which only a batch system understands" in refused
    assert "airflow" not in refused.lower()
    assert not (flow.folder / "tiny.txt").exists(), "nothing has run before that"


# The thread that takes ends in reads the DAG of which Snakemake's own thread has changed a part.
CHANGES = """
import threading, time
from snakemake.dag import DAG
plainly = DAG.needrun_jobs
def read_slowly(self, *given, **options):
    for job in plainly(self, *given, **options):
        time.sleep(0 if threading.current_thread() is threading.main_thread() else 0.1)
        yield job
DAG.needrun_jobs = read_slowly
def chosen(wildcards):
    with open(checkpoints.plan.get(i=wildcards.i).output[0]) as file:
        return expand("{i}.{j}.txt", i=wildcards.i, j=file.read().split())
rule all:
    input: expand("{i}.all", i=range(6))
rule gather:
    input: chosen
    output: "{i,\\d+}.all"
    shell: "touch {output}"
checkpoint plan:
    output: "{i}.plan"
    shell: "sleep 0.{wildcards.i}; echo 1 2 3 > {output}"
rule one:
    output: "{i}.{j}.txt"
    shell: "touch {output}"
"""


def test_what_is_to_come_is_read_of_no_half_changed_dag(make: Make) -> None:
    flow = make(CHANGES)
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 8\nmemory = "8 GiB"\n')
    flow.run("--lading-sites-file", "sites.toml")
    assert len(list(flow.folder.glob("*.all"))) == 6


def test_the_snakemake_of_a_job_has_the_cores_of_the_job(make: Make) -> None:
    cpus = (os.cpu_count() or 1) + 2
    flow = make(
        f"""
rule all:
    input: "run.txt", "grouped.txt"
rule run:
    output: "run.txt"
    threads: {cpus}
    run:
        with open(output[0], "w") as file:
            file.write(str(threads))
rule first:
    output: temp("first.txt")
    threads: {cpus}
    group: "g"
    shell: "touch {{output}}"
rule second:
    input: "first.txt"
    output: "grouped.txt"
    threads: {cpus - 1}
    group: "g"
    shell: "echo {{threads}} > {{output}}"
"""
    )
    (flow.folder / "sites.toml").write_text(f'[sites.local]\nkind = "local"\ncpus = {cpus}\nmemory = "8 GiB"\n')
    flow.run("--lading-sites-file", "sites.toml")
    assert (flow.folder / "run.txt").read_text() == str(cpus)
    assert (flow.folder / "grouped.txt").read_text() == f"{cpus - 1}\n"


def test_groups_pipes_services_and_temporary_files_are_what_they_are_with_cores(make: Make) -> None:
    with_lading, with_cores = make(TOGETHER), make(TOGETHER)
    with_lading.run()
    done = forking.run("snakemake", "--cores", "4", cwd=with_cores.folder)
    assert done.returncode == 0, done.stderr
    found, wanted = (
        {path.name: path.read_text() for path in each.folder.glob("*.txt")} for each in (with_lading, with_cores)
    )
    assert found == wanted
    assert wanted == {
        "a.txt": "a\n", "grouped.txt": "a\nb\n", "piped.txt": "1\n2\n", "served.txt": "up\n", "kept.txt": "",
    }  # fmt: skip
    assert with_lading.processes() == [], "the service has ended"
    shutil.copytree(with_lading.folder, with_lading.folder / "copy")  # which fails at a FIFO


def test_a_workflow_that_is_refused_leaves_no_thread_at_work(make: Make) -> None:
    flow = make(LAPTOP)
    script = (
        "import sys, threading\nfrom snakemake.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    print([each.name for each in threading.enumerate()])\n"
    )
    command = [sys.executable, "-c", script, "--executor", "lading", "--jobs", "1"]
    done = subprocess.run(command, cwd=flow.folder, capture_output=True, text=True, timeout=PATIENCE)
    assert "rule gpus" in done.stderr
    assert "MainThread" in done.stdout
    assert "_wait_thread" not in done.stdout


def test_a_workflow_whose_folder_is_removed_says_so_and_leaves_nothing_at_work(make: Make) -> None:
    flow = make(COUNTS)
    process = flow.start()
    wait_until(lambda: begun(flow) == 2)
    remove_state(flow)
    said, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1, said
    assert f"{flow.lading} was removed while it was in use" in said
    assert "Traceback" not in said
    assert "sql" not in said.lower(), said
    wait_until(lambda: flow.processes() == [])


# The folder is removed by what the main Snakemake evaluates right before it submits a job.
REMOVES = """
import os, shutil
def remove(wildcards):
    if os.path.exists("first.txt"):
        while os.path.exists(".snakemake"):
            shutil.rmtree(".snakemake", ignore_errors=True)
    return ""
rule all:
    input: "last.txt"
rule first:
    output: "first.txt"
    shell: "touch {output}"
rule last:
    input: "first.txt"
    output: "last.txt"
    params: remove
    LAST
"""


@pytest.mark.parametrize("last", ['shell: "touch {output}"', 'run: open(output[0], "w").close()'])
def test_a_workflow_whose_folder_is_removed_when_a_job_is_submitted_says_so(make: Make, last: str) -> None:
    flow = make(REMOVES.replace("LAST", last))
    said = flow.run(status=1)
    assert f"{flow.lading} was removed while it was in use" in said
    assert not re.search(r'Traceback|File ".*\.py"', said), said
    wait_until(lambda: flow.processes() == [])


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("is_open", [False, True])
def test_a_process_of_a_store_that_was_removed_makes_no_other(tmp_path: Path, is_replaced: bool, is_open: bool) -> None:
    state = StateFolder(tmp_path / "lading")
    database, store = state.connect(), state.store_id()
    if not is_open:
        database.dispose()
    state.database.rename(tmp_path / "removed.db")
    if is_replaced:
        StateFolder(state.root).connect().dispose()
    assert state.has_lost(store)
    with pytest.raises(StoreRemoved, match="was removed"), database.connect():
        pass
    assert state.database.exists() == is_replaced


def test_a_folder_that_was_made_anew_is_still_that_of_its_workflow(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "lading")
    before = Owner.from_key(*SnakemakeHost(state.open(), state).identity())
    (state.root / "secret").unlink()
    after = Owner.from_key(*SnakemakeHost(state.open(), state).identity())
    assert before.ids[0] != after.ids[0]
    server.claim(str(tmp_path), before.ids, before.name)
    server.claim(str(tmp_path), after.ids, after.name)
    other = StateFolder(tmp_path / "other")
    elsewhere = Owner.from_key(*SnakemakeHost(other.open(), other).identity())
    with pytest.raises(OSError, match="another deployment of Lading"):
        server.claim(str(tmp_path), elsewhere.ids, elsewhere.name)


def test_jobs_have_what_they_ask_for_and_more_after_too_little_memory(make: Make) -> None:
    flow = make(MEMORY)
    flow.run(SECRET_OF_A_RUN="s3cr3t")
    assert (flow.folder / "script.txt").read_text() == "2 s3cr3t"
    assert (flow.folder / "grown.txt").read_text() == "650\n"
    rows = flow.jobs("task_id, try_number, state, cause, cpus, memory, memory_limit, run_id")
    ends = {(task, number): (state, cause) for task, number, state, cause, *_ in rows}
    assert ends == {
        ("script", 1): ("succeeded", None),
        ("grown", 1): ("failed", "out_of_memory"),
        ("grown", 2): ("succeeded", None),
        ("learnt", 1): ("failed", "out_of_memory"),
        ("learnt", 2): ("succeeded", None),
    }
    asked = {(task, number): (cpus, memory, limit) for task, number, _, _, cpus, memory, limit, _ in rows}
    assert asked["script", 1] == (2.0, 191, 191 + 256), "MB are MiB, rounded up, and Snakemake itself needs some"
    assert asked["learnt", 2][2] == 2 * asked["learnt", 1][2]
    assert len({run for *_, run in rows}) == 1
    kept = [path for path in flow.lading.rglob("*") if path.is_file() and b"s3cr3t" in path.read_bytes()]
    assert kept == [], "what may be a secret is not kept"
    assert flow.processes() == []


@pytest.mark.parametrize("option", [("--default-resources", "lading_auto=1"), ("--lading-auto",)])
def test_rules_without_memory_get_what_their_jobs_used_and_more_for_free(make: Make, option: tuple[str, ...]) -> None:
    workflow = make(SIZED)
    (workflow.folder / "mib").write_text("60")
    workflow.run(*option)
    columns = "task_id, memory, memory_limit, time_limit, input_size, cause"
    first = {row[0]: row[1:] for row in workflow.jobs(columns)}
    assert first["sized"][1:] == (None, None, 2, None)
    (workflow.folder / "mib").write_text("110")
    assert "is submitted again: out_of_memory" in workflow.run("--forceall", *option)  # it has no retries
    rows = [row[1:] for row in workflow.jobs(columns) if row[0] == "sized"]
    assert [row[-1] for row in rows] == [None, "out_of_memory", None]
    limits = [row[1] for row in rows[1:]]
    assert 64 <= limits[0] < 110 < limits[1] == 2 * limits[0]
    assert [row[0] for row in rows[1:]] == limits
    assert all(row[2] is not None for row in rows[1:])
    # What its author wrote is as it was.
    assert {row[1:4] for row in workflow.jobs(columns) if row[0] == "own"} == {first["own"][:3]}


def test_a_failure_says_its_cause_and_leaves_no_output(make: Make) -> None:
    flow = make(FAILS)
    said = flow.run("--keep-going", status=1)
    assert "Lading: error: the job's process exited with exit code 3" in said
    assert ".snakemake/lading/logs/a/" in said
    assert "what went wrong" in said
    assert said.count("Python went wrong") == 1
    assert "Lading: time_limit: " in said
    assert not (flow.folder / "a.txt").exists()
    assert sorted(flow.jobs()) == [("a", "failed", "error"), ("b", "failed", "time_limit"), ("c", "failed", "error")]
    assert flow.processes() == []


def test_what_a_killed_snakemake_has_left_runs_on_or_is_ended_and_nothing_runs_at_the_same_time(make: Make) -> None:
    flow = make(COUNTS)
    first = flow.start()
    wait_until(lambda: begun(flow) == 2)
    first.kill()
    first.wait()
    flow.run("--unlock")
    second = flow.start("--rerun-incomplete")
    wait_until(lambda: begun(flow) == 4)
    pids = {number: pid for what, number, pid in journal(flow)[:2]}
    assert not [pid for pid in pids.values() if os.path.exists(f"/proc/{pid}")], "the first ones have been ended before"
    (flow.folder / "go").touch()
    second.communicate(timeout=PATIENCE)
    assert second.returncode == 0
    assert sorted(number for what, number, _ in journal(flow) if what == "end") == ["0", "1"]
    assert flow.processes() == []


def test_the_jobs_of_a_killed_snakemake_go_on_for_the_next_one(make: Make) -> None:
    flow = make(COUNTS)
    first = flow.start()
    wait_until(lambda: begun(flow) == 2)
    wait_until(lambda: flow.jobs("state") == 2 * [("running",)])
    first.kill()
    first.wait()
    flow.run("--unlock")
    before = flow.jobs("run_id")
    second = flow.start()
    wait_until(lambda: not set(flow.jobs("run_id")) & set(before))
    (flow.folder / "go").touch()
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert "2 jobs of an earlier Snakemake continue" in said
    assert begun(flow) == 2, "nothing has run twice"
    assert sorted(flow.jobs()) == [("merge", "succeeded", None), *2 * [("one", "succeeded", None)]]
    assert flow.processes() == []


# Each job waits until the other one has begun, too.
BOTH = """
rule all:
    input: "0.txt", "1.txt"
rule one:
    output: "{i}.txt"
    shell: "touch begun.{wildcards.i}; until [ -e begun.0 ] && [ -e begun.1 ]; do sleep 0.1; done; touch {output}"
"""


def test_a_changed_sites_file_counts_although_a_controller_that_has_read_the_old_one_lives(make: Make) -> None:
    flow, other = make(BOTH), make(BOTH)
    sites = flow.folder / "sites.toml"
    sites.write_text('[sites.local]\nkind = "local"\ncpus = 1\n')
    options = ("--lading-state-folder", str(flow.lading), "--lading-sites-file", str(sites))
    first = flow.start(*options)
    wait_until(lambda: list(flow.folder.glob("begun.*")))
    wait_until(lambda: ("running",) in flow.jobs("state"))
    controller = flow.process("snakemake_executor_plugin_lading\0controller")
    sites.write_text('[sites.local]\nkind = "local"\ncpus = 2\n')
    refused = other.run(*options, status=1)
    assert "and other workflows, with" in refused
    assert "sites.toml as it was before it changed" in refused
    first.kill()
    first.wait()
    assert flow.process("snakemake_executor_plugin_lading\0controller") == controller, "its job goes on"
    flow.run("--unlock")
    said = flow.run(*options)
    assert "the controller is started again, because the sites file has changed" in said
    assert "of an earlier Snakemake continue" in said, "a job that waits at the machine can be one of them"
    assert flow.processes() == []


def test_a_job_whose_rule_has_changed_is_ended_and_runs_anew(make: Make) -> None:
    flow = make(COUNTS)
    first = flow.start()
    wait_until(lambda: begun(flow) == 2)
    first.kill()
    first.wait()
    flow.run("--unlock")
    (flow.folder / "Snakefile").write_text(COUNTS.replace("sleep 0.2", "sleep 0.3"))
    second = flow.start()
    wait_until(lambda: begun(flow) == 4)
    (flow.folder / "go").touch()
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert Counter(flow.jobs("task_id, state")) == {
        ("one", "cancelled"): 2,
        ("one", "succeeded"): 2,
        ("merge", "succeeded"): 1,
    }


@pytest.mark.parametrize("changed", ["given.txt", "more.txt", "nothing"])
def test_a_job_that_has_read_what_has_changed_since_is_ended_and_runs_anew(make: Make, changed: str) -> None:
    flow = make(READS)
    for name in ("given.txt", "more.txt"):
        (flow.folder / name).write_text("old\n")
    first = flow.start()
    wait_until(lambda: begun(flow) == 1)
    wait_until(lambda: flow.jobs("state")[1:] == [("running",)])
    first.kill()
    first.wait()
    flow.run("--unlock")
    (flow.folder / changed).write_text("new\n")
    before = flow.jobs("run_id")[1:]
    second = flow.start(*(["--forcerun", "one"] if changed == "nothing" else []))
    wait_until(lambda: begun(flow) == 2 or second.poll() is not None or flow.jobs("run_id")[1:2] != before)
    (flow.folder / "go").touch()
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert begun(flow) == 2
    assert ("new" in (flow.folder / "all.txt").read_text()) == (changed != "nothing")
    assert flow.processes() == []


def test_a_killed_snakemakes_jobs_are_those_of_its_own_folder_alone(make: Make) -> None:
    """Another workflow with the same state folder neither takes them over nor ends them, also at its own end."""
    flow, other = make(COUNTS), make(COUNTS)
    sites = flow.folder / "sites.toml"
    sites.write_text('[sites.local]\nkind = "local"\ncpus = 8\nmemory = "8 GiB"\n')
    options = ("--lading-state-folder", str(flow.lading), "--lading-sites-file", str(sites))
    first = flow.start(*options)
    wait_until(lambda: begun(flow) == 2)
    wait_until(lambda: flow.jobs("state") == 2 * [("running",)])
    first.kill()
    first.wait()
    killed = flow.jobs("run_id")[0]
    (other.folder / "go").touch()
    said = other.run(*options)
    assert "Snakemake continue" not in said
    assert "are cancelled" not in said
    assert begun(other) == 2
    assert (other.folder / "all.txt").exists()
    assert flow.jobs("state")[:2] == 2 * [("running",)]
    flow.run("--unlock")
    second = flow.start(*options)
    wait_until(lambda: killed not in flow.jobs("run_id"))
    (flow.folder / "go").touch()
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert "2 jobs of an earlier Snakemake continue" in said
    assert begun(flow) == 2, "nothing has run twice"
    assert flow.processes() == []


@pytest.mark.parametrize("is_controller_killed", [False, True])
def test_variables_of_a_killed_snakemakes_jobs_are_removed(make: Make, is_controller_killed: bool) -> None:
    flow = make(COUNTS + 'envvars: "SECRET_OF_A_RUN"\n')
    first = flow.start(SECRET_OF_A_RUN="s3cr3t")
    wait_until(lambda: begun(flow) == 2)
    first.kill()
    first.wait()
    [variables] = (flow.lading / "environments").iterdir()
    assert "s3cr3t" in variables.read_text()
    assert variables.stat().st_mode & 0o777 == 0o600
    if is_controller_killed:
        for victim in ("snakemake_executor_plugin_lading\0controller", "lading.executors.agent"):
            os.kill(flow.process(victim), signal.SIGKILL)
    (flow.folder / "go").touch()
    if is_controller_killed:
        flow.run("--unlock", SECRET_OF_A_RUN="")
        flow.run("--rerun-incomplete", SECRET_OF_A_RUN="an0ther")
    wait_until(lambda: not variables.exists())
    if is_controller_killed:
        assert list((flow.lading / "environments").iterdir()) == []


def test_whose_jobs_are_is_known_until_they_have_ended(tmp_path: Path) -> None:
    """Those of a Snakemake that was interrupted may take their time to end: the next one waits for them."""
    state = StateFolder(tmp_path / "lading")
    database = SnakemakeHost.connect(state).engine

    from snakemake_executor_plugin_lading import runs

    from lading.executors.store import JobRow, State, add_job

    columns = {"kind": "Command", "subject": "r", "run_id": "r", "workload": "{}", "owner": 7, "priority": 0}
    columns |= {"cpus": 1, "memory": 1, "disk": 0, "gpus": 0, "unreported": False, "news": 0}
    with transaction(database) as session:
        session.add(runs.WorkflowRunRow(run_id="r", owner=7, workdir="/flow"))
        add_job(session, token="t", state=State.RUNNING, **columns)
        runs.forget_run(session, state, "r")
        assert [row.run_id for row in runs.killed_runs(session, state.schedulers, "/flow")] == ["r"]
        session.execute(update(JobRow).values(state=State.CANCELLED))
        runs.forget_killed_runs(session, state)
        assert runs.killed_runs(session, state.schedulers) == []


def test_a_job_that_has_succeeded_is_no_upcoming_one_although_snakemake_has_not_stored_that_yet(
    tmp_path: Path,
) -> None:
    """A plan would keep room for it, and prefetch nothing that starts after it."""
    state = StateFolder(tmp_path / "lading")
    host = SnakemakeHost.connect(state)

    from snakemake_executor_plugin_lading import runs

    from lading.executors.store import JobRow, State, add_job
    from lading.executors.store.gangs.runs import DagRunKey

    run, columns = DagRunKey("flow", "r"), {"kind": "Command", "subject": "r", "workload": "{}", "owner": 7}
    columns |= {"cpus": 1, "memory": 1, "disk": 0, "gpus": 0, "unreported": False, "news": 0, "priority": 0}
    columns |= {"dag_id": run.dag_id, "run_id": run.run_id, "task_id": "one", "state": State.SUCCEEDED}

    def upcoming(session: Session) -> set[int]:
        return {row.map_index for row in host.unfinished(session, [run])[run]}

    with host.session() as session:
        runs.save_rules(session, run.run_id, {"one": runs.PlannedRule(left={1, 2, 3})})
        add_job(session, token="done", map_index=1, **columns)
        add_job(session, token="failed", map_index=2, **{**columns, "state": State.FAILED})
        assert upcoming(session) == {2, 3}, "Snakemake may run the failed one again"
        session.execute(update(JobRow).values(run_id="earlier"))
        assert upcoming(session) == {1, 2, 3}, "another run has to run it again"


def test_users_learn_why_their_jobs_wait_wherever_they_wait(tmp_path: Path) -> None:
    state = StateFolder(tmp_path / "lading")
    database = SnakemakeHost.connect(state).engine

    from snakemake_executor_plugin_lading.engine import Engine

    from lading.executors.store import State, add_job
    from lading.scheduling.model.reasons import because
    from lading.scheduling.model.resources import Resources

    full = "tar: agents/.{}: No space left on device"
    reasons = [
        (State.QUEUED, because("max_jobs", site="hpc", most=7)),
        (State.QUEUED, because("turn")),
        (State.PLACED, because("machine_full", needs=Resources(1, 512), taken=["cpus"])),
        (State.PLACED, because("batch_queue", queue="long", text="it waits for resources (Resources)")),
        (State.PLACED, because("agent_not_brought", text=full.format("dfd2546a0d814ae9846c556b6abf065a"))),
        (State.PLACED, because("agent_not_brought", text=full.format("8f6247c762de419196f77abec17b4ee6"))),
        (State.RUNNING, because("unreachable", text="it runs, and does not wait")),
    ]
    columns = {"kind": "Command", "subject": "r", "run_id": "r", "workload": "{}", "owner": 7, "priority": 0}
    columns |= {"cpus": 1, "memory": 1, "disk": 0, "gpus": 0, "unreported": False, "news": 0}
    with transaction(database) as session:
        for number, (where, reason) in enumerate(reasons):
            add_job(session, token=str(number), state=where, reason=reason, **columns)
    engine = SimpleNamespace(run_id="r", database=database)
    said = " / ".join(Engine.wait_reasons(engine).values())
    assert said.count(" / ") == 2
    for part in ("already has 7 jobs", "waits in queue 'long' of the batch system", "No space left on device"):
        assert part in said


UPDATES = """
rule all:
    input: "kept.txt", "cut.txt"
rule kept:
    output: update("kept.txt")
    shell: "echo half > {output}; exit 3"
rule cut:
    output: update("cut.txt")
    shell: "echo half > {output}; kill -9 $PPID; sleep 600"
"""


def test_a_file_that_a_job_updates_is_as_it_was_where_the_job_fails(make: Make) -> None:
    flow = make(UPDATES)
    for name in ("kept", "cut"):
        (flow.folder / f"{name}.txt").write_text("mine\n")
    flow.run("--keep-going", "--forceall", status=1)
    assert (flow.folder / "kept.txt").read_text() == "mine\n"
    assert (flow.folder / "cut.txt").read_text() == "mine\n"


def test_a_file_that_a_job_updates_is_as_it_was_before_the_job_runs_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Backups(FileBackupMixin):
        path = tmp_path / ".snakemake"

    monkeypatch.chdir(tmp_path)
    backups, mine = Backups(), Path("mine.txt")
    rule = SimpleNamespace(workflow=SimpleNamespace(persistence=backups))
    output = [flag(str(mine), "update"), flag("another.txt", "temp")]
    job = SimpleNamespace(is_group=lambda: False, output=output, rule=rule)
    mine.write_text("mine")
    executor.restore_updated(job)
    backups.backup_output(mine)  # as the Snakemake of the job does before its machine fails
    mine.write_text("half")
    executor.restore_updated(job)
    assert mine.read_text() == "mine"
    executor.keep_updated(job)  # the job has not begun
    assert backups.restore_output(mine)
    assert mine.read_text() == "mine"


def test_jobs_run_in_the_folder_that_the_snakefile_names(make: Make) -> None:
    flow = make(
        """
workdir: "results"
rule all:
    input: "all.txt"
rule one:
    output: "one.txt"
    shell: "pwd > {output}"
rule merge:
    input: "one.txt"
    output: "all.txt"
    run:
        import os
        with open(output[0], "w") as file:
            file.write(open(input[0]).read() + os.getcwd())
"""
    )
    flow.run()
    results = flow.folder / "results"
    assert (results / "all.txt").read_text() == f"{results}\n{results}"
    assert not (flow.folder / "one.txt").exists()
    assert list((results / ".snakemake/lading/schedulers").iterdir()) == [], "nothing is left of its Snakemake"


def test_a_workflow_may_be_in_a_folder_whose_name_is_not_utf8(make: Callable[..., Workflow]) -> None:
    flow = make(COUNTS.replace("rule merge:", "rule merge:\n    params: os.getcwd()"), os.fsdecode(b"caf\xe9"))
    first = flow.start()
    wait_until(lambda: begun(flow) == 2)
    wait_until(lambda: flow.jobs("state") == 2 * [("running",)])
    first.kill()
    first.wait()
    flow.run("--unlock")
    before = flow.jobs("run_id")
    second = flow.start()
    wait_until(lambda: not set(flow.jobs("run_id")) & set(before))
    (flow.folder / "go").touch()
    said, _ = second.communicate(timeout=PATIENCE)
    assert second.returncode == 0, said
    assert begun(flow) == 2, "nothing has run twice"
    (flow.folder / "Snakefile").write_text(
        "rule all:\n    output: 'none'\n    shell: 'echo what went wrong >&2; exit 3'"
    )
    said = flow.run("--show-failed-logs", status=1)
    assert "Lading: error: the job's process exited with exit code 3" in said
    assert "what went wrong" in said
    assert flow.processes() == []


def test_a_job_whose_machine_has_failed_begins_without_the_output_that_it_had_written(make: Make) -> None:
    flow = make(
        """
rule all:
    output: "all.txt"
    shell: "echo half >> {output}; [ -e again ] || {{ touch again; sleep 600; }}"
"""
    )
    snakemake = flow.start()
    wait_until((flow.folder / "again").exists)
    wait_until(lambda: flow.jobs("state") == [("running",)])
    with contextlib.closing(sqlite3.connect(flow.lading / "store.db", timeout=60)) as database, database:
        database.execute(
            "UPDATE lading_job SET state = 'failed', cause = 'node_failure', ended_at = placed_at, unreported = 1"
        )
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode == 0, said
    assert "is submitted again: node_failure" in said
    assert (flow.folder / "all.txt").read_text() == "half\n"


@pytest.mark.parametrize("victim", ["snakemake_executor_plugin_lading\0controller", "lading.executors.agent"])
def test_a_workflow_goes_on_without_its_controller_and_its_agent(make: Make, victim: str) -> None:
    flow = make(COUNTS)
    snakemake = flow.start()
    wait_until(lambda: begun(flow) == 2)
    os.kill(flow.process(victim), signal.SIGKILL)
    (flow.folder / "go").touch()
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode == 0, said
    assert sorted(journal_of_ends(flow)) == ["0", "1"], "nothing has run twice"
    assert begun(flow) == 2


def journal_of_ends(flow: Workflow) -> list[str]:
    return [number for what, number, _ in journal(flow) if what == "end"]


# Ctrl-C comes while Snakemake writes a line of its log, whose handler drops it.
LOSES_INTERRUPT = """
import signal
from snakemake.logging import logger
for handler in logger.handlers:
    def interrupted(record, format=handler.format):
        if "Execute" in str(record.msg):
            signal.raise_signal(signal.SIGINT)
        return format(record)
    if handler.name == "DefaultStreamHandler":
        handler.format = interrupted
"""


FAILS_WITH_A_LOCK = """
rule bad:
    output: "bad.txt"
    shell: "exit 3"
from snakemake.logging import logger
for handler in logger.handlers:
    def hold(record, handler=handler, format=handler.format):
        if "Execute" in str(record.msg):
            handler.acquire()
        return format(record)
    handler.format = hold
"""


def assert_nothing_is_left(flow: Workflow, states: Collection[tuple[str]] = (("cancelled",),)) -> None:
    """Of a workflow that was interrupted, whenever that was, and the next Snakemake does the work."""
    wait_until(lambda: flow.processes() == [])
    assert set(flow.jobs("state")) <= set(states)
    for kept in ("locks", "lading/environments", "lading/schedulers"):
        assert list((flow.folder / ".snakemake" / kept).glob("*")) == []
    (flow.folder / "go").touch()
    said = flow.run("--rerun-incomplete")
    assert "earlier Snakemake" not in said
    assert (flow.folder / "all.txt").exists()


def test_an_interrupted_workflow_leaves_nothing(make: Make) -> None:
    flow = make(COUNTS)
    snakemake = flow.start()
    wait_until(lambda: begun(flow) == 2)
    snakemake.send_signal(signal.SIGINT)
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode != 0, said
    assert_nothing_is_left(flow)


def test_an_interrupt_that_snakemake_loses_ends_the_workflow(make: Make) -> None:
    flow = make(COUNTS + LOSES_INTERRUPT)
    said = flow.run(status=1)
    assert "Interrupted by Ctrl-C" in said
    (flow.folder / "Snakefile").write_text(COUNTS)
    assert_nothing_is_left(flow)


def test_a_lock_that_is_never_released_keeps_no_interrupted_workflow_from_its_end(make: Make) -> None:
    """The thread that checks the active jobs waits for it: it writes the end of a job into the log."""
    flow = make(COUNTS.replace('input: "all.txt"', 'input: "all.txt", "bad.txt"') + FAILS_WITH_A_LOCK)
    # Room for all three: Snakemake submits them in any order, and two of them run until the end.
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 3\nmemory = "8 GiB"\n')
    snakemake = flow.start("--lading-sites-file", "sites.toml")
    wait_until(lambda: begun(flow) == 2 and ("bad", "failed", "error") in flow.jobs())
    snakemake.send_signal(signal.SIGINT)
    snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode != 0
    (flow.folder / "Snakefile").write_text(COUNTS)
    assert_nothing_is_left(flow, {("failed",), ("cancelled",)})


def test_a_second_interrupt_ends_snakemake_and_leaves_nothing(make: Make) -> None:
    flow = make(COUNTS)
    snakemake = flow.start()
    wait_until(lambda: begun(flow) == 2)
    snakemake.send_signal(signal.SIGINT)
    wait_until(lambda: snakemake.poll() is not None or flow.jobs("cancel")[0][0] is not None)
    snakemake.send_signal(signal.SIGINT)
    snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode != 0
    assert_nothing_is_left(flow)


def test_a_second_interrupt_waits_for_no_job_and_shows_no_traceback(make: Make) -> None:
    flow = make(COUNTS.replace("echo begin", "trap '' TERM; echo begin"))
    snakemake = flow.start()
    wait_until(lambda: begun(flow) == 2)
    snakemake.send_signal(signal.SIGINT)
    wait_until(lambda: flow.jobs("cancel")[0][0] is not None)
    snakemake.send_signal(signal.SIGINT)
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode == 1, said
    assert "Lading: interrupted again" in said
    assert "Traceback" not in said
    assert_nothing_is_left(flow)


def test_a_workflow_that_is_interrupted_before_its_first_job_leaves_nothing(make: Make) -> None:
    flow = make(COUNTS)
    snakemake = flow.start()
    wait_until(lambda: list((flow.lading / "schedulers").glob("*")))
    snakemake.send_signal(signal.SIGINT)
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode != 0, said
    assert_nothing_is_left(flow)


def test_an_interrupt_while_lading_starts_shows_no_traceback(make: Make) -> None:
    flow = make(
        COUNTS
        + """
import signal
from snakemake_executor_plugin_lading.engine import Engine
Engine.check_jobs = lambda self: signal.raise_signal(signal.SIGINT)
"""
    )
    said = flow.run(status=1)
    assert "Interrupted by Ctrl-C" in said
    assert "Traceback" not in said
    assert flow.processes() == []


def test_jobs_that_wait_at_a_machine_are_cancelled_with_those_that_run(make: Make) -> None:
    flow = make(COUNTS.replace("range(2)", "range(4)"))
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 1\nmemory = "8 GiB"\n')
    snakemake = flow.start("--lading-sites-file", "sites.toml")
    wait_until(lambda: begun(flow) == 1)
    wait_until(lambda: Counter(flow.jobs("state"))["placed",] > 0)
    snakemake.send_signal(signal.SIGINT)
    snakemake.communicate(timeout=PATIENCE)
    assert_nothing_is_left(flow)


def test_options_that_make_no_sense_are_refused(make: Make, tmp_path: Path) -> None:
    flow = make(COUNTS)
    assert "there is no file" in flow.run("--lading-sites-file", str(tmp_path / "none.toml"), status=1)
    (flow.folder / "bad.toml").write_text("[sites.here]\nkind = 'nothing'\n")
    assert "[sites.here]" in flow.run("--lading-sites-file", "bad.toml", status=1)
    assert "valid: rules, all, none" in flow.run("--lading-limits", "some", status=1)
    assert "is not a value of hurry" in flow.run("--lading-hurry", "soon", status=1)
