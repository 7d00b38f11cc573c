"""A workflow whose jobs run in allocations of a real SLURM."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest
from flows import PATIENCE, Workflow, wait_until

from tests.services import node_python
from tests.services.account import Account, NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.slurm import Slurm

SITES = """
[sites.local]
enabled = false

[sites.hpc]
kind = "slurm"
mode = "allocation"
work_dir = "{home}/lading"
python = "{python}"
node_cpus = 4
node_memory = 8000
max_poll_interval = 2
kill_grace = 2
idle_seconds = 5
"""
# Each job says in which of SLURM's jobs it runs.
SNAKEFILE = """
rule all:
    input: "all.txt"
rule one:
    output: "out/{i}.txt"
    resources: mem_mb=300, runtime=5
    shell: "sleep 0.2; echo $SLURM_JOB_ID > {output}"
# It runs in a Snakemake of its own.
rule merge:
    input: expand("out/{i}.txt", i=range(19))
    output: "all.txt"
    resources: mem_mb=500, runtime=5
    run:
        import os
        with open(output[0], "w") as file:
            file.writelines(open(each).read() for each in input)
            file.write(os.environ["SLURM_JOB_ID"])
"""


@pytest.fixture
def slurm() -> Iterator[Slurm]:
    try:
        with Account() as account, Slurm(account, nodes=2, cpus=4) as service:
            yield service
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))


def test_rules_run_in_few_allocations(slurm: Slurm) -> None:
    account = slurm.account
    python = node_python.make(account)
    flow = Workflow(account.home / "flow", SNAKEFILE, python, account.name)
    # The nodes get the agent from here, and the rule that needs a Snakemake names the Python of the workflow's own.
    bare = node_python.bare(account)
    (flow.folder / "sites.toml").write_text(SITES.format(home=account.home, python=bare))
    try:
        flow.run("--lading-sites-file", "sites.toml", HOME=str(account.home), USER=account.name, **slurm.environment)
        assert Counter(flow.jobs("task_id, state, site")) == {
            ("one", "succeeded", "hpc"): 19,
            ("merge", "succeeded", "hpc"): 1,
        }
        native = (flow.folder / "all.txt").read_text().split()
        assert len(native) == 20
        assert all(each.isdecimal() for each in native), "each ran in a job of SLURM's"
        assert len(set(native)) <= 4, "several share an allocation"
        slurm.wait_until_free(PATIENCE)  # the controller lets them go by itself, after Snakemake has ended
    finally:
        flow.clean_up()


JOB_SITE = """
[sites.local]
enabled = false

[sites.hpc]
kind = "slurm"
work_dir = "{home}/lading"
python = "{python}"
setup = "export SLURM_CONF={conf}"
node_cpus = 4
node_memory = 8000
node_gpus = 4
gpu_types = ["a100"]
max_poll_interval = 2
"""
# By rule: what it asks for, and what SLURM has been asked for.
ASKED = {
    "nothing": ("", ["JobName=nothing.", "Comment=nothing", "Partition=batch", "TimeLimit=00:10:00", "NumCPUs=1"]),
    "slurm_partition": ('slurm_partition="short"', ["Partition=short", "TimeLimit=00:01:00"]),
    "slurm_account": ('slurm_account="astro"', ["Account=astro"]),
    "qos": ('qos="long"', ["QOS=long"]),
    "constraint": ('constraint="ssd&avx"', ["Features=ssd&avx"]),
    "runtime": ("runtime=5", ["TimeLimit=00:08:00"]),
    "mem_mb": ('mem_mb=1000', ["MinMemoryNode=1018M"]),
    "mem_mb_per_cpu": ("mem_mb_per_cpu=1000, cpus_per_task=2", ["NumCPUs=2", "MinMemoryNode=1972M"]),
    "cpus_per_task": ("cpus_per_task=3", ["CPUs/Task=3", "NumCPUs=3"]),
    "tasks": ("tasks=2", ["NumTasks=2", "NumNodes=1", "CPUs/Task=1"]),
    "mpi": ('tasks=4, nodes=2, mpi="srun"', ["NumNodes=2", "NumTasks=4", "NtasksPerN:B:S:C=2:"]),
    "nodes": ("nodes=2", ["NumNodes=2", "NumTasks=2"]),
    "tasks_per_node": ('tasks_per_node=2, nodes=2, mpi="srun"', ["NumNodes=2", "NumTasks=4"]),
    "cpus_per_gpu": ("gpu=2, cpus_per_gpu=2", ["gres:gpu:2", "NumCPUs=4"]),
    "tasks_per_gpu": ("gpu=2, tasks_per_gpu=2", ["gres:gpu:2", "NumTasks=4"]),
    "gpu": ("gpu=2", ["gres:gpu:2"]),
    "gpu_model": ('gpu=1, gpu_model="a100"', ["gres:gpu:a100:1"]),
    "gres": ('gres="gpu:a100:3"', ["gres:gpu:a100:3"]),
    "other_gres": ('gres="lscratch:7"', ["gres:lscratch:7"]),
    "slurm_extra": ("slurm_extra='--nice=7 --mail-type FAIL'", ["Nice=7", "MailType=FAIL"]),
}  # fmt: skip
RULE = """
rule {name}:
    output: "{name}.txt"
    resources: {asked}
    shell: "scontrol show job -d $SLURM_JOB_ID > {{output}}"
