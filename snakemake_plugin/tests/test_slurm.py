"""A workflow whose jobs run in allocations of a real SLURM."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from flows import Workflow

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
        slurm.wait_until_free(120)  # the controller lets them go by itself, after Snakemake has ended
    finally:
        flow.clean_up()
