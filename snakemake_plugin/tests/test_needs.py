"""What users of batch systems write, as Lading's hints."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from snakemake_executor_plugin_lading import needs
from snakemake_executor_plugin_lading.needs import (
    OF_AIRFLOW,
    NeedsError,
    PastJobs,
    RunSites,
    allocations_of,
    for_users,
)

from lading.executors.store.durations import levels
from lading.plugin.published import PublishedSite
from lading.scheduling.hints.hints import Hints
from lading.scheduling.matching.ranking import QueueWaits
from lading.scheduling.model.gpus import gpu_feature
from lading.scheduling.model.job import LAYOUT, NATIVE
from lading.scheduling.model.location import Location
from lading.scheduling.model.prediction import History
from lading.scheduling.model.reason_codes import CAUSES, CODES
from lading.scheduling.model.resources import Resources
from lading.scheduling.sizing.right_size import sizes
from lading.scheduling.sizing.usage import Usage, Use

OPTIONS = SimpleNamespace(auto=False, limits="rules", site=None, hurry=None, finish_by=None)
HERE = Resources(4, 8000)
MIB = 2**20


def cluster(system: str) -> PublishedSite:
    hints = frozenset((NATIVE, LAYOUT))
    there = Location("", Resources(16, 64000, 0, 4), hints=hints, features=frozenset([gpu_feature("a100")]))
    profile = {"gpu_type_resource": "gpu_type", "gpu_resource": "ngpus", "parallel_environment": "mpi"}
    profile = {} if system in ("slurm", "lsf", "torque") else profile
    return PublishedSite((there,), {"system": system, "profile": profile, "takes_layouts": True})


def machine(capacity: Resources = HERE) -> PublishedSite:
    return PublishedSite((Location("", capacity),))


def job(threads: int = 1, **asked: Any) -> Any:
    rule = SimpleNamespace(resources=asked)
    return SimpleNamespace(resources={"_cores": threads, **asked}, is_group=lambda: False, rule=rule)


WORKFLOW = SimpleNamespace(resource_settings=SimpleNamespace(_parsed_default_resources=None))


def found(system: str | None = "slurm", threads: int = 1, **asked: Any) -> dict[str, Any]:
    """The hints that differ from those of a job that asks for nothing."""
    sites = RunSites({"hpc": machine() if system is None else cluster(system)})
    config = needs.needs_of(job(threads, **asked), WORKFLOW, OPTIONS, None, sites).config
    sites.check(Hints.from_config(config), "d")
    return {name: value for name, value in config["lading"].items() if (name, value) != ("cpus", 1.0)}


@pytest.mark.parametrize(
    ("asked", "hints"),
    [
        ({"slurm_partition": "short"}, {"queue": "short"}),
        ({"slurm_partition": "short", "lading_queue": "short"}, {"queue": "short"}),
        ({"slurm_account": "astro"}, {"native": {"account": "astro"}}),
        ({"constraint": "avx512&ssd"}, {"native": {"constraint": "avx512&ssd"}}),
        ({"qos": "long"}, {"native": {"qos": "long"}}),
        ({"clusters": "near,far"}, {"native": {"clusters": "near,far"}}),
        ({"cluster": "far", "slurm_cluster": "far"}, {"native": {"clusters": "far"}}),
        ({"clusters": ""}, {"native": {"clusters": False}}),
        ({"slurm_extra": "-M far"}, {"native": {"M": "far"}}),
        ({"qos": "", "constraint": "", "slurm_partition": "", "slurm_account": ""}, {
            "native": {"qos": False, "constraint": False, "account": False},
        }),
        ({"cpus_per_task": 6, "threads": 2}, {"cpus": 6.0}),
        ({"tasks": 8}, {"nodes": 1, "ppn": 8, "threads": 1}),
        ({"tasks": 8, "cpus_per_task": 4, "mpi": "srun"}, {"nodes": 2, "ppn": 4, "threads": 4}),
        ({"tasks": 8, "nodes": 4}, {"nodes": 4, "ppn": 2, "threads": 1}),
        ({"tasks_per_node": 4, "nodes": 2, "mpi": "mpirun"}, {"nodes": 2, "ppn": 4, "threads": 1}),
        ({"nodes": 2}, {"nodes": 2, "ppn": 1, "threads": 1}),
        ({"nodes": 1}, {}),
        ({"mem_mb_per_cpu": 1000, "cpus_per_task": 4}, {"cpus": 4.0, "memory": 3816}),
        ({"mem_mib_per_cpu": 1000, "tasks": 4, "nodes": 2, "mem_mb": 5}, {
            "nodes": 2, "ppn": 2, "threads": 1, "memory": 2000,
        }),
        ({"gpu": 2}, {"gpus": 2.0}),
        ({"gpu": 2, "gpu_model": "a100"}, {"gpus": "a100:2"}),
        ({"gpu_model": "a100"}, {"gpus": "a100:1"}),
        ({"gpu_model": "nvidia_a100-sxm4-80gb"}, {"gpus": "nvidia_a100-sxm4-80gb:1"}),
        ({"gres": "gpu:tesla_a100-sxm4:2"}, {"gpus": "tesla_a100-sxm4:2"}),
        ({"gres": "gpu:a100:2"}, {"gpus": "a100:2"}),
        ({"gres": "gpu:3"}, {"gpus": 3.0}),
        ({"gres": "gpu"}, {"gpus": 1.0}),
        ({"gpu": 2, "cpus_per_gpu": 4}, {"gpus": 2.0, "cpus": 8.0}),
        ({"gpu": 2, "cpus_per_gpu": 4, "tasks_per_gpu": 2}, {"gpus": 2.0, "nodes": 1, "ppn": 4, "threads": 2}),
        ({"gres": "lscratch:100G"}, {"native": {"gres": "lscratch:100G"}}),
        ({"slurm_extra": "--mail-type=END --mail-user me@example.org -w n1 --exclusive"}, {
            "native": {"mail-type": "END", "mail-user": "me@example.org", "w": "n1", "exclusive": True},
        }),
        ({"slurm_extra": "'--nodelist=n[1-2]'"}, {"native": {"nodelist": "n[1-2]"}}),
        ({"runtime": 60}, {"time": 3600}),
    ],
    ids=str,
)  # fmt: skip
def test_slurm_gets_what_its_plugin_would_ask_for(asked: dict[str, Any], hints: dict[str, Any]) -> None:
    assert found(**asked) == hints


@pytest.mark.parametrize(
    ("system", "native"),
    [("pbspro", {"A": "astro"}), ("torque", {"A": "astro"}), ("lsf", {"P": "astro"}), ("sge", {"A": "astro"})],
)
def test_other_batch_systems_get_what_has_a_meaning_to_them(system: str, native: dict[str, str]) -> None:
    asked = {"slurm_partition": "long", "slurm_account": "astro", "tasks": 4, "gpu": 1}
    its_own = {"gpus": 1.0, "nodes": 1, "ppn": 4, "threads": 1}
    if system == "sge":
        del asked["gpu"], its_own["gpus"]
    assert found(system, **asked) == {"queue": "long", "native": native, **its_own}


@pytest.mark.parametrize(
    ("system", "asked", "said"),
    [
        (None, {"slurm_partition": "short"}, "resource slurm_partition is 'short', which only a batch system"),
        (None, {"slurm_extra": "--x"}, r"slurm_extra is '--x'.* out: --set-resources RULE:slurm_extra"),
        (None, {"constraint": "ssd"}, "resource constraint is 'ssd'"),
        (None, {"gres": "lscratch:1"}, "gres is 'lscratch:1', which only SLURM understands"),
        (None, {"gpu": 1}, r"resource gpus?: 1 is more than site 'hpc' can ever give.*--max-threads 4"),
        (None, {"nodes": 2}, "resource nodes: only a batch site"),
        (None, {"threads": 8}, r"threads: 8 is more than.*largest node has 4 cpus, 8000 MiB.*--max-threads 4"),
        (
            "lsf",
            {"constraint": "ssd"},
            "constraint is 'ssd', but site 'hpc' uses lsf, which has no option for it; valid with: slurm",
        ),
        ("pbspro", {"qos": "long"}, "uses pbspro, which has no option for it; valid with: slurm, torque"),
        ("sge", {"slurm_extra": "--exclusive"}, "slurm_extra is '--exclusive', but site 'hpc' uses sge, not SLURM"),
        (None, {"slurm_cluster": "other"}, "resource slurm_cluster is 'other', which only a batch system understands"),
        ("torque", {"clusters": "other"}, "clusters is 'other', but site 'hpc' uses torque.*valid with: slurm"),
        ("slurm", {"clusters": "all"}, "--clusters=all does not name the clusters"),
        ("slurm", {"clusters": "near,far", "cluster": "far"}, "cluster = 'far'.*differ"),
        ("slurm", {"slurm_extra": "--clusters=far", "clusters": "far"}, "which the resource clusters sets as well"),
        ("slurm", {"slurm_extra": "--mem=5"}, "mem cannot be a directive.*resource mem_mb"),
        ("slurm", {"slurm_extra": "--qos=a", "qos": "b"}, "which the resource qos sets as well"),
        ("slurm", {"slurm_extra": "hello"}, "'hello', which is not an option"),
        ("slurm", {"slurm_extra": "--wrap=reboot"}, "wrap: with this directive, no batch job is submitted"),
        ("slurm", {"gres": "gpu:1", "gpu": 2}, "gres is 'gpu:1', and gpu or gpu_model"),
        ("slurm", {"gres": "'gpu:1'"}, "valid: NAME, NAME:COUNT or NAME:TYPE:COUNT"),
        ("slurm", {"gpu": 1, "gpu_model": "v100"}, "v100"),
        ("slurm", {"gpu": 1, "gpu_model": "v 100"}, "gpu_model is 'v 100'"),
        ("slurm", {"mpi": "srun"}, "give either tasks or tasks_per_node"),
        ("slurm", {"mpi": "srun", "tasks": 1}, "tasks is 1, but a job with mpi has more"),
        ("slurm", {"tasks": 5, "nodes": 2}, "give a multiple of 2"),
        ("slurm", {"nodes": 1.5}, "nodes is 1.5; valid: a whole number"),
        ("slurm", {"slurm_partition": "a", "lading_queue": "b"}, "differ"),
        ("slurm", {"mem_mb": 99999}, r"resource mem_mb: .* is more than site 'hpc'.*64000 MiB.*--set-resources"),
    ],
    ids=str,
)
def test_what_a_site_cannot_honour_is_refused_by_its_name(system: str | None, asked: dict[str, Any], said: str) -> None:
    with pytest.raises(NeedsError, match=said) as caught:
        found(system, **{"threads": 1, **asked})
    assert "airflow" not in str(caught.value).lower()


def test_only_a_site_that_could_run_a_job_is_named_as_another_place_for_it() -> None:
    small = PublishedSite((Location("", Resources(16, 32000)),), accept_untargeted=False)
    large = PublishedSite((Location("", Resources(16, 512000)),), accept_untargeted=False)
    asked = needs.needs_of(job(mem_mb=99999), WORKFLOW, OPTIONS, None).config
    for there, names_it in ((small, False), (large, True)):
        sites = RunSites({"hpc": cluster("slurm"), "there": there})
        with pytest.raises(NeedsError, match=r"resource mem_mb: .* is more than site 'hpc'") as caught:
            sites.check(Hints.from_config(asked), "d")
        assert ("give it the resource lading_site, valid: there" in str(caught.value)) is names_it


def test_a_site_with_a_batch_system_is_told_the_time_of_a_profile() -> None:
    asked = job(runtime=60)
    asked.rule.resources = {}
    for site, limit in ((cluster("slurm"), {}), (machine(), {"time_limit": None})):
        columns = needs.needs_of(asked, WORKFLOW, OPTIONS, None, RunSites({"a": site})).columns
        assert columns == {"memory_limit": None, **limit}


def test_a_machine_alone_gives_what_it_has() -> None:
    sites = RunSites({"local": machine()}, HERE)
    asked = job(4, mem_mb=64000)
    found = needs.needs_of(asked, WORKFLOW, OPTIONS, None, sites, is_direct=True)
    assert (found.config["lading"]["memory"], found.columns["memory_limit"], found.too_much) == (8000, None, 61036)
    sites.check(Hints.from_config(found.config), "d")
    assert needs.needs_of(job(4, mem_mb=8000), WORKFLOW, OPTIONS, None, sites).too_much is None
    assert needs.needs_of(job(4, mem_mib_per_cpu=8000), WORKFLOW, OPTIONS, None, sites).too_much == 32000
    assert sites.most_threads == 4


def test_what_lading_chooses_is_no_more_than_the_largest_node_has() -> None:
    sites = RunSites({"hpc": cluster("slurm")})
    used = Usage()
    used.add(Use(1, 64000, 600.0, peak_memory=63900))
    chosen = needs.needs_of(job(lading_auto=1), WORKFLOW, OPTIONS, None, sites, sizes(used))
    assert chosen.config["lading"]["memory"] == 64000
    sites.check(Hints.from_config(chosen.config), "d")


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            (
                "it belongs to another deployment of Lading, a:/x, and this one is b:/y: give each of the two "
                "a work_dir of its own"
            ),
            "it belongs to another workflow, a:/x, and this one is b:/y: give each of the two a work_dir of its own",
        ),
        ("denied; allow what `airflow lading check SITE --policy` prints", "denied"),
        ("in an hour, or when it is woken (airflow lading wake)", "in an hour, or when it is woken"),
        ("Raise it. Run: airflow lading check SITE.", "Raise it."),
        ("there is no file /data/Airflow/Dag/x", "there is no file /data/Airflow/Dag/x"),
        ("the task's process was killed by signal 9", "the job's process was killed by signal 9"),
        ("hint site names 'x'", "resource lading_site names 'x'"),
    ],
)
def test_what_is_said_has_the_words_of_a_workflow(said: str, expected: str) -> None:
    assert for_users(said) == expected


def test_no_reason_has_words_of_airflow() -> None:
    # A job of Snakemake's reports to no API, is no task instance, and its controller is no service.
    airflows = {
        "api_away", "api_out_of_reach", "api_silent_at_start", "token_refused", "task_ended_in_airflow",
        "workload_unreadable", "no_controller_service",
    }  # fmt: skip
    codes = [code for code in CODES.values() if code.key not in airflows]
    sentences = [for_users(code.sentence) for code in codes]
    remedies = [for_users(each.remedy) for each in (*codes, *CAUSES.values())]
    said = [*sentences, *(each for each in remedies if not OF_AIRFLOW.search(each))]  # the others are not shown
    assert [text for text in said if re.search(r"[Aa]irflow|\bDags?\b|deployment|task instance|scheduler", text)] == []


def test_a_command_is_given_little_more_than_it_asks_for() -> None:
    sites = RunSites({"hpc": cluster("slurm")})
    extra = [
        needs.needs_of(job(mem_mib=1000), WORKFLOW, OPTIONS, None, sites, is_direct=is_direct).columns["memory_limit"]
        - 1000
        for is_direct in (True, False)
    ]
    assert extra == [16, 256]


def past(
    *lengths: float, wait: float | None = None, queue: str | None = None, launched: float | None = None
) -> PastJobs:
    """Jobs of the rule ``r`` that have run for so long, and others that have waited."""
    history, waits, launches = History(), QueueWaits(), QueueWaits()
    row = SimpleNamespace(kind="Command", dag_id="d", run_id="x", task_id="r", cpus=1.0, memory=512, disk=0, gpus=0.0)
    for seconds in lengths:
        history.add(levels(row), seconds, None)
    for _ in range(20):
        if wait is not None:
            waits.add("hpc", queue, 1.0, wait)
        if launched is not None:
            launches.add("hpc-allocations", queue, 16.0, launched)
    return PastJobs(history, waits, launches)


def shared(before: PastJobs, system: str = "slurm", is_direct: bool = True, **asked: Any) -> needs.JobNeeds | None:
    """What a job of the rule ``r`` asks for in an allocation; None: it is a batch job of its own."""
    there = cluster(system)
    twin = PublishedSite((Location("", Resources(16, 63000)),), dict(there.dialect or {}), accept_untargeted=False)
    sites = RunSites({"hpc": there, allocations_of("hpc"): twin})
    alone = needs.needs_of(job(**asked), WORKFLOW, OPTIONS, None, sites, is_direct=is_direct)
    found, why = needs.in_allocation(alone, sites, "d", "r", before)
    Hints.from_config(found.config)
    assert (found == alone) is (why == "")
    return found if why else None


@pytest.mark.parametrize(
    ("before", "asked", "is_shared"),
    [
        (past(*[2] * 20, wait=60), {}, True),
        (past(*[2] * 20, wait=1), {}, False),
        (past(*[2] * 20), {}, False),  # the queue is not known
        (past(*[2] * 20, launched=60), {}, True),  # all were in allocations lately
        (past(*[2] * 20, launched=1), {}, False),
        (past(wait=60), {}, False),  # the rule is not known
        (past(2, 2, 2, 2, wait=60), {}, False),
        (past(wait=600), {"runtime": 5}, True),  # it states that it is short
        (past(wait=200), {"runtime": 5}, False),
        (past(wait=9000), {"runtime": 60}, False),  # and that it is not
        (past(*[2] * 20, wait=60), {"runtime": 60}, True),  # which the past knows better
        (past(*[2000] * 20, wait=9000), {}, False),
        (past(*[2] * 15, *[500] * 5, wait=60), {}, False),  # some are long
        (past(*[2] * 20, wait=60, queue="short"), {"slurm_partition": "short"}, True),
        (past(*[2] * 20, wait=60), {"slurm_partition": "short"}, False),  # that queue is another
        (past(*[2] * 20, wait=60), {"slurm_account": "astro", "qos": "long", "constraint": "ssd"}, True),
        (past(*[2] * 20, wait=60), {"slurm_extra": "--exclusive"}, False),
        (past(*[2] * 20, wait=60), {"gres": "lscratch:1"}, False),
        (past(*[2] * 20, wait=60), {"gpu": 1}, False),
        (past(*[2] * 20, wait=60), {"tasks": 4, "mpi": "srun"}, False),
        (past(*[2] * 20, wait=60), {"nodes": 2}, False),
    ],
)
def test_short_jobs_share_allocations_where_they_wait_longer_than_they_run(
    before: PastJobs, asked: dict[str, Any], is_shared: bool
) -> None:
    assert (shared(before, **asked) is not None) is is_shared


@pytest.mark.parametrize("system", ["pbspro", "torque", "lsf", "sge"])
def test_jobs_of_all_batch_systems_share_allocations_by_account(system: str) -> None:
    assert shared(past(*[2] * 20, wait=60), system, slurm_account="astro") is not None


def test_what_a_job_is_in_an_allocation() -> None:
    before = past(*[2] * 20, wait=60)
    found = shared(before)
    assert found is not None
    assert found.config["lading"]["targets"] == ["hpc-allocations", "hpc"], "without room for long it is a batch job"
    assert found.columns == {"memory_limit": 512 + 16}, "as it was asked for"
    assert "time" in found.chosen, "where the allocation ends before it, that is no failure"
    found = shared(before, is_direct=False, mem_mib=1000, runtime=30, lading_site="hpc")
    assert found is not None
    assert (found.columns, found.chosen) == ({"memory_limit": 1256}, frozenset())
    assert "site" not in found.config["lading"]


def test_what_a_rule_should_ask_for_is_written_as_in_a_snakefile() -> None:
    used, by_size = Usage(), Usage()
    for number in range(1, 21):
        used.add(Use(2, 4000, 100.0, peak_memory=600, cpu_seconds=200.0))
        by_size.add(
            Use(1, 9000, 100.0, peak_memory=100 + 200 * number, cpu_seconds=90.0, input_size=number * 100 * MIB)
        )
    line = needs.rule_line(sizes(used))
    assert line is not None
    assert re.fullmatch(r"threads: 2; resources: mem_mib=6\d\d, runtime=3", line)
    line = needs.rule_line(sizes(by_size))
    assert line is not None
    memory = line.partition("mem_mib=")[2].rpartition(", runtime")[0]
    amounts = [eval(memory)({}, SimpleNamespace(size=size * 100 * MIB)) for size in (1, 10, 20)]
    assert [each.is_integer() for each in map(float, amounts)] == [True] * 3
    assert all(least <= each < 1.3 * least + 64 for least, each in zip((300, 2100, 4100), amounts, strict=True))
    assert needs.rule_line(sizes(Usage())) is None