"""


@pytest.fixture
def rich_slurm() -> Iterator[Slurm]:
    gres = "Name=gpu Type=a100 File={folder}/gpu[0-3]\nName=lscratch Count=100\n"
    traits = "Feature=ssd,avx Gres=gpu:a100:4,lscratch:100"
    try:
        with (
            Account() as account,
            Slurm(account, nodes=2, cpus=4, accounting=True, traits=traits, gres=gres, patience=60) as service,
            Slurm(account, nodes=1, cpus=4, name="far", other=service),
        ):
            yield service
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))


def test_slurm_is_asked_for_what_its_users_write(rich_slurm: Slurm) -> None:
    account = rich_slurm.account
    for words in (
        "add qos long",
        "add account astro",
        f"add user {account.name} account=astro",
        f"modify user {account.name} set qos=+long",
    ):
        rich_slurm.command("sacctmgr", "-i", *words.split())
    rules = "".join(RULE.format(name=name, asked=asked) for name, (asked, _) in ASKED.items())
    wild = """
rule wild:
    output: "wild/{sample}.txt"
    shell: "scontrol show job $SLURM_JOB_ID > {output:q}"
rule clusters:
    output: "clusters.txt"
    resources: clusters="far"
    shell: "scontrol -M $SLURM_CLUSTER_NAME show job $SLURM_JOB_ID > {output}"
# The peaks of all processes of the batch job that are around the command.
rule measured:
    output: "measured.txt"
    shell: "pid=$PPID; while read -r name < /proc/$pid/comm; [ $name != slurmstepd ]; do "
        "grep VmHWM /proc/$pid/status >> {output}; pid=$(awk '/^PPid/ {{print $2}}' /proc/$pid/status); done"
"""
    files = ["measured.txt", "clusters.txt", *(f"{name}.txt" for name in ASKED), "wild/a b.txt"]
    flow = Workflow(
        account.home / "flow",
        f"rule all:\n    input: {files}\n{rules}{wild}",
        node_python.make(account),
        account.name,
    )
    conf = rich_slurm.environment["SLURM_CONF"]
    (flow.folder / "sites.toml").write_text(
        JOB_SITE.format(home=account.home, python=node_python.bare(account), conf=conf)
    )
    environment = {"HOME": str(account.home), "USER": account.name, **rich_slurm.environment}
    try:
        flow.run("--lading-sites-file", "sites.toml", **environment)
        said = {name: (flow.folder / f"{name}.txt").read_text() for name in ASKED}
        missing = {name: [each for each in wanted if each not in said[name]] for name, (_, wanted) in ASKED.items()}
        assert not any(missing.values()), (missing, {name: said[name] for name, lacks in missing.items() if lacks})
        peaks = [int(line.split()[1]) / 1024 for line in (flow.folder / "measured.txt").read_text().splitlines()]
        assert peaks
        assert sum(peaks) <= 64, "what is added for a command suffices for what runs it"
        text = (flow.folder / "wild/a b.txt").read_text()
        assert "JobName=wild.sample=a_b.L" in text
        assert "Comment=wild: sample=a b" in text
        assert "NodeList=far1" in (flow.folder / "clusters.txt").read_text()
        refused = flow.run(
            "--lading-sites-file", "sites.toml", "--forceall", "--set-resources", "qos:clusters='all'",
            status=1, **environment,
        )  # fmt: skip
        assert "rule qos" in refused
        assert "--clusters=all does not name the clusters" in refused
    finally:
        flow.clean_up()


SHORT = """
rule all:
    input: expand("out/{i}.txt", i=range(20))
rule one:
    output: "out/{i}.txt"
    retries: 1
    shell: "! rm fails 2> /dev/null || exit 1; echo $SLURM_JOB_ID > {output}"
