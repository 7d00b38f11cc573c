"""The upcoming jobs of a workflow, and the machines that are launched for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from flows import PATIENCE, Workflow, wait_until
from snakemake_executor_plugin_lading.commands import find_state_folder
from snakemake_executor_plugin_lading.host import SnakemakeHost

SNAKEFILE = """
localrules: gather
rule all:
    input: "merged.txt", "checked0.txt", "checked1.txt"
rule first:
    output: "first.txt"
    resources: runtime=2
    shell: "touch begun; until [ -e go ]; do sleep 0.1; done; touch {output}"
rule part:
    input: "first.txt"
    output: "part{i}.txt"
    threads: 2
    resources: mem_mib=lambda wildcards: 1000 + int(wildcards.i), runtime=10
    shell: "touch {output}"
rule check:
    input: "part{i}.txt"
    output: "checked{i}.txt"
    resources: mem_mib=lambda wildcards: 500 + int(wildcards.i), runtime=10
    shell: "touch {output}"
rule gather:
    input: "part0.txt", "part1.txt"
    output: "list.txt"
    shell: "ls {input} > {output}"
rule merge:
    input: "list.txt"
    output: "merged.txt"
    threads: 8
    resources: mem_mb=2000, runtime=10
    shell: "touch {output}"
"""


SITES = ("--lading-sites-file", "sites.toml")


def asked(job: Any) -> Any:
    """What a job that is to come takes of a machine."""
    return job.need.resources


def make_cloud() -> tuple[Any, Any]:
    """A site that buys machines of two sizes by what is to come, and its market."""
    from lading.scheduling.matching.market import MachineMarket
    from lading.scheduling.matching.sites import SiteView
    from lading.scheduling.model.catalogue import Catalogue, InstanceType, Offering
    from lading.scheduling.model.location import Location
    from lading.scheduling.model.plan import FORECAST
    from lading.scheduling.model.resources import Resources

    sizes = {"small": (2, 4096, 0.1), "large": (8, 16384, 0.4)}
    goods = Catalogue(
        {
            name: InstanceType(name, Resources(cpus, memory), (Offering(usd),))
            for name, (cpus, memory, usd) in sizes.items()
        }
    )
    market = MachineMarket(goods, policy=FORECAST, boot_seconds=60.0)
    possible = [
        Location(name, Resources(cpus, memory), instance_type=name) for name, (cpus, memory, _) in sizes.items()
    ]
    return SiteView(name="cloud", possible=possible, market=market), market


@pytest.mark.parametrize("is_killed", [False, True])
def test_machines_are_launched_for_the_rules_that_come_next_unless_snakemake_was_killed(
    make: Callable[[str], Workflow], is_killed: bool
) -> None:
    flow = make(SNAKEFILE)
    (flow.folder / "sites.toml").write_text('[sites.local]\nkind = "local"\ncpus = 8\nmemory = "8 GiB"\n')
    snakemake = flow.start(
        "--lading-hurry", "fast", "--lading-finish-by", "4h", "--default-resources", "mem_mb=500", *SITES
    )
    wait_until((flow.folder / "begun").exists)
    wait_until(lambda: flow.jobs("state") == [("running",)])
    if is_killed:
        snakemake.kill()
        snakemake.wait()
    state = find_state_folder(str(flow.folder))
    host = SnakemakeHost.connect(state, only_reads=True)

    from sqlalchemy import select

    from lading.executors.forecast import site_plans
    from lading.executors.store import JobRow
    from lading.executors.store.durations import PastWaits
    from lading.scheduling.gangs.room import Ways
    from lading.scheduling.model.plan import InstanceLimits
    from lading.scheduling.provisioning import decide
    from tests.services.at_once import AtOnce

    cloud, market = make_cloud()
    plans = site_plans.SitePlans(host, host.settings(), Ways(), lambda: None, PastWaits())
    with host.session() as session:
        [job] = session.scalars(select(JobRow)).all()
        assert job.started_at is not None
        assert job.disk == 0, "Snakemake's default is no need"
        now = job.started_at + 90.0  # it may end in 30 s, and a machine takes 60 s to boot
        plans.threads = AtOnce()  # however slow the machine is
        found = plans.foresee(session, [cloud], [], now, by_dag=False)["cloud"]
    plans.close()
    if is_killed:
        assert decide([], [], market, None, InstanceLimits(), now=now, foreseen=found).launches == ()
        return
    [run] = plans.runs
    assert {name: set(task.upstream) for name, task in run.tasks.items()} == {
        "first": set(), "part": {"first"}, "merge": {"part"}, "check": {"part"}
    }, "what runs on this machine is passed through"  # fmt: skip
    memory = {name: {each.index: asked(each).memory for each in run.tasks[name].jobs} for name in ("part", "check")}
    assert {
        memory["check"][number]: [memory["part"][each] for each in some["part"]]
        for number, some in run.tasks["check"].before.items()
    } == {500: [1000], 501: [1001]}, "each job asks for what is its own, and waits for one other"
    cpus = {name: [asked(each).cpus for each in run.tasks[name].jobs] for name in ("part", "merge")}
    assert cpus == {"part": [2.0, 2.0], "merge": [8.0]}, "also before their inputs are there"
    assert (run.hurry, run.finish_by is None) == (10.0, False)
    launches = decide([], [], market, None, InstanceLimits(), now=now, foreseen=found).launches
    rules = {job.name: name for name, task in run.tasks.items() for job in task.jobs}
    assert {rules[name] for each in launches for name in each.jobs} == {"part", "check"}, (
        "merge would only wait for part"
    )
    (flow.folder / "go").touch()
    said, _ = snakemake.communicate(timeout=PATIENCE)
    assert snakemake.returncode == 0, said
