"""A workflow whose jobs run on machines of EC2 that are launched for it, and released after it."""

from __future__ import annotations

import json
import math
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from flows import Workflow, wait_until

from tests.services import node_python
from tests.services.account import NeedsRootError
from tests.services.debian import MissingPackagesError
from tests.services.ec2 import FakeEC2

# The double of EC2 needs moto, which Airflow's tests have.
SERVER = Path(__file__).parents[2] / ".venv/bin/python"
USD_PER_HOUR = 36.0  # a second costs a cent
SITES = """
[sites.local]
enabled = false

[sites.cloud]
{table}
instance_types = ["m5.large"]
max_instances = 2
idle_seconds = 10
expected_boot_time = 5
kill_grace = 3
python = "{python}"
"""
# Each job says on which machine it runs, and the last one needs a Snakemake there.
SNAKEFILE = """
rule all:
    input: "all.txt"
rule one:
    output: "out/{i}.txt"
    resources: mem_mb=500, runtime=5
    shell: "sleep 0.2; echo $SSH_CONNECTION > {output}"
rule merge:
    input: expand("out/{i}.txt", i=range(6))
    output: "all.txt"
    resources: mem_mb=500, runtime=5
    run:
        with open(output[0], "w") as file:
            file.writelines(open(each).read() for each in input)
"""


@pytest.fixture
def service() -> Iterator[FakeEC2]:
    try:
        with FakeEC2(boot_seconds=0.5, python=SERVER) as service:
            service.price("m5.*", USD_PER_HOUR)
            yield service
    except (MissingPackagesError, NeedsRootError) as error:
        pytest.skip(str(error))


def test_machines_are_launched_for_a_workflow_and_released_after_it(service: FakeEC2) -> None:
    account = service.account
    python = node_python.make(account)
    # Machines share that folder with this one, and have homes of their own.
    flow = Workflow(account.folder / "flow", SNAKEFILE, python, account.name)
    # A machine gets the agent from here, and the rule that needs a Snakemake names the Python of the workflow's own.
    (flow.folder / "sites.toml").write_text(SITES.format(table=service.toml, python=node_python.bare(account)))
    environment = {"HOME": str(account.home), "USER": account.name, **service.environment}
    try:
        said = flow.run("--lading-sites-file", "sites.toml", **environment)
        assert "the controller continues until launched machines are released" in said
        assert Counter(flow.jobs("task_id, state, site")) == {
            ("one", "succeeded", "cloud"): 6,
            ("merge", "succeeded", "cloud"): 1,
        }
        machines = {line.split()[2] for line in (flow.folder / "all.txt").read_text().splitlines()}
        assert machines
        assert all(each.startswith("127.7") for each in machines), "each ran on a machine of EC2's"
        launched = [(each["launched"], each["ended"] or math.inf) for each in service.ledger()]
        # One that idles while this machine is slow is released before its time, and another one is launched.
        at_once = [sum(began <= moment < ended for began, ended in launched) for moment, _ in launched]
        assert 1 <= max(at_once) <= 2
        wait_until(lambda: service.living() == [])

        asked = [str(python), "-m", "snakemake_executor_plugin_lading.commands", "cost", "-o", "json"]
        done = subprocess.run(
            asked, cwd=flow.folder, user=account.name, group=account.name, extra_groups=[], capture_output=True
        )
        [run] = json.loads(done.stdout)
        assert (run["jobs"], run["failed"]) == (7, 0)
        assert run["usd"] > 0
    finally:
        flow.clean_up()