"""


def test_short_jobs_share_allocations_once_it_is_known_that_they_wait_for_longer(slurm: Slurm) -> None:
    account = slurm.account
    flow = Workflow(account.home / "flow", SHORT, node_python.make(account), account.name)
    conf = slurm.environment["SLURM_CONF"]
    (flow.folder / "sites.toml").write_text(
        JOB_SITE.format(home=account.home, python=node_python.bare(account), conf=conf)
    )
    environment = {"HOME": str(account.home), "USER": account.name, **slurm.environment}
    try:
        said = flow.run("--lading-sites-file", "sites.toml", **environment)
        assert "not known yet how long they wait at hpc" in said
        assert set(flow.jobs("site")) == {("hpc",)}
        store = sqlite3.connect(flow.lading / "store.db", timeout=60)
        with store:  # as on a cluster that has others to serve
            store.execute("UPDATE lading_job SET submitted_at = started_at - 3000")
        store.close()
        (flow.folder / "fails").touch()
        said = flow.run("--lading-sites-file", "sites.toml", "--forceall", **environment)
        assert "jobs of rule one share allocations of hpc" in said
        assert Counter(flow.jobs("site, state, try_number")) == {
            ("hpc", "succeeded", 1): 20,
            ("hpc-allocations", "succeeded", 1): 19,
            ("hpc-allocations", "failed", 1): 1,
            ("hpc", "succeeded", 2): 1,  # what an allocation has failed is a batch job
        }
        native = [(flow.folder / f"out/{number}.txt").read_text() for number in range(20)]
        assert len(set(native)) <= 5, "several share an allocation"
    finally:
        flow.clean_up()


# A try that is submitted alone is in no array.
CANCELLED = """
rule all:
    input: expand("{rule}/{i}.txt", rule=["tried", "other"], i=range(3))
rule tried:
    output: "tried/{i}.txt"
    retries: 1
    shell: "echo ${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}} >> began.tried; "
        "until [ -e go ]; do sleep 0.2; done; touch {output}"
rule other:
    output: "other/{i}.txt"
    shell: "echo ${{SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}} >> began.other; "
        "until [ -e go ]; do sleep 0.2; done; touch {output}"
"""


def natives(flow: Workflow, condition: str) -> list[str]:
    """The ids in SLURM of the jobs for which a condition of SQL holds."""
    with closing(sqlite3.connect(flow.lading / "store.db", timeout=60)) as store:
        rows = store.execute(f"SELECT native_id FROM lading_job WHERE native_id NOTNULL AND {condition}")
        return sorted(native for (native,) in rows)


def test_an_outsider_cancels_one_element_or_one_rule_which_are_tried_again(slurm: Slurm) -> None:
    account = slurm.account
    flow = Workflow(account.home / "flow", CANCELLED, node_python.make(account), account.name)
    conf = slurm.environment["SLURM_CONF"]
    (flow.folder / "sites.toml").write_text(
        JOB_SITE.format(home=account.home, python=node_python.bare(account), conf=conf)
    )
    environment = {"HOME": str(account.home), "USER": account.name, **slurm.environment}

    def began(rule: str) -> list[str]:
        path = flow.folder / f"began.{rule}"
        return path.read_text().split() if path.exists() else []

    try:
        process = flow.start("--keep-going", "--lading-sites-file", "sites.toml", **environment)
        wait_until(lambda: len(began("tried")) == len(began("other")) == 3)
        [array] = set(began("tried"))
        assert set(began("other")) == {began("other")[0]} != {array}, "an array is of one rule"
        wait_until(lambda: all(native for (native,) in flow.jobs("native_id")))
        *others, one = sorted(native for task, native in flow.jobs("task_id, native_id") if task == "tried")
        assert {each.partition("_")[0] for each in (one, *others)} == {array}, "its elements have its id and a number"
        assert slurm.command("squeue", "-h", "-j", one, "-o", "%A").split() == [array], "SLURM calls the last one so"
        slurm.command("scancel", one)
        wait_until(lambda: len(began("tried")) == 4)
        cancelled = [native for native, cause in flow.jobs("native_id, cause") if cause == "cancelled"]
        assert cancelled == [one], "one element is one job"
        slurm.command("scancel", array)
        wait_until(lambda: len(began("tried")) == 6)
        again = "task_id = 'tried' and state = 'running' and try_number = 2"
        wait_until(lambda: len(natives(flow, again)) == 3)
        slurm.command("scancel", natives(flow, again)[0], natives(flow, "task_id = 'other'")[0])
        wait_until(lambda: [cause for (cause,) in flow.jobs("cause")].count("cancelled") == 5)
        (flow.folder / "go").touch()
        said, _ = process.communicate(timeout=PATIENCE)
        assert process.returncode == 1, said
        assert Counter(flow.jobs("task_id, try_number, cause")) == {
            ("tried", 1, "cancelled"): 3,
            ("tried", 2, "cancelled"): 1,  # it has no further retry
            ("tried", 2, None): 2,
            ("other", 1, "cancelled"): 1,  # it has none at all
            ("other", 1, None): 2,
        }
    finally:
        flow.clean_up()
