"""Airflow's tasks as jobs of a real SLURM and a real Grid Engine, whose user comes in through a real sshd."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

import lading.example_dags
from tests.services import debian, node_python, processes, tutorials
from tests.services.account import Account
from tests.services.airflow import Airflow
from tests.services.chromium import Window, chromium
from tests.services.gridengine import GridEngine
from tests.services.slurm import Slurm
from tests.services.sshd import Sshd

DAGS = Path(__file__).parent / "dags"
PRIVATE_DAGS = Path(__file__).parent / "private_dags"
EXAMPLE = Path(lading.example_dags.__path__[0]) / "cluster_sketches.py"
# A machine that is busy with something else is slow; that is no failure.
expect.set_options(timeout=60_000)


@pytest.fixture(scope="module")
def diary(account: Account) -> Path:
    folder = account.folder / "diary"
    folder.mkdir()
    return account.own(folder)


@pytest.fixture(scope="module")
def lab() -> Iterator[Sshd]:
    """A machine of another user, whose files the nodes of the clusters cannot read."""
    with Account() as other, Sshd(other) as service:
        yield service


@pytest.fixture(scope="module")
def cluster(
    account: Account,
    slurm: Slurm,
    slurm_login: Sshd,
    gridengine: GridEngine,
    gridengine_login: Sshd,
    lab: Sshd,
    diary: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Airflow]:
    """An Airflow whose sites are two clusters; the nodes read its Dags."""
    home = tmp_path_factory.mktemp("airflow-cluster")
    dags = account.folder / "dags"
    dags.mkdir()
    for path in (*DAGS.glob("*.py"), EXAMPLE):
        (dags / path.name).write_text(path.read_text())
    example = EXAMPLE.read_text().replace("cluster_sketches()", "sketches_on_sge()").replace('"hpc")', '"sge")')
    (dags / "sketches_on_sge.py").write_text(example)
    python = node_python.make(account)
    setup = f"export AIRFLOW_HOME={account.home}/airflow AIRFLOW__CORE__DAGS_FOLDER={dags} CLUSTER_DIARY={diary}"
    setup += " GREETING=hello"
    (home / "sites.toml").write_text(
        f"""
        [sites.local]
        enabled = false

        [sites.hpc]
        kind = "slurm"
        ssh_conn_id = "hpc"
        work_dir = "{account.home}/lading"
        python = "{python}"
        queue = "batch"
        node_cpus = 8
        node_memory = 16000
        max_poll_interval = 4
        kill_grace = 5
        setup = "{setup}"

        [sites.synced]
        kind = "slurm"
        ssh_conn_id = "hpc"
        work_dir = "{account.home}/lading-synced"
        python = "{python}"
        node_cpus = 8
        node_memory = 16000
        max_poll_interval = 4
        setup = "export AIRFLOW_HOME={account.home}/airflow"
        dags = "sync"
        max_bundle_size = "1 MiB"

        [sites.packed]
        kind = "slurm"
        mode = "allocation"
        max_allocations = 1
        idle_seconds = 15
        ssh_conn_id = "hpc"
        work_dir = "{account.home}/lading-packed"
        python = "{python}"
        node_cpus = 8
        node_memory = 16000
        max_poll_interval = 4
        kill_grace = 5
        setup = "{setup}"

        [sites.sge]
        kind = "sge"
        ssh_conn_id = "sge"
        work_dir = "{account.home}/lading-sge"
        python = "{python}"
        parallel_environment = "smp"
        node_cpus = 8
        node_memory = 16000
        max_poll_interval = 4
        setup = "{setup}"

        [sites.barred]
        kind = "slurm"
        accept_untargeted = false
        ssh_conn_id = "hpc"
        work_dir = "{account.home}/lading-barred"
        python = "{python}"
        node_cpus = 8
        node_memory = 16000
        max_poll_interval = 4
        resources = {{account = "nosuch"}}
        setup = "{setup}"

        [sites.lab]
        kind = "ssh"
        accept_untargeted = false
        hosts = [{{ssh_conn_id = "lab", cpus = 2, memory = 2000}}]
        work_dir = "{lab.account.home}/lading"
        python = "{python}"
        setup = "export AIRFLOW_HOME=$HOME/airflow AIRFLOW__CORE__DAGS_FOLDER={dags}"
        """
    )
    private = home / "private"
    shutil.copytree(PRIVATE_DAGS, private)
    private.chmod(0o700)
    local = "airflow.dag_processing.bundles.local.LocalDagBundle"
    bundles = [
        {"name": "dags-folder", "classpath": local, "kwargs": {}},
        {"name": "private", "classpath": local, "kwargs": {"path": str(private)}},
    ]
    config = {
        "dag_processor.dag_bundle_config_list": json.dumps(bundles),
        "lading.sites_file": home / "sites.toml",
    }
    components = ("dag-processor", "scheduler", "api-server")
    swept_soon = {"lading.executors.locality.staging.SWEEP_INTERVAL": 2.0}
    service = Airflow(home, dags=dags, config=config, components=components, preloaded=True, constants=swept_soon)
    service.environment["AIRFLOW_CONN_HPC"] = slurm_login.connection()
    service.environment["AIRFLOW_CONN_SGE"] = gridengine_login.connection()
    service.environment["AIRFLOW_CONN_LAB"] = lab.connection()
    with service:
        yield service
    slurm.wait_until_free()


def wait_until_ended(cluster: Airflow, dag: str, run: str) -> list[tuple[str, str]]:
    """Site and state of each job of a run, once all have ended: the next poll sees that, a moment after Airflow."""
    jobs: list[tuple[str, str]] = []

    def ended() -> bool:
        rows = json.loads(cluster.lading("jobs", "--run-id", run, "--dag-id", dag, "--output", "json"))
        jobs[:] = [(row["site"], row["state"]) for row in rows]
        return all(state in ("succeeded", "failed", "cancelled") for _, state in jobs)

    processes.wait_until(ended, 30, 2)
    return jobs


def test_a_mapped_task_runs_as_a_job_array(cluster: Airflow, account: Account) -> None:
    cluster.wait_for_dag("squares")
    run = cluster.trigger("squares")
    assert cluster.wait_for_run("squares", run, timeout=240) == "success"
    assert cluster.xcom("squares", run, "total") == sum(number**2 for number in range(4))

    def copied() -> bool:
        return all(
            f"square of {each} in job" in cluster.logs("squares", run, "square", map_index=each) for each in (0, 3)
        )

    assert processes.wait_until(copied, 30, 0.5), "the log is on Airflow's page"
    assert wait_until_ended(cluster, "squares", run) == [("hpc", "succeeded")] * 5
    folder = account.home / "lading"
    left = ("spool/inbox", "spool/events", "spool/jobs", "submissions", "logs")
    assert processes.wait_until(lambda: not any(any((folder / name).iterdir()) for name in left), 30, 0.5)
    assert (folder.stat().st_mode & 0o777, (folder / "spool").stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_cluster_that_does_not_admit_its_account_is_left_out(cluster: Airflow, slurm: Slurm) -> None:
    cluster.wait_for_dag("elsewhere")
    run = cluster.trigger("elsewhere")
    assert cluster.wait_for_run("elsewhere", run, timeout=240) == "success", "its only try was not spent"
    assert wait_until_ended(cluster, "elsewhere", run) == [("hpc", "succeeded")]
    why = "slurm does not allow its account: sbatch: error: Batch job submission failed: Invalid account"
    assert processes.wait_until(lambda: why in cluster.lading("sites", "--output", "json"), 60, 2)
    slurm.wait_until_free()


def test_each_job_has_a_folder_of_its_own(cluster: Airflow, account: Account, diary: Path, slurm: Slurm) -> None:
    cluster.wait_for_dag("own_folders")
    run = cluster.trigger("own_folders")
    assert cluster.wait_for_run("own_folders", run, timeout=240) == "failed"
    for site in ("hpc", "packed", "sge"):
        found = cluster.xcom("own_folders", run, f"works_{site}")
        assert isinstance(found, list)
        folder, temporary = map(Path, found)
        assert folder == temporary
        assert folder.parent.name == f"lading-{account.uid}"
        assert not folder.exists(), (
            f"that of a job that has succeeded at {site} is deleted before its end reaches Airflow"
        )
    kept = [Path(each.read_text()) for each in diary.glob("breaks_*")]
    assert len({*kept}) == 3
    try:
        assert [(each / "data").read_text() for each in kept] == ["what was there"] * 3
    finally:
        for each in kept:
            shutil.rmtree(each, ignore_errors=True)
            each.with_suffix(".kept").unlink(missing_ok=True)
    slurm.wait_until_free(60)


def test_what_nodes_cannot_read_is_brought_to_their_cluster_once(cluster: Airflow, account: Account) -> None:
    cluster.wait_for_dag("reads_elsewhere")
    run = cluster.trigger("reads_elsewhere")
    assert cluster.wait_for_run("reads_elsewhere", run, timeout=240) == "success", cluster.logs(
        "reads_elsewhere", run, "read", map_index=0
    )
    found = [cluster.xcom("reads_elsewhere", run, "read", map_index=number) for number in range(2)]
    paths = {str(each[0]) for each in found if isinstance(each, list)}
    assert (len(paths), {str(each[1]) for each in found if isinstance(each, list)}) == (1, {"True"})
    folder = account.home / "lading/inputs"
    assert paths.pop().startswith(str(folder))
    assert processes.wait_until(lambda: not list(folder.glob("*")), 120, 0.5), "no run needs it any more"


RANKS = r"""
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    int rank, size;
    char mine[32] = "", *all;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    snprintf(mine, sizeof mine, "%s", getenv("SLURMD_NODENAME"));
    all = calloc(size, sizeof mine);
    MPI_Gather(mine, sizeof mine, MPI_CHAR, all, sizeof mine, MPI_CHAR, 0, MPI_COMM_WORLD);
    for (int i = 0; rank == 0 && i < size; i++) printf("%s%c", all + i * sizeof mine, i < size - 1 ? ' ' : '\n');
    return MPI_Finalize();
}
"""


@pytest.fixture
def ranks(account: Account) -> Path:
    """A program of MPI that says on which node each of its processes runs."""
    try:
        debian.install("mpich", "libmpich-dev", "gcc", "libc6-dev")
    except debian.MissingPackagesError as error:
        pytest.skip(str(error))
    source, program = account.folder / "ranks.c", account.folder / "ranks"
    source.write_text(RANKS)
    subprocess.run(["mpicc.mpich", "-o", program, source], check=True)
    program.chmod(0o755)
    return program


def test_mpi_in_a_task_sees_all_nodes_of_its_job(cluster: Airflow, ranks: Path) -> None:
    cluster.wait_for_dag("several_nodes")
    run = cluster.trigger("several_nodes")
    state = cluster.wait_for_run("several_nodes", run, timeout=240)

    tasks = ("stepped", "ranks", "granted", "alone")

    def logs() -> str:
        return "\n".join(cluster.logs("several_nodes", run, each) for each in tasks)

    assert state == "success", logs()
    found = {each: cluster.xcom("several_nodes", run, each) for each in tasks}
    first, second = sorted(set(found["ranks"].split()))
    assert found["ranks"].split() == [first, first, second, second]
    # The environment of the task reaches what srun starts.
    assert found["stepped"].split().count("hello") == 4, found["stepped"]
    assert len({*found["stepped"].split()} - {"hello"}) == 2
    assert found["alone"] == "both"
    number, *counts = found["granted"].split()
    assert (int(number), set(counts[::2])) == (len(counts) // 2, {"2"}), "srun starts ppn on each node that was granted"
    assert 2 <= int(number) <= 4
    assert processes.wait_until(lambda: " none\n" in logs(), 30, 0.5), "the log is on Airflow's page"


def test_tasks_that_are_ended_say_why(cluster: Airflow, diary: Path, slurm: Slurm) -> None:
    cluster.wait_for_dag("ended")
    run = cluster.trigger("ended")
    assert processes.wait_until(lambda: (diary / "marked").exists() and (diary / "victim").exists(), 120, 0.2)
    cluster.wait_for_task("ended", run, "marked", "running")
    body = {"new_state": "failed"}
    cluster.rest("PATCH", f"dags/ended/dagRuns/{run}/taskInstances/marked", body)
    subprocess.run(
        ["scancel", (diary / "victim").read_text()], env={"PATH": "/usr/bin:/bin", **slurm.environment}, check=True
    )
    assert cluster.wait_for_run("ended", run, timeout=180) == "failed"
    pid = int((diary / "marked").read_text())
    assert processes.wait_until(lambda: not processes.lives(pid), 30, 0.2)

    def causes() -> dict[str, str]:
        events = cluster.events("ended", run)
        return {each["task_id"]: each["event"] for each in events if each["event"].startswith("lading ")}

    expected = {
        "hog": "lading out_of_memory",
        "dawdler": "lading time_limit",
        "cancelled_at_the_site": "lading cancelled",
    }
    assert processes.wait_until(lambda: expected.items() <= causes().items(), 60, 0.5), causes()
    assert processes.wait_until(lambda: "its limit is 500 MiB" in cluster.logs("ended", run, "hog"), 60, 0.5)
    slurm.wait_until_free()


def test_a_dag_is_brought_to_nodes_that_cannot_read_it(cluster: Airflow, account: Account) -> None:
    cluster.wait_for_dag("brought")
    run = cluster.trigger("brought")
    assert cluster.wait_for_run("brought", run, timeout=180) == "success", cluster.logs("brought", run, "tell")
    told = cluster.xcom("brought", run, "tell")
    assert isinstance(told, dict)
    [folder] = (account.home / "lading-synced/bundles").iterdir()
    assert told["file"] == str(folder / "brought.py")
    assert told["step"] == "read from the bundle\n" * 2, "the task's own step has what the task has"
    assert "SLURM_JOB_ID" in told["names"]
    assert not {"SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_EXPORT_ENV", "SLURM_JOBID"} & set(told["names"])


def test_a_node_that_fails_costs_no_try(cluster: Airflow, diary: Path, slurm: Slurm) -> None:
    cluster.wait_for_dag("failing_node")
    run = cluster.trigger("failing_node")
    assert processes.wait_until((diary / "survivor-1").exists, 120, 0.2)
    cluster.wait_for_task("failing_node", run, "survivor", "running")
    queue, comment, node = slurm.command("squeue", "-h", "-t", "R", "-p", "short", "-o", "%P|%k|%N").strip().split("|")
    assert (queue, comment) == ("short", "of the author")
    slurm.scontrol("update", f"NodeName={node}", "State=DOWN", "Reason=test")
    try:
        assert cluster.wait_for_run("failing_node", run, timeout=180) == "success"
    finally:
        with contextlib.suppress(RuntimeError):  # it may be up again by itself
            slurm.resume_node(node)
    assert (diary / "survivor-2").exists()
    told = {each["event"]: each["extra"] for each in cluster.events("failing_node", run)}
    assert "not the task's fault" in told["lading gives the try back"]
    assert "lading node_failure" in told


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


def see_the_allocation(cluster: Airflow, run: str, browser: Browser) -> None:
    """What the page shows of a run in an allocation: its machine, its native id, and the phases of a try."""
    window = Window(browser, cluster.url, height=1300)
    page = window.open(f"/dags/packed/runs/{run}/tasks/square/mapped/0/plugin/lading-task")
    facts = page.locator("[data-testid=lading] dl")
    for words in ("succeeded", "packed /", "lading script --dag packed --task square"):
        expect(facts).to_contain_text(words)
    expect(page.get_by_text("waits for its machine").first).to_be_visible()
    batch_job = facts.locator("dt", has_text="Native id").locator("xpath=following-sibling::dd[1]").inner_text()
    assert batch_job.isdigit()
    page = window.go("/plugin/lading?view=machines")
    page.wait_for_selector("[data-testid=packing-chart][data-redraw-ms]")
    tips = page.evaluate(
        "() => { const chart = document.querySelector('[data-testid=packing-chart]').packingChart;"
        " return chart.shown.spans.map((_, index) => chart.tip('machines', index)); }"
    )
    assert [tip for tip in tips if "packed/" in tip and f"batch job {batch_job}" in tip]
    page = window.go("/plugin/lading")
    expect(page.get_by_role("table", name="Sites")).to_contain_text(re.compile("max_allocations: [01] of 1"))
    page = window.go("/plugin/lading?view=jobs&dag=packed")
    expect(page.get_by_role("table", name="Jobs", exact=True)).to_contain_text(batch_job)
    if "LADING_PICTURES" in os.environ:
        window.picture(Path(os.environ["LADING_PICTURES"]) / "allocation.png")
    assert window.faults == []
    page.close()


def test_tasks_are_packed_into_an_allocation(
    cluster: Airflow, account: Account, slurm: Slurm, browser: Browser
) -> None:
    cluster.wait_for_dag("packed")
    run = cluster.trigger("packed")
    assert cluster.wait_for_run("packed", run, timeout=240) == "success"
    told = cluster.xcom("packed", run, "tell")
    assert told == {"sum": sum(number**2 for number in range(20)), "batch_jobs": 1}
    events = {(each["task_id"], each["event"]) for each in cluster.events("packed", run)}
    assert ("dawdler", "lading time_limit") in events
    see_the_allocation(cluster, run, browser)

    def copied() -> bool:
        return all(
            f"square of {each} with 1 thread" in cluster.logs("packed", run, "square", map_index=each)
            for each in (0, 19)
        )

    assert processes.wait_until(copied, 30, 0.5), "the log is on Airflow's page"
    slurm.wait_until_free(60)  # it ends by itself
    folder = account.home / "lading-packed"
    left = ("allocations", "claims", "logs", "incoming")
    assert processes.wait_until(lambda: not any(any((folder / name).iterdir()) for name in left), 90, 0.5)


def test_an_allocation_is_drained_and_terminated_on_the_page(cluster: Airflow, slurm: Slurm, browser: Browser) -> None:
    cluster.wait_for_dag("held")
    run = cluster.trigger("held")
    cluster.wait_for_task("held", run, "holds", "running", timeout=240)
    window = Window(browser, cluster.url, height=1300)
    page = window.open("/plugin/lading?view=machines")
    machines = page.get_by_role("table", name="Machines")
    row = machines.locator("tbody tr", has_text="packed/")
    expect(row).to_contain_text("1 / 1")
    machine = row.locator("td").first.get_by_role("link").inner_text()
    native = machines.locator("thead th").all_inner_texts().index("Node, native id")
    batch_job = row.locator("td").nth(native).inner_text().split()[-1]
    assert "RUNNING" in slurm.command("squeue", "-h", "-o", "%T", "-j", batch_job)
    asked = page.get_by_role("table", name="Requests")

    def ask(label: str) -> None:
        row.get_by_role("button", name=label).click()
        page.get_by_role("alertdialog").get_by_role("button").first.click()
        expect(asked.locator("tbody tr").first).to_contain_text(f"{label.lower()} packed/")
        expect(asked.locator("tbody tr").first).not_to_contain_text("has not processed it yet")

    ask("Drain")
    expect(row).to_contain_text("draining")
    assert "RUNNING" in slurm.command("squeue", "-h", "-o", "%T", "-j", batch_job), "its job goes on"
    if "LADING_PICTURES" in os.environ:
        window.picture(Path(os.environ["LADING_PICTURES"]) / "drained.png")
    ask("Terminate")
    expect(page.get_by_role("table", name="Machines").locator("tr", has_text=machine)).to_have_count(0)
    if "LADING_PICTURES" in os.environ:
        window.picture(Path(os.environ["LADING_PICTURES"]) / "terminated.png")
    assert window.faults == []
    page.close()
    assert cluster.wait_for_run("held", run, timeout=240) == "success"
    assert cluster.xcom("held", run, "holds") != batch_job, "the next try ran in another allocation"
    slurm.wait_until_free(60)


@pytest.mark.parametrize(("site", "folder"), [("hpc", "lading"), ("packed", "lading-packed")])
def test_check_tries_a_job(cluster: Airflow, account: Account, slurm: Slurm, site: str, folder: str) -> None:
    found = cluster.lading("check", site, "--timeout", "300", "--output", "json")
    tried = {"hpc": "a trial job and an array of 2 ran", "packed": "a trial job ran"}
    assert f"{tried[site]}; there is room" in found
    assert not list((account.home / folder).glob("lading-check-*"))
    slurm.wait_until_free()


def test_the_example_runs_on_both_batch_systems(cluster: Airflow) -> None:
    made = []
    runs = {"hpc": "cluster_sketches", "sge": "sketches_on_sge"}
    for dag in runs.values():
        cluster.wait_for_dag(dag)
    started = {site: cluster.trigger(dag, {"samples": 3}) for site, dag in runs.items()}
    for site, dag in runs.items():
        assert cluster.wait_for_run(dag, started[site], timeout=240) == "success"
        assert wait_until_ended(cluster, dag, started[site]) == [(site, "succeeded")] * 5
        made.append(cluster.xcom(dag, started[site], "tree"))
    assert made[0] == made[1], "the nodes have the same Python"
    assert set(made[0]) == {"tree", "nearest", "distance"}
    assert made[0]["tree"].count(":") == 4, "three leaves and a fork"
    *_, listed = tutorials.follow(cluster, "slurm.md", {"cluster_sketches": started["hpc"]}.__getitem__)
    assert "sketch" in listed
